use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_units::Bytes;

use crate::{FlowRecord, Histogram, size};

/// Combinations of network, size and algorithm that are told apart; of what comes after them, all
/// networks of an IP version are one. Each takes 1.3 KiB.
pub const MAX_CELLS: usize = 2048;
/// Beside those, for the networks that are one.
const SPARE: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    to: IpNet,
    size: usize,
    algorithm: String,
}

#[derive(Debug, Clone, Default)]
struct Cell {
    took: Histogram,
    bytes: u64,
    retransmits: u64,
}

#[derive(Debug, Clone, Copy)]
struct Path {
    flows: u64,
    least_rtt_us: u32,
    most_rtt_us: u32,
}

/// Completion times, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// Mean.
    pub mean_us: u64,
    /// Median; this and the next two at most an eighth too high.
    pub p50_us: u64,
    /// 90 % are not longer.
    pub p90_us: u64,
    /// 99 % are not longer.
    pub p99_us: u64,
    /// The longest.
    pub most_us: u64,
}

/// The bounds of completion times in a histogram: 2^10 us (1.024 ms) to 2^26 us (67.1 s). At these bounds
/// the counts are exact.
pub const TOOK_BITS: [u32; 9] = [10, 12, 14, 16, 18, 20, 22, 24, 26];

/// The results of flows to one network, of one size, with one algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatsRow {
    /// Where to; all of an IP version for the networks that came when there was no more room.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub to: IpNet,
    /// Flows below this size, and not below that of the row before; none for the largest.
    pub below: Option<Bytes>,
    /// The algorithm; two with `>` between them if it changed.
    pub algorithm: String,
    /// How many there were.
    pub flows: u64,
    /// Payload in all.
    pub bytes: Bytes,
    /// Segments sent again in all.
    pub retransmits: u64,
    /// How long they took.
    pub completion: Completion,
    /// How long they took together, microseconds.
    #[serde(default)]
    pub took_us: u64,
    /// The flows that took less than each of [`TOOK_BITS`], as a power of two in microseconds.
    #[serde(default)]
    pub took_below: Vec<u64>,
}

/// The path to a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PathRow {
    /// Where to.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub to: IpNet,
    /// Flows that it was seen by.
    pub flows: u64,
    /// The least round trip, microseconds.
    pub least_rtt_us: u32,
    /// The greatest smoothed round trip, microseconds.
    pub most_rtt_us: u32,
    /// The most that waited in the bottleneck's buffer, in products of bandwidth and delay: the
    /// buffer holds this much or more.
    pub buffer_bdp: f64,
}

/// All that was counted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatsView {
    /// By network, size and algorithm.
    pub rows: Vec<StatsRow>,
    /// By network.
    pub paths: Vec<PathRow>,
    /// Flows for which there was no room any more.
    pub uncounted: u64,
}

/// The results of flows, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    cells: BTreeMap<Key, Cell>,
    paths: BTreeMap<IpNet, Path>,
    uncounted: u64,
}

/// All networks of an address's IP version.
fn all(address: IpAddr) -> IpNet {
    IpNet::new(address, 0).map_or_else(|_| IpNet::from(address), |net| net.trunc())
}

impl Stats {
    /// Counts a flow to this network. One that sent nothing says nothing of a sender's algorithm. Of one that is
    /// older than the agent no one knows how long it took. Both are left out.
    pub fn add(&mut self, to: IpNet, flow: &FlowRecord) {
        if flow.sent.0 == 0 || flow.direction.is_none() {
            return;
        }
        let size = size::of(flow.sent.0);
        let mut key = Key { to, size, algorithm: flow.algorithms() };
        if self.cells.len() >= MAX_CELLS && !self.cells.contains_key(&key) {
            key.to = all(flow.to);
        }
        if self.cells.len() >= MAX_CELLS + SPARE && !self.cells.contains_key(&key) {
            self.uncounted += 1;
            return;
        }
        let cell = self.cells.entry(key).or_default();
        cell.took.add(flow.took_us);
        cell.bytes = cell.bytes.saturating_add(flow.sent.0);
        cell.retransmits += u64::from(flow.retransmits);
        // The kernel's word for no sample is all ones.
        if flow.least_rtt_us == 0 || flow.least_rtt_us == u32::MAX {
            return;
        }
        let to = if self.paths.len() < MAX_CELLS || self.paths.contains_key(&to) { to } else { all(flow.to) };
        let path = self.paths.entry(to).or_insert(Path { flows: 0, least_rtt_us: u32::MAX, most_rtt_us: 0 });
        path.flows += 1;
        path.least_rtt_us = path.least_rtt_us.min(flow.least_rtt_us);
        path.most_rtt_us = path.most_rtt_us.max(flow.most_rtt_us);
    }

    /// All that was counted, by network, size and algorithm.
    #[must_use]
    pub fn view(&self) -> StatsView {
        let row = |(key, cell): (&Key, &Cell)| StatsRow {
            to: key.to,
            below: size::BOUNDS.get(key.size).copied(),
            algorithm: key.algorithm.clone(),
            flows: cell.took.count(),
            bytes: Bytes(cell.bytes),
            retransmits: cell.retransmits,
            completion: Completion {
                mean_us: cell.took.mean(),
                p50_us: cell.took.percentile(50.0),
                p90_us: cell.took.percentile(90.0),
                p99_us: cell.took.percentile(99.0),
                most_us: cell.took.most(),
            },
            took_us: cell.took.sum(),
            took_below: TOOK_BITS.iter().map(|bits| cell.took.below_power(*bits)).collect(),
        };
        let path = |(to, path): (&IpNet, &Path)| PathRow {
            to: *to,
            flows: path.flows,
            least_rtt_us: path.least_rtt_us,
            most_rtt_us: path.most_rtt_us.max(path.least_rtt_us),
            buffer_bdp: f64::from(path.most_rtt_us.saturating_sub(path.least_rtt_us))
                / f64::from(path.least_rtt_us.max(1)),
        };
        StatsView {
            rows: self.cells.iter().map(row).collect(),
            paths: self.paths.iter().map(path).collect(),
            uncounted: self.uncounted,
        }
    }
}
