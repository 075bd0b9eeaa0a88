//! Anastasi's Eq. 1: a floor and an equal part of the spare.

mod common;

use common::*;
use proptest::prelude::*;
use weir_share::{Allocator, Bound, Demand, Sharer, Spare};
use weir_units::BitRate;

fn additive(spare: Spare, capacity: BitRate, sharers: &[Sharer]) -> Vec<BitRate> {
    Allocator::additive(spare).allocate(capacity, &[], sharers).to_vec()
}

#[test]
fn five_equal_customers_get_a_fifth_each_as_in_the_papers_script() {
    // 95 Mbit/s reservable, five times 19.
    let customers = [busy(1, 19, 19); 5];
    for spare in [Spare::Once, Spare::Redivided] {
        assert_eq!(additive(spare, mbit(95), &customers), [mbit(19); 5]);
    }
}

#[test]
fn the_spare_is_divided_in_equal_parts_whatever_the_weights() {
    let customers = [busy(9, 10, 0), busy(1, 20, 0), busy(5, 0, 0)];
    for spare in [Spare::Once, Spare::Redivided] {
        let mut allocator = Allocator::additive(spare);
        assert_eq!(allocator.allocate(mbit(90), &[], &customers), [30, 40, 20].map(mbit));
        assert_eq!(allocator.bounds(), [Bound::Weight; 3]);
    }
}

#[test]
fn part_above_a_ceiling_is_unused_by_the_equation_alone() {
    let customers = [busy(1, 10, 15), busy(1, 20, 0), busy(1, 0, 0)];
    assert_eq!(additive(Spare::Once, mbit(90), &customers), [15, 40, 20].map(mbit));
    let again = [15_000_000, 47_500_000, 27_500_000].map(BitRate);
    assert_eq!(additive(Spare::default(), mbit(90), &customers), again);
}

#[test]
fn equation_gives_idle_customers_a_part_and_the_default_does_not() {
    let customers = [Sharer::new(policy(1, 30, 0), Demand::NONE), busy(1, 20, 0)];
    assert_eq!(additive(Spare::Once, mbit(90), &customers), [50, 40].map(mbit));
    let mut allocator = Allocator::additive(Spare::Redivided);
    assert_eq!(allocator.allocate(mbit(90), &[], &customers), [0, 90].map(mbit));
    assert_eq!(allocator.bounds(), [Bound::Idle, Bound::Weight]);
}

#[test]
fn floors_beyond_the_capacity_are_cut_by_one_factor() {
    for spare in [Spare::Once, Spare::Redivided] {
        let mut allocator = Allocator::additive(spare);
        let shares = allocator.allocate(mbit(30), &[], &[busy(1, 40, 0), busy(1, 20, 0), busy(1, 0, 0)]);
        assert_eq!(shares, [20, 10, 0].map(mbit));
        assert_eq!(allocator.bounds()[..2], [Bound::Floor; 2]);
    }
}

#[test]
fn nobody_at_all_gets_nothing_at_all() {
    for spare in [Spare::Once, Spare::Redivided] {
        assert_eq!(additive(spare, mbit(30), &[]), []);
    }
}

#[test]
fn members_of_a_group_divide_what_the_group_was_given() {
    let mut allocator = Allocator::additive(Spare::Redivided);
    let sharers = [busy(1, 10, 0).in_group(0), busy(1, 0, 0).in_group(0), busy(1, 0, 0)];
    let shares = allocator.allocate(mbit(90), &[policy(1, 30, 0)], &sharers).to_vec();
    assert_eq!(allocator.group_allocations(), [mbit(60)]);
    assert_eq!(shares, [35, 25, 30].map(mbit));
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn default_uses_the_link_up_and_adds_one_part_to_each_floor(link in links()) {
        prop_assume!(link.floors_fit());
        let shares = additive(Spare::Redivided, link.capacity, &link.sharers);
        let sum = shares.iter().map(|share| u128::from(share.0)).sum::<u128>();
        prop_assert_eq!(sum, link.highs().min(link.capacity.0.into()));
        // Each class that could take more has the same above its floor, and no class has more than
        // that.
        let above = |(s, share): (&Sharer, &BitRate)| (share.0 - low(s), share.0 < high(s));
        let above = link.sharers.iter().zip(&shares).map(above).collect::<Vec<_>>();
        if let Some(part) = above.iter().filter(|(_, backlogged)| *backlogged).map(|(above, _)| *above).min() {
            for (above, backlogged) in above {
                prop_assert!(above <= part + 1 && (!backlogged || above >= part));
            }
        }
    }

    #[test]
    fn by_default_nobody_gets_less_than_by_the_equation_up_to_its_demand(link in links()) {
        let floors = link.sharers.iter().map(|s| u128::from(s.policy.floor().0)).sum::<u128>();
        prop_assume!(floors <= link.capacity.0.into());
        let equation = additive(Spare::Once, link.capacity, &link.sharers);
        let default = additive(Spare::Redivided, link.capacity, &link.sharers);
        for ((equation, default), sharer) in equation.into_iter().zip(default).zip(&link.sharers) {
            prop_assert!(default >= equation.min(sharer.demand.get()));
        }
    }

    #[test]
    fn the_equation_is_the_equation(link in links()) {
        let floors = link.sharers.iter().map(|s| u128::from(s.policy.floor().0)).sum::<u128>();
        prop_assume!(floors <= link.capacity.0.into() && !link.sharers.is_empty());
        let spare = (link.capacity.0 as f64 - floors as f64) / link.sharers.len() as f64;
        let shares = additive(Spare::Once, link.capacity, &link.sharers);
        for (share, sharer) in shares.into_iter().zip(&link.sharers) {
            let exact = (sharer.policy.floor().0 as f64 + spare).min(sharer.policy.ceiling().0 as f64);
            prop_assert!((share.0 as f64 - exact).abs() < 1.0 + exact * 1e-12);
        }
    }
}
