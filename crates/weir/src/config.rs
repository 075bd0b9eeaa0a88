//! The configuration file: TOML, every key checked, one error that says where and why.

mod agreements;
mod selector;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize};
use weir_bpf::RuleSet;
use weir_host::engine;
use weir_share::{AllocatorKind, Policy, Reservable, Weight};
use weir_units::BitRate;

pub(crate) use agreements::{Agreements, Decide};
pub(crate) use selector::Selector;

/// Parts of a policy; what is left out comes from the next weaker origin.
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

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) link: Link,
    #[serde(default)]
    pub(crate) agent: Agent,
    #[serde(default)]
    pub(crate) discover: Discover,
    /// For whoever has no policy of their own.
    #[serde(default)]
    pub(crate) defaults: Layer,
    /// The host's own traffic.
    #[serde(default)]
    pub(crate) host: Layer,
    /// Traffic nobody claimed.
    #[serde(default)]
    pub(crate) default: Layer,
    #[serde(default, rename = "group")]
    pub(crate) groups: Vec<Group>,
    #[serde(default, rename = "class")]
    pub(crate) classes: Vec<Class>,
    /// Which connections use which congestion control.
    #[serde(default)]
    pub(crate) congestion: Vec<weir_cc::Rule>,
    /// Without the section no connection tries another.
    pub(crate) advice: Option<weir_cc::AdviceSettings>,
    /// Without the section no agreements are made.
    pub(crate) agreements: Option<Agreements>,
    /// Without the section no images are kept.
    pub(crate) images: Option<weir_image::Settings>,
}

impl Config {
    /// How the link is divided: as `[link]` says, unless agreements share the spare in their way.
    pub(crate) fn allocator(&self) -> AllocatorKind {
        match &self.agreements {
            Some(Agreements { share: weir_agree::Share::Additive, .. }) => AllocatorKind::Additive,
            _ => self.link.allocator,
        }
    }
}

/// `[link]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    pub(crate) device: String,
    pub(crate) capacity: BitRate,
    #[serde(default)]
    pub(crate) engine: engine::Choice,
    #[serde(default)]
    pub(crate) allocator: AllocatorKind,
    #[serde(default)]
    pub(crate) attach: Attach,
    #[serde(default = "delay_ms")]
    pub(crate) delay_ms: u32,
    #[serde(default)]
    pub(crate) reservable: Reservable,
    #[serde(default)]
    pub(crate) local: Vec<Network>,
    #[serde(default)]
    pub(crate) charge_local: bool,
    #[serde(default)]
    pub(crate) split: Split,
    /// Transmit queues of the scheduler's device.
    #[serde(default = "one")]
    pub(crate) queues: u32,
    #[serde(default)]
    pub(crate) pacing: bool,
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
}

impl Default for Agent {
    fn default() -> Agent {
        Agent { socket: weir_api::DEFAULT_SOCKET.into(), state: "/var/lib/weir".into() }
    }
}

/// `[discover]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Discover {
    #[serde(deserialize_with = "docker")]
    pub(crate) docker: Option<PathBuf>,
    #[serde(deserialize_with = "netns")]
    pub(crate) netns: Option<Vec<String>>,
}

impl Default for Discover {
    fn default() -> Discover {
        Discover { docker: Some(DOCKER_SOCKET.into()), netns: Some(vec!["*".to_owned()]) }
    }
}

const DOCKER_SOCKET: &str = "/run/docker.sock";

/// `[[group]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
}

/// `[[class]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) group: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) cgroup: Option<PathBuf>,
    /// The packets that are its, of whomever they come from.
    #[serde(default, rename = "match", deserialize_with = "selector::one_or_more")]
    pub(crate) selectors: Vec<Selector>,
    pub(crate) weight: Option<Weight>,
    pub(crate) min: Option<BitRate>,
    pub(crate) max: Option<BitRate>,
}

impl Group {
    pub(crate) fn layer(&self) -> Layer {
        Layer { weight: self.weight, min: self.min, max: self.max }
    }
}

impl Class {
    pub(crate) fn layer(&self) -> Layer {
        Layer { weight: self.weight, min: self.min, max: self.max }
    }

    /// Whether its policy is that of whom somebody told of by this source and name. One with a
    /// match has a name of its own, which a container may have too.
    pub(crate) fn is_about(&self, source: &str, name: &str) -> bool {
        let own = self.selectors.is_empty() || source == "config";
        own && (self.name == name || self.name.split_once(':') == Some((source, name)))
    }

