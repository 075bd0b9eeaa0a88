//! The choice of packets that go first in user space (`tests/user_space/sparse.c`), in a time of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::times;

#[link(name = "weir_sparse_user", kind = "static")]
unsafe extern "C" {
    fn sparse_user_init(cost: u64, quiet: u64, begun: u64);
    fn sparse_user_send(now: u64, minor: u32, flow: u32, len: u32, segments: u32) -> i32;
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Of the class, bytes a second: 16 Mbit/s.
const RATE: u64 = 2_000_000;
/// A full frame, bytes. It takes 0.76 ms.
const FRAME: u32 = 1514;
/// The flow of small packets.
const PING: u32 = 1;
/// The minor of the class.
const MINOR: u32 = 0x20;

/// One class of the program, which is one in a process.
struct Class {
    now: u64,
    _only: MutexGuard<'static, ()>,
}

impl Class {
    /// Its program has seen packets for some time.
    fn new() -> Class {
        Class::begun_at(SECOND)
    }

    fn begun_at(begun: u64) -> Class {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let (cost, quiet) = times(RATE, 278_528);
        // SAFETY: the C side's state belongs to the holder of the lock; all else is numbers.
        unsafe { sparse_user_init(cost, quiet, begun) }
        Class { now: 10 * SECOND, _only: only }
    }

    /// Whether a packet goes first.
    fn sends(&self, flow: u32, len: u32, segments: u32) -> bool {
        self.sends_in(MINOR, flow, len, segments)
    }

    /// The same in any class.
    fn sends_in(&self, minor: u32, flow: u32, len: u32, segments: u32) -> bool {
        // SAFETY: as above.
        unsafe { sparse_user_send(self.now, minor, flow, len, segments) != 0 }
    }

    /// Of small packets of one flow, one every 20 ms: those that go first, and the time until the first of them.
    fn pings(&mut self, count: u32) -> (u32, Option<u64>) {
        let (mut first, mut after) = (0, None);
        let begin = self.now;
        for _ in 0..count {
            if self.sends(PING, 98, 1) {
                first += 1;
                after.get_or_insert(self.now - begin);
            }
            self.now += 20 * MS;
        }
        (first, after)
    }

    /// As many flows as this begin with ten full frames each. Returns how many of these go first.
    fn flows_begin(&self, count: u32) -> u32 {
        (0..10 * count).map(|i| u32::from(self.sends(100 + i / 10, FRAME, 1))).sum()
    }
}

#[test]
fn small_packets_go_first_beside_super_packets() {
    let mut class = Class::new();
    for _ in 0..100 {
        assert!(!class.sends(2, 6 * FRAME, 6));
        assert!(class.sends(PING, 98, 1));
        class.now += 5 * MS;
    }
}

#[test]
fn steady_flow_goes_first_again_after_many_others_began() {
    let mut class = Class::new();
    assert_eq!(class.pings(10), (10, Some(0)));
    let first = class.flows_begin(20);
    assert!((8..=20).contains(&first), "{first} packets of the class went first");
    let (first, after) = class.pings(200);
    let after = after.expect("it never pauses, and need not");
    assert!((900 * MS..1_100 * MS).contains(&after), "{} ms", after / MS);
    assert_eq!(first, 200 - u32::try_from(after / (20 * MS)).unwrap(), "none waits from then on");
}

#[test]
fn flow_that_takes_too_much_never_goes_first_while_it_does() {
    // A third of the class's rate, in single frames, from a moment when all others begin, and alone.
    for (others, most) in [(20, 0), (0, 24)] {
        let mut class = Class::new();
        class.flows_begin(others);
        let sends = |class: &mut Class, until: u64| {
            let mut first = 0;
            while class.now < until {
                first += u32::from(class.sends(PING, FRAME, 1));
                class.now += 9 * MS / 4;
            }
            first
        };
        let begun = sends(&mut class, 12 * SECOND);
        assert!(begun <= most, "{begun} beside {others}");
        assert_eq!(sends(&mut class, 40 * SECOND), 0, "beside {others}");
    }
}

#[test]
fn flow_that_waited_for_its_own_sake_has_to_pause() {
    // Its packets may be in the queue. A later one overtakes none of them.
    let mut class = Class::new();
    assert!(!class.sends(PING, 2 * FRAME, 2));
    assert_eq!(class.pings(200), (0, None));
    class.now += 1_100 * MS;
    assert_eq!(class.pings(10), (10, Some(0)));
}

#[test]
fn flows_of_other_classes_with_near_numbers_hold_none_back() {
    // The kernel numbers sockets as they are made, and classes get minors as they come.
    let mut class = Class::new();
    for (minor, flow) in (1..16).flat_map(|minor| (1..200).map(move |flow| (MINOR - 16 + minor, flow))) {
        assert!(!class.sends_in(minor, flow, 6 * FRAME, 6));
    }
    let mut waits = 0;
    for flow in 1..200 {
        waits += u32::from(!class.sends(flow, 98, 1));
        class.now += MS;
    }
    // 3,000 of 16,384 places are taken.
    assert!(waits < 60, "{waits} of 200 wait");
}

#[test]
fn flows_that_an_agent_finds_overtake_none_of_their_packets() {
    // Their packets may wait since before. One sends as much as the class may, one pings, and one begins later.
    let mut class = Class::begun_at(0);
    for at in 0..4_000 {
        assert!(!class.sends(2, FRAME, 1), "{at} ms after the first packet");
        if at % 20 == 0 {
            assert_eq!(class.sends(PING, 98, 1), at > 1_000, "{at} ms after the first packet");
        }
        class.now += MS;
    }
    assert!(class.sends(3, 98, 1), "a new flow does not wait");
}
