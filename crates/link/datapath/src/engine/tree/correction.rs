//! Corrects rates and turns of classes to which HTB gives more or less than their targets. Pure.
//!
//! HTB serves at least a packet a turn, so that a class that lacks nothing has a packet a round on top of its
//! rate. A class near its ceiling loses turns, and one that borrows alone for a moment has more than its
//! turn. Such errors stay as long as demands stay. An integral of what each class sent beside what it was due
//! removes them within 3 to 5 s.
//!
//! A class is compared once it has had packets at each look for a time. One that had a queue at each look may get more.
//! One that had fewer packets at some look may get less alone: it misses turns by itself, but has no claim to more
//! than its target. Few connections of TCP have such queues. An error of two turns is noise, and so is one that the
//! comparison before did not find: connections that start have such errors. A class without packets, or whose target
//! moves, begins again, and so do all when another class begins or ceases to take all.
//!
//! Corrections never raise the sum of rates above what [`build`](super::build) may hand out, or that of a
//! group's members above the group's ceiling. No rate of a class or group falls below seven eighths of its
//! floor. A class in debt of tokens waits the longer, the lower its rate is, so that a correction takes at most a
//! quarter of a target off.

use std::{collections::BTreeMap, time::Duration};

use weir_netlink::tc::HtbClass;
use weir_units::{BitRate, Bytes, Instant, TcHandle};

use super::{MAJOR, MIN_OWN_RATE, Node, SLACK_PER_MILLE};
use crate::engine::{
    Measured,
    plan::{Group, Plan},
};

/// The smallest backlog in bytes that counts as a queue, and not as few packets.
const QUEUE: u64 = 3 * 1514;
/// A class has packets for this time before it is compared, and a queue for this time before it may get more.
const SETTLED: Duration = Duration::from_millis(2000);
/// An error is one of at least this time.
const LEAST: Duration = Duration::from_millis(500);
/// An error within noise is forgotten after this time.
const MOST: Duration = Duration::from_secs(8);
/// An error of this number of turns is noise.
const TURNS: u64 = 2;
/// A target that moves by more than one part in this number begins again.
const STEADY: u64 = 8;
/// One correction is at most the target divided by this.
const STEP: u64 = 10;

/// A class's traffic beside what it is due.
#[derive(Debug, Clone, Copy)]
struct Taker {
    target: BitRate,
    floor: BitRate,
    /// The bits of one turn.
    turn: u64,
    /// The counter at the last look.
    bytes: Option<u64>,
    /// The first of the looks in a row that found packets.
    busy: Option<Instant>,
    /// The last look without a queue.
    short: Option<Instant>,
    /// The start of the comparison.
    since: Instant,
    /// The bits that the class has sent since then above what it was due.
    excess: i128,
    /// The same of all classes that are compared, and what they were due.
    of_all: (i128, i128),
    /// The error of the comparison before, bit/s, 0 if there was none.
    last: i128,
    /// To be added to its rate, bit/s.
    correction: i64,
}

/// The corrections of the classes of one tree.
#[derive(Debug, Default)]
pub struct Corrections {
    capacity: BitRate,
    /// The floors of groups.
    floors: BTreeMap<TcHandle, BitRate>,
    takers: BTreeMap<u16, Taker>,
    seen: Option<Instant>,
}

impl Corrections {
    /// Takes a new division, and the tree that was built for it. `hold`: classes keep the rates of an earlier
    /// agent, of which nothing is learned.
    pub fn follow(&mut self, plan: &Plan<'_>, nodes: &[Node], hold: bool) {
        if hold {
            self.takers.clear();
            return;
        }
        self.capacity = plan.shape.capacity;
        let floor = |group: &Group| (TcHandle::new(MAJOR, group.minor), group.policy.floor());
        self.floors = plan.groups.iter().map(floor).collect();
        let turns: BTreeMap<u16, u64> =
            nodes.iter().map(|node| (node.class.handle.minor(), 8 * node.class.quantum.0)).collect();
        let takers = || plan.members.iter().filter(|m| m.takes_all && m.prio > 0);
        let are_same = takers().count() == self.takers.len()
            && takers().all(|member| self.takers.contains_key(&member.minor));
        let before = std::mem::take(&mut self.takers);
        self.takers = takers()
            .map(|member| {
                let old = before.get(&member.minor);
                let kept = old.filter(|old| are_same && old.is_near(member.target));
                let taker = Taker {
                    target: member.target,
                    floor: member.policy.floor(),
                    turn: turns.get(&member.minor).copied().unwrap_or(0),
                    bytes: old.and_then(|old| old.bytes),
                    busy: kept.and_then(|old| old.busy),
                    short: kept.and_then(|old| old.short),
                    since: kept.map_or(self.seen.unwrap_or_default(), |old| old.since),
                    excess: kept.map_or(0, |old| old.excess),
                    of_all: kept.map_or((0, 0), |old| old.of_all),
                    last: kept.map_or(0, |old| old.last),
                    correction: kept.map_or(0, |old| old.correction),
                };
                (member.minor, taker)
            })
            .collect();
    }

