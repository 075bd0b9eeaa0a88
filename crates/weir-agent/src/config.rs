//! The configuration file in TOML. Each key is checked, and an error names the place and the reason.

mod access;
mod agreements;
mod api;
mod capacity;
mod check;
mod classes;
mod discover;
mod download;
mod exempt;
mod fault;
mod framing;
mod keys;
mod kubernetes;
mod labels;
mod links;
mod names;
mod places;
pub mod secrets;
mod selector;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use weir_datapath::engine;
use weir_discovery::units::{SliceName, UnitName};
use weir_share::{AllocatorKind, Policy, Reservable, Weight};
use weir_units::{BitRate, Bytes, Framing, plain_words};

use crate::agent::audit::Bounds;
use check::check;
pub use classes::check_interface;
use fault::fault;
use keys::{Keys, keys_of};
use secrets::without_secrets;

pub use access::Rights;
pub(crate) use access::{Access, GROUP, Right};
pub(crate) use agreements::{Agreements, Decide};
pub(crate) use api::{Api, Pem, Place};
pub(crate) use capacity::{Follows, in_words};
pub(crate) use discover::Discover;
pub(crate) use exempt::Exempt;
pub(crate) use keys::hidden as hidden_value;
pub(crate) use kubernetes::{Kubernetes, check_server, is_node};
pub(crate) use labels::{Granted, Labels, by_namespace, grant, within};
pub(crate) use names::{is_name, no_name};
pub(crate) use places::places;
pub(crate) use selector::Selector;

/// The values of a policy. A missing value comes from the next weaker origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
}

impl Layer {
    pub(crate) fn policy(self) -> Result<Policy, weir_share::PolicyError> {
        Policy::new(self.weight.unwrap_or_default(), self.min, self.max)
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Layer::default()
    }
}

/// `[defaults]`, `[host]` and `[default]`: a policy for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Section {
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
    /// The policy of what arrives.
    #[serde(default)]
    pub(crate) down: Layer,
}

impl Section {
    pub(crate) fn layer(self) -> Layer {
        Layer { weight: self.weight, min: self.min, max: self.max }
    }
}

impl From<Layer> for Section {
    fn from(Layer { weight, min, max }: Layer) -> Section {
        Section { weight, min, max, down: Layer::default() }
    }
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The shared link, with the others of the file.
    #[serde(deserialize_with = "links::one_or_more")]
    pub(crate) link: Link,
    #[serde(default)]
    pub(crate) agent: Agent,
    #[serde(default)]
    pub(crate) discover: Discover,
    /// Without this section the agent asks no cluster.
    pub(crate) kubernetes: Option<Kubernetes>,
    /// The limits of labels.
    #[serde(default)]
    pub(crate) labels: Labels,
    /// The default policy of classes.
    #[serde(default)]
    pub(crate) defaults: Section,
    /// The host's own traffic.
    #[serde(default)]
    pub(crate) host: Section,
    /// Traffic that belongs to no class.
    #[serde(default)]
    pub(crate) default: Section,
    #[serde(default, rename = "group")]
    pub(crate) groups: Vec<Group>,
    #[serde(default, rename = "class")]
    pub(crate) classes: Vec<ClassConfig>,
    /// The rules of congestion control.
    #[serde(default)]
    pub(crate) congestion: Vec<weir_cc::Rule>,
    /// Without this section there are no trials.
    pub(crate) advice: Option<weir_cc::AdviceSettings>,
    /// Without this section the node makes no agreements.
    pub(crate) agreements: Option<Agreements>,
    /// Without this section the node has no image cache.
    pub(crate) images: Option<weir_image::Settings>,
    #[serde(default)]
    pub(crate) access: Access,
    #[serde(default)]
    pub(crate) api: Api,
    /// The file's keys with their values as text, for the audit.
    #[serde(skip)]
    pub(crate) keys: Keys,
}

impl Config {
    /// The allocator of `[link]`, unless agreements require another one for the spare capacity.
    pub(crate) fn allocator(&self) -> AllocatorKind {
        match &self.agreements {
            Some(Agreements { share: weir_agree::Share::Additive, .. }) => AllocatorKind::Additive,
            _ => self.link.allocator,
        }
    }
}

