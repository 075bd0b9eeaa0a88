//! The qdisc in user space (`tests/user_space/fair.c`), in a time of its own: whole links of random policies
//! and demands in milliseconds, each share against weir-share's water-filling.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_share::Policy;
use weir_units::Framing;

use super::{CHANGED, LinkParams, Mode, PARAMS, Params};
use crate::simulation::{
    BUFFER, CAPACITY, Division, FRAME, Link, Load, MS, SECOND, SUPER_PACKET, Scheduler, flood, policy,
    random_policies,
};

#[path = "case_tests.rs"]
mod cases;
#[path = "credit_tests.rs"]
mod credit;
#[path = "datagram_tests.rs"]
mod datagrams;
#[path = "framing_tests.rs"]
mod framing;

/// The minors of the first class and of the first group.
const CLASS: u16 = 0x10;
const GROUP: u16 = 0x80;

#[link(name = "weir_fair_user", kind = "static")]
unsafe extern "C" {
    fn user_init() -> *mut u64;
    fn user_enqueue(now: u64, minor: u32, len: u32, hash: u32, owned: i32, datagram: u32) -> i32;
    fn user_dequeue(now: u64, wake: *mut u64, datagram: *mut u32) -> u64;
    fn user_bytes(minor: u32) -> u64;
    fn user_run_timer(now: u64);
    fn user_end_process();
    fn user_paper_credit(minor: u32) -> i64;
}

/// The link of all tests, with or without a framing.
fn link_params(mode: Mode, framing: Option<Framing>) -> LinkParams {
    let is_plain = mode == Mode::Paper;
    LinkParams {
        mode,
        bytes_per_sec: CAPACITY.bytes_per_sec(),
        burst_ns: MS,
        sparse_ns: if is_plain { 0 } else { 5 * MS },
        small_bytes: if is_plain { 0 } else { framing.map_or(1518, |line| line.line_bytes(1518) as u32) },
        codel_target_us: if is_plain { 1_000_000_000 } else { 5_000 },
        codel_interval_us: 100_000,
        framing: framing.into(),
    }
}

/// The qdisc, which is one in a process; who holds it has a new one.
struct Qdisc {
    shared: *mut u64,
    _only: MutexGuard<'static, ()>,
}

impl Qdisc {
    fn new() -> Qdisc {
        Qdisc::in_mode(Mode::Fair)
    }

    fn in_mode(mode: Mode) -> Qdisc {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the C side's state belongs to the holder of the lock.
        let shared = unsafe { user_init() };
        let qdisc = Qdisc { shared, _only: only };
        qdisc.set_link(&link_params(mode, None));
        qdisc
    }

    fn set_link(&self, link: &LinkParams) {
        link.words(1).into_iter().enumerate().for_each(|(i, word)| self.write(2 + i, word));
    }

    fn write(&self, word: usize, value: u64) {
        assert!(word < super::WORDS);
        // SAFETY: a word of `struct fair_shared`, under the lock.
        unsafe { *self.shared.add(word) = value }
    }

    fn read(&self, word: usize) -> u64 {
        assert!(word < super::WORDS);
        // SAFETY: as above.
        unsafe { *self.shared.add(word) }
    }

    /// The effect of [`super::Fair::set`] on the map.
    fn set(&self, minor: u16, policy: &Policy, group: u16) {
        let ceil = policy.ceiling().min(CAPACITY);
        let params = Params {
            weight: policy.weight().get(),
            floor_bytes_per_sec: policy.floor().min(ceil).bytes_per_sec(),
            ceil_bytes_per_sec: if ceil < CAPACITY { ceil.bytes_per_sec() } else { 0 },
            group,
            limit_bytes: 2 * BUFFER,
            is_group: minor >= GROUP,
            is_urgent: false,
            is_present: true,
        };
        let at = super::place(minor, PARAMS);
        let words = params.words();
        let old = [0, 1, 3].map(|i| self.read(at + i));
        if old[0] != 0 && (old[..2] != words[..2] || old[2] as u32 != words[3] as u32) {
            self.write(CHANGED, 1);
        }
        words.into_iter().enumerate().for_each(|(i, word)| self.write(at + i, word));
    }

    fn enqueue(&self, now: u64, minor: u16, len: u32) {
        // SAFETY: under the lock; all else is numbers.
        let refused = unsafe { user_enqueue(now, minor.into(), len, minor.into(), 1, 0) };
        assert_eq!(refused, 0, "class {minor:x} is refused {len} bytes");
    }

    /// A fragment that belongs to no socket here; whether it is taken.
    fn offer(&self, now: u64, minor: u16, len: u32, datagram: u32) -> bool {
        // SAFETY: as above.
        unsafe { user_enqueue(now, minor.into(), len, minor.into(), 0, datagram) == 0 }
    }

    /// The next packet's class and length, or when to ask again.
    fn dequeue(&self, now: u64) -> Result<(u16, u32), u64> {
        self.dequeue_fragment(now).map(|(minor, len, _)| (minor, len))
    }

    /// The same, and what it is a fragment of.
    fn dequeue_fragment(&self, now: u64) -> Result<(u16, u32, u32), u64> {
        let (mut wake, mut datagram) = (0, 0);
        // SAFETY: under the lock; what is pointed to lives as long as the call.
        let packet = unsafe { user_dequeue(now, &raw mut wake, &raw mut datagram) };
        if packet == 0 { Err(wake) } else { Ok(((packet >> 32) as u16, packet as u32, datagram)) }
    }
}

impl Scheduler for Qdisc {
    fn new() -> Qdisc {
        Qdisc::new()
    }

    fn set_group(&mut self, group: u16, policy: &Policy) {
        self.set(GROUP + group, policy, 0);
    }

    fn set_class(&mut self, class: u16, policy: &Policy, group: Option<u16>) {
        self.set(CLASS + class, policy, group.map_or(0, |group| GROUP + group));
    }

    fn enqueue(&mut self, now: u64, class: u16, len: u32) -> bool {
        Qdisc::enqueue(self, now, CLASS + class, len);
        true
    }

    fn dequeue(&mut self, now: u64) -> Result<(u16, u32), u64> {
        Qdisc::dequeue(self, now).map(|(minor, len)| (minor - CLASS, len))
    }
}

#[test]
fn random_policies_give_the_oracles_shares() {
    random_policies::<Qdisc>(FRAME, 0.01, SECOND, 4 * SECOND);
}

#[test]
fn random_policies_give_the_oracles_shares_with_super_packets() {
    random_policies::<Qdisc>(SUPER_PACKET, 0.02, 4 * SECOND, 6 * SECOND);
}
