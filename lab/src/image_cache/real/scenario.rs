//! The scenarios with real daemons, and the rows of their results.

use serde::{Deserialize, Serialize};
use weir_cache::{PolicyKind, generate::ZONES, simulate::Sharing};
use weir_units::{BitRate, Bytes};

/// Deployments in a point of the plot, as in the paper's Fig. 7.
pub(super) const BIN: usize = 50;

/// Deployments by Docker and containerd: files with `measures = "deployments"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployments {
    /// Its name for `weir lab run`.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// The result that it shows.
    pub about: String,
    /// `deployments`.
    pub measures: String,
    /// Between the site and its registry.
    pub uplink: BitRate,
    /// Nodes, each with a Docker and a containerd.
    pub nodes: usize,
    /// How often all is done.
    pub repetitions: usize,
    /// The same with `--paper`.
    pub paper_repetitions: usize,
    /// Where images are cached.
    pub stores: Vec<Store>,
    /// The deployments.
    #[serde(rename = "image")]
    pub images: Vec<ImageCase>,
}

/// An image, and what is wanted of its deployments; as parts of what they take without a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCase {
    /// Its name.
    pub name: String,
    /// Sizes of its layers, but for the one with its program.
    pub layers: Vec<Bytes>,
    /// The most that the first node's deployment takes, through a cache on a local file system or `peer`.
    #[serde(default)]
    pub first_at_most: Option<f64>,
    /// The same of the other nodes'.
    #[serde(default)]
    pub later_at_most: Option<f64>,
}

/// Where images are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// Nowhere: each node asks the registry.
    None,
    /// `shared-dir` on this machine's file system.
    Local,
    /// `shared-dir` on GlusterFS over FUSE, a brick on each node.
    Gluster,
    /// `peer`.
    Peer,
}

impl Store {
    /// As written and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Store::None => "none",
            Store::Local => "local",
            Store::Gluster => "gluster",
            Store::Peer => "peer",
        }
    }
}

/// Who deploys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// `docker pull` and `docker run`.
    Docker,
    /// `ctr images pull` and `ctr run`.
    Containerd,
}

impl Client {
    pub(super) const BOTH: [Client; 2] = [Client::Docker, Client::Containerd];

    /// As written and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Client::Docker => "docker",
            Client::Containerd => "containerd",
        }
    }
}

/// An image deployed on one node after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which image.
    pub image: String,
    /// By whom.
    pub client: Client,
    /// Through what.
    pub store: Store,
    /// Pull, start and end of a container, s, by node.
    pub deployment_s: Vec<f64>,
    /// The bytes over the uplink, with headers.
    pub upstream: Bytes,
}

/// A store that cannot be had here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub store: Store,
    /// Why.
    pub why: String,
}

/// Traces of deployments over HTTP: files with `measures = "replay"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replays {
    /// Its name for `weir lab run`.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// The result that it shows.
    pub about: String,
    /// `replay`.
    pub measures: String,
    /// Deployments of each zone.
    pub deployments: usize,
    /// The same with `--paper`.
    pub paper_deployments: usize,
    /// Nodes, which deploy in turn.
    pub nodes: usize,
    /// A layer has this part of the bytes that the trace says.
    pub scale: u64,
    /// A node's cache and the site's, before they are scaled.
    pub budgets: [Bytes; 2],
    /// Who leaves.
    pub policies: Vec<PolicyKind>,
    /// By how much a hit ratio may differ from the simulator's.
    pub tolerance: f64,
    /// By how much the shared cache's hit ratio is above that of the nodes alone, at least.
    pub gain: f64,
    /// The zones.
    pub zones: Vec<String>,
}

/// One replay, and its simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayRow {
    /// Of which zone.
    pub zone: String,
    /// Who leaves.
    pub policy: PolicyKind,
    /// The owner of a cache.
    pub sharing: Sharing,
    /// Deployments.
    pub deployments: usize,
    /// All that was deployed, once.
    pub working_set: Bytes,
    /// The part of deployments that asked the registry for no blob,
    pub hits: f64,
    /// and what the simulator says of it.
    pub simulated: f64,
    /// The part of bytes that did not come from the registry,
    pub byte_hits: f64,
    /// and what the simulator says of it.
    pub simulated_bytes: f64,
    /// Mean time of a pull, ms; from memory and by a registry without a distance: no deployment's.
    pub pull_ms: f64,
    /// Hits by deployments in a row, fifty each: measured, and simulated.
    pub bins: Vec<(f64, f64)>,
}

impl Deployments {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.nodes < 2 || self.nodes > 199 || self.repetitions == 0 || self.images.is_empty() {
            return Some("2 to 199 nodes, repetitions and images say what is deployed".into());
        }
        let none = self.stores.contains(&Store::None);
        (!none).then(|| "stores need `none`, which the others are compared with".into())
    }

    /// Measurements in all.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.repetitions * self.stores.len()
    }
}

impl Replays {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.nodes < 2 || self.nodes > 199 || self.scale == 0 || self.policies.is_empty() {
            return Some("2 to 199 nodes, a scale and policies say what is replayed".into());
        }
        if let Some(unknown) = self.zones.iter().find(|name| !ZONES.iter().any(|zone| zone.name == **name)) {
            return Some(format!("there is no zone {unknown}"));
        }
        let least = Bytes(64 << 20);
        let small = self.budgets.iter().find(|budget| budget.0 / self.scale < least.0)?;
        Some(format!("{small} are less than {least} at a scale of {}: caches are not that small", self.scale))
    }

    /// Measurements in all.
    #[must_use]
    pub fn steps(&self) -> usize {
        2 * self.zones.len() * self.policies.len() * self.deployments.div_ceil(BIN)
    }
}
