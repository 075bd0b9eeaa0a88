//! All nodes deploy at once, and share one uplink.
//!
//! Each node takes its next deployment as soon as it is done with the last one, as a workload that
//! is replayed as fast as it goes. Simultaneous fetches divide the uplink equally. A blob that
//! another node is fetching into the shared cache is waited for, and fetched once.

use std::time::Duration;

use weir_units::Instant;

use super::{Outcome, Replay, Setup, Sharing};
use crate::trace::Trace;

/// Where a node is with its deployment.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Asks the registry, and is answered; until then, s.
    Asking(f64),
    /// Bytes still to come.
    Fetching(f64),
    /// For what the others are fetching.
    Waiting,
    /// The container starts; until then, s.
    Starting(f64),
    /// Nothing left to deploy.
    Done,
}

#[derive(Debug)]
struct Node {
    phase: Phase,
    /// The next deployment's index.
    next: usize,
    began: f64,
    /// Bytes that follow once the registry has answered.
    fetch: f64,
    /// The time of a start, s.
    start: f64,
    hit: bool,
    /// Fetches of other nodes, by their number, that have to end first.
    waits: Vec<u64>,
    /// The index of this node's fetch among all.
    number: u64,
}

/// The owner of a blob in flight.
#[derive(Debug)]
struct Flights {
    /// By blob: the fetch that brings it, 0 if none does.
    of: Vec<u64>,
    /// Fetches that have ended, by number.
    ended: Vec<bool>,
}

impl Flights {
    fn is_open(&self, number: u64) -> bool {
        number > 0 && !self.ended[number as usize]
    }
}

/// Replays the trace, without regard to its times, on nodes that deploy in parallel.
///
/// `setup.time.fetch.rate` is the site's uplink. `watch` is told of every deployment.
///
/// # Panics
/// Without nodes.
#[must_use]
pub fn simulate_closed(trace: &Trace, setup: Setup, bin: usize, mut watch: impl FnMut()) -> Outcome {
    let mut replay = Replay::new(trace, setup, bin);
    let mut flights = Flights { of: vec![0; trace.blobs.len()], ended: vec![true] };
    let idle = |node| Node {
        phase: Phase::Starting(0.0),
        next: node,
        began: 0.0,
        fetch: 0.0,
        start: 0.0,
        hit: false,
        waits: Vec::new(),
        number: 0,
    };
    let mut nodes: Vec<Node> = (0..setup.nodes).map(idle).collect();
    let mut now = 0.0;
    for node in &mut nodes {
        begin(node, now, trace, &mut replay, &mut flights);
    }
    let rate = setup.time.fetch.rate.0 as f64 / 8.0;
    while let Some(step) = next_event(&nodes, now, rate) {
        let share =
            rate / nodes.iter().filter(|n| matches!(n.phase, Phase::Fetching(_))).count().max(1) as f64;
        now += step;
        for node in &mut nodes {
            let Phase::Fetching(left) = &mut node.phase else { continue };
            *left -= share * step;
        }
        for node in &mut nodes {
            match node.phase {
                Phase::Asking(until) if until <= now + TINY => node.phase = Phase::Fetching(node.fetch),
                Phase::Fetching(left) if left <= rate * TINY => {
                    flights.ended[node.number as usize] = true;
                    node.phase = Phase::Waiting;
                }
                Phase::Starting(until) if until <= now + TINY => {
                    watch();
                    replay.account(node.hit, now - node.began);
                    node.next += setup.nodes;
                    begin(node, now, trace, &mut replay, &mut flights);
                }
                _ => {}
            }
        }
        for node in &mut nodes {
            if node.phase == Phase::Waiting {
                node.waits.retain(|number| flights.is_open(*number));
                if node.waits.is_empty() {
                    node.phase = Phase::Starting(now + node.start);
                }
            }
        }
    }
    replay.outcome()
}

/// Less than any time that matters, s.
const TINY: f64 = 1e-9;

/// The time until the next event of any node, s.
fn next_event(nodes: &[Node], now: f64, rate: f64) -> Option<f64> {
    let fetching = nodes.iter().filter(|n| matches!(n.phase, Phase::Fetching(_))).count().max(1) as f64;
    let times = nodes.iter().filter_map(|node| match node.phase {
        Phase::Asking(until) | Phase::Starting(until) => Some(until - now),
        Phase::Fetching(left) => Some(left * fetching / rate),
        Phase::Waiting | Phase::Done => None,
    });
    times.map(|time| time.max(0.0)).reduce(f64::min)
}

fn begin(node: &mut Node, now: f64, trace: &Trace, replay: &mut Replay<'_>, flights: &mut Flights) {
    let Some(deployment) = trace.deployments.get(node.next) else {
        node.phase = Phase::Done;
        return;
    };
    let access = replay.access(node.next, Instant(Duration::from_secs_f64(now)));
    node.number = flights.ended.len() as u64;
    flights.ended.push(access.missing == 0);
    node.waits.clear();
    if replay.setup.sharing == Sharing::Shared {
        // A blob that another node fetches counts as stored, and is on its way.
        let missing = std::mem::take(&mut replay.missing);
        for blob in &*trace.images[deployment.image as usize] {
            let of = flights.of[*blob as usize];
            if flights.is_open(of) && !node.waits.contains(&of) && !missing.contains(blob) {
                node.waits.push(of);
            }
        }
        for blob in &missing {
            flights.of[*blob as usize] = node.number;
        }
        replay.missing = missing;
    }
    node.began = now;
    node.fetch = access.missing as f64;
    node.start = replay.setup.time.ready(replay.setup.sharing, access.hit).as_secs_f64();
    node.hit = access.missing == 0 && node.waits.is_empty();
    node.phase = if access.missing == 0 {
        Phase::Waiting
    } else {
        let asks = replay.missing.len() as f64 * replay.setup.time.fetch.each.as_secs_f64();
        Phase::Asking(now + asks)
    };
    if access.missing == 0 && node.waits.is_empty() {
        node.phase = Phase::Starting(now + node.start);
    }
}