    /// Whether the class says itself where its traffic is, rather than naming a container.
    pub(crate) fn is_static(&self) -> bool {
        self.interface.is_some() || self.cgroup.is_some() || !self.selectors.is_empty()
    }
}

/// A network in CIDR notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) len: u8,
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Network, String> {
        let error = || format!("cannot read `{text}` as a network: write it as 10.0.0.0/8 or fd00::/8");
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Ok(most), |l| l.parse().map_err(|_| error()))?;
        if len > most { Err(error()) } else { Ok(Network { address, len }) }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn one() -> u32 {
    1
}

fn delay_ms() -> u32 {
    50
}

fn docker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false or the path of Docker's socket")]
    enum Raw {
        Switch(bool),
        Path(PathBuf),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| DOCKER_SOCKET.into()),
        Raw::Path(path) => Some(path),
    })
}

fn netns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false or a list of namespace names and patterns")]
    enum Raw {
        Switch(bool),
        Names(Vec<String>),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| vec!["*".to_owned()]),
        Raw::Names(names) => Some(names),
    })
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read configuration {path}: {source} (`weir agent --help` shows an example)")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot use configuration {path}: {detail}")]
    Syntax { path: PathBuf, detail: String },
    #[error("cannot use configuration {path}: {what}: {detail}")]
    Value { path: PathBuf, what: String, detail: String },
}

/// Reads and checks a configuration file.
pub(crate) fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Reads `[images]` alone, for a cache without an agent: the rest of the file is not looked at.
pub(crate) fn load_images(path: &Path) -> Result<weir_image::Settings, ConfigError> {
    #[derive(Deserialize)]
    struct Alone {
        images: Option<weir_image::Settings>,
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let alone: Alone = toml::from_str(&text).map_err(|e| ConfigError::Syntax {
        path: path.to_owned(),
        detail: e.to_string().trim_end().to_owned(),
    })?;
    let value = |(what, detail)| ConfigError::Value { path: path.to_owned(), what, detail };
    let missing = || fault("[images]", "there is no such section (docs/weir.toml shows one)");
    let images = alone.images.ok_or_else(|| value(missing()))?;
    images.check().map_err(value)?;
    Ok(images)
}

/// Checks a configuration text; `path` is for the error.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let config: Config = toml::from_str(text).map_err(|e| ConfigError::Syntax {
        path: path.to_owned(),
        detail: e.to_string().trim_end().to_owned(),
    })?;
    check(&config).map_err(|(what, detail)| ConfigError::Value { path: path.to_owned(), what, detail })?;
    Ok(config)
}

type Fault = (String, String);

fn fault(what: impl Into<String>, detail: impl ToString) -> Fault {
    (what.into(), detail.to_string())
}

fn check(config: &Config) -> Result<(), Fault> {
    let link = &config.link;
    if link.device.is_empty() || link.device.len() > 15 || link.device.contains(['/', ' ']) {
        return Err(fault("[link] device", format!("`{}` is not the name of an interface", link.device)));
    }
    if link.capacity < BitRate::kbit(64) || link.capacity > BitRate::MAX {
        let (least, most) = (BitRate::kbit(64), BitRate::MAX);
        return Err(fault("[link] capacity", format!("{} is not between {least} and {most}", link.capacity)));
    }
    if !(1..=256).contains(&link.queues) {
        return Err(fault("[link] queues", format!("{} is not between 1 and 256", link.queues)));
    }
    if !(1..=10_000).contains(&link.delay_ms) {
        return Err(fault("[link] delay_ms", format!("{} is not between 1 and 10000", link.delay_ms)));
    }
    for (what, layer) in
        [("[defaults]", config.defaults), ("[host]", config.host), ("[default]", config.default)]
    {
        layer.policy().map_err(|e| fault(what, e))?;
    }
    let mut names = BTreeSet::new();
    for group in &config.groups {
        let what = format!("[[group]] {}", group.name);
        check_name(&group.name).map_err(|e| fault(&what, e))?;
        if !names.insert(group.name.as_str()) {
            return Err(fault(what, "this group is there twice"));
        }
        group.layer().policy().map_err(|e| fault(what, e))?;
    }
    let mut classes = BTreeSet::new();
    let mut interfaces = BTreeMap::new();
    for class in &config.classes {
        let what = format!("[[class]] {}", class.name);
        let bare = class.name.split_once(':').map_or(class.name.as_str(), |(_, name)| name);
        check_name(bare).map_err(|e| fault(&what, e))?;
        if !classes.insert(class.name.as_str()) {
            return Err(fault(what, "this class is there twice"));
        }
        if RESERVED.contains(&class.name.as_str()) {
            return Err(fault(what, "this name is weir's own; set [host] or [default] instead"));
        }
        if let Some(group) = &class.group
            && !names.contains(group.as_str())
        {
            return Err(fault(what, format!("there is no [[group]] `{group}`")));
        }
        if let Some(interface) = &class.interface
            && let Some(other) = interfaces.insert(interface.as_str(), class.name.as_str())
        {
            return Err(fault(what, format!("interface {interface} belongs to class {other} already")));
        }
        class.layer().policy().map_err(|e| fault(what, e))?;
    }
    if let Some(agreements) = &config.agreements {
        agreements::check(agreements, link)?;
        if agreements.ceiling(link).is_some() && names.contains(OTHER) {
            return Err(fault(format!("[[group]] {OTHER}"), "[agreements] makes a group of that name"));
        }
    }
    let named = |rule: &weir_cc::Rule| [rule.container.clone(), rule.group.clone()];
    for name in config.congestion.iter().flat_map(named).flatten() {
        let bare = name.split_once(':').map_or(name.as_str(), |(_, name)| name);
        check_name(bare).map_err(|e| fault("[[congestion]]", e))?;
    }
    weir_cc::Rules::new(config.congestion.clone()).map_err(|e| fault("[[congestion]]", e))?;
    if let Some(advice) = &config.advice {
        advice.check().map_err(|e| fault("[advice]", e))?;
    }
    if let Some(images) = &config.images {
        images.check()?;
    }
    check_selectors(&config.classes)
}