    /// Takes counters. Returns whether a correction changed.
    pub fn look(&mut self, measured: &[Measured], now: Instant) -> bool {
        let elapsed = self.seen.replace(now).map_or(Duration::ZERO, |seen| now.since(seen));
        let due = |rate: BitRate| i128::from(rate.bytes_in(elapsed).0) * 8;
        let (mut sent, mut is_changed) = (BTreeMap::new(), false);
        for Measured { minor, counters } in measured {
            let Some(taker) = self.takers.get_mut(minor) else { continue };
            let before = taker.bytes.replace(counters.bytes);
            if counters.backlog == 0 {
                is_changed |= taker.correction != 0;
                (taker.busy, taker.correction) = (None, 0);
                taker.compare_from(now);
                continue;
            }
            if counters.backlog < QUEUE {
                is_changed |= taker.correction > 0;
                (taker.short, taker.correction) = (Some(now), taker.correction.min(0));
            }
            let busy = *taker.busy.get_or_insert(now);
            match before.and_then(|before| counters.bytes.checked_sub(before)) {
                Some(bytes) if now.since(busy) >= SETTLED => {
                    sent.insert(*minor, i128::from(bytes) * 8);
                }
                _ => taker.compare_from(now),
            }
        }
        let all_sent: i128 = sent.values().sum();
        let all_due: i128 = sent.keys().map(|minor| due(self.takers[minor].target)).sum();
        for (minor, sent) in sent {
            let Some(taker) = self.takers.get_mut(&minor) else { continue };
            taker.excess += sent - due(taker.target);
            taker.of_all = (taker.of_all.0 + all_sent - all_due, taker.of_all.1 + all_due);
            is_changed |= taker.correct(self.capacity, now);
        }
        is_changed
    }

    /// Corrects a tree that was built for the last division. A part of a correction that a rate cannot
    /// take changes the turn.
    pub fn correct(&self, nodes: &mut [Node]) {
        let Some(Node { class: root, .. }) = nodes.first().copied() else { return };
        let mut parents = self.parents(nodes);
        let is_leaf = |node: &&mut Node| node.leaf.is_some();
        for class in nodes.iter_mut().filter(is_leaf).map(|node| &mut node.class) {
            let Some(taker) = self.takers.get(&class.handle.minor()) else { continue };
            let bearable = taker.bearable(class);
            let fits = |parent: TcHandle| parents.get(&parent).map_or(bearable, |p| p.part(bearable));
            let change = fits(root.handle).min(fits(class.parent));
            class.rate = BitRate(class.rate.0.saturating_add_signed(change));
            let target = taker.target.0;
            let lent = target.saturating_sub(class.rate.0).max(target / 50).max(1);
            let turn = lent.saturating_add_signed(taker.correction - change).clamp(lent / 2, lent * 2);
            if taker.correction != change {
                let bytes = u128::from(class.quantum.0) * u128::from(turn) / u128::from(lent);
                class.quantum = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)).max(root.quantum);
            }
            if let Some(parent) = parents.get_mut(&class.parent) {
                parent.change += change;
            }
        }
        for class in nodes.iter_mut().skip(1).filter(|node| node.leaf.is_none()).map(|node| &mut node.class) {
            let change = parents.get(&class.handle).map_or(0, |parent| parent.change);
            let least = least(self.floors.get(&class.handle).copied().unwrap_or_default(), class);
            class.rate = BitRate(class.rate.0.saturating_add_signed(change)).min(class.ceil).max(least);
        }
    }

    /// The room for corrections below the link and each group.
    fn parents(&self, nodes: &[Node]) -> BTreeMap<TcHandle, Parent> {
        let root = nodes[0].class.handle;
        let inner = nodes.iter().filter(|node| node.leaf.is_none()).map(|node| node.class);
        let leaves = || nodes.iter().filter(|node| node.leaf.is_some()).map(|node| node.class);
        let bearable =
            |leaf: &HtbClass| self.takers.get(&leaf.handle.minor()).map_or(0, |taker| taker.bearable(leaf));
        let of = |parent: HtbClass| {
            let inside = || leaves().filter(|leaf| parent.handle == root || leaf.parent == parent.handle);
            let own: u64 = inside().map(|leaf| leaf.rate.0).sum();
            let sum = |sign: i64| -> u64 {
                inside().map(|leaf| (bearable(&leaf) * sign).max(0).unsigned_abs()).sum()
            };
            let room = match parent.handle == root {
                true => parent.rate.0 - parent.rate.0 * SLACK_PER_MILLE / 1000,
                false => parent.ceil.0,
            };
            Parent { raised: sum(1), free: (room + sum(-1)).saturating_sub(own), change: 0 }
        };
        inner.map(|parent| (parent.handle, of(parent))).collect()
    }
}

