//! Time to divide a link among 10,000 classes, in two regimes: `plain`, where only weights
//! matter, and `bound`, where every class has floor, ceiling and demand of its own.

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weir_share::{Allocator, CreditAllocator, CreditForm, Demand, Policy, Sharer, Spare, Usage, Weight};
use weir_units::{BitRate, Bytes};

const CLASSES: u32 = 10_000;
const CAPACITY: BitRate = BitRate::gbit(10);

fn scrambled(i: u32) -> u64 {
    u64::from(i.wrapping_mul(2_654_435_761) >> 8)
}

fn plain(i: u32) -> Sharer {
    let weight = Weight::new(1 + i % 100).expect("from 1");
    Sharer::new(Policy::new(weight, None, None).expect("no bounds"), Demand::UNLIMITED)
}

fn bound(i: u32) -> Sharer {
    let floor = 8_000 + scrambled(i) % 1_000_000;
    let ceiling = floor + scrambled(i + 1) % 4_000_000;
    let weight = Weight::new(1 + i % 1_000).expect("from 1");
    let policy =
        Policy::new(weight, Some(BitRate(floor)), Some(BitRate(ceiling))).expect("floor below ceiling");
    let demand = match i % 4 {
        0 => Demand::UNLIMITED,
        1 => Demand::NONE,
        _ => Demand::rate(BitRate(scrambled(i + 2) % 4_000_000)),
    };
    Sharer::new(policy, demand)
}

fn regimes() -> [(&'static str, Vec<Sharer>); 2] {
    [("plain", (0..CLASSES).map(plain).collect()), ("bound", (0..CLASSES).map(bound).collect())]
}

fn allocate(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate");
    group.throughput(Throughput::Elements(CLASSES.into()));
    for (regime, sharers) in regimes() {
        let allocators = [
            ("water-filling", Allocator::water_filling()),
            ("credit", Allocator::credit(CreditForm::Repaired)),
            ("additive", Allocator::additive(Spare::Redivided)),
        ];
        for (name, mut allocator) in allocators {
            group.bench_function(BenchmarkId::new(name, regime), |b| {
                b.iter(|| {
                    let shares = allocator.allocate(CAPACITY, &[], black_box(&sharers));
                    shares.iter().map(|share| share.0).sum::<u64>()
                });
            });
        }
        let grouped = (0..).zip(&sharers).map(|(i, s)| s.in_group(i % 100)).collect::<Vec<_>>();
        let groups = [Policy::default(); 100];
        let mut allocator = Allocator::water_filling();
        group.bench_function(BenchmarkId::new("water-filling-in-groups", regime), |b| {
            b.iter(|| {
                let shares = allocator.allocate(CAPACITY, &groups, black_box(&grouped));
                shares.iter().map(|share| share.0).sum::<u64>()
            });
        });
    }
    group.finish();
}

/// One period of credits, with what a class used known from the period before.
fn tick(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick");
    group.throughput(Throughput::Elements(CLASSES.into()));
    for (regime, sharers) in regimes() {
        for form in [CreditForm::Paper, CreditForm::Repaired] {
            let mut credits = CreditAllocator::new(CAPACITY, CreditAllocator::PERIOD).with_form(form);
            credits.set_classes(&sharers.iter().map(|s| s.policy).collect::<Vec<_>>());
            let wanted = |s: &Sharer| s.demand.get().bytes_in(CreditAllocator::PERIOD);
            let wanted = sharers.iter().map(wanted).collect::<Vec<_>>();
            let mut usage = vec![Usage::default(); sharers.len()];
            group.bench_function(BenchmarkId::new(format!("{form:?}").to_lowercase(), regime), |b| {
                b.iter(|| {
                    let credit = credits.tick(black_box(&usage));
                    for ((usage, credit), wanted) in usage.iter_mut().zip(credit).zip(&wanted) {
                        let used = (*credit).min(*wanted);
                        *usage = Usage { used, waiting: Bytes(wanted.0 - used.0) };
                    }
                    usage[usage.len() / 2].used
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = allocate, tick
}
criterion_main!(benches);