/// `[link]`, or one of the `[[link]]` tables.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    #[serde(default)]
    pub(crate) device: String,
    #[serde(default, rename = "capacity")]
    given: capacity::Given,
    /// The rate to divide, or the highest one of a link whose rate changes.
    #[serde(skip)]
    pub(crate) capacity: BitRate,
    /// The bounds of a link whose rate changes.
    #[serde(skip)]
    pub(crate) follows: Option<Follows>,
    #[serde(rename = "download")]
    given_download: Option<capacity::Given>,
    /// The same of what arrives. Without it nothing is done to what arrives.
    #[serde(skip)]
    pub(crate) download: Option<BitRate>,
    /// The same of what arrives.
    #[serde(skip)]
    pub(crate) download_follows: Option<Follows>,
    /// Whether packets that the download's queues drop are charged.
    #[serde(default)]
    pub(crate) charge_drops: bool,
    /// The framing of the line behind the link, by its name.
    #[serde(default, deserialize_with = "framing::preset")]
    framing: Option<Framing>,
    /// The same in numbers: bytes around each IP packet.
    overhead: Option<i32>,
    /// The least bytes of a packet on the line.
    mpu: Option<u32>,
    /// Whether the line carries ATM cells.
    atm: Option<bool>,
    #[serde(default)]
    pub(crate) engine: engine::Choice,
    /// How engine `bpf-credit` hands out credit.
    #[serde(default)]
    pub(crate) form: Option<engine::Form>,
    #[serde(default)]
    pub(crate) allocator: AllocatorKind,
    #[serde(default)]
    pub(crate) attach: Attach,
    #[serde(default = "delay_ms")]
    pub(crate) delay_ms: u32,
    #[serde(default)]
    pub(crate) reservable: Reservable,
    #[serde(default, deserialize_with = "networks")]
    pub(crate) local: Vec<IpNet>,
    #[serde(default)]
    pub(crate) exempt: Exempt,
    #[serde(default)]
    pub(crate) charge_local: bool,
    #[serde(default)]
    pub(crate) split: Split,
    /// The number of transmit queues of the scheduler's device.
    #[serde(default = "one")]
    pub(crate) queues: u32,
    #[serde(default)]
    pub(crate) pacing: bool,
    /// Whether a scheduler thread in the agent has priority over other processes.
    #[serde(default = "yes")]
    pub(crate) priority: bool,
    /// The other links of the file. The default route does not take them now.
    #[serde(skip)]
    pub(crate) others: Vec<Link>,
}

impl Link {
    /// The shared capacities in words, for the log.
    pub(crate) fn in_words(&self) -> String {
        let one = |link: &Link| {
            let down = link.of_download().map(|down| down.capacity_in_words());
            let download = down.map(|rate| format!(", and {rate} of what arrives there"));
            format!("{} on {}{}", link.capacity_in_words(), link.device, download.unwrap_or_default())
        };
        format!("sharing {}", self.all().map(one).collect::<Vec<_>>().join("; "))
    }

    /// The engine in the form that is asked for. `None` if that engine has no forms.
    pub(crate) fn choice(&self) -> Option<engine::Choice> {
        match self.form {
            Some(form) => self.engine.in_form(form),
            None => Some(self.engine),
        }
    }
}

/// `attach = ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Attach {
    #[default]
    Auto,
    Tcx,
    Clsact,
}

/// `split = ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Split {
    #[default]
    Auto,
    Always,
    Never,
}

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Agent {
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
    /// The size of one file of the audit.
    pub(crate) audit_size: Bytes,
    /// The number of files of the audit.
    pub(crate) audit_files: u32,
    pub(crate) at_end: AtEnd,
}

/// `at_end = ...`: what becomes of the division when the agent is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AtEnd {
    /// The network is as before the agent.
    #[default]
    Restore,
    /// The division stays in force for the next agent.
    Keep,
}

impl Agent {
    /// The bounds of the audit.
    pub(crate) fn audit(&self) -> Bounds {
        Bounds { size: self.audit_size.0, files: self.audit_files as usize }
    }
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            socket: weir_api::DEFAULT_SOCKET.into(),
            state: "/var/lib/weir".into(),
            audit_size: Bytes(8 << 20),
            audit_files: 8,
            at_end: AtEnd::Restore,
        }
    }
}

/// `[[group]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
    /// The policy of what arrives.
    #[serde(default)]
    pub(crate) down: Layer,
}

/// `[[class]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassConfig {
    pub(crate) name: String,
    pub(crate) group: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) cgroup: Option<PathBuf>,
    /// A unit of systemd, by its cgroup.
    pub(crate) unit: Option<UnitName>,
    /// A slice of systemd, by its cgroup.
    pub(crate) slice: Option<SliceName>,
    /// Selectors of its packets, from any sender.
    #[serde(default, rename = "match", deserialize_with = "selector::one_or_more")]
    pub(crate) selectors: Vec<Selector>,
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
    /// The policy of what arrives.
    #[serde(default)]
    pub(crate) down: Layer,
}

impl Group {
    pub(crate) fn layer(&self) -> Layer {
        Layer { weight: self.weight, min: self.min, max: self.max }
    }
}

impl ClassConfig {
    pub(crate) fn layer(&self) -> Layer {
        Layer { weight: self.weight, min: self.min, max: self.max }
    }

    /// Whether this is the configuration of the class with this source and name. A class with `match`
    /// has its own name, which a container may have too.
    pub(crate) fn is_about(&self, source: &str, name: &str) -> bool {
        let own = self.selectors.is_empty() || source == "config";
        own && (self.name == name || self.name.split_once(':') == Some((source, name)))
    }

    /// Whether the class itself names its traffic, not a container.
    pub(crate) fn is_static(&self) -> bool {
        self.interface.is_some() || self.names_processes() || !self.selectors.is_empty()
    }

    /// Whether the class is one of processes of this host.
    pub(crate) fn names_processes(&self) -> bool {
        self.cgroup.is_some() || self.unit.is_some() || self.slice.is_some()
    }
}

