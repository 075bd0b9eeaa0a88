//! The kernel's division of a link (`fill.h`) against weir-share's, which is exact to a bit.
//!
//! The division runs in the kernel: without `CAP_BPF` these tests say so and pass.

use std::{mem::MaybeUninit, sync::OnceLock};

use libbpf_rs::{
    MapCore, MapFlags, ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};
use proptest::{prelude::*, test_runner::TestRunner};
use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/fill_check.skel.rs"));
}
use skeleton::{FillCheckSkel, FillCheckSkelBuilder};

/// `struct weir_check`.
const CHECK: usize = 40;
/// `struct weir_question`.
const QUESTION: usize = 32;

/// The division in the kernel, or nothing if this process may not load it.
struct Kernel {
    skeleton: FillCheckSkel<'static>,
}

struct Answer {
    /// The allocation of each class, bytes/s.
    rates: Vec<u64>,
    nanos: u64,
    passes: u64,
}

impl Kernel {
    fn load() -> Option<Kernel> {
        static SILENT: OnceLock<()> = OnceLock::new();
        SILENT.get_or_init(|| {
            let _ = libbpf_rs::set_print(None);
        });
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        match FillCheckSkelBuilder::default().open(storage).unwrap().load() {
            Ok(skeleton) => Some(Kernel { skeleton }),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                println!("SKIPPED: loading BPF programs needs root");
                None
            }
            Err(e) => panic!("{e:?}"),
        }
    }

    fn divide(&self, capacity: BitRate, groups: &[Policy], sharers: &[Sharer]) -> Answer {
        let maps = &self.skeleton.maps;
        let row = |policy: &Policy, demand: u64, group: u32| {
            let mut row = Vec::with_capacity(CHECK);
            for word in [policy.floor().bytes_per_sec(), policy.ceiling().bytes_per_sec(), demand, 0] {
                row.extend_from_slice(&word.to_ne_bytes());
            }
            row.extend_from_slice(&policy.weight().get().to_ne_bytes());
            row.extend_from_slice(&group.to_ne_bytes());
            row
        };
        for (i, group) in (1u32..).zip(groups) {
            maps.weir_groups.update(&i.to_ne_bytes(), &row(group, 0, 0), MapFlags::ANY).unwrap();
        }
        for (i, sharer) in (0u32..).zip(sharers) {
            let demand = sharer.demand.get().bytes_per_sec();
            let row = row(&sharer.policy, demand, sharer.group.map_or(0, |g| g + 1));
            maps.weir_classes.update(&i.to_ne_bytes(), &row, MapFlags::ANY).unwrap();
        }
        let mut question = Vec::with_capacity(QUESTION);
        question.extend_from_slice(&capacity.bytes_per_sec().to_ne_bytes());
        question.extend_from_slice(&(sharers.len() as u32).to_ne_bytes());
        question.extend_from_slice(&(groups.len() as u32).to_ne_bytes());
        question.resize(QUESTION, 0);
        let input = ProgramInput { context_in: Some(&mut question), ..Default::default() };
        self.skeleton.progs.weir_fill_check.test_run(input).unwrap();
        let word = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let rate = |i: u32| {
            let row = maps.weir_classes.lookup(&i.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            word(&row, 24)
        };
        let rates = (0..sharers.len() as u32).map(rate).collect();
        Answer { rates, nanos: word(&question, 16), passes: word(&question, 24) }
    }
}

fn policies(capacity: u64, classes: u64) -> impl Strategy<Value = Policy> {
    let least = Policy::MIN_RATE.0;
    let weight = prop_oneof![4 => 1..10u32, 2 => 1..=1000u32, 1 => 1..=Weight::MAX];
    let floor = prop::option::weighted(0.4, least..=(capacity / classes).max(least));
    let ceiling = prop::option::weighted(0.4, least..=(capacity + capacity / 5).clamp(least, BitRate::MAX.0));
    (weight, floor, ceiling).prop_map(|(weight, min, max)| {
        // The kernel counts bytes.
        let whole = |rate: u64| BitRate(rate / 8 * 8);
        let max = max.map(|max| max.max(min.unwrap_or(0)));
        Policy::new(Weight::new(weight).unwrap(), min.map(whole), max.map(whole)).unwrap()
    })
}

fn demands(capacity: u64) -> impl Strategy<Value = Demand> {
    prop_oneof![
        3 => Just(Demand::UNLIMITED),
        1 => Just(Demand::NONE),
        3 => (0..=capacity).prop_map(|d| Demand::rate(BitRate(d / 8 * 8))),
        3 => (0..=capacity / 10).prop_map(|d| Demand::rate(BitRate(d / 8 * 8))),
    ]
}

