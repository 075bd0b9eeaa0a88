//! The section `[images]` of the configuration, as data. `check.rs` says whether its values fit together.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use weir_units::{BitRate, Bytes};

use crate::{
    Registry,
    network::Network,
    store::{Budget, PolicyKind},
};

/// The settings of the mirror: `[images]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where Docker and containerd ask: an address of this machine only.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// The process that serves the cache.
    #[serde(default)]
    pub served_by: ServedBy,
    /// Where blobs are kept.
    #[serde(default = "directory")]
    pub directory: PathBuf,
    /// The most they may take.
    pub budget: Bytes,
    /// The eviction policy.
    #[serde(default = "policy")]
    pub policy: PolicyKind,
    /// The free space to leave on their file system.
    #[serde(default = "floor")]
    pub keep_free: Bytes,
    /// The time for which a new blob is not evicted, seconds: its client may still be reading.
    #[serde(default = "keep_new_s")]
    pub keep_new_s: u64,
    /// How long a tag is believed before its registry is asked again, seconds.
    #[serde(default = "tag_ttl_s")]
    pub tag_ttl_s: u64,
    /// Whether registries without an `upstream` of their own may be asked, at public addresses.
    #[serde(default = "yes")]
    pub any_registry: bool,
    /// Connections of clients at once.
    #[serde(default = "connections")]
    pub connections: usize,
    /// How fast blobs that are here are read to check them, bytes a second; 0: they are not.
    #[serde(default = "scrub_rate")]
    pub scrub_rate: Bytes,
    /// How often each is checked, days.
    #[serde(default = "scrub_days")]
    pub scrub_days: u32,
    /// How fast registries are asked for blobs, all together; none: as fast as they come.
    pub max_rate: Option<BitRate>,
    /// The proxy through which registries are asked, `http://[user:password@]host:port`; empty: none; not
    /// there: what `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say.
    pub proxy: Option<String>,
    /// Registries that are asked without it: names, with all below them, and networks, separated by
    /// commas.
    pub no_proxy: Option<String>,
    /// The socket of containerd, which is asked what its containers are made of.
    #[serde(default = "containerd")]
    pub containerd: PathBuf,
    /// Registries about which there is something to say.
    #[serde(default, rename = "upstream")]
    pub upstreams: Vec<UpstreamSettings>,
    /// The site whose nodes have one cache together.
    pub pop: Option<PopSettings>,
    /// The budget of the images that Docker keeps itself.
    pub runtime: Option<RuntimeSettings>,
}

/// `[images.runtime]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeSettings {
    /// The most bytes that the layers of all images may have.
    pub budget: Bytes,
    /// Whether removals are only reported.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// The order of removal.
    #[serde(default = "policy")]
    pub policy: PolicyKind,
    /// The time for which an image stays after it was pulled, and after its last container went, seconds.
    #[serde(default = "keep_new_runtime_s")]
    pub keep_new_s: u64,
    /// Images that stay, beside those of `weir image pin`; `*` stands for anything.
    #[serde(default)]
    pub pins: Vec<String>,
    /// Docker's socket; that of `[discover]` if none is named.
    pub docker: Option<PathBuf>,
}

/// The process that serves the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedBy {
    /// `weir agent`, on a thread of its own.
    #[default]
    Agent,
    /// `weir image serve`, as the unit `weir-images.service`: the agent leaves the cache to it.
    Unit,
}

/// `[images.pop]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PopSettings {
    /// Tells sites that have one Redis apart.
    #[serde(default = "pop_name")]
    pub name: String,
    /// This node among those of the site; its host name.
    pub node: Option<String>,
    /// Where blobs are.
    pub store: PopStore,
    /// Through which the nodes coordinate: `redis://10.0.0.5:6379`.
    pub redis: String,
    /// A file with its password alone in it.
    pub redis_password_file: Option<PathBuf>,
    /// Store `peer`: where the other nodes ask this one, an address of the site's network,
    pub listen: Option<SocketAddr>,
    /// by what they know each other: a file with a secret, the same on all,
    pub secret_file: Option<PathBuf>,
    /// and in which networks they are, `10.0.0.0/24`. Empty: private addresses, and neighbours of `listen`.
    #[serde(default)]
    pub networks: Vec<Network>,
}

/// Where the blobs of a site are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PopStore {
    /// `directory` is on a file system that all nodes have mounted.
    SharedDir,
    /// Each node keeps its own in `directory`, and asks the others for what it has not.
    Peer,
}

impl PopStore {
    /// As in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PopStore::SharedDir => "shared-dir",
            PopStore::Peer => "peer",
        }
    }
}

impl PopSettings {
    /// This node's name: safe as the name of a file, and in a key of Redis.
    ///
    /// # Errors
    /// The host has no name, or one that does not fit.
    pub fn node(&self) -> Result<String, String> {
        let name = match &self.node {
            Some(name) => name.clone(),
            None => {
                let file = "/proc/sys/kernel/hostname";
                let host = std::fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
                host.trim_end().to_owned()
            }
        };
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(is_good) {
            return Err(format!(
                "`{name}` is not 1 to 100 letters, digits, `-`, `_` and `.`; name this node otherwise"
            ));
        }
        Ok(name)
    }

