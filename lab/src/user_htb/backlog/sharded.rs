//! Two trees, each with half of the users, on a processor of its own: shards that share a link, and
//! trees that share nothing. This is the most that this machine gives shards: less than twice one
//! thread's where its processors share resources.

use std::{sync::Barrier, time::Instant as Clock};

use anyhow::{Context, Result};
use weir_htb::{ClassId, ClassSpec, Departure, Htb, Packet, Shard};
use weir_units::{BitRate, Instant};

use super::wire::{BATCH, Backlog, NO_PACKET, Wire};
use crate::user_htb::{
    cores::side_by_side,
    scenario::{PlayTiming, Scenario, classes, limits},
};

/// The common part of both kinds.
trait Tree: Send {
    /// Whether it has the leaf.
    fn has(&self, leaf: ClassId) -> bool;
    fn enqueue(&mut self, leaf: ClassId, packet: Packet);
    fn enqueue_batch(&mut self, packets: &[(ClassId, Packet)]);
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
    fn enqueue_batch(&mut self, packets: &[(ClassId, Packet)]) {
        Shard::enqueue_batch(self, packets.iter().copied(), |_, _, _| ());
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
    fn enqueue_batch(&mut self, packets: &[(ClassId, Packet)]) {
        Htb::enqueue_batch(self, packets.iter().copied(), |_, _, _| ());
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
    let (mut left, mut arrived) = ([Departure::default(); BATCH], [NO_PACKET; BATCH]);
    begin.wait();
    let start = Clock::now();
    loop {
        let n = tree.dequeue_batch(wire.now(), &mut left);
        tree.enqueue_batch(backlog.again(&left[..n], &mut arrived));
        if !wire.send(&left[..n]) {
            return (wire, start.elapsed().as_secs_f64());
        }
    }
}

/// Both at once, each with its packets and its wire.
fn both<T: Tree>(one: (T, &Backlog, Wire), other: (T, &Backlog, Wire)) -> Result<PlayTiming> {
    let begin = Barrier::new(2);
    let play = |(tree, backlog, wire)| play(tree, backlog, wire, &begin);
    let (((a, a_took), _, a_had), ((b, b_took), _, b_had)) = side_by_side(|| play(one), || play(other))?;
    let (one, other) = (a.played(a_took, a_had), b.played(b_took, b_had));
    Ok(PlayTiming {
        // Each at its own pace, as they do not wait for each other.
        seconds: one.seconds.max(other.seconds),
        sent: one.sent + other.sent,
        bytes: one.bytes + other.bytes,
        late_bytes: one.late_bytes + other.late_bytes,
        late_ns: one.late_ns.max(other.late_ns),
        had: a_had.min(b_had),
        ..PlayTiming::default()
    })
}

/// The tree in two shards.
fn divided(scenario: &Scenario, packets: u32) -> Result<[Shard; 2]> {
    let specs: Vec<ClassSpec> = classes(scenario);
    let [root, below @ ..] = &specs[..] else { anyhow::bail!("scenario {} has no classes", scenario.name) };
    let parts = weir_htb::shards(limits(scenario, packets), Instant::default(), *root, below, 2)
        .with_context(|| format!("scenario {}", scenario.name))?;
    let Ok(parts) = <[Shard; 2]>::try_from(parts) else {
        anyhow::bail!("scenario {} is not divided into two shards", scenario.name);
    };
    Ok(parts)
}

/// Each shard with its part of the wire.
pub(super) fn shards(scenario: &Scenario, backlog: &Backlog) -> Result<PlayTiming> {
    let [one, other] = divided(scenario, backlog.handles().end)?;
    both((one, backlog, backlog.wire(2)), (other, backlog, backlog.wire(2)))
}

/// The same users and packets on each thread, and half of the link, which is not divided again.
pub(super) fn apart(scenario: &Scenario, backlog: &Backlog) -> Result<PlayTiming> {
    let [one, other] = divided(scenario, backlog.handles().end)?;
    let tree = |shard: &Shard| {
        let mut specs = classes(scenario);
        specs.retain(|spec| shard.has(spec.id));
        let half = |rate: BitRate| BitRate(rate.0 / 2);
        if let Some(root) = specs.iter_mut().find(|spec| spec.parent.is_none()) {
            (root.params.rate, root.params.ceil) = (half(root.params.rate), half(root.params.ceil));
        }
        let built = Htb::build(limits(scenario, backlog.handles().end), Instant::default(), &specs);
        Ok::<_, anyhow::Error>(built.with_context(|| format!("scenario {}", scenario.name))?.0)
    };
    both((tree(&one)?, backlog, backlog.wire(2)), (tree(&other)?, backlog, backlog.wire(2)))
}
