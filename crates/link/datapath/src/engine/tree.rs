//! Builds the HTB tree for allocations. Pure.
//!
//! HTB gives a class its `rate` first and lends what is left by `quantum`. A class's rate holds its
//! floor, always, plus as much of its present allocation as fits: the rates of *all* classes, also
//! of those that sleep, together stay below the capacity. So a floor is there the moment a class
//! wakes, the link is never oversold, and both remain true if the agent dies. The rest of the link
//! is lent by quanta, in proportion to the part of its allocation that each class still lacks. The
//! shares of backlogged classes are then exactly their allocations:
//!
//! ```text
//! r_i = m_i + beta (a_i - m_i)     beta <= 1 the largest with  sum r_i <= (1 - SLACK) C
//! q_i ~ a_i - r_i
//! ```
//!
//! Two kinds of classes have more. One that is not backlogged (it sleeps, or wants less than it
//! may have) keeps enough for a packet in `DEBT`: HTB counts tokens in time, so that a
//! packet sent at a tiny rate leaves a debt of seconds, which a later, higher rate does not
//! forgive. One at its ceiling has its whole allocation as rate.
//!
//! (A static tree with rate = floor and quantum = weight gives floor *plus* a weighted
//! share instead; rates equal to the allocations of active classes alone oversell the
//! link whenever a sleeper wakes.)

use std::time::Duration;

use weir_netlink::tc::{HtbClass, Leaf};
use weir_share::Policy;
use weir_units::{BitRate, Bytes, TcHandle};

use super::{
    MAJOR, ROOT,
    plan::{Group, Member, Plan, Shape},
};

/// The part of the capacity that is always lent, never handed out: a class that wakes
/// without a floor gets its first share from here, before the next allocation.
const SLACK_PERCENT: u64 = 2;

/// Every class has at least this of its own, so that none starves.
const MIN_OWN_RATE: BitRate = BitRate::kbit(8);

/// A packet that a class sends while it is not backlogged costs it no more than this.
const DEBT: Duration = Duration::from_millis(20);

/// Above this capacity packets are not split: the work per packet would cost more than
/// short turns gain. (A round of 64 KiB quanta takes 8 ms at 1 Gbit/s, 79 ms at 100 Mbit/s,
/// for weights 1 to 5.)
const SPLIT_UP_TO: BitRate = BitRate::mbit(500);

/// The burst of a class with a fixed rate.
const PRECISE: Duration = Duration::from_millis(1);

/// Ethernet's header.
const FRAME: u64 = 14;

impl Shape {
    /// Whether to split by default.
    #[must_use]
    pub fn split_by_default(capacity: BitRate) -> bool {
        capacity <= SPLIT_UP_TO
    }

    /// The largest unit HTB has to move at once.
    fn unit(&self) -> u64 {
        let packet = u64::from(self.mtu) + FRAME;
        // A super-packet is 64 KiB of payload plus a header for each of its segments.
        if self.split { packet } else { 65_536 + 65_536 / u64::from(self.mtu.max(576)) * 66 + packet }
    }

    fn burst(&self, rate: BitRate, millis: u64) -> Bytes {
        let time = Duration::from_millis(millis);
        // Unsplit, a bucket holds a super-packet; split, a fresh connection's first window.
        let least = if self.split { (10 * self.unit()).max(16 * 1024) } else { self.unit() };
        Bytes(rate.bytes_in(time).0.max(least))
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
        if self.split {
            // Small super-packets may pass whole: splitting them gains little.
            Leaf::Split { limit, largest: Bytes((u64::from(self.mtu) + 32).max(9_216)) }
        } else {
            Leaf::Fifo { limit }
        }
    }
}

/// An HTB class, and its queue unless it is inner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Parameters.
    pub class: HtbClass,
    /// The queue.
    pub leaf: Option<Leaf>,
}

/// The claim of a class or group on the rates.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// It has this in any case.
    least: u64,
    /// As much of this as fits.
    allocation: u64,
    /// It may not have more than its allocation, so that it cannot be lent what is missing.
    at_ceiling: bool,
}