/// The least rate of a class or group with this floor. It is not above the rate before corrections.
fn least(floor: BitRate, class: &HtbClass) -> BitRate {
    BitRate(floor.0 - floor.0 / 8).max(MIN_OWN_RATE).min(class.rate)
}

/// The room for changed rates below the link or a group.
struct Parent {
    /// The sum of the corrections that raise rates.
    raised: u64,
    /// The most that all of them may raise.
    free: u64,
    /// The sum of the changes of rates.
    change: i64,
}

impl Parent {
    /// The part of a correction that there is room for.
    fn part(&self, change: i64) -> i64 {
        if change <= 0 || self.raised <= self.free {
            return change;
        }
        let part = u128::from(change.unsigned_abs()) * u128::from(self.free) / u128::from(self.raised);
        i64::try_from(part).unwrap_or(i64::MAX)
    }
}

impl Taker {
    fn is_near(&self, target: BitRate) -> bool {
        self.target.0.abs_diff(target.0) <= self.target.0 / STEADY
    }

    /// The correction, as far as the class's own bounds let its rate change.
    fn bearable(&self, class: &HtbClass) -> i64 {
        let rate = BitRate(class.rate.0.saturating_add_signed(self.correction));
        let rate = rate.min(class.ceil).max(least(self.floor, class));
        i64::try_from(i128::from(rate.0) - i128::from(class.rate.0)).unwrap_or(0)
    }

    fn compare_from(&mut self, now: Instant) {
        (self.since, self.excess, self.of_all, self.last) = (now, 0, (0, 0), 0);
    }

    /// Whether all classes together did not send what they were due. The demands are not what the division took them
    /// for then. One look alone tells little: it is late by some packets.
    fn is_strange(&self, capacity: BitRate, elapsed: Duration) -> bool {
        let (excess, due) = self.of_all;
        excess.abs() > (due / 20).max(i128::from(capacity.bytes_in(elapsed).0) * 8 / 100)
    }

    /// Corrects the part of an error that two comparisons in a row have found. Returns whether it did.
    fn correct(&mut self, capacity: BitRate, now: Instant) -> bool {
        let elapsed = now.since(self.since);
        if elapsed < LEAST {
            return false;
        }
        if self.is_strange(capacity, elapsed) {
            self.compare_from(now);
            return false;
        }
        if self.excess.abs() <= i128::from(self.turn * TURNS) {
            if elapsed >= MOST {
                self.compare_from(now);
            }
            return false;
        }
        let millis = i128::try_from(elapsed.as_millis()).unwrap_or(i128::MAX);
        let (target, step) = (i128::from(self.target.0), i128::from(self.target.0 / STEP));
        let error = (self.excess * 1000 / millis.max(1)).clamp(-step, step);
        let lasting = if error < 0 { error.max(self.last).min(0) } else { error.min(self.last).max(0) };
        let is_short = self.short.is_some_and(|short| now.since(short) < elapsed + SETTLED);
        let most = if is_short { 0 } else { target / 8 };
        let wanted = (i128::from(self.correction) - lasting).clamp(-target / 4, most);
        let before = std::mem::replace(&mut self.correction, i64::try_from(wanted).unwrap_or(0));
        self.compare_from(now);
        self.last = error;
        self.correction != before
    }
}

#[cfg(test)]
mod tests;
