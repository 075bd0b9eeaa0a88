//! Fragments in the qdisc in user space: what leaves of datagrams is whole.

use std::collections::HashMap;

use super::{CLASS, MS, Qdisc, SECOND, policy};

/// Lengths on the wire of 12.5 KB of UDP.
const FRAGMENTS: [u32; 9] = [1514, 1514, 1514, 1514, 1514, 1514, 1514, 1514, 702];
const FIRST: u32 = 1;

/// The classifier's verdict on a datagram's fragments.
fn key(number: u64) -> u32 {
    ((number as u32).wrapping_mul(0x9e37_79b1) & !FIRST) | 2
}

#[test]
fn of_datagrams_that_are_too_many_for_a_class_those_that_leave_are_whole() {
    let qdisc = Qdisc::new();
    qdisc.set(CLASS, &policy(1, None, Some(5_000)), 0);
    let (mut left, mut bytes) = (HashMap::<u32, usize>::new(), 0);
    // Twenty times what the class may send, by a sender that is not told what is refused.
    for ms in 0..5_000 {
        let mut now = SECOND + ms * MS;
        for (i, &len) in FRAGMENTS.iter().enumerate() {
            qdisc.offer(now, CLASS, len, key(ms) | u32::from(i == 0));
        }
        while now < SECOND + (ms + 1) * MS {
            match qdisc.dequeue_fragment(now) {
                Ok((_, len, datagram)) => {
                    *left.entry(datagram & !FIRST).or_default() += 1;
                    bytes += len;
                }
                Err(wake) => now = if wake == 0 { u64::MAX } else { wake },
            }
        }
    }
    let whole = left.values().filter(|count| **count == FRAGMENTS.len()).count();
    let rate = f64::from(bytes) * 8e-6 / 5.0;
    println!("{rate:.3} Mbit/s leave, {whole} of {} datagrams whole", left.len());
    assert!((rate / 5.0 - 1.0).abs() < 0.02, "{rate:.3} Mbit/s leave");
    assert!(whole + 1 >= left.len(), "{whole} of {} datagrams are whole; one may be on its way", left.len());
}