/// Splits `room` over terms: to everybody the least; then to those at their ceiling, as HTB
/// is bad at lending to them (waiting for its turn, such a class becomes able to send by
/// itself and loses the turn); then to all in proportion to what they lack.
fn hand_out(room: u64, terms: &[Terms]) -> Vec<u64> {
    let mut rates: Vec<u64> = terms.iter().map(|t| t.least).collect();
    for ceilings_only in [true, false] {
        let lacks: Vec<u64> = terms
            .iter()
            .zip(&rates)
            .map(
                |(t, rate)| {
                    if t.at_ceiling || !ceilings_only { t.allocation.saturating_sub(*rate) } else { 0 }
                },
            )
            .collect();
        let lacking: u128 = lacks.iter().map(|l| u128::from(*l)).sum();
        let taken: u128 = rates.iter().map(|r| u128::from(*r)).sum();
        let room = u128::from(room).saturating_sub(taken).min(lacking);
        for (rate, lack) in rates.iter_mut().zip(lacks) {
            let part = (u128::from(lack) * room).checked_div(lacking).unwrap_or(0);
            *rate += u64::try_from(part).unwrap_or(u64::MAX);
        }
    }
    rates
}

/// Builds the tree: root, groups, members, in that order.
///
/// Ceilings above the capacity become the capacity. If floors add up to more than the
/// capacity (which admission prevents), every floor is kept as rate all the same and the
/// root's ceiling decides.
pub fn build(plan: &Plan<'_>, out: &mut Vec<Node>) {
    let Plan { shape, groups, members } = *plan;
    out.clear();
    let capacity = shape.capacity;
    let ceiling = |policy: &Policy| policy.ceiling().min(capacity).max(MIN_OWN_RATE);
    let root = HtbClass {
        handle: TcHandle::new(MAJOR, ROOT),
        parent: TcHandle::new(MAJOR, 0),
        rate: capacity,
        ceil: capacity,
        burst: shape.burst(capacity, 2),
        cburst: shape.burst(capacity, 2),
        quantum: Bytes(shape.unit()),
        prio: 0,
    };
    out.push(Node { class: root, leaf: None });
    let (group_rates, rates) = rates(shape, groups, members);
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
        };
        out.push(Node { class, leaf: None });
    }
    let quanta = quanta(shape, members, &rates);
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
        };
        out.push(Node { class, leaf: Some(shape.leaf(ceil, member.prio)) });
    }
}

/// The tree that needs no agent: rate = floor, ceil = ceiling, quantum = weight. The rest above the
/// floors goes by weight on top of them. This is not section 3's division (see the module's text),
/// but a script can hold it.
pub fn fixed(plan: &Plan<'_>, out: &mut Vec<Node>) {
    build(plan, out);
    let Plan { shape, groups, members } = *plan;
    let floor = |policy: &Policy| policy.floor().min(shape.capacity).max(MIN_OWN_RATE);
    let weight = |policy: &Policy| u64::from(policy.weight().get());
    let lightest = members.iter().map(|m| weight(&m.policy)).min().unwrap_or(1).max(1);
    let (inner, leaves) = out[1..].split_at_mut(groups.len());
    for (node, member) in leaves.iter_mut().zip(members) {
        let rate = floor(&member.policy);
        node.class = HtbClass {
            rate,
            burst: shape.burst(rate, 10),
            quantum: Bytes(
                (shape.unit() * weight(&member.policy) / lightest).min(u64::from(i32::MAX.unsigned_abs())),
            ),
            ..node.class
        };
    }
    for (index, (node, group)) in inner.iter_mut().zip(groups).enumerate() {
        let inside = members.iter().filter(|m| m.group == Some(index)).map(|m| floor(&m.policy).0).sum();
        let rate = BitRate(inside).max(floor(&group.policy)).min(node.class.ceil);
        node.class = HtbClass { rate, burst: shape.burst(rate, 10), ..node.class };
    }
}

