//! Water-filling against the contract: `a = min(d, clamp(lambda w, m, M))`.

mod common;

use common::*;
use proptest::prelude::*;
use weir_share::{Allocator, Bound, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

fn fill(link: &Link) -> Vec<u64> {
    let rates = Allocator::default().allocate(link.capacity, &link.groups, &link.sharers).to_vec();
    rates.into_iter().map(|rate| rate.0).collect()
}

fn fill_busy(capacity: u64, sharers: &[Sharer]) -> Vec<u64> {
    fill(&Link { capacity: mbit(capacity), groups: Vec::new(), sharers: sharers.to_vec() })
}

fn mbits(rates: &[u64]) -> Vec<BitRate> {
    rates.iter().copied().map(mbit).collect()
}

#[test]
fn the_cases_of_qcons_figures_come_out_as_calculated_by_hand() {
    let mut allocator = Allocator::default();
    let mut shares = |sharers: &[Sharer]| allocator.allocate(mbit(100), &[], sharers).to_vec();
    // Fig. 9, weights 1 to 5: minima of C1; C1, C2; C1 to C3; C1 to C4.
    let minima = |mins: [u64; 5]| [0, 1, 2, 3, 4].map(|i| busy(i as u32 + 1, mins[i], 0));
    assert_eq!(shares(&minima([30, 0, 0, 0, 0])), mbits(&[30, 10, 15, 20, 25]));
    let third = shares(&minima([30, 20, 0, 0, 0]));
    assert_eq!(third[..2], mbits(&[30, 20]));
    assert_eq!(third[2..], [BitRate(12_500_000), BitRate(16_666_667), BitRate(20_833_333)]);
    assert_eq!(shares(&minima([30, 20, 15, 0, 0]))[..3], mbits(&[30, 20, 15]));
    let fifth = shares(&minima([30, 20, 15, 15, 0])); // 35 : 4 + 5 is more than C4's 15
    assert_eq!(fifth[3..], [BitRate(15_555_556), BitRate(19_444_444)]);
    // Fig. 10, equal weights: maxima of C1; C1, C2; C1 to C3; C1 to C4.
    let maxima = |maxs: [u64; 5]| maxs.map(|max| busy(1, 0, max));
    assert_eq!(shares(&maxima([0; 5])), mbits(&[20; 5]));
    assert_eq!(shares(&maxima([10, 0, 0, 0, 0]))[1..], [BitRate(22_500_000); 4]);
    assert_eq!(
        shares(&maxima([10, 10, 15, 0, 0])),
        [10.0, 10.0, 15.0, 32.5, 32.5].map(|m| BitRate((m * 1e6) as u64))
    );
    assert_eq!(shares(&maxima([10, 10, 15, 25, 0])), mbits(&[10, 10, 15, 25, 40]));
    // Fig. 11, weights 1 to 3: minimum of C1, then maximum of C3.
    assert_eq!(shares(&[busy(1, 30, 0), busy(2, 0, 0), busy(3, 0, 0)]), mbits(&[30, 28, 42]));
    assert_eq!(shares(&[busy(1, 30, 0), busy(2, 0, 0), busy(3, 0, 15)]), [30, 55, 15].map(mbit));
}

#[test]
fn each_allocation_says_what_bounds_it() {
    let mut allocator = Allocator::default();
    let asks = |mbits| Demand::rate(mbit(mbits));
    let sharers = [
        Sharer::new(policy(1, 20, 0), Demand::NONE),
        Sharer::new(policy(1, 0, 0), asks(5)),
        Sharer::new(policy(1, 20, 0), asks(5)),
        busy(1, 30, 0),
        busy(1, 0, 10),
        busy(1, 0, 0),
        busy(2, 0, 0),
    ];
    let shares = allocator.allocate(mbit(110), &[], &sharers).to_vec();
    assert_eq!(shares, mbits(&[0, 5, 5, 30, 10, 20, 40]));
    let words = |bounds: &[Bound]| bounds.iter().map(Bound::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(words(allocator.bounds()), "idle demand demand floor ceiling weight weight");
    allocator.allocate(mbit(1_000), &[], &sharers[..5]);
    assert_eq!(words(allocator.bounds()), "idle demand demand weight ceiling");
}

#[test]
fn a_group_shares_the_link_and_its_members_share_the_group() {
    let mut allocator = Allocator::default();
    let groups = [policy(2, 0, 0), policy(1, 0, 15), policy(1, 0, 0)];
    let sharers = [
        busy(3, 0, 0).in_group(0),
        busy(1, 0, 0),
        busy(1, 0, 0).in_group(1),
        busy(1, 0, 0).in_group(0),
        Sharer::new(policy(1, 0, 0), Demand::NONE).in_group(2),
    ];
    let shares = allocator.allocate(mbit(75), &groups, &sharers).to_vec();
    assert_eq!(shares, mbits(&[30, 20, 15, 10, 0]));
    assert_eq!(allocator.group_allocations(), mbits(&[40, 15, 0]));
    assert_eq!(allocator.group_bounds(), [Bound::Weight, Bound::Ceiling, Bound::Idle]);
    assert_eq!(allocator.allocations(), shares);
}

#[test]
fn the_floors_of_its_members_lift_a_group_without_a_floor() {
    let mut allocator = Allocator::default();
    let groups = [policy(1, 0, 0), policy(1, 25, 0)];
    let sharers =
        [busy(1, 30, 0).in_group(0), busy(1, 30, 0).in_group(0), busy(1, 0, 0).in_group(1), busy(8, 0, 0)];
    let shares = allocator.allocate(mbit(100), &groups, &sharers).to_vec();
    assert_eq!(shares, mbits(&[30, 30, 25, 15]));
    assert_eq!(allocator.group_bounds(), [Bound::Floor, Bound::Floor]);
}

#[test]
fn floors_beyond_the_capacity_are_cut_by_one_factor() {
    let small = Sharer::new(policy(1, 40, 0), Demand::rate(mbit(3)));
    assert_eq!(fill_busy(43, &[busy(1, 60, 0), small, busy(9, 20, 0)]), [30_000_000, 3_000_000, 10_000_000]);
    let sharers = [busy(1, 60, 0), busy(9, 20, 0), busy(5, 0, 0)];
    assert_eq!(fill_busy(40, &sharers), [30_000_000, 10_000_000, 0]);
    // The next bit less than the floors is no jump.
    let link = |capacity| Link { capacity: BitRate(capacity), groups: vec![], sharers: sharers.to_vec() };
    assert_eq!(fill(&link(80_000_000)), [60_000_000, 20_000_000, 0]);
    assert_eq!(fill(&link(79_999_999)), [59_999_999, 20_000_000, 0]);
}

#[test]
fn one_bit_among_three_goes_to_the_largest_remainder() {
    let link = |capacity, weights: &[u32]| Link {
        capacity: BitRate(capacity),
        groups: vec![],
        sharers: weights.iter().map(|&w| busy(w, 0, 0)).collect(),
    };
    assert_eq!(fill(&link(10, &[1, 1, 1])), [4, 3, 3]);
    assert_eq!(fill(&link(10, &[1, 2, 1])), [3, 5, 2], "2.5, 5, 2.5: the earlier of two equals");
    assert_eq!(fill(&link(10, &[5, 2, 2])), [6, 2, 2], "5.56, 2.22, 2.22");
    assert_eq!(fill(&link(1, &[1, 3, 2])), [0, 1, 0]);
}

#[test]
fn the_largest_values_do_not_overflow() {
    let heavy = Policy::new(Weight::new(Weight::MAX).unwrap(), None, None).unwrap();
    let huge = Policy::new(Weight::ONE, Some(BitRate::MAX), Some(BitRate::MAX)).unwrap();
    let mut sharers = vec![Sharer::new(heavy, Demand::UNLIMITED); 50];
    sharers.extend([Sharer::new(huge, Demand::UNLIMITED); 50]);
    for capacity in [u64::MAX, BitRate::MAX.0 * 50 + 1, BitRate::MAX.0] {
        let link = Link { capacity: BitRate(capacity), groups: vec![], sharers: sharers.clone() };
        assert_eq!(fill(&link).iter().map(|&a| u128::from(a)).sum::<u128>(), u128::from(capacity));
    }
}

#[test]
#[should_panic = "group Some(1) of 1"]
fn a_class_cannot_be_in_a_group_that_is_not_there() {
    Allocator::default().allocate(mbit(1), &[policy(1, 0, 0)], &[busy(1, 0, 0).in_group(1)]);
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn the_allocations_add_up_to_the_capacity_or_to_all_demands_exactly(link in links()) {
        let sum = fill(&link).iter().map(|&a| u128::from(a)).sum::<u128>();
        prop_assert_eq!(sum, link.highs().min(link.capacity.0.into()));
    }

    #[test]
    fn no_allocation_is_above_demand_or_ceiling_or_below_a_floor_that_fits(link in links()) {
        for (share, sharer) in fill(&link).into_iter().zip(&link.sharers) {
            prop_assert!(share <= high(sharer));
            prop_assert!(share >= low(sharer) || !link.floors_fit());
        }
    }

    #[test]
    fn every_allocation_is_the_contracts_real_number_rounded_down_or_up(link in links()) {
        prop_assume!(link.floors_fit());
        let exact = oracle(link.capacity.0 as f64, &link.sharers);
        for (share, exact) in fill(&link).into_iter().zip(exact) {
            prop_assert!((share as f64 - exact).abs() < 1.0 + exact * 1e-12, "{} for {}", share, exact);
        }
    }

    #[test]
    fn floors_that_do_not_fit_are_cut_by_one_factor(link in shrunk_links()) {
        prop_assume!(!link.floors_fit());
        let floors = link.sharers.iter().map(|s| (s.policy.floor().0 as f64, low(s) as f64)).collect::<Vec<_>>();
        let shares = |k: f64| floors.iter().map(|(floor, low)| low.min(k * floor)).collect::<Vec<_>>();
        let (mut cut, mut whole) = (0.0, 1.0);
        for _ in 0..100 {
            let middle = (cut + whole) / 2.0;
            let fits = shares(middle).iter().sum::<f64>() <= link.capacity.0 as f64;
            if fits { cut = middle } else { whole = middle }
        }
        for (share, exact) in fill(&link).into_iter().zip(shares(cut)) {
            prop_assert!((share as f64 - exact).abs() < 1.0 + exact * 1e-12, "{} for {}", share, exact);
        }
    }

    #[test]
    fn a_link_is_used_up_unless_everyone_has_all_it_can_take(link in links()) {
        let shares = fill(&link);
        let backlogged = shares.iter().zip(&link.sharers).any(|(&share, sharer)| share < high(sharer));
        prop_assert!(!backlogged || shares.iter().sum::<u64>() == link.capacity.0);
    }

    #[test]
    fn the_order_of_classes_moves_bits_only_between_equals(
        (link, shuffled) in links().prop_flat_map(|link| {
            let pairs = link.sharers.iter().copied().enumerate().collect::<Vec<_>>();
            (Just(link), Just(pairs).prop_shuffle())
        })
    ) {
        let key = |sharer: &Sharer, share: u64| {
            (sharer.policy.weight(), sharer.policy.min(), sharer.policy.max(), sharer.demand, share)
        };
        let sorted = |sharers: &[Sharer]| {
            let shares = fill(&Link { sharers: sharers.to_vec(), ..link.clone() });
            let mut keys = sharers.iter().zip(shares).map(|(s, a)| key(s, a)).collect::<Vec<_>>();
            keys.sort();
            keys
        };
        let shuffled = shuffled.into_iter().map(|(_, sharer)| sharer).collect::<Vec<_>>();
        prop_assert_eq!(sorted(&link.sharers), sorted(&shuffled));
    }

    #[test]
    fn equal_classes_differ_by_at_most_one_bit_the_earlier_first(
        link in links(), copies in 2..10usize
    ) {
        prop_assume!(!link.sharers.is_empty());
        let mut sharers = vec![link.sharers[0]; copies];
        sharers.extend(&link.sharers[1..]);
        let shares = fill(&Link { sharers, ..link });
        prop_assert!(shares[..copies].is_sorted_by(|a, b| a >= b));
        prop_assert!(shares[0] - shares[copies - 1] <= 1);
    }

    #[test]
    fn more_weight_is_never_less_rate(link in links(), which in any::<prop::sample::Index>(), weight in weights()) {
        prop_assume!(!link.sharers.is_empty());
        let i = which.index(link.sharers.len());
        let policy = link.sharers[i].policy;
        let mut heavier = link.clone();
        heavier.sharers[i].policy = Policy::new(policy.weight().max(weight), policy.min(), policy.max()).unwrap();
        let (before, after) = (fill(&link), fill(&heavier));
        // A larger weight may come with a smaller remainder.
        prop_assert!(after[i] + 1 >= before[i]);
        for j in (0..before.len()).filter(|&j| j != i) {
            prop_assert!(after[j] <= before[j] + 1);
        }
    }

    #[test]
    fn in_one_link_the_heavier_of_two_otherwise_equal_never_gets_less(
        link in links(), weight in weights()
    ) {
        prop_assume!(!link.sharers.is_empty());
        let first = link.sharers[0];
        let policy = Policy::new(weight, first.policy.min(), first.policy.max()).unwrap();
        let mut sharers = link.sharers.clone();
        sharers.push(Sharer { policy, ..first });
        let shares = fill(&Link { sharers, ..link });
        let (one, other) = (shares[0], shares[shares.len() - 1]);
        match weight.cmp(&first.policy.weight()) {
            std::cmp::Ordering::Less => prop_assert!(other <= one),
            std::cmp::Ordering::Greater => prop_assert!(other >= one),
            std::cmp::Ordering::Equal => prop_assert!(other.abs_diff(one) <= 1),
        }
    }

    #[test]
    fn the_reason_given_fits_the_allocation(link in links()) {
        let mut allocator = Allocator::default();
        let shares = allocator.allocate(link.capacity, &[], &link.sharers).to_vec();
        for ((share, bound), sharer) in shares.iter().zip(allocator.bounds()).zip(&link.sharers) {
            let (demand, policy) = (sharer.demand, sharer.policy);
            match bound {
                Bound::Idle => prop_assert!(!demand.is_active()),
                Bound::Demand => prop_assert!(*share == demand.get() && demand.is_active()),
                Bound::Ceiling => prop_assert!(Some(*share) == policy.max() && *share < demand.get()),
                Bound::Floor => prop_assert!(Some(*share) == policy.min() || !link.floors_fit()),
                Bound::Weight => prop_assert!(share.0 < high(sharer)),
            }
        }
    }

    #[test]
    fn one_group_of_everyone_is_no_group(link in links()) {
        let grouped = Link {
            groups: vec![Policy::default()],
            sharers: link.sharers.iter().map(|s| s.in_group(0)).collect(),
            ..link.clone()
        };
        prop_assert_eq!(fill(&grouped), fill(&link));
    }

    #[test]
    fn groups_are_two_divisions_one_after_the_other(link in grouped_links()) {
        let mut allocator = Allocator::default();
        let shares = allocator.allocate(link.capacity, &link.groups, &link.sharers).to_vec();
        let members = |g: usize| link.sharers.iter().zip(&shares).filter(move |(s, _)| s.group == Some(g as u32));

        // Within each group.
        for (g, &capacity) in allocator.group_allocations().iter().enumerate() {
            let sharers = members(g).map(|(s, _)| Sharer { group: None, ..*s }).collect();
            let inside = fill(&Link { capacity, groups: vec![], sharers });
            prop_assert_eq!(inside, members(g).map(|(_, share)| share.0).collect::<Vec<_>>());
        }

        // Among groups, as if each were a class, and the classes outside.
        let outside = link.sharers.iter().zip(&shares).filter(|(s, _)| s.group.is_none());
        let mut tops = outside.clone().map(|(s, _)| *s).collect::<Vec<_>>();
        for (g, group) in link.groups.iter().enumerate() {
            let floor = members(g).map(|(s, _)| low(s)).sum::<u64>();
            let demand = members(g).map(|(s, _)| u128::from(high(s))).sum::<u128>();
            let floor = group.floor().max(BitRate(floor)).min(group.ceiling());
            // The members' floors can add up to what no single policy may say.
            prop_assume!(floor.0 == 0 || (Policy::MIN_RATE..=BitRate::MAX).contains(&floor));
            let floor = Some(floor).filter(|floor| floor.0 > 0);
            let policy = Policy::new(group.weight(), floor, group.max()).unwrap();
            tops.push(Sharer::new(policy, Demand::rate(BitRate(u64::try_from(demand).unwrap_or(u64::MAX)))));
        }
        let want = fill(&Link { capacity: link.capacity, groups: vec![], sharers: tops });
        let got = outside.map(|(_, share)| share).chain(allocator.group_allocations());
        prop_assert_eq!(want, got.map(|share| share.0).collect::<Vec<_>>());
    }

    #[test]
    fn a_used_allocator_answers_like_a_new_one(links in prop::collection::vec(grouped_links(), 1..5)) {
        let mut used = Allocator::default();
        for link in links {
            let mut new = Allocator::default();
            let want = new.allocate(link.capacity, &link.groups, &link.sharers);
            prop_assert_eq!(used.allocate(link.capacity, &link.groups, &link.sharers), want);
            prop_assert_eq!(used.bounds(), new.bounds());
            prop_assert_eq!(used.group_bounds(), new.group_bounds());
        }
    }
}
