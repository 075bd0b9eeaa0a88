//! No memory is allocated after construction, whatever comes, goes and changes.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use weir_htb::{ClassId, Htb, Limits, Next, Packet, Params};
use weir_units::{BitRate, Instant};

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
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn packets_and_changes_allocate_nothing() {
    let before = REQUESTS.get();
    let limits = Limits { classes: 200, packets: 1_000, depth: 4 };
    let mut htb = Htb::new(limits, Instant::default());
    let built = REQUESTS.get();
    assert!(built > before, "construction allocates, or nothing is counted");

    let params = |mbit: u32| Params::new(BitRate::mbit(mbit.into())).ceil(BitRate::mbit(100));
    htb.add(ClassId(0), None, params(50)).unwrap();
    let mut now = Instant::default();
    for round in 0..50u32 {
        let parent = ClassId(1 + round % 5);
        if !htb.exists(parent) {
            htb.add(parent, Some(ClassId(0)), params(5)).unwrap();
        }
        for i in 0..3 {
            let leaf = ClassId(10 + round * 3 + i);
            htb.add(leaf, Some(parent), params(1 + i).prio((i % 2) as u8)).unwrap();
            for handle in 0..20 {
                htb.enqueue(leaf, Packet { handle, len: 64 + 100 * i }).unwrap();
            }
        }
        htb.change(ClassId(10 + round * 3), params(2).prio(5)).unwrap();
        for _ in 0..200 {
            match htb.dequeue(now) {
                Next::Packet(_) => {}
                Next::At(then) => now = then,
                Next::Empty => now = now + Duration::from_millis(3),
            }
        }
        if round % 4 == 3 {
            let leaf = ClassId(10 + round * 3);
            htb.drain(leaf, |_| ()).unwrap();
            htb.remove(leaf).unwrap();
        }
        let stats = htb.stats(ClassId(0)).unwrap();
        let refused = htb.add(ClassId(0), None, params(1)).is_err();
        assert!(stats.packets > 0 && refused);
    }
    assert_eq!(REQUESTS.get(), built);
}