/// The rates of groups and members, bit/s: see the module's text.
fn rates(shape: &Shape, groups: &[Group], members: &[Member]) -> (Vec<u64>, Vec<u64>) {
    let capacity = shape.capacity;
    let floor = |policy: &Policy| policy.floor().min(capacity).max(MIN_OWN_RATE).0;
    let weight = |policy: &Policy| u64::from(policy.weight().get());
    let alone = || (0..members.len()).filter(|&i| members[i].group.is_none());
    let inside = |g: usize| (0..members.len()).filter(move |&i| members[i].group == Some(g));

    let room = capacity.0 - capacity.0 * SLACK_PERCENT / 100;
    let group_floor =
        |g: usize| inside(g).map(|i| floor(&members[i].policy)).sum::<u64>().max(floor(&groups[g].policy));
    let floors: u64 = (0..groups.len()).map(group_floor).sum::<u64>()
        + alone().map(|i| floor(&members[i].policy)).sum::<u64>();
    // Half of what the floors leave is what those that are not backlogged may keep, by weight;
    // more than saves them from debts they need not.
    let spare = room.saturating_sub(floors) / 2;
    let ready = BitRate::of(Bytes(shape.unit()), DEBT).0;
    let top_weights = groups.iter().map(|g| weight(&g.policy)).sum::<u64>()
        + alone().map(|i| weight(&members[i].policy)).sum::<u64>();
    let part = |of: u64, weight: u64, weights: u64| {
        u64::try_from(u128::from(of) * u128::from(weight) / u128::from(weights.max(1))).unwrap_or(u64::MAX)
    };
    let terms = |i: usize, spare: u64, weights: u64| {
        let Member { policy, allocation, backlogged, .. } = &members[i];
        let ceiling = policy.ceiling().min(capacity).max(MIN_OWN_RATE).0;
        let kept = if *backlogged { 0 } else { part(spare, weight(policy), weights).min(ready).min(ceiling) };
        Terms {
            least: floor(policy).max(kept),
            allocation: allocation.0,
            at_ceiling: *backlogged && allocation.0 >= ceiling,
        }
    };
    let group_terms: Vec<Vec<Terms>> = (0..groups.len())
        .map(|g| {
            let spare = part(spare, weight(&groups[g].policy), top_weights);
            let weights = inside(g).map(|i| weight(&members[i].policy)).sum();
            inside(g).map(|i| terms(i, spare, weights)).collect()
        })
        .collect();
    let of_group = |g: usize| {
        let Group { policy, allocation, .. } = &groups[g];
        Terms {
            least: group_terms[g].iter().map(|t| t.least).sum::<u64>().max(floor(policy)),
            allocation: allocation.0,
            at_ceiling: allocation.0 >= policy.ceiling().0,
        }
    };
    let top: Vec<Terms> =
        (0..groups.len()).map(of_group).chain(alone().map(|i| terms(i, spare, top_weights))).collect();
    let mut top_rates = hand_out(room, &top);

    let mut rates = vec![0; members.len()];
    for (i, rate) in alone().zip(&top_rates[groups.len()..]) {
        rates[i] = *rate;
    }
    for (g, terms) in group_terms.iter().enumerate() {
        for (i, rate) in inside(g).zip(hand_out(top_rates[g], terms)) {
            rates[i] = rate;
        }
    }
    top_rates.truncate(groups.len());
    (top_rates, rates)
}

