//! The program of departure times in user space (`tests/user_space/edt.c`), before a wire in a time of its own.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use weir_share::Policy;
use weir_units::BitRate;

use crate::simulation::{CAPACITY, FRAME, MS, SECOND, SUPER_PACKET, Scheduler, random_links};

#[path = "framing_tests.rs"]
mod framing;

/// The minor of the first class.
const CLASS: u16 = 0x10;
/// Bytes that may wait of a class, as the engine says it of a socket's default buffer.
const QUEUE_BYTES: u64 = 266_240;

/// `struct weir_edt_rule` of edt.h.
#[repr(C)]
struct Rule {
    min: u64,
    max: u64,
    queue_bytes: u64,
    weight: u32,
    group: u32,
}

#[link(name = "weir_edt_user", kind = "static")]
unsafe extern "C" {
    fn edt_user_init(capacity: u64, horizon_ns: u64, packet_bytes: u32, last_minor: u32, last_group: u32);
    fn edt_user_rule(is_group: i32, number: u32, rule: *const Rule);
    fn edt_user_frame(framing: u32, packet_bytes: u32);
    fn edt_user_line_bytes(
        framing: u32,
        wire: u32,
        len: u32,
        segments: u32,
        gso_size: u32,
        excess: i32,
    ) -> u32;
    fn edt_user_bytes(minor: u32) -> u64;
    fn edt_user_send(now: u64, minor: u32, len: u32, packets: u32, hash: u32) -> u64;
}

/// The program, which is one in a process, and the packets that wait for their stamps as in fq. The wire
/// takes one packet after the other.
struct Departures {
    /// Stamp, order of arrival, class, length.
    waiting: BinaryHeap<Reverse<(u64, u64, u16, u32)>>,
    arrivals: u64,
    /// When the wire has sent the packet that it took last.
    wire_free: u64,
    _only: MutexGuard<'static, ()>,
}

impl Departures {
    fn rule(&mut self, is_group: bool, number: u32, policy: &Policy, group: u32) {
        let rate = |rate: BitRate| rate.min(CAPACITY).bytes_per_sec();
        let (min, max, weight) = (rate(policy.floor()), rate(policy.ceiling()), policy.weight().get());
        let rule = Rule { min, max, queue_bytes: QUEUE_BYTES, weight, group };
        // SAFETY: the C side copies the rule. Its state belongs to the holder of the lock.
        unsafe { edt_user_rule(is_group.into(), number, &raw const rule) }
    }
}

impl Scheduler for Departures {
    fn new() -> Departures {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the C side's state belongs to the holder of the lock; all else is numbers.
        unsafe { edt_user_init(CAPACITY.bytes_per_sec(), 50 * MS, FRAME, 0x7f, 8) }
        Departures { waiting: BinaryHeap::new(), arrivals: 0, wire_free: 0, _only: only }
    }

    fn set_group(&mut self, group: u16, policy: &Policy) {
        self.rule(true, u32::from(group) + 1, policy, 0x80 + u32::from(group));
    }

    fn set_class(&mut self, class: u16, policy: &Policy, group: Option<u16>) {
        self.rule(false, (CLASS + class).into(), policy, group.map_or(0, |group| u32::from(group) + 1));
    }

    fn enqueue(&mut self, now: u64, class: u16, len: u32) -> bool {
        let minor = u32::from(CLASS + class);
        // SAFETY: as above.
        let stamp =
            unsafe { edt_user_send(now, minor, len, len.div_ceil(FRAME), minor.wrapping_mul(0x9e37_79b9)) };
        if stamp == u64::MAX {
            return false;
        }
        self.arrivals += 1;
        self.waiting.push(Reverse((stamp.max(now), self.arrivals, class, len)));
        true
    }

    fn dequeue(&mut self, now: u64) -> Result<(u16, u32), u64> {
        let Some(Reverse((stamp, _, class, len))) = self.waiting.peek().copied() else { return Err(0) };
        let ready = stamp.max(self.wire_free);
        if ready > now {
            return Err(ready);
        }
        self.waiting.pop();
        self.wire_free = self.wire_free.max(ready)
            + CAPACITY.time_to_send(weir_units::Bytes(len.into())).as_nanos() as u64;
        Ok((class, len))
    }
}

/// The least share of a class that sends. A smaller class needs longer than [`SETTLE`]: its packets were
/// stamped at the rates that held while the demands were found out, and leave at these stamps.
const LEAST_SHARE: BitRate = BitRate::mbit(1);
/// From an idle link to exact shares.
const SETTLE: u64 = 5 * SECOND;

#[test]
fn random_policies_give_the_oracles_shares() {
    random_links::<Departures>(FRAME, LEAST_SHARE, 0.01, SETTLE, 4 * SECOND);
}

#[test]
fn random_policies_give_the_oracles_shares_with_super_packets() {
    random_links::<Departures>(SUPER_PACKET, LEAST_SHARE, 0.02, SETTLE, 6 * SECOND);
}
