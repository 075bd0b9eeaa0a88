//! Random links, shared by the tests of this crate.
#![allow(dead_code, reason = "each test uses a part")]

use proptest::prelude::*;
use weir_share::{Admission, Claimant, Demand, Policy, Reservable, Sharer, Weight};
use weir_units::BitRate;

/// That many cases. No file of failures is kept: a failure prints its smallest case.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let rejects = 100 * cases;
    ProptestConfig {
        cases,
        max_global_rejects: rejects,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A capacity and who shares it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) capacity: BitRate,
    pub(crate) groups: Vec<Policy>,
    pub(crate) sharers: Vec<Sharer>,
}

impl Link {
    pub(crate) fn lows(&self) -> u128 {
        self.sharers.iter().map(|s| u128::from(low(s))).sum()
    }

    pub(crate) fn floors_fit(&self) -> bool {
        self.lows() <= self.capacity.0.into()
    }

    /// All floors could have been promised on this link.
    pub(crate) fn admitted(&self) -> bool {
        let claimant = |policy, group| Claimant { name: "", policy, group };
        let groups = self.groups.iter().map(|policy| claimant(*policy, None)).collect::<Vec<_>>();
        let classes = self.sharers.iter().map(|s| claimant(s.policy, s.group)).collect::<Vec<_>>();
        Admission::new(self.capacity, Reservable::new(1.0).unwrap()).check(&groups, &classes).is_ok()
    }

    pub(crate) fn highs(&self) -> u128 {
        self.sharers.iter().map(|s| u128::from(high(s))).sum()
    }
}

pub(crate) fn mbit(n: u64) -> BitRate {
    BitRate::mbit(n)
}

/// A policy in Mbit/s; 0 stands for no floor, no ceiling.
pub(crate) fn policy(weight: u32, min: u64, max: u64) -> Policy {
    let rate = |n| (n > 0).then_some(mbit(n));
    Policy::new(Weight::new(weight).unwrap(), rate(min), rate(max)).unwrap()
}

/// A class that takes all it can get.
pub(crate) fn busy(weight: u32, min: u64, max: u64) -> Sharer {
    Sharer::new(policy(weight, min, max), Demand::UNLIMITED)
}

pub(crate) fn high(sharer: &Sharer) -> u64 {
    sharer.policy.ceiling().min(sharer.demand.get()).0
}

pub(crate) fn low(sharer: &Sharer) -> u64 {
    sharer.policy.floor().0.min(high(sharer))
}

pub(crate) fn weights() -> impl Strategy<Value = Weight> {
    prop_oneof![4 => 1..10u32, 1 => 1..=Weight::MAX].prop_map(|w| Weight::new(w).unwrap())
}

pub(crate) fn demands(capacity: u64) -> impl Strategy<Value = Demand> {
    prop_oneof![
        2 => Just(Demand::UNLIMITED),
        1 => Just(Demand::NONE),
        1 => (0..100u64).prop_map(|d| Demand::rate(BitRate(d))),
        4 => (0..=capacity).prop_map(|d| Demand::rate(BitRate(d))),
        4 => (0..=capacity / 10).prop_map(|d| Demand::rate(BitRate(d))),
    ]
}

/// Floors up to `capacity / share`, ceilings up to the capacity and beyond.
pub(crate) fn policies(capacity: u64, share: u64) -> impl Strategy<Value = Policy> {
    let least = Policy::MIN_RATE.0;
    let floor = prop::option::weighted(0.4, least..=(capacity / share).max(least));
    let ceiling = prop::option::weighted(0.4, least..=(capacity + capacity / 5).clamp(least, BitRate::MAX.0));
    (weights(), floor, ceiling).prop_map(|(weight, min, max)| {
        let max = max.map(|max| max.max(min.unwrap_or(0)));
        Policy::new(weight, min.map(BitRate), max.map(BitRate)).unwrap()
    })
}

pub(crate) fn sharers(capacity: u64, classes: usize) -> impl Strategy<Value = Vec<Sharer>> {
    prop::collection::vec(
        (policies(capacity, classes as u64), demands(capacity))
            .prop_map(|(policy, demand)| Sharer::new(policy, demand)),
        0..classes,
    )
}

/// From a link of a few bits, where rounding is everything, to the largest.
pub(crate) fn capacities() -> impl Strategy<Value = u64> {
    prop_oneof![0..200u64, 1_000..1_000_000u64, 1_000_000..10_000_000_000u64, 1..=BitRate::MAX.0]
}

/// Links whose capacity was lowered below what was promised.
pub(crate) fn shrunk_links() -> impl Strategy<Value = Link> {
    (links(), 0..1_000u64).prop_map(|(link, part)| {
        let capacity = link.lows() * u128::from(part) / 1_000;
        Link { capacity: BitRate(capacity.try_into().unwrap()), ..link }
    })
}

/// Links without groups.
pub(crate) fn links() -> impl Strategy<Value = Link> {
    capacities().prop_flat_map(|capacity| {
        // Floors together up to 1.5 times the capacity: too much is promised in some.
        sharers(capacity, 30).prop_map(move |sharers| Link {
            capacity: BitRate(capacity),
            groups: Vec::new(),
            sharers,
        })
    })
}

/// Links with up to five groups.
pub(crate) fn grouped_links() -> impl Strategy<Value = Link> {
    (capacities(), 0..5usize).prop_flat_map(|(capacity, groups)| {
        let group = prop::option::of(0..groups.max(1) as u32);
        (
            prop::collection::vec(policies(capacity, 5), groups),
            prop::collection::vec((policies(capacity, 30), demands(capacity), group), 0..30),
        )
            .prop_map(move |(policies, classes)| Link {
                capacity: BitRate(capacity),
                sharers: classes
                    .into_iter()
                    .map(|(policy, demand, group)| Sharer {
                        policy,
                        demand,
                        group: group.filter(|_| !policies.is_empty()),
                    })
                    .collect(),
                groups: policies,
            })
    })
}

/// The contract's equation in real numbers, by bisection on lambda: nothing that is in the
/// code under test.
pub(crate) fn oracle(capacity: f64, sharers: &[Sharer]) -> Vec<f64> {
    let number = |rate: BitRate| rate.0 as f64;
    let share = |s: &Sharer, lambda: f64| {
        let (min, max) = (number(s.policy.floor()), number(s.policy.ceiling()));
        number(s.demand.get()).min((lambda * f64::from(s.policy.weight().get())).clamp(min, max))
    };
    let shares = |lambda: f64| sharers.iter().map(|s| share(s, lambda)).collect::<Vec<_>>();
    let (mut low, mut high) = (0.0, capacity);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if shares(middle).iter().sum::<f64>() <= capacity { low = middle } else { high = middle }
    }
    // If all are satisfied at `high`, it is as good as infinity: a share of the capacity each.
    shares(if shares(high).iter().sum::<f64>() <= capacity { high } else { low })
}