/// A capacity, groups, and classes in them or not; floors up to 1.5 times the capacity.
fn links() -> impl Strategy<Value = (BitRate, Vec<Policy>, Vec<Sharer>)> {
    let capacity = prop_oneof![1_000_000..10_000_000_000u64, 1_000_000..=BitRate::MAX.0];
    (capacity, 0..6usize, 1..60usize).prop_flat_map(|(capacity, groups, classes)| {
        let group = prop::option::of(0..groups.max(1) as u32);
        let class = (policies(capacity, classes as u64), demands(capacity), group);
        (prop::collection::vec(policies(capacity, 5), groups), prop::collection::vec(class, classes))
            .prop_map(move |(groups, classes)| {
                let sharer = |(policy, demand, group): (Policy, Demand, Option<u32>)| Sharer {
                    policy,
                    demand,
                    group: group.filter(|_| !groups.is_empty()),
                };
                let sharers = classes.into_iter().map(sharer).collect();
                (BitRate(capacity / 8 * 8), groups, sharers)
            })
    })
}

#[test]
fn the_kernel_divides_as_water_filling_does() {
    let Some(kernel) = Kernel::load() else { return };
    let config = ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&links(), |(capacity, groups, sharers)| {
            let answer = kernel.divide(capacity, &groups, &sharers);
            let mut allocator = Allocator::water_filling();
            let exact = allocator.allocate(capacity, &groups, &sharers);
            let (mut sum, mut wanted) = (0, 0);
            for ((sharer, &rate), exact) in sharers.iter().zip(&answer.rates).zip(exact) {
                let got = rate.min(sharer.demand.get().bytes_per_sec());
                let exact = exact.0 as f64 / 8.0;
                prop_assert!(
                    (got as f64 - exact).abs() <= exact / 500.0 + capacity.0 as f64 / 1e6 + 2.0,
                    "{sharer:?} got {got}, not {exact}"
                );
                sum += got;
                wanted += exact as u64;
            }
            let (sum, wanted) = (sum as f64, wanted as f64);
            prop_assert!(sum <= wanted * 1.0001 + 2.0, "{sum} of {wanted} were given");
            prop_assert!(sum >= wanted * 0.9999 - 2.0 * sharers.len() as f64, "{sum} of {wanted} were given");
            Ok(())
        })
        .unwrap();
}

/// The allocation of a class does not depend on its own demand: one that asks for less than its
/// part can double at once.
#[test]
fn a_modest_class_may_send_what_its_weight_gives() {
    let Some(kernel) = Kernel::load() else { return };
    let policy = |weight| Policy::new(Weight::new(weight).unwrap(), None, None).unwrap();
    let sharers = [
        Sharer::new(policy(1), Demand::rate(BitRate::mbit(8))),
        Sharer::new(policy(3), Demand::UNLIMITED),
        Sharer::new(policy(1), Demand::NONE),
    ];
    let answer = kernel.divide(BitRate::mbit(80), &[], &sharers);
    let mbit = |bytes: u64| (bytes * 8) as f64 / 1e6;
    let rates: Vec<f64> = answer.rates.iter().map(|r| mbit(*r)).collect();
    assert!((rates[1] - 72.0).abs() < 0.01, "{rates:?}");
    // 24 per weight 1: both may send it, one asks for 8.
    assert!((rates[0] - 24.0).abs() < 0.01 && (rates[2] - 24.0).abs() < 0.01, "{rates:?}");
}

#[test]
fn a_division_is_cheap_and_the_next_one_cheaper() {
    let Some(kernel) = Kernel::load() else { return };
    let scrambled = |i: u32| u64::from(i.wrapping_mul(2_654_435_761) >> 8);
    let groups = [Policy::new(Weight::new(3).unwrap(), None, None).unwrap(); 20];
    for classes in [10, 100, 1000] {
        let sharers: Vec<Sharer> = (0..classes)
            .map(|i| {
                let floor = 8_000 + scrambled(i) % 100_000;
                let ceiling = floor + 1_000_000 + scrambled(i + 1) % 40_000_000;
                let weight = Weight::new(1 + i % 1000).unwrap();
                let policy = Policy::new(weight, Some(BitRate(floor)), Some(BitRate(ceiling))).unwrap();
                let sharer = Sharer::new(policy, Demand::UNLIMITED);
                if i % 2 == 0 { sharer } else { sharer.in_group(i / 2 % 20) }
            })
            .collect();
        let capacity = BitRate::mbit(2 * u64::from(classes));
        let first = kernel.divide(capacity, &groups, &sharers);
        let next =
            (0..20).map(|_| kernel.divide(capacity, &groups, &sharers)).min_by_key(|a| a.nanos).unwrap();
        println!(
            "{classes} classes, 20 groups: first {} ns in {} passes, then {} ns in {}",
            first.nanos, first.passes, next.nanos, next.passes
        );
        assert!(next.passes <= 4, "{} passes over what has not changed", next.passes);
        assert!(first.passes <= 64, "{} passes", first.passes);
    }
}
