//! 10,000 classes are divided in less than 5 ms.

mod common;

use std::time::{Duration, Instant};

use common::*;
use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

const CLASSES: u32 = 10_000;

/// The promise holds for optimised code; without optimisation the test is a guard against a
/// slower order of growth only.
const LIMIT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 5 });

/// The worst case: every class has a floor and a ceiling of its own, and all are backlogged.
fn sharers() -> Vec<Sharer> {
    let scrambled = |i: u32| u64::from(i.wrapping_mul(2_654_435_761) >> 8);
    (0..CLASSES)
        .map(|i| {
            let floor = 8_000 + scrambled(i) % 1_000_000;
            let ceiling = floor + scrambled(i + 1) % 4_000_000;
            let weight = Weight::new(1 + i % 1_000).unwrap();
            let policy = Policy::new(weight, Some(BitRate(floor)), Some(BitRate(ceiling))).unwrap();
            let sharer = Sharer::new(policy, Demand::UNLIMITED);
            if i % 2 == 0 { sharer } else { sharer.in_group(i % 100) }
        })
        .collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test of speed reads the clock")]
fn ten_thousand_classes_are_divided_within_the_limit() {
    let (sharers, groups) = (sharers(), [policy(3, 0, 0); 100]);
    let mut allocator = Allocator::water_filling();
    // The machine may be busy with something else: the best of ten.
    let best = (0..10)
        .map(|_| {
            let start = Instant::now();
            allocator.allocate(BitRate::gbit(12), &groups, &sharers);
            start.elapsed()
        })
        .min()
        .unwrap();
    println!("{CLASSES} classes in {best:?}, limit {LIMIT:?}, debug assertions: {}", cfg!(debug_assertions));
    assert_eq!(allocator.allocations().iter().map(|a| a.0).sum::<u64>(), 12_000_000_000);
    assert!(best < LIMIT, "{best:?}");
}