fn check_selectors(classes: &[Class]) -> Result<(), Fault> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut rules = Vec::new();
    for class in classes.iter().filter(|class| !class.selectors.is_empty()) {
        let what = |selector: &Selector| format!("[[class]] {}: match {selector}", class.name);
        if class.interface.is_some() || class.cgroup.is_some() {
            let detail = "cannot be combined with interface or cgroup: give those a class of their own and \
                name it as `container` of the match";
            return Err(fault(format!("[[class]] {}: match", class.name), detail));
        }
        for selector in &class.selectors {
            selector.check().map_err(|e| fault(what(selector), e))?;
            if let Some(other) = seen.insert(selector.to_string(), &class.name) {
                let detail = format!("class {other} has the same, and the first one takes what matches");
                return Err(fault(what(selector), detail));
            }
            if let Some(name) = &selector.container {
                let bare = name.split_once(':').map_or(name.as_str(), |(_, name)| name);
                check_name(bare).map_err(|e| fault(what(selector), e))?;
                if classes.iter().any(|c| c.name == *name && !c.selectors.is_empty()) {
                    let detail = format!("class {name} has a match itself: name whom the packets come from");
                    return Err(fault(what(selector), detail));
                }
            }
            rules.extend(selector.rules(1, |_| vec![1]));
        }
    }
    RuleSet::new(&rules).map(|_| ()).map_err(|e| fault("[[class]] match", e))
}

/// The group of all that has no agreement, where agreements hold it to a ceiling.
pub(crate) const OTHER: &str = "other";

/// Names of the classes that weir makes itself.
pub(crate) const RESERVED: [&str; 3] = ["host", "default", "control"];

