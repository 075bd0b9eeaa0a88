//! Two trees, each with half of the users, on a processor of its own: shards that share a link, and trees
//! that share nothing. These are what this machine gives shards at the most: less than twice one
//! thread's where its processors share what one alone has for itself.

use std::{sync::Barrier, time::Instant as Clock};

use anyhow::{Context, Result};
use weir_htb::{ClassId, ClassSpec, Departure, Htb, Packet, Shard};
use weir_units::Instant;

use super::{BATCH, Backlog, Wire};
use crate::phtb::{Case, Played, Scenario, classes, cores::side_by_side, limits, tree};

/// What both kinds do.
trait Tree: Send {
    /// Whether it has the leaf.
    fn has(&self, leaf: ClassId) -> bool;
    fn enqueue(&mut self, leaf: ClassId, packet: Packet);
    fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize;
}

impl Tree for Shard {
    fn has(&self, leaf: ClassId) -> bool {
        Shard::has(self, leaf)
    }
    #[inline]
    fn enqueue(&mut self, leaf: ClassId, packet: Packet) {
        // One has just left there.
        let _ = Shard::enqueue(self, leaf, packet);
    }
    #[inline]
    fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize {
        Shard::dequeue_batch(self, now, left)
    }
}

impl Tree for Htb {
    fn has(&self, leaf: ClassId) -> bool {
        self.exists(leaf)
    }
    #[inline]
    fn enqueue(&mut self, leaf: ClassId, packet: Packet) {
        let _ = Htb::enqueue(self, leaf, packet);
    }
    #[inline]
    fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize {
        Htb::dequeue_batch(self, now, left)
    }
}

/// Plays the packets of a tree's users; what has left, and how many seconds it took.
fn play(mut tree: impl Tree, backlog: &Backlog, mut wire: Wire, begin: &Barrier) -> (Wire, f64) {
    for (leaf, packet) in backlog.handles().filter_map(|handle| backlog.classified(handle)) {
        if tree.has(leaf) {
            tree.enqueue(leaf, packet);
        }
    }
    let mut left = [Departure::default(); BATCH];
    begin.wait();
    let start = Clock::now();
    loop {
        let n = tree.dequeue_batch(wire.now(), &mut left);
        for departure in &left[..n] {
            if let Some((leaf, packet)) = backlog.classified(departure.packet.handle) {
                tree.enqueue(leaf, packet);
            }
        }
        if !wire.send(&left[..n]) {
            return (wire, start.elapsed().as_secs_f64());
        }
    }
}

/// Both at once, each with its packets and its wire.
fn both<T: Tree>(one: (T, &Backlog, Wire), other: (T, &Backlog, Wire)) -> Result<Played> {
    let begin = Barrier::new(2);
    let play = |(tree, backlog, wire)| play(tree, backlog, wire, &begin);
    let (((a, a_took), _, a_had), ((b, b_took), _, b_had)) = side_by_side(|| play(one), || play(other))?;
    let (one, other) = (a.played(a_took, a_had), b.played(b_took, b_had));
    Ok(Played {
        // Each at its own pace, as they do not wait for each other.
        seconds: one.seconds.max(other.seconds),
        sent: one.sent + other.sent,
        bytes: one.bytes + other.bytes,
        late_bytes: one.late_bytes + other.late_bytes,
        late_ns: one.late_ns.max(other.late_ns),
        had: a_had.min(b_had),
        ..Played::default()
    })
}

/// Each shard with its part of the wire.
pub(super) fn shards(scenario: &Scenario, backlog: &Backlog) -> Result<Played> {
    let specs: Vec<ClassSpec> = classes(scenario);
    let [root, below @ ..] = &specs[..] else { anyhow::bail!("scenario {} has no classes", scenario.name) };
    let limits = limits(scenario, backlog.handles().end);
    let parts = weir_htb::shards(limits, Instant::default(), *root, below, 2)
        .with_context(|| format!("scenario {}", scenario.name))?;
    let Ok([one, other]) = <[Shard; 2]>::try_from(parts) else {
        anyhow::bail!("scenario {} is not divided into two shards", scenario.name);
    };
    both((one, backlog, backlog.wire(2)), (other, backlog, backlog.wire(2)))
}

/// Each with a link, users and packets of its own.
pub(super) fn apart(case: Case, scenario: &Scenario, packets: u64, seed: u64) -> Result<Played> {
    let case = Case { active: (case.active / 2).max(1), ..case };
    let half = Scenario { users: scenario.users / 2, active: case.active, ..scenario.clone() };
    let backlogs = [(); 2].map(|()| Backlog::new(case, &half, packets / 2, seed));
    let [one, other] = &backlogs;
    let tree = |backlog: &Backlog| tree(&half, backlog.handles().end);
    // Two links that are half of the one.
    both((tree(one)?, one, one.wire(1)), (tree(other)?, other, other.wire(1)))
}