/// How much each member is served at a time when it borrows, bytes: what its allocation
/// lacks decides its part of what is lent.
fn quanta(shape: &Shape, members: &[Member], rates: &[u64]) -> Vec<u64> {
    let weight = |m: &Member| u64::from(m.policy.weight().get());
    let weights: u64 = members.iter().map(weight).sum::<u64>().max(1);
    let lacks = |m: &Member, rate: u64| {
        let wanted = if m.backlogged { m.allocation } else { shape.capacity.scale(weight(m), weights) };
        wanted.0.saturating_sub(rate)
    };
    let backlogged = || members.iter().zip(rates).filter(|(m, _)| m.backlogged);
    let lacking: u128 = backlogged().map(|(m, rate)| u128::from(lacks(m, *rate))).sum();
    let unit = shape.unit();
    let time = Duration::from_millis(20);
    // One round serves each class once. It is short enough that no class waits long.
    let round = shape.capacity.bytes_in(time).0.max(4 * unit * backlogged().count().max(1) as u64);
    let quantum = |(m, rate): (&Member, &u64)| {
        let part = u128::from(round) * u128::from(lacks(m, *rate)) / lacking.max(1);
        u64::try_from(part).unwrap_or(u64::MAX).clamp(unit, round)
    };
    members.iter().zip(rates).map(quantum).collect()
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
        || old.ceil != new.ceil
        || old.cburst != new.cburst
        || apart(old.rate.0, new.rate.0, 100)
        || apart(old.quantum.0, new.quantum.0, 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_share::Weight;

    fn shape(capacity: BitRate, split: bool) -> Shape {
        Shape { capacity, split, mtu: 1500, delay_ms: 50, least_queue: Bytes(278_528) }
    }

    fn make(shape: &Shape, groups: &[Group], members: &[Member], nodes: &mut Vec<Node>) {
        build(&Plan { shape, groups, members }, nodes);
    }

    fn member(minor: u16, weight: u32, min: Option<u64>, max: Option<u64>, mbit: u64) -> Member {
        let policy =
            Policy::new(Weight::new(weight).unwrap(), min.map(BitRate::mbit), max.map(BitRate::mbit))
                .unwrap();
        let allocation = BitRate::mbit(mbit);
        Member { minor, group: None, policy, allocation, backlogged: mbit > 0, prio: 1 }
    }

    fn class(nodes: &[Node], minor: u16) -> HtbClass {
        nodes.iter().find(|n| n.class.handle.minor() == minor).unwrap().class
    }

    #[test]
    fn without_floors_rates_are_the_allocations_less_the_slack() {
        let mut nodes = Vec::new();
        let members = [member(16, 1, None, None, 25), member(17, 3, None, None, 75)];
        make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
        let (a, b) = (class(&nodes, 16), class(&nodes, 17));
        assert!(
            (a.rate.as_mbit() - 24.5).abs() < 0.1 && (b.rate.as_mbit() - 73.5).abs() < 0.1,
            "{a:?} {b:?}"
        );
        // The rest is lent in the same proportion.
        let ratio = b.quantum.0 as f64 / a.quantum.0 as f64;
        assert!((ratio - 3.0).abs() < 0.05, "{ratio}");
    }

    #[test]
    fn the_fixed_tree_has_floors_as_rates_ceilings_and_weights_as_quanta() {
        let mut nodes = Vec::new();
        let group = Group {
            minor: 15,
            policy: Policy::new(Weight::ONE, None, Some(BitRate::mbit(60))).unwrap(),
            allocation: BitRate::ZERO,
        };
        let inside = Member { group: Some(0), ..member(16, 2, Some(30), Some(50), 70) };
        let members = [inside, Member { group: Some(0), ..member(17, 6, None, None, 25) }];
        let shape = shape(BitRate::mbit(100), false);
        fixed(&Plan { shape: &shape, groups: &[group], members: &members }, &mut nodes);
        let (g, a, b) = (class(&nodes, 15), class(&nodes, 16), class(&nodes, 17));
        assert_eq!((g.rate, g.ceil), (BitRate(30_008_000), BitRate::mbit(60)));
        assert_eq!((a.rate, a.ceil, a.quantum.0), (BitRate::mbit(30), BitRate::mbit(50), shape.unit()));
        assert_eq!((b.rate, b.ceil, b.quantum.0), (MIN_OWN_RATE, BitRate::mbit(100), 3 * shape.unit()));
        assert!(nodes[3].leaf.is_some() && nodes[1].leaf.is_none());
    }

    #[test]
    fn a_sleeping_floor_is_kept_free_and_lent_by_what_each_still_lacks() {
        let mut nodes = Vec::new();
        // 30 sleeps; 20 is held at its floor; 70 and 10 go by weight.
        let members = [
            member(16, 1, Some(30), None, 0),
            member(17, 1, Some(20), None, 20),
            member(18, 7, None, None, 70),
            member(19, 1, None, None, 10),
        ];
        make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
        assert_eq!(class(&nodes, 16).rate, BitRate::mbit(30));
        assert_eq!(class(&nodes, 17).rate, BitRate::mbit(20));
        // The one at its floor gets the smallest turn there is.
        assert_eq!(class(&nodes, 17).quantum.0, 1514);
        let lent = |minor, whole| BitRate::mbit(whole).0 - class(&nodes, minor).rate.0;
        let ratio = lent(18, 70) as f64 / lent(19, 10) as f64;
        assert!((ratio - 7.0).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn a_sleeper_keeps_enough_for_its_first_packets_to_leave_no_debt() {
        let mut nodes = Vec::new();
        let members =
            [member(16, 1, None, None, 0), member(17, 3, None, None, 0), member(18, 1, None, None, 100)];
        make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
        for minor in [16, 17] {
            let debt = class(&nodes, minor).rate.time_to_send(Bytes(1514));
            assert!(debt <= DEBT + Duration::from_micros(1), "{minor}: {debt:?}");
        }
        // It is lent while they sleep: the one that sends may have all.
        assert_eq!(class(&nodes, 18).ceil, BitRate::mbit(100));
    }

    #[test]
    fn a_class_that_is_promised_one_rate_saves_up_a_millisecond_of_it() {
        let mut nodes = Vec::new();
        let members = [
            member(16, 1, Some(19), Some(19), 19),
            member(17, 1, Some(50), Some(50), 50),
            member(18, 1, Some(19), Some(20), 19),
            member(19, 1, None, Some(19), 19),
        ];
        let bursts = |nodes: &[Node], minor| (class(nodes, minor).burst.0, class(nodes, minor).cburst.0);
        make(&shape(BitRate::mbit(200), true), &[], &members, &mut nodes);
        assert_eq!(bursts(&nodes, 16), (2 * 1514, 2 * 1514), "2375 bytes are less than two frames");
        assert_eq!(bursts(&nodes, 17), (6250, 6250));
        // A class that may have more than its promise, or has no promise, is not measured so
        // exactly.
        assert!(bursts(&nodes, 18).0 >= 16_384 && bursts(&nodes, 19).0 >= 16_384);
        // A super-packet has to fit.
        make(&shape(BitRate::mbit(200), false), &[], &members, &mut nodes);
        assert!(bursts(&nodes, 16).0 > 65_536);
    }

    #[test]
    fn a_class_at_its_ceiling_is_not_left_to_borrow() {
        let mut nodes = Vec::new();
        let members = [
            member(16, 1, Some(30), None, 30),
            member(17, 2, None, None, 55),
            member(18, 3, None, Some(15), 15),
        ];
        make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
        assert_eq!(class(&nodes, 18).rate, BitRate::mbit(15));
        assert_eq!(class(&nodes, 16).rate, BitRate::mbit(30));
        assert_eq!(class(&nodes, 17).rate, BitRate::mbit(53));
    }

    #[test]
    fn a_group_carries_its_members_rates_and_its_own_ceiling() {
        let mut nodes = Vec::new();
        let policy = Policy::new(Weight::ONE, None, Some(BitRate::mbit(40))).unwrap();
        let groups = [Group { minor: 20, policy, allocation: BitRate::mbit(40) }];
        let mut members =
            [member(16, 1, None, None, 10), member(17, 3, None, None, 30), member(18, 1, None, None, 60)];
        members[0].group = Some(0);
        members[1].group = Some(0);
        make(&shape(BitRate::mbit(100), true), &groups, &members, &mut nodes);
        let group = class(&nodes, 20);
        assert_eq!(group.ceil, BitRate::mbit(40));
        assert_eq!(class(&nodes, 16).parent, group.handle);
        assert!(class(&nodes, 16).rate.0 + class(&nodes, 17).rate.0 <= group.rate.0);
    }

    #[test]
    fn queues_hold_a_sockets_buffer_and_drain_within_the_delay() {
        let leaf = |max, split| shape(BitRate::mbit(1000), split).leaf(BitRate::mbit(max), 1);
        assert_eq!(leaf(1, false), Leaf::Fifo { limit: Bytes(278_528) });
        assert_eq!(leaf(1000, false), Leaf::Fifo { limit: Bytes(6_250_000) });
        assert!(matches!(leaf(1, true), Leaf::Split { largest: Bytes(9_216), .. }));
    }

    #[test]
    fn an_urgent_queue_drains_within_10_ms_or_holds_two_frames() {
        let leaf = |max| shape(BitRate::mbit(1000), false).leaf(BitRate::mbit(max), 0);
        assert_eq!(leaf(1), Leaf::Fifo { limit: Bytes(3_064) });
        assert_eq!(leaf(8), Leaf::Fifo { limit: Bytes(10_000) });
    }

    proptest! {
        #[test]
        fn the_link_is_never_oversold_and_no_floor_or_ceiling_is_touched(
            capacity in 1_000_000u64..10_000_000_000,
            parts in prop::collection::vec((1u32..1000, 0u64..60, 0u64..100, any::<bool>()), 1..40),
            split in any::<bool>(),
        ) {
            let n = parts.len() as u64;
            let members: Vec<Member> = parts.iter().zip(16u16..).map(|(&(w, min, alloc, backlogged), minor)| {
                let floor = capacity * min / 100 / n;
                let policy = Policy::new(
                    Weight::new(w).unwrap(), (floor >= 8_000).then_some(BitRate(floor)), None).unwrap();
                let allocation = BitRate((capacity * alloc / 100 / n).max(floor));
                Member { minor, group: None, policy, allocation, backlogged, prio: 1 }
            }).collect();
            let mut nodes = Vec::new();
            make(&shape(BitRate(capacity), split), &[], &members, &mut nodes);
            let sum: u64 = nodes[1..].iter().map(|n| n.class.rate.0).sum();
            prop_assert!(sum <= capacity.max(n * MIN_OWN_RATE.0), "{sum} of {capacity}");
            for (node, member) in nodes[1..].iter().zip(&members) {
                prop_assert!(node.class.rate >= member.policy.floor());
                prop_assert!(node.class.rate <= node.class.ceil);
                prop_assert!(node.class.quantum.0 >= 1514);
            }
        }
    }
}
