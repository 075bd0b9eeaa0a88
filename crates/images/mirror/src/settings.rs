//! The section `[images]` of the configuration.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use weir_units::{BitRate, Bytes};

use crate::{
    Registry,
    coordination::Redis,
    peer::{Network, Peers},
    store::{Budget, PolicyKind},
};

/// The least that downloads may be bounded to: clients give up on what makes no progress.
const MIN_RATE: BitRate = BitRate::mbit(1);

/// What the mirror does: `[images]`.
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
    /// Who leaves when there is no room.
    #[serde(default = "policy")]
    pub policy: PolicyKind,
    /// What is to stay free on their file system.
    #[serde(default = "floor")]
    pub keep_free: Bytes,
    /// How long what is new stays, whoever has to leave, seconds: who asked for it may still be reading.
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
    /// Who is asked without it: names, with all below them, and networks, separated by commas.
    pub no_proxy: Option<String>,
    /// The socket of containerd, which is asked what its containers are made of.
    #[serde(default = "containerd")]
    pub containerd: PathBuf,
    /// Registries about which there is something to say.
    #[serde(default, rename = "upstream")]
    pub upstreams: Vec<UpstreamSettings>,
    /// The site whose nodes have one cache together.
    pub pop: Option<PopSettings>,
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
    /// There is none, or it cannot be one.
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

    /// The other nodes to ask, if they are asked.
    ///
    /// # Errors
    /// The secret cannot be read, or can be guessed.
    pub(crate) fn peers(&self) -> Result<Option<Peers>, String> {
        let (PopStore::Peer, Some(file), Some(own)) = (self.store, &self.secret_file, self.listen) else {
            return Ok(None);
        };
        let secret = std::fs::read_to_string(file)
            .map_err(|e| format!("cannot read secret_file {}: {e}", file.display()))?;
        let secret = secret.trim();
        if secret.len() < 16 {
            let length = secret.len();
            return Err(format!("secret_file {} has {length} characters: write 16 or more", file.display()));
        }
        Peers::new(own, &self.networks, secret.as_bytes()).map(Some)
    }

    /// What keeps the leases of the site.
    ///
    /// # Errors
    /// The URL is none, or the password cannot be read.
    pub fn coordination(&self) -> Result<Redis, String> {
        let password = match &self.redis_password_file {
            None => None,
            Some(file) => Some(
                std::fs::read_to_string(file)
                    .map_err(|e| format!("cannot read redis_password_file {}: {e}", file.display()))?,
            ),
        };
        Redis::new(&self.redis, password.as_deref().map(str::trim_end), &self.name, &self.address()?)
            .map_err(|e| crate::upstream::chain(&e))
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
    /// What the types do not say.
    ///
    /// # Errors
    /// Which key, and what is wrong with it.
    pub fn check(&self) -> Result<(), (String, String)> {
        let fault = |key: &str, detail: String| Err((format!("[images] {key}"), detail));
        if !self.listen.ip().is_loopback() {
            let detail = format!("{} is not a loopback address: what is served has no TLS", self.listen.ip());
            return fault("listen", detail);
        }
        if !self.directory.is_absolute() {
            return fault("directory", format!("{} is not an absolute path", self.directory.display()));
        }
        if self.budget.0 < 64 << 20 {
            return fault("budget", format!("{} is less than 64MiB", self.budget));
        }
        if !(1..=65_536).contains(&self.connections) {
            return fault("connections", format!("{} is not between 1 and 65536", self.connections));
        }
        if !(1..=365).contains(&self.scrub_days) {
            let detail =
                format!("{} is not between 1 and 365; scrub_rate = \"0\" turns it off", self.scrub_days);
            return fault("scrub_days", detail);
        }
        if let Some(rate) = self.max_rate
            && rate < MIN_RATE
        {
            return fault(
                "max_rate",
                format!("{rate} is less than {MIN_RATE}: pulls would seem to stand still"),
            );
        }
        match (&self.proxy, &self.no_proxy) {
            (None, Some(_)) => return fault("no_proxy", "it is about proxy, and there is none".to_owned()),
            (Some(proxy), _) if !proxy.is_empty() => {
                let url = proxy.parse::<hyper::Uri>().ok();
                if url.is_none_or(|url| url.scheme_str() != Some("http") || url.host().is_none()) {
                    let how = "write it as http://proxy.example:3128";
                    return fault("proxy", format!("cannot read `{proxy}`: {how}"));
                }
            }
            _ => {}
        }
        if let Some(pop) = &self.pop {
            let fault = |key: &str, detail: String| Err((format!("[images.pop] {key}"), detail));
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if pop.name.is_empty() || !pop.name.chars().all(is_good) {
                return fault("name", format!("`{}` is not letters, digits, `-`, `_` and `.`", pop.name));
            }
            let node = match pop.node() {
                Ok(node) => node,
                Err(why) => return fault("node", why),
            };
            match (pop.store, pop.listen, &pop.secret_file) {
                (PopStore::SharedDir, None, None) if pop.networks.is_empty() => {}
                (PopStore::SharedDir, ..) => {
                    return fault(
                        "store",
                        "shared-dir needs neither listen nor secret_file nor networks".to_owned(),
                    );
                }
                (PopStore::Peer, Some(listen), Some(_))
                    if !listen.ip().is_unspecified() && listen.port() != 0 => {}
                (PopStore::Peer, ..) => {
                    let how = "peer needs listen, this node's address among them (\"10.0.0.5:5051\"), and secret_file";
                    return fault("store", how.to_owned());
                }
            }
            let is_in = |listen: SocketAddr| pop.networks.iter().any(|network| network.has(listen.ip()));
            if let Some(listen) = pop.listen
                && !pop.networks.is_empty()
                && !is_in(listen)
            {
                return fault("networks", format!("{} of listen is in none of them", listen.ip()));
            }
            if let Err(e) = Redis::new(&pop.redis, None, &pop.name, &node) {
                return fault("redis", crate::upstream::chain(&e));
            }
        }
        let mut seen = BTreeSet::new();
        for upstream in &self.upstreams {
            let fault = |detail: String| Err((format!("[[images.upstream]] {}", upstream.registry), detail));
            if !seen.insert(&upstream.registry) {
                return fault("this registry is there twice".to_owned());
            }
            if upstream.username.is_some() != upstream.password_file.is_some() {
                return fault("username and password_file go together".to_owned());
            }
            if upstream.cert_file.is_some() != upstream.key_file.is_some() {
                return fault("cert_file and key_file go together".to_owned());
            }
            if upstream.username.is_some() && upstream.docker_config.is_some() {
                return fault("username and docker_config are two ways to log in: name one".to_owned());
            }
            let logs_in = upstream.username.is_some() || upstream.docker_config.is_some();
            if logs_in && upstream.share.is_empty() {
                return fault(
                    "say which repositories everybody on this node may have with these credentials: \
                     share = [\"acme/*\"], or [\"*\"] for all"
                        .to_owned(),
                );
            }
            if !logs_in && !upstream.share.is_empty() {
                return fault("share is about credentials, and there are none".to_owned());
            }
            if upstream.requests == 0 {
                return fault("requests: 0 would never ask it".to_owned());
            }
            if let Err(e) = crate::upstream::Base::of(upstream) {
                return fault(e);
            }
        }
        Ok(())
    }

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
        Settings { scrub_rate, max_rate, ..self.clone() } == *other
    }

    /// What the store may take.
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
    /// A download that nobody waits for any more goes on for so long; beyond half it goes on to its end.
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
