//! Builds the HTB tree for allocations. Pure.
//!
//! HTB gives a class its `rate` first and lends what is left by `quantum`. A class's rate holds its
//! floor, always, plus as much of its present allocation as fits: the rates of *all* classes, also
//! of those that sleep, together stay below the capacity. So a floor is there the moment a class
//! wakes, the link is never oversold, and both remain true if the agent dies. The rest of the link
//! is lent by quanta, in proportion to the part of its target that each class still lacks. A target is
//! the share of what all classes take at present, while allocations leave room for demands that grow. The
//! shares of backlogged classes are then exactly their targets:
//!
//! ```text
//! r_i = max(m_i, a_i - s w_i)     s >= 0 the least with  sum r_i <= (1 - SLACK) C
//! q_i ~ t_i - r_i
//! ```
//!
//! A class that sends super-packets has one each turn, whatever it lacks. So while demands rest, one at its minimum
//! has up to a thirty-second part of it by its turns, and not as rate.
//!
//! Two kinds of classes have more. One that is not backlogged (it sleeps, or wants less than it
//! may have) keeps enough for a packet in `DEBT`: HTB counts tokens in time, so that a
//! packet sent at a tiny rate leaves a debt of seconds, which a later, higher rate does not
//! forgive. One at its ceiling has its whole allocation as rate.
//!
//! (A static tree with rate = floor and quantum = weight gives floor *plus* a weighted
//! share instead; rates equal to the allocations of active classes alone oversell the
//! link whenever a sleeper wakes.)

mod correction;
mod packets;
mod quanta;
mod rates;
#[cfg(test)]
mod tests;

use std::time::Duration;

use weir_netlink::tc::{HtbClass, Leaf};
use weir_share::Policy;
use weir_units::{BitRate, Bytes, Framing, LinkHeader, RateFraming, TcHandle};

pub use correction::Corrections;
pub use packets::Packets;

use super::{
    MAJOR, ROOT,
    plan::{Member, Plan, Shape},
};

/// The part of the capacity that is always lent, never handed out: a class that wakes
/// without a floor gets its first share from here, before the next allocation. Classes swing between
/// tenths of a second by what is lent, so that it is small.
const SLACK_PER_MILLE: u64 = 5;

/// A round of turns serves each class once. It is at most as long as this time of the whole link.
const ROUND_OF_LINK: Duration = Duration::from_millis(12);

/// A round is as short as this time at the lent rate if each class bears that. One class after another has all that is
/// lent, so that classes swing over less than a round.
const ROUND_OF_LENT: Duration = Duration::from_millis(40);

/// A round of this time at the lent rate holds a super-packet of each class that lacks something.
const LONG_PACKET_ROUND: Duration = Duration::from_millis(80);

/// Every class has at least this of its own, so that none starves.
const MIN_OWN_RATE: BitRate = BitRate::kbit(8);

/// Above this capacity packets are not split: the work per packet would cost more than
/// short turns gain. (A round of 64 KiB quanta takes 8 ms at 1 Gbit/s, 79 ms at 100 Mbit/s,
/// for weights 1 to 5.)
const SPLIT_UP_TO: BitRate = BitRate::mbit(500);

/// The burst of a class with a fixed rate.
const PRECISE: Duration = Duration::from_millis(1);

/// The burst of the whole link. A timer that is later loses bandwidth.
const LINK_BURST: Duration = Duration::from_millis(2);

impl Shape {
    /// Whether to split by default.
    #[must_use]
    pub fn split_by_default(capacity: BitRate) -> bool {
        capacity <= SPLIT_UP_TO
    }

    /// The largest unit HTB has to move at once.
    fn unit(&self) -> u64 {
        let packet = u64::from(self.mtu) + LinkHeader::Ethernet.bytes();
        // A super-packet is 64 KiB of payload plus a header for each of its segments.
        if self.split { packet } else { 65_536 + 65_536 / u64::from(self.mtu.max(576)) * 66 + packet }
    }

    /// The largest packet that leaves a queue whole. Small super-packets may: splitting them gains little.
    fn largest(&self) -> u64 {
        if self.split { (u64::from(self.mtu) + 32).max(9_216) } else { self.unit() }
    }

