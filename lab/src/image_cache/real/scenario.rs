//! The scenarios with real daemons, and the rows of their results.

use serde::{Deserialize, Serialize};
use weir_cache::{PolicyKind, generate::ZONES, simulate::Sharing};
use weir_units::{BitRate, Bytes};

use super::traffic::Use;

/// Deployments in a point of the plot, as in the paper's Fig. 7.
pub(super) const BIN: usize = 50;

/// Deployments by Docker and containerd: files with `measures = "deployments"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deployments {
    /// Its name for `weir lab run`.
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// Where the experiment comes from.
    pub(crate) source: String,
    /// The result that it shows.
    pub(crate) about: String,
    /// `deployments`.
    pub(crate) measures: String,
    /// Between the site and its registry.
    pub(crate) uplink: BitRate,
    /// Nodes, each with a Docker and a containerd.
    pub(crate) nodes: usize,
    /// How often all is done.
    pub(crate) repetitions: usize,
    /// The same with `--paper`.
    pub(crate) paper_repetitions: usize,
    /// Where images are cached.
    pub(crate) stores: Vec<Store>,
    /// The deployments.
    #[serde(rename = "image")]
    pub(crate) images: Vec<ImageCase>,
}

/// An image, and what is wanted of its deployments; as parts of what they take without a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageCase {
    /// Its name.
    pub(crate) name: String,
    /// Sizes of its layers, but for the one with its program.
    pub(crate) layers: Vec<Bytes>,
    /// The most that the first node's deployment takes, through a cache on a local file system or `peer`.
    #[serde(default)]
    pub(crate) first_at_most: Option<f64>,
    /// The same of the other nodes'.
    #[serde(default)]
    pub(crate) later_at_most: Option<f64>,
}

/// Where images are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Store {
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
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) enum Client {
    /// `docker pull` and `docker run`.
    Docker,
    /// `ctr images pull` and `ctr run`.
    Containerd,
}

impl Client {
    pub(super) const BOTH: [Client; 2] = [Client::Docker, Client::Containerd];

    /// As written and printed.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Client::Docker => "docker",
            Client::Containerd => "containerd",
        }
    }
}

/// An image deployed on one node after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Which image.
    pub(crate) image: String,
    /// By whom.
    pub(crate) client: Client,
    /// Through what.
    pub(crate) store: Store,
    /// Pull, start and end of a container, s, by node.
    pub(crate) deployment_s: Vec<f64>,
    /// Start and end of another container on the first node, s.
    pub(crate) again_s: f64,
    /// The network use of each node during its deployment.
    pub(crate) network: Vec<Vec<Use>>,
    /// The bytes over the uplink, with headers.
    pub(crate) upstream: Bytes,
}

/// A store that cannot be had here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missing {
    /// Which.
    pub(crate) store: Store,
    /// Why.
    pub(crate) why: String,
}

/// Traces of deployments over HTTP: files with `measures = "replay"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replays {
    /// Its name for `weir lab run`.
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// Where the experiment comes from.
    pub(crate) source: String,
    /// The result that it shows.
    pub(crate) about: String,
    /// `replay`.
    pub(crate) measures: String,
    /// Deployments of each zone.
    pub(crate) deployments: usize,
    /// The same with `--paper`.
    pub(crate) paper_deployments: usize,
    /// Nodes, which deploy in turn.
    pub(crate) nodes: usize,
    /// A layer has this part of the bytes that the trace says.
    pub(crate) scale: u64,
    /// A node's cache and the site's, before they are scaled.
    pub(crate) budgets: [Bytes; 2],
    /// Who leaves.
    pub(crate) policies: Vec<PolicyKind>,
    /// By how much a hit ratio may differ from the simulator's.
    pub(crate) tolerance: f64,
    /// By how much the shared cache's hit ratio is above that of the nodes alone, at least.
    pub(crate) gain: f64,
    /// The zones.
    pub(crate) zones: Vec<String>,
}

/// One replay, and its simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReplayRow {
    /// Of which zone.
    pub(crate) zone: String,
    /// Who leaves.
    pub(crate) policy: PolicyKind,
    /// The owner of a cache.
    pub(crate) sharing: Sharing,
    /// Deployments.
    pub(crate) deployments: usize,
    /// All that was deployed, once.
    pub(crate) working_set: Bytes,
    /// The part of deployments that asked the registry for no blob,
    pub(crate) hits: f64,
    /// and what the simulator says of it.
    pub(crate) simulated: f64,
    /// The part of bytes that did not come from the registry,
    pub(crate) byte_hits: f64,
    /// and what the simulator says of it.
    pub(crate) simulated_bytes: f64,
    /// Mean time of a pull, ms; from memory and by a registry without a distance: no deployment's.
    pub(crate) pull_ms: f64,
    /// Hits by deployments in a row, fifty each: measured, and simulated.
    pub(crate) bins: Vec<(f64, f64)>,
}

impl Deployments {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        if self.nodes < 2 || self.nodes > 199 || self.repetitions == 0 || self.images.is_empty() {
            return Some("2 to 199 nodes, repetitions and images say what is deployed".into());
        }
        let none = self.stores.contains(&Store::None);
        (!none).then(|| "stores need `none`, which the others are compared with".into())
    }

    /// Measurements in all.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.repetitions * self.stores.len()
    }
}

impl Replays {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
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
    pub(crate) fn steps(&self) -> usize {
        2 * self.zones.len() * self.policies.len() * self.deployments.div_ceil(BIN)
    }
}
