//! No memory is allocated per call after the first.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::*;
use weir_share::{Allocator, AllocatorKind, CreditAllocator, CreditForm, Demand, Sharer, Spare, Usage};
use weir_units::{BitRate, Bytes};

/// The system's allocator, counting the requests of each thread.
struct Counting;

thread_local! {
    // The test's own: the harness's thread allocates when it likes.
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.set(REQUESTS.get() + 1);
        // SAFETY: the caller's promises are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of `System::dealloc`, whose memory it is.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        REQUESTS.set(REQUESTS.get() + 1);
        // SAFETY: the caller's promises are those of `System::realloc`, whose memory it is.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests for memory during the call.
fn requests(call: impl FnOnce()) -> u64 {
    let before = REQUESTS.get();
    call();
    REQUESTS.get() - before
}

/// Five hundred classes, most of them in ten groups, that move and want other things in each
/// round.
fn sharers(round: u64) -> Vec<Sharer> {
    (0..500u32)
        .map(|i| {
            let policy = policy(1 + i % 7, u64::from(i % 3), [0, 5, 50][i as usize % 3]);
            let demand = match (u64::from(i) + round) % 4 {
                0 => Demand::NONE,
                1 => Demand::UNLIMITED,
                n => Demand::rate(BitRate(n * u64::from(i) * 10_000)),
            };
            let sharer = Sharer::new(policy, demand);
            match (i + round as u32) % 12 {
                group @ 0..10 => sharer.in_group(group / (round as u32 + 1)),
                _ => sharer,
            }
        })
        .collect()
}

#[test]
fn dividing_again_allocates_nothing() {
    let groups = [policy(2, 10, 200); 10];
    let rounds = [0, 1, 2, 3].map(sharers);
    let capacities = [mbit(100), mbit(1_000), mbit(10_000)];
    let allocators = [
        ("water-filling", Allocator::new(AllocatorKind::WaterFilling)),
        ("credit", Allocator::new(AllocatorKind::Credit)),
        ("the paper's credit", Allocator::credit(CreditForm::Paper)),
        ("additive", Allocator::new(AllocatorKind::Additive)),
        ("additive, once", Allocator::additive(Spare::Once)),
    ];
    for (name, mut allocator) in allocators {
        let mut all = |sharers: &[Sharer]| {
            for capacity in capacities {
                allocator.allocate(capacity, &groups, sharers);
            }
        };
        assert!(requests(|| all(&rounds[0])) > 0, "{name}: the first call allocates, or nothing is counted");
        assert_eq!(requests(|| rounds.iter().for_each(|sharers| all(sharers))), 0, "{name}");
    }

    let mut credits = CreditAllocator::new(mbit(100), CreditAllocator::PERIOD);
    credits.set_classes(&rounds[0].iter().map(|s| s.policy).collect::<Vec<_>>());
    let usage = vec![Usage { used: Bytes(700), waiting: Bytes(1) }; 500];
    assert_eq!(requests(|| (0..100).for_each(|_| assert_eq!(credits.tick(&usage).len(), 500))), 0);
}