    fn burst(&self, rate: BitRate, millis: u64) -> Bytes {
        let time = Duration::from_millis(millis);
        // Unsplit, a bucket holds a super-packet; split, a fresh connection's first window.
        let least = if self.split { (10 * self.unit()).max(16 * 1024) } else { self.unit() };
        Bytes(rate.bytes_in(time).0.max(least))
    }

    /// The burst of the whole link. It stands in the queue of the line behind the link, and a line that is a
    /// little faster takes seconds to drain it.
    fn link_burst(&self) -> Bytes {
        let least = if self.split { 2 * self.unit() } else { self.unit() };
        Bytes(self.capacity.bytes_in(LINK_BURST).0.max(least))
    }

    /// The bursts of rate and ceiling of a class. One whose floor is its ceiling is promised a rate
    /// and not more: what it saves up while it is idle would come on top of that (10 ms of rate
    /// make an answer of 419 KiB at 19 Mbit/s 4 % faster), so that it is let save a millisecond.
    fn bursts(&self, policy: &Policy, rate: BitRate, ceil: BitRate) -> (Bytes, Bytes) {
        if self.split && policy.min().is_some() && policy.min() == policy.max() {
            let burst = Bytes(ceil.bytes_in(PRECISE).0.max(2 * self.unit()));
            (burst, burst)
        } else {
            (self.burst(rate, 10), self.burst(ceil, 10))
        }
    }

    fn leaf(&self, ceil: BitRate, prio: u32) -> Leaf {
        let limit = if prio == 0 { self.urgent_limit(ceil) } else { self.queue_limit(ceil) };
        if self.split { Leaf::Split { limit, largest: Bytes(self.largest()) } } else { Leaf::Fifo { limit } }
    }
}

/// The part of `of` that `n` has of `all`, rounded down.
fn part(of: u64, n: u64, all: u64) -> u64 {
    BitRate(of).scale(n, all.max(1)).0
}

/// An HTB class, and its queue unless it is inner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Parameters.
    pub class: HtbClass,
    /// The queue.
    pub leaf: Option<Leaf>,
}

/// Builds the tree: root, groups, members, in that order.
///
/// Ceilings above the capacity become the capacity. If floors add up to more than the
/// capacity (which admission prevents), every floor is kept as rate all the same and the
/// root's ceiling decides. A class whose packets are not known counts with the largest that leave a queue whole.
pub fn build(plan: &Plan<'_>, packets: &Packets, out: &mut Vec<Node>) {
    let Plan { shape, groups, members } = *plan;
    out.clear();
    let capacity = shape.capacity;
    let framing = shape.framing.map_or(RateFraming::default(), Framing::of_rate);
    let ceiling = |policy: &Policy| policy.ceiling().min(capacity).max(MIN_OWN_RATE);
    let root = HtbClass {
        handle: TcHandle::new(MAJOR, ROOT),
        parent: TcHandle::new(MAJOR, 0),
        rate: capacity,
        ceil: capacity,
        burst: shape.link_burst(),
        cburst: shape.link_burst(),
        quantum: Bytes(shape.unit()),
        prio: 0,
        framing,
    };
    out.push(Node { class: root, leaf: None });
    let rates = rates::of_members(plan, packets);
    let group_rates: Vec<u64> = (0..groups.len())
        .map(|g| rates::of_group(&groups[g], members.iter().zip(&rates).filter(|(m, _)| m.group == Some(g))))
        .collect();
    for (group, rate) in groups.iter().zip(&group_rates) {
        let ceil = ceiling(&group.policy);
        let rate = BitRate(*rate).min(ceil);
        let class = HtbClass {
            handle: TcHandle::new(MAJOR, group.minor),
            parent: TcHandle::new(MAJOR, ROOT),
            rate,
            ceil,
            burst: shape.burst(rate, 10),
            cburst: shape.burst(ceil, 10),
            quantum: Bytes(shape.unit()),
            prio: 1,
            framing,
        };
        out.push(Node { class, leaf: None });
    }
    let quanta = quanta::of_members(plan, packets, &group_rates, &rates);
    for ((member, rate), quantum) in members.iter().zip(&rates).zip(quanta) {
        let ceil = ceiling(&member.policy);
        let rate = BitRate(*rate).min(ceil);
        let (burst, cburst) = shape.bursts(&member.policy, rate, ceil);
        let class = HtbClass {
            handle: TcHandle::new(MAJOR, member.minor),
            parent: TcHandle::new(MAJOR, member.group.map_or(ROOT, |g| groups[g].minor)),
            rate,
            ceil,
            burst,
            cburst,
            quantum: Bytes(quantum),
            prio: member.prio,
            framing,
        };
        out.push(Node { class, leaf: Some(shape.leaf(ceil, member.prio)) });
    }
    if let Some(framing) = shape.framing {
        for class in out.iter_mut().map(|node| &mut node.class) {
            (class.rate, class.ceil) = (framing.scale(class.rate), framing.scale(class.ceil));
        }
    }
}

