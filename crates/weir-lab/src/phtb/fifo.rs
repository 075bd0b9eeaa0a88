//! The paper's own form, kept to show what it costs: a lock-free FIFO for each leaf, `activate` and
//! `deactivate` removed. So the dequeue thread does not know which of them are empty, and looks.

use std::sync::atomic::{AtomicU32, Ordering};

use weir_htb::Params;
use weir_units::{BitRate, Bytes, Instant};

/// Packets a FIFO holds.
const PLACES: usize = super::LIMIT as usize;
/// Bytes of a turn.
const QUANTUM: i64 = super::QUANTUM as i64;

/// One leaf's packets, by their lengths; 0 is no packet, so that a place tells whether it is free
/// (FastForward). One thread fills, one empties.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Fifo([AtomicU32; PLACES]);

impl Fifo {
    pub(super) fn new() -> Fifo {
        Fifo([const { AtomicU32::new(0) }; PLACES])
    }

    /// Whether there was a place. `at` is the filling thread's.
    #[inline]
    pub(super) fn push(&self, at: &mut u32, len: u32) -> bool {
        let place = &self.0[*at as usize % PLACES];
        if place.load(Ordering::Acquire) != 0 {
            return false;
        }
        place.store(len, Ordering::Release);
        *at = at.wrapping_add(1);
        true
    }

    #[inline]
    fn pop(&self, at: &mut u32) -> Option<u32> {
        let place = &self.0[*at as usize % PLACES];
        let len = place.load(Ordering::Acquire);
        if len == 0 {
            return None;
        }
        place.store(0, Ordering::Release);
        *at = at.wrapping_add(1);
        Some(len)
    }
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
    /// Whose turn it is with tokens of its own, and with the link's.
    turn: [usize; 2],
    /// Empty queues that were looked into.
    pub(super) looked_in_vain: u64,
}

impl<'a> Dequeuer<'a> {
    pub(super) fn new(fifos: &'a [Fifo], link: BitRate) -> Dequeuer<'a> {
        let leaf = |user| {
            let (rate, ceil) = super::rates(user);
            Leaf { rate: Bucket::new(rate, None), ceil: Bucket::new(ceil, None), deficit: QUANTUM, at: 0 }
        };
        let leaves = (0..fifos.len() as u32).map(leaf).collect();
        Dequeuer {
            fifos,
            leaves,
            link: Bucket::new(link, Some(super::link_burst(link))),
            turn: [0; 2],
            looked_in_vain: 0,
        }
    }

    /// All that may leave at `now`; the length of each goes to `sent`.
    pub(super) fn dequeue(&mut self, now: Instant, mut sent: impl FnMut(usize, u32)) {
        let now = now.0.as_nanos() as f64;
        for lent in [false, true] {
            let level = usize::from(lent);
            // Until all in turn had nothing, or no tokens.
            let mut in_vain = 0;
            while in_vain < self.leaves.len() && (!lent || self.link.has(now)) {
                let i = self.turn[level];
                let leaf = &mut self.leaves[i];
                let may = leaf.ceil.has(now) && (lent || leaf.rate.has(now));
                match may.then(|| self.fifos[i].pop(&mut leaf.at)) {
                    Some(Some(len)) => {
                        in_vain = 0;
                        if !lent {
                            leaf.rate.take(now, len);
                        }
                        leaf.ceil.take(now, len);
                        self.link.take(now, len);
                        sent(i, len);
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
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn users_get_their_rates_and_the_rest_of_the_link_and_empty_queues_are_looked_into() {
        let fifos = (0..4).map(|_| Fifo::new()).collect::<Vec<_>>();
        // Two users with packets of 0.5 and 2 Mbit/s, up to 1 and 12; two without.
        let mut dequeuer = Dequeuer::new(&fifos, BitRate::mbit(10));
        let (mut ends, mut bytes) = ([0; 2], [0u64; 4]);
        for ms in 0..4_000 {
            for (fifo, end) in fifos.iter().zip(&mut ends) {
                while fifo.push(end, 500) {}
            }
            // What the link had saved up at first is not counted.
            let counts = u64::from(ms >= 2_000);
            dequeuer
                .dequeue(Instant(Duration::from_millis(ms)), |i, len| bytes[i] += counts * u64::from(len));
        }
        let mbit = bytes.map(|bytes| bytes as f64 * 8.0 / 2e6);
        assert!((mbit[0] - 1.0).abs() < 0.02, "{mbit:?}");
        assert!((mbit[1] - 9.0).abs() < 0.2 && mbit[2..] == [0.0, 0.0], "{mbit:?}");
        assert!(dequeuer.looked_in_vain > 4_000, "{}", dequeuer.looked_in_vain);
    }
}