/// Reads a network in CIDR notation; an address is a network of one.
fn network(text: &str) -> Result<IpNet, String> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map_err(|_| format!("cannot read `{text}` as a network: write it as 10.0.0.0/8 or fd00::/8"))
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let read = |text: String| network(&text).map_err(serde::de::Error::custom);
    Vec::<String>::deserialize(deserializer)?.into_iter().map(read).collect()
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn delay_ms() -> u32 {
    50
}

/// The error of a file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConfigError {
    #[error(
        "cannot read configuration {path}: there is no such file (`weir agent --print-config > {path}` writes one to fill in)"
    )]
    Missing { path: PathBuf },
    #[error("cannot read configuration {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot use configuration {path}: {detail}")]
    Syntax { path: PathBuf, detail: String },
    #[error("cannot use configuration {path}: {what}: {detail}")]
    Value { path: PathBuf, what: String, detail: String },
    /// This node lacks something that the file names.
    #[error("cannot use configuration {path}: {why}")]
    Unusable { path: PathBuf, why: String },
    /// A device is not there, and may come, as a modem does after the boot.
    #[error("cannot use configuration {path}: {why}")]
    Absent { path: PathBuf, why: String },
}

impl ConfigError {
    /// Whether a later start with this file meets the same error.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !matches!(self, ConfigError::Absent { .. })
    }
}

/// The largest configuration that is read, bytes.
const LARGEST: u64 = 16 << 20;

/// Reads the file's text. Opening a named pipe waits for its writer. One below /dev or /proc is open already.
fn read(path: &Path) -> Result<String, ConfigError> {
    use std::{io::Read as _, os::unix::fs::FileTypeExt as _};
    let is_open = path.starts_with("/dev") || path.starts_with("/proc");
    if !is_open && std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(unread(
            path,
            std::io::Error::other("it is a named pipe: write the configuration into a file"),
        ));
    }
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 <= LARGEST => Ok(text),
        Ok(_) => Err(unread(path, std::io::Error::other(format!("it has more than {LARGEST} bytes")))),
        Err(source) => Err(unread(path, source)),
    }
}

fn unread(path: &Path, source: std::io::Error) -> ConfigError {
    let path = path.to_owned();
    match source.kind() {
        std::io::ErrorKind::NotFound => ConfigError::Missing { path },
        _ => ConfigError::Read { path, source },
    }
}

/// The error shows the line of its place, without secrets.
fn unparsed(path: &Path, error: &toml::de::Error) -> ConfigError {
    let shown = error.to_string();
    let lines: Vec<String> = shown.trim_end().lines().map(|line| without_secrets(line, "(hidden)")).collect();
    ConfigError::Syntax { path: path.to_owned(), detail: plain_words(&lines.join("\n")) }
}

/// Reads and checks a configuration file.
pub(crate) fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = read(path)?;
    parse(&text, path)
}

/// Reads the file of a running agent, whose loop waits for it. A pipe without a writer would hold the loop.
pub(crate) fn load_again(path: &Path) -> Result<Config, ConfigError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => load(path),
        Ok(_) => Err(unread(path, std::io::Error::other("it is not a regular file"))),
        Err(source) => Err(unread(path, source)),
    }
}

/// Reads only `[images]` and `[access]`, for a cache without an agent. The rest of the file is not
/// checked.
///
/// # Errors
/// [`ConfigError`].
pub fn load_images(path: &Path) -> Result<(weir_image::Settings, Rights), ConfigError> {
    #[derive(Deserialize)]
    struct Alone {
        images: Option<weir_image::Settings>,
        #[serde(default)]
        access: Access,
    }
    let text = read(path)?;
    let alone: Alone = toml::from_str(&text).map_err(|e| unparsed(path, &e))?;
    let value = |(what, detail)| ConfigError::Value { path: path.to_owned(), what, detail };
    let missing = || fault("[images]", "there is no such section (docs/weir.toml shows one)");
    let images = alone.images.ok_or_else(|| value(missing()))?;
    images.check().map_err(value)?;
    let unusable = |why| ConfigError::Unusable { path: path.to_owned(), why };
    Ok((images.for_unit(), alone.access.rights().map_err(unusable)?))
}

/// Parses and checks a configuration. `path` is for the error.
///
/// # Errors
/// [`ConfigError`].
pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let mut config: Config = toml::from_str(text).map_err(|e| unparsed(path, &e))?;
    config
        .link
        .take_capacity()
        .and_then(|()| check(&config))
        .map_err(|(what, detail)| ConfigError::Value { path: path.to_owned(), what, detail })?;
    // From here on an engine and its form are one choice.
    config.keys = Keys(keys_of(text));
    config.link.settle_engine();
    Ok(config)
}

/// The group of all classes without an agreement. It exists if agreements limit these to a ceiling.
pub(crate) const OTHER: &str = "other";

/// The names of weir's own classes.
pub(crate) const RESERVED: [&str; 3] = ["host", "default", "control"];

#[cfg(test)]
mod tests;
