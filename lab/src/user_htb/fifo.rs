//! The paper's own form, kept to show what it costs: a lock-free FIFO for each leaf, `activate` and
//! `deactivate` removed. So the dequeue thread does not know which of them are empty, and looks.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_htb::Params;
use weir_units::{BitRate, Bytes, Instant};

/// Packets a FIFO holds.
const PLACES: usize = super::scenario::LIMIT as usize;
/// Bytes of a turn.
const QUANTUM: i64 = super::scenario::QUANTUM as i64;

/// One leaf's packets, length and handle in a word; 0 is no packet, so that a place tells whether it is
/// free (FastForward). One thread fills, one empties.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Fifo([AtomicU64; PLACES]);

impl Fifo {
    pub(super) fn new() -> Fifo {
        Fifo([const { AtomicU64::new(0) }; PLACES])
    }

    /// Whether there was a place. `at` is the filling thread's.
    #[inline]
    pub(super) fn push(&self, at: &mut u32, len: u32, handle: u32) -> bool {
        put(&self.0, at, u64::from(handle) << 32 | u64::from(len))
    }

    #[inline]
    fn pop(&self, at: &mut u32) -> Option<(u32, u32)> {
        take(&self.0, at).map(|word| (word as u32, (word >> 32) as u32))
    }
}

/// Fills the next place of a ring, a power of two of them, with what is not zero; whether it was free.
#[inline]
pub(super) fn put(places: &[AtomicU64], at: &mut u32, word: u64) -> bool {
    let place = &places[*at as usize & (places.len() - 1)];
    if place.load(Ordering::Acquire) != 0 {
        return false;
    }
    place.store(word, Ordering::Release);
    *at = at.wrapping_add(1);
    true
}

/// Empties the next place, if it is filled.
#[inline]
pub(super) fn take(places: &[AtomicU64], at: &mut u32) -> Option<u64> {
    let place = &places[*at as usize & (places.len() - 1)];
    let word = place.load(Ordering::Acquire);
    if word == 0 {
        return None;
    }
    place.store(0, Ordering::Release);
    *at = at.wrapping_add(1);
    Some(word)
}

/// A bucket as the moment until which it is empty, ns.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    empty_until: f64,
    ns_per_byte: f64,
    depth: f64,
}

impl Bucket {
    fn new(rate: BitRate, burst: Option<Bytes>) -> Bucket {
        let burst = burst.unwrap_or_else(|| Params::new(rate).effective_burst());
        let depth = rate.time_to_send(burst).as_nanos() as f64;
        Bucket { empty_until: -depth, ns_per_byte: 8e9 / rate.bits_per_sec() as f64, depth }
    }

    fn has(&self, now: f64) -> bool {
        self.empty_until <= now
    }

    fn take(&mut self, now: f64, len: u32) {
        self.empty_until = self.empty_until.max(now - self.depth) + f64::from(len) * self.ns_per_byte;
    }
}

#[derive(Debug, Clone, Copy)]
struct Leaf {
    rate: Bucket,
    ceil: Bucket,
    deficit: i64,
    at: u32,
}

/// The dequeue thread's part: two levels, as in the paper's experiments.
#[derive(Debug)]
pub(super) struct Dequeuer<'a> {
    fifos: &'a [Fifo],
    leaves: Vec<Leaf>,
    link: Bucket,
    /// The user that is next with tokens of its own, and with the link's.
    turn: [usize; 2],
    /// Empty queues that were looked into.
    pub(super) looked_in_vain: u64,
}

impl<'a> Dequeuer<'a> {
    pub(super) fn new(
        fifos: &'a [Fifo],
        rates: impl Fn(u32) -> (BitRate, BitRate),
        link: BitRate,
    ) -> Dequeuer<'a> {
        let leaf = |user| {
            let (rate, ceil) = rates(user);
            Leaf { rate: Bucket::new(rate, None), ceil: Bucket::new(ceil, None), deficit: QUANTUM, at: 0 }
        };
        let leaves = (0..fifos.len() as u32).map(leaf).collect();
        Dequeuer {
            fifos,
            leaves,
            link: Bucket::new(link, Some(super::scenario::link_burst(link))),
            turn: [0; 2],
            looked_in_vain: 0,
        }
    }

    /// The packets that may leave at `now`, at most `room`; the length and handle of each go to
    /// `sent`. Returns how many left.
    pub(super) fn dequeue(&mut self, now: Instant, room: u32, mut sent: impl FnMut(u32, u32)) -> u32 {
        let (now, mut left) = (now.0.as_nanos() as f64, 0);
        for lent in [false, true] {
            let level = usize::from(lent);
            // Until all in turn had nothing, or no tokens.
            let mut in_vain = 0;
            while in_vain < self.leaves.len() && left < room && (!lent || self.link.has(now)) {
                let i = self.turn[level];
                let leaf = &mut self.leaves[i];
                let may = leaf.ceil.has(now) && (lent || leaf.rate.has(now));
                match may.then(|| self.fifos[i].pop(&mut leaf.at)) {
                    Some(Some((len, handle))) => {
                        (in_vain, left) = (0, left + 1);
                        if !lent {
                            leaf.rate.take(now, len);
                        }
                        leaf.ceil.take(now, len);
                        self.link.take(now, len);
                        sent(len, handle);
                        leaf.deficit -= i64::from(len);
                        if leaf.deficit >= 0 {
                            continue;
                        }
                        leaf.deficit += QUANTUM;
                    }
                    looked => {
                        in_vain += 1;
                        self.looked_in_vain += u64::from(looked.is_some());
                    }
                }
                self.turn[level] = (i + 1) % self.leaves.len();
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn users_get_rates_and_the_rest_and_empty_queues_cost_a_look() {
        let fifos = (0..4).map(|_| Fifo::new()).collect::<Vec<_>>();
        // Two users with packets of 0.5 and 2 Mbit/s, up to 1 and 12; two without.
        let mut dequeuer = Dequeuer::new(&fifos, super::super::scenario::paper_rates, BitRate::mbit(10));
        let (mut ends, mut bytes) = ([0; 2], [0u64; 4]);
        for ms in 0..4_000 {
            for (i, (fifo, end)) in (0..).zip(fifos.iter().zip(&mut ends)) {
                while fifo.push(end, 500, i) {}
            }
            // The first burst of the link is not counted.
            let counts = u64::from(ms >= 2_000);
            let now = Instant(Duration::from_millis(ms));
            dequeuer.dequeue(now, u32::MAX, |len, i| bytes[i as usize] += counts * u64::from(len));
        }
        let mbit = bytes.map(|bytes| bytes as f64 * 8.0 / 2e6);
        assert!((mbit[0] - 1.0).abs() < 0.02, "{mbit:?}");
        assert!((mbit[1] - 9.0).abs() < 0.2 && mbit[2..] == [0.0, 0.0], "{mbit:?}");
        assert!(dequeuer.looked_in_vain > 4_000, "{}", dequeuer.looked_in_vain);
    }
}
