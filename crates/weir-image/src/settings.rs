//! The section `[images]` of the configuration.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use weir_units::Bytes;

use crate::{Registry, store::Budget};

/// What the mirror does: `[images]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where Docker and containerd ask: an address of this machine only.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// Where blobs are kept.
    #[serde(default = "directory")]
    pub directory: PathBuf,
    /// The most they may take.
    pub budget: Bytes,
    /// What is to stay free on their file system.
    #[serde(default = "floor")]
    pub keep_free: Bytes,
    /// How long a tag is believed before its registry is asked again, seconds.
    #[serde(default = "tag_ttl_s")]
    pub tag_ttl_s: u64,
    /// Whether registries without an `upstream` of their own may be asked, at public addresses.
    #[serde(default = "yes")]
    pub any_registry: bool,
    /// Connections of clients at once.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Registries about which there is something to say.
    #[serde(default, rename = "upstream")]
    pub upstreams: Vec<UpstreamSettings>,
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
    /// The repositories that everybody on this node may have with these credentials (`acme/*`).
    #[serde(default)]
    pub share: Vec<String>,
    /// A certificate authority of its own, PEM.
    pub ca_file: Option<PathBuf>,
    /// Requests to it at once.
    #[serde(default = "requests")]
    pub requests: usize,
}

fn listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 5050))
}

fn directory() -> PathBuf {
    "/var/lib/weir/images".into()
}

fn floor() -> Bytes {
    Bytes(1 << 30)
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
        let mut seen = BTreeSet::new();
        for upstream in &self.upstreams {
            let fault = |detail: String| Err((format!("[[images.upstream]] {}", upstream.registry), detail));
            if !seen.insert(&upstream.registry) {
                return fault("this registry is there twice".to_owned());
            }
            if upstream.username.is_some() != upstream.password_file.is_some() {
                return fault("username and password_file go together".to_owned());
            }
            if upstream.username.is_some() && upstream.share.is_empty() {
                return fault(
                    "say which repositories everybody on this node may have with these credentials: \
                     share = [\"acme/*\"], or [\"*\"] for all"
                        .to_owned(),
                );
            }
            if upstream.username.is_none() && !upstream.share.is_empty() {
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

    /// What the store may take.
    #[must_use]
    pub fn store_budget(&self) -> Budget {
        Budget { floor: self.keep_free.0, ..Budget::of(self.budget.0) }
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
    /// Without progress a client is cut off.
    pub progress: Duration,
    /// Between two tries of a registry; doubled each time.
    pub retry: Duration,
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
}

impl Default for Timing {
    fn default() -> Timing {
        let s = Duration::from_secs;
        Timing {
            connect: s(3),
            first_byte: s(5),
            stall: s(6),
            progress: s(10),
            retry: Duration::from_millis(200),
            negative: s(10),
            header: s(15),
            send: s(60),
            orphan: s(10),
            permission: s(300),
        }
    }
}