fn check_name(name: &str) -> Result<(), String> {
    let ok = |c: char| c.is_ascii_alphanumeric() || "_.-@+".contains(c);
    if name.is_empty() || name.len() > 255 || !name.chars().all(ok) {
        return Err(format!("`{name}` is not a name: letters, digits and _ . - @ + only, 255 at most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        super::parse(text, Path::new("weir.toml")).map_err(|e| e.to_string())
    }

    /// A class with this `match`.
    fn matching(selectors: &str) -> String {
        format!("{LINK}[[class]]\nname = \"a\"\nmatch = {selectors}\n")
    }

    fn images(text: &str) -> String {
        format!("{LINK}[images]\n{text}\n")
    }

    fn upstream(text: &str) -> String {
        images(&format!("budget = \"1GiB\"\n[[images.upstream]]\n{text}"))
    }

    const LINK: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n";

    #[test]
    fn the_shortest_configuration_names_a_device_and_its_capacity() {
        let config = parse(LINK).unwrap();
        assert_eq!(config.link.capacity, BitRate::mbit(100));
        assert_eq!(config.discover.docker, Some("/run/docker.sock".into()));
        assert_eq!(config.discover.netns, Some(vec!["*".to_owned()]));
        assert_eq!(config.link.allocator, AllocatorKind::WaterFilling);
    }

    #[test]
    fn the_example_that_ships_is_valid() {
        let text = include_str!("../../../docs/weir.toml");
        let config = parse(text).unwrap();
        assert!(config.classes.len() >= 3 && config.groups.len() == 1);
        // Agreements are off there; what it says of them is valid too.
        let (_, section) = text.split_once("# [agreements]").unwrap();
        let uncommented: String = format!("# [agreements]{section}")
            .lines()
            .map(|line| format!("{}\n", line.trim_start().trim_start_matches("# ")))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
            .filter(|line| line.starts_with('[') || line.contains(" = "))
            .collect();
        let agreements = parse(&format!("{LINK}{uncommented}")).unwrap().agreements.unwrap();
        assert_eq!(agreements.templates.len(), 1);
        // And of images.
        let images = parse(&format!("{LINK}{uncommented}")).unwrap().images.unwrap();
        assert_eq!((images.upstreams.len(), images.listen.port()), (2, 5050));
        assert_eq!(images.pop.map(|pop| pop.store), Some(weir_image::PopStore::Peer));
    }

    #[test]
    fn every_bad_value_is_refused_and_named() {
        for (text, want) in [
            ("", "missing field `link`"),
            ("[link]\ndevice = \"eth0\"\n", "missing field `capacity`"),
            ("[link]\ndevice = \"eth0\"\ncapacity = \"-5mbit\"\n", "a rate is not negative"),
            ("[link]\ndevice = \"eth0\"\ncapacity = \"0\"\n", "[link] capacity: 0bit is not between"),
            ("[link]\ndevice = \"eth0\"\ncapacity = \"999999tbit\"\n", "more than 10000gbit"),
            ("[link]\ndevice = \"a/b\"\ncapacity = \"1mbit\"\n", "not the name of an interface"),
            (&format!("{LINK}reservable = 1.5\n"), "cannot promise 1.5 of a link"),
            (&format!("{LINK}delay_ms = 0\n"), "[link] delay_ms: 0 is not"),
            (&format!("{LINK}queues = 0\n"), "[link] queues: 0 is not"),
            (&format!("{LINK}speed = 3\n"), "unknown field `speed`"),
            (&format!("{LINK}engine = \"cbq\"\n"), "there is no engine `cbq`: auto, "),
            (&format!("{LINK}local = [\"10.0.0.0/99\"]\n"), "cannot read `10.0.0.0/99` as a network"),
            (&format!("{LINK}[[class]]\nname = \"a\"\nweight = 0\n"), "cannot use `0` as a weight"),
            (&format!("{LINK}[[class]]\nname = \"a\"\nweight = -1\n"), "cannot use `-1` as a weight"),
            (
                &format!("{LINK}[[class]]\nname = \"a\"\nmin = \"5mbit\"\nmax = \"4mbit\"\n"),
                "minimum 5mbit is above maximum 4mbit",
            ),
            (&format!("{LINK}[[class]]\nname = \"a\"\nmax = \"0\"\n"), "would cut the class off"),
            (&format!("{LINK}[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"\n"), "there twice"),
            (&format!("{LINK}[[class]]\nname = \"a\"\ngroup = \"g\"\n"), "no [[group]] `g`"),
            (&format!("{LINK}[[class]]\nname = \"host\"\n"), "weir's own"),
            (&format!("{LINK}[[class]]\nname = \"a b\"\n"), "not a name"),
            (&format!("{LINK}[discover]\ndocker = 3\n"), "true, false or the path"),
            (&matching("{}"), "it matches everything: name at least one of container"),
            (&matching("3"), "a selector such as { protocol"),
            (&matching("{ prot = \"tcp\" }"), "unknown field `prot`"),
            (&matching("{ protocol = \"icmp\" }"), "unknown variant `icmp`"),
            (&matching("{ port = 0 }"), "cannot read `0` as ports: write 1 to 65535"),
            (&matching("{ port = -1 }"), "cannot read `-1` as ports"),
            (&matching("{ port = 65536 }"), "cannot read `65536` as ports"),
            (&matching("{ port = \"90-80\" }"), "cannot read `90-80` as ports"),
            (&matching("{ port = true }"), "a port such as 8081 or a range"),
            (&matching("{ dscp = 64 }"), "dscp 64 has more than six bits"),
            (&matching("{ remote = \"10.1.2.3/8\" }"), "has bits behind its prefix: write 10.0.0.0/8"),
            (&matching("{ remote = \"10.0.0.0/33\" }"), "invalid IP address syntax"),
            (&matching("{ local = \"::/0\", remote = \"10.0.0.0/8\" }"), "they are of two IP versions"),
            (&matching("{ container = \"a b\" }"), "`a b` is not a name"),
            (&matching("{ container = \"a\" }"), "class a has a match itself"),
            (&matching("[{ port = 1 }, { port = 1 }]"), "class a has the same"),
            (&matching("{ port = 1 }\ninterface = \"v1\""), "cannot be combined with interface"),
            (
                &matching(&format!(
                    "[{}]",
                    (0..=64).map(|len| format!("{{ local = \"::/{len}\" }},")).collect::<String>()
                )),
                "cannot tell 65 kinds of rules apart",
            ),
            (&format!("{LINK}[agreements]\nreservable = 0.95\n"), "`together = 1.0` allows it"),
            (&format!("{LINK}[agreements]\noversubscription = 1.0\n"), "cannot oversubscribe 1 times"),
            (&format!("{LINK}[agreements]\nshare = \"fair\"\n"), "unknown variant `fair`"),
            (&format!("{LINK}[agreements]\nother = 0\nother_is_ceiling = true\n"), "wants a part"),
            (&format!("{LINK}[agreements]\nmost = 0\n"), "most: 0 is not between"),
            (&format!("{LINK}[agreements]\nreserve = 0.5\n"), "unknown field `reserve`"),
            (&format!("{LINK}[images]\n"), "missing field `budget`"),
            (&images("budget = \"1MiB\""), "[images] budget: 1MiB is less than 64MiB"),
            (&images("budget = \"1GiB\"\nlisten = \"0.0.0.0:5050\""), "is not a loopback address"),
            (&images("budget = \"1GiB\"\ndirectory = \"x\""), "x is not an absolute path"),
            (&images("budget = \"1GiB\"\nconnections = 0"), "0 is not between 1 and 65536"),
            (&images("budget = \"1GiB\"\nmax_rate = \"10kbit\""), "max_rate: 10kbit is less than 1mbit"),
            (&images("budget = \"1GiB\"\nscrub_days = 0"), "scrub_days: 0 is not between 1 and 365"),
            (&images("budget = \"1GiB\"\nsize = 1"), "unknown field `size`"),
            (&upstream("registry = \"https://x\""), "cannot read `https://x` as a registry"),
            (&upstream("registry = \"x.y\"\nurl = \"x.y\""), "cannot read url `x.y`"),
            (&upstream("registry = \"x.y\"\nurl = \"http://x.y/path\""), "without a path"),
            (&upstream("registry = \"x.y\"\nusername = \"a\""), "username and password_file go together"),
            (
                &upstream("registry = \"x.y\"\nusername = \"a\"\npassword_file = \"/f\""),
                "say which repositories everybody on this node may have",
            ),
            (&upstream("registry = \"x.y\"\n[[images.upstream]]\nregistry = \"x.y\""), "there twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(want), "{text}\n---\n{error}");
        }
    }

    #[test]
    fn agreements_are_off_without_their_section_and_the_papers_division_can_be_said() {
        assert_eq!(parse(LINK).unwrap().agreements, None);
        let config = parse(&format!("{LINK}[agreements]\n")).unwrap();
        let agreements = config.agreements.as_ref().unwrap();
        let limits = agreements.limits(&config.link, BitRate::ZERO).unwrap();
        assert_eq!((limits.reservable(), limits.other()), (BitRate::mbit(90), BitRate::mbit(5)));
        assert_eq!(
            (agreements.ceiling(&config.link), config.allocator()),
            (None, AllocatorKind::WaterFilling)
        );

        let paper = "[agreements]\nreservable = 0.95\nother = 0.05\ntogether = 1.0\nshare = \"additive\"\n";
        let config = parse(&format!("{LINK}{paper}")).unwrap();
        let agreements = config.agreements.as_ref().unwrap();
        assert_eq!(agreements.ceiling(&config.link), Some(BitRate::mbit(5)));
        assert_eq!(agreements.promisable(&config.link), BitRate::mbit(100));
        assert_eq!(config.allocator(), AllocatorKind::Additive);
    }

    #[test]
    fn docker_and_namespaces_can_be_switched_off_or_narrowed() {
        let config = parse(&format!("{LINK}[discover]\ndocker = false\nnetns = [\"web*\"]\n")).unwrap();
        assert_eq!(config.discover.docker, None);
        assert_eq!(config.discover.netns, Some(vec!["web*".to_owned()]));
    }
}
