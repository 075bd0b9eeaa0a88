//! The plan that an engine enforces: policies, and the allocations at present.

use std::time::Duration;

use weir_share::Policy;
use weir_units::{BitRate, Bytes, Framing, LinkHeader};

/// A link, its groups and its classes. An engine that divides the link by itself uses the
/// policies; one that is told the division uses the allocations.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The link.
    pub shape: &'a Shape,
    /// Groups, one level.
    pub groups: &'a [Group],
    /// All classes, of groups or none.
    pub members: &'a [Member],
}

/// A plan that an engine keeps.
pub(crate) struct KeptPlan {
    pub(crate) shape: Shape,
    groups: Vec<Group>,
    members: Vec<Member>,
}

impl KeptPlan {
    pub(crate) fn of(plan: &Plan<'_>) -> KeptPlan {
        KeptPlan { shape: *plan.shape, groups: plan.groups.to_vec(), members: plan.members.to_vec() }
    }

    pub(crate) fn plan(&self) -> Plan<'_> {
        Plan { shape: &self.shape, groups: &self.groups, members: &self.members }
    }
}

/// A link and its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The rate of the link.
    pub capacity: BitRate,
    /// Split super-packets in the leaf?
    pub split: bool,
    /// Largest packet of any port, bytes without the Ethernet header.
    pub mtu: u32,
    /// The longest a full queue may take to drain at the class's ceiling, ms.
    pub delay_ms: u32,
    /// No queue is shorter than this: it must hold what one socket may have in flight
    /// (`net.core.wmem_default`), or packets are dropped before the sender feels anything.
    pub least_queue: Bytes,
    /// The framing of the line behind the link. `None` charges packets as tc counts them.
    pub framing: Option<Framing>,
    /// Tunnels lead over the link. They add headers behind the scheduler.
    pub has_tunnels: bool,
}

impl Shape {
    /// The same with a framing over the packets of a link with this header.
    pub(crate) fn with_header(&self, header: LinkHeader) -> Shape {
        Shape { framing: self.framing.map(|framing| Framing { header, ..framing }), ..*self }
    }

    /// The most that may wait in the queue of a class with this ceiling.
    #[must_use]
    pub(crate) fn queue_limit(&self, ceil: BitRate) -> Bytes {
        let time = Duration::from_millis(u64::from(self.delay_ms));
        Bytes(ceil.bytes_in(time).0.max(self.least_queue.0).min(u64::from(u32::MAX)))
    }

    /// The most that may wait in the queue of an urgent class with this ceiling: 10 ms, and at least
    /// two frames. Control traffic that waits longer is asked for again.
    #[must_use]
    pub(crate) fn urgent_limit(&self, ceil: BitRate) -> Bytes {
        let least = 2 * (u64::from(self.mtu) + 32);
        Bytes(ceil.bytes_in(Duration::from_millis(10)).0.max(least).min(u64::from(u32::MAX)))
    }
}

/// A class to be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its minor.
    pub minor: u16,
    /// Index of its group in the slice of groups.
    pub group: Option<usize>,
    /// Floor, ceiling, weight.
    pub policy: Policy,
    /// Its rate in the division of the demands. The estimate of a demand has room above what a class takes.
    pub allocation: BitRate,
    /// Its rate if each class that is not backlogged asks for what it takes at present.
    pub share: BitRate,
    /// Its rate if each class asks for what it takes at present: backlogged classes may pause.
    pub target: BitRate,
    /// Whether it takes whatever it is given, so that its share must be exact; one that
    /// sleeps, or wants less than it may have, is not.
    pub backlogged: bool,
    /// Whether it takes whatever it is given at present: a backlogged class may pause.
    pub takes_all: bool,
    /// Whether it has taken about the same for a time.
    pub is_steady: bool,
    /// Served first if smaller.
    pub prio: u32,
}

/// A group to be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Its minor.
    pub minor: u16,
    /// Floor, ceiling, weight.
    pub policy: Policy,
    /// The allocation of its members together.
    pub allocation: BitRate,
    /// The [share](Member::share) of its members together.
    pub share: BitRate,
    /// The [target](Member::target) of its members together.
    pub target: BitRate,
}

/// The rate of a class that is not held back, before the division has followed. It is the class's
/// part if it wanted all, of the rate of classes that are held back (`backlogged`: their shares, bit/s,
/// and weights in all) and of the unused rate (`spare`, bit/s).
#[must_use]
pub fn potential(policy: &Policy, share: BitRate, backlogged: (u64, u64), spare: u64) -> BitRate {
    let weight = u64::from(policy.weight().get());
    let part = BitRate(backlogged.0 + share.0 + spare).scale(weight, backlogged.1 + weight);
    part.max(policy.floor()).max(share).min(policy.ceiling())
}

#[cfg(test)]
mod tests {
    use weir_share::Weight;

    use super::*;

    #[test]
    fn class_that_wakes_gets_the_spare_and_a_part_by_weight() {
        let policy = |min: u64, max: u64| {
            let rate = |mbit| (mbit > 0).then(|| BitRate::mbit(mbit));
            Policy::new(Weight::new(2).unwrap(), rate(min), rate(max)).unwrap()
        };
        let mbit = |n| BitRate::mbit(n);
        let alone = potential(&policy(0, 0), BitRate::ZERO, (0, 0), mbit(95).0);
        assert_eq!(alone, mbit(95));
        let backlogged = (mbit(90).0, 4);
        assert_eq!(potential(&policy(0, 0), BitRate::ZERO, backlogged, 0), mbit(30));
        assert_eq!(potential(&policy(40, 0), BitRate::ZERO, backlogged, 0), mbit(40));
        assert_eq!(potential(&policy(0, 20), BitRate::ZERO, backlogged, 0), mbit(20));
        assert_eq!(potential(&policy(0, 0), mbit(36), backlogged, 0), mbit(42));
    }
}