    /// Where peers ask this node, or its name if they do not.
    ///
    /// # Errors
    /// As [`PopSettings::node`].
    pub fn address(&self) -> Result<String, String> {
        self.listen.map_or_else(|| self.node(), |listen| Ok(listen.to_string()))
    }
}

/// `[[images.upstream]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSettings {
    /// As images name it.
    pub registry: Registry,
    /// Where it is, if elsewhere: `https://mirror.example:5000`; `http://` if it has no TLS.
    pub url: Option<String>,
    /// With whom to log in,
    pub username: Option<String>,
    /// and how: a file with the password or token alone in it.
    pub password_file: Option<PathBuf>,
    /// Or what `docker login` left: its `config.json`, with the credential helpers it names.
    pub docker_config: Option<PathBuf>,
    /// The repositories that everybody on this node may have with these credentials (`acme/*`).
    #[serde(default)]
    pub share: Vec<String>,
    /// A certificate authority of its own, PEM.
    pub ca_file: Option<PathBuf>,
    /// A certificate to show it, PEM,
    pub cert_file: Option<PathBuf>,
    /// and its key.
    pub key_file: Option<PathBuf>,
    /// Where it may send although the address is private, `cdn.example` or `10.0.0.9:9000`: storage, and its token
    /// service. Its own address and public ones need not be named.
    #[serde(default)]
    pub redirects: Vec<Registry>,
    /// Requests to it at once; four times as many blobs may be on their way.
    #[serde(default = "requests")]
    pub requests: usize,
}

fn pop_name() -> String {
    "pop".to_owned()
}

fn listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 5050))
}

fn directory() -> PathBuf {
    "/var/lib/weir/images".into()
}

/// The unit's directory: it may write to no other.
const UNIT_DIRECTORY: &str = "/var/lib/weir-images";

fn policy() -> PolicyKind {
    PolicyKind::Auto
}

fn floor() -> Bytes {
    Bytes(1 << 30)
}

fn keep_new_s() -> u64 {
    120
}

fn keep_new_runtime_s() -> u64 {
    600
}

fn tag_ttl_s() -> u64 {
    60
}

fn yes() -> bool {
    true
}

fn connections() -> usize {
    1024
}

fn scrub_rate() -> Bytes {
    Bytes(8 << 20)
}

fn scrub_days() -> u32 {
    3
}

fn containerd() -> PathBuf {
    "/run/containerd/containerd.sock".into()
}

fn requests() -> usize {
    16
}

impl Settings {
    /// Whether the agent serves the cache.
    #[must_use]
    pub fn is_agents(&self) -> bool {
        self.served_by == ServedBy::Agent
    }

    /// These settings for the unit: the agent's usual directory, of which the unit cannot be the owner, is the
    /// unit's own.
    #[must_use]
    pub fn for_unit(mut self) -> Settings {
        if !self.is_agents() && self.directory == directory() {
            self.directory = UNIT_DIRECTORY.into();
        }
        self
    }

    /// Whether a mirror that runs can be given these instead: [`Mirror::reconfigure`].
    ///
    /// [`Mirror::reconfigure`]: crate::Mirror::reconfigure
    #[must_use]
    pub fn differs_only_in_rates(&self, other: &Settings) -> bool {
        let (scrub_rate, max_rate) = (other.scrub_rate, other.max_rate);
        // The images of Docker are not the mirror's.
        let runtime = other.runtime.clone();
        Settings { scrub_rate, max_rate, runtime, ..self.clone() } == *other
    }

    /// The bounds of the store.
    #[must_use]
    pub fn store_budget(&self) -> Budget {
        let young = Duration::from_secs(self.keep_new_s);
        Budget { floor: self.keep_free.0, young, ..Budget::of(self.budget.0) }
    }
}

/// How long things may take; tests have them shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// A connection to a registry, and its handshakes.
    pub connect: Duration,
    /// The first byte of an answer: of a registry's to the mirror, and so of the mirror's.
    pub first_byte: Duration,
    /// Between two pieces of a registry's answer, before it is asked again for the rest.
    pub stall: Duration,
    /// Over this time the least rate of a registry is averaged.
    pub slow: Duration,
    /// Without progress a client is cut off.
    pub progress: Duration,
    /// Between two tries of a registry; doubled each time, up to ten times as long.
    pub retry: Duration,
    /// How long a registry is asked again for the rest of a blob, since the last byte, while someone waits.
    pub away: Duration,
    /// How long what failed is not tried again.
    pub negative: Duration,
    /// A client's request, until its last header; and between two of its requests.
    pub header: Duration,
    /// How long a client may take none of its answer.
    pub send: Duration,
    /// The time for which a download goes on without a waiting client; beyond half of the blob it
    /// goes on to the end.
    pub orphan: Duration,
    /// How long a permission is believed.
    pub permission: Duration,
    /// Between two looks at which blobs are to be checked.
    pub scrub: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        let s = Duration::from_secs;
        Timing {
            connect: s(3),
            first_byte: s(5),
            stall: s(6),
            slow: s(30),
            // Longer than a registry may be away, and than it takes to notice that.
            progress: s(30),
            retry: Duration::from_millis(200),
            away: s(20),
            negative: s(10),
            header: s(15),
            send: s(60),
            orphan: s(10),
            permission: s(300),
            scrub: s(300),
        }
    }
}