/// The tree that needs no agent: rate = floor, ceil = ceiling, quantum = weight. The rest above the
/// floors goes by weight on top of them. This is not the division of the allocator (see
/// [`tree`](self)), but a script can hold it. A group lacks the quanta of its idle members.
pub fn fixed(plan: &Plan<'_>, out: &mut Vec<Node>) {
    build(plan, &Packets::default(), out);
    let Plan { shape, groups, members } = *plan;
    let floor = |policy: &Policy| policy.floor().min(shape.capacity).max(MIN_OWN_RATE);
    let (inner, leaves) = out[1..].split_at_mut(groups.len());
    for ((node, member), quantum) in leaves.iter_mut().zip(members).zip(fixed_quanta(plan)) {
        let rate = floor(&member.policy);
        node.class = HtbClass { rate, burst: shape.burst(rate, 10), quantum, ..node.class };
    }
    for (index, (node, group)) in inner.iter_mut().zip(groups).enumerate() {
        let inside = members.iter().filter(|m| m.group == Some(index)).map(|m| floor(&m.policy).0).sum();
        let rate = BitRate(inside).max(floor(&group.policy)).min(node.class.ceil);
        node.class = HtbClass { rate, burst: shape.burst(rate, 10), ..node.class };
    }
}

/// The quanta of members without an agent, of at least a packet. HTB ignores the quantum of an inner class, and serves each
/// backlogged member in its group's turn. So members divide their group's weight.
fn fixed_quanta(plan: &Plan<'_>) -> Vec<Bytes> {
    let Plan { shape, groups, members } = *plan;
    let weight = |policy: &Policy| u128::from(policy.weight().get());
    let part = |member: &Member| {
        // A fraction of 32 bits: a group's weight may be less than that of its members together.
        let own = weight(&member.policy) << 32;
        let Some(group) = member.group else { return own };
        let inside = members.iter().filter(|m| m.group == Some(group)).map(|m| weight(&m.policy));
        own * weight(&groups[group].policy) / inside.sum::<u128>()
    };
    // Classes of another priority have rounds of their own.
    let sharing = members.iter().filter(|member| member.prio > 0);
    let least = sharing.map(part).min().unwrap_or(1).max(1);
    let unit = u128::from(shape.unit());
    let quantum = |member: &Member| (unit * part(member) / least).max(unit);
    let largest = u128::from(i32::MAX.unsigned_abs());
    members.iter().map(|m| Bytes(u64::try_from(quantum(m).min(largest)).unwrap_or(u64::MAX))).collect()
}

/// Leaves classes that an earlier agent has made (`there`) at the rates and turns they have; ceilings and
/// the whole link's class are as wanted. For an agent that does not yet know who sends: its
/// predecessor's guess is the better one.
pub(super) fn hold(wanted: &mut [Node], there: impl Fn(u16) -> Option<HtbClass>) {
    for class in wanted.iter_mut().map(|n| &mut n.class).filter(|c| c.handle.minor() != super::ROOT) {
        if let Some(there) = there(class.handle.minor()) {
            class.rate = there.rate.min(class.ceil);
            (class.burst, class.quantum) = (there.burst, there.quantum);
        }
    }
}

/// Whether replacing `old` by `new` changes what the class gets: rates by more than 1 %,
/// the quantum by more than an eighth, anything else at all.
#[must_use]
pub fn differs(old: &HtbClass, new: &HtbClass) -> bool {
    let apart = |a: u64, b: u64, part: u64| a.abs_diff(b) > a.min(b) / part;
    old.parent != new.parent
        || old.prio != new.prio
        || old.framing != new.framing
        || old.ceil != new.ceil
        || old.cburst != new.cburst
        || apart(old.rate.0, new.rate.0, 100)
        || apart(old.quantum.0, new.quantum.0, 8)
}
