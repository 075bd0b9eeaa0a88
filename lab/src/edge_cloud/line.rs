//! One direction of a link with the rules of tbf and netem, without a clock or a device. It replaces them in
//! kernels without netem.

use std::{collections::VecDeque, time::Duration};

use weir_netlab::{stats::SplitMix, topology::Wire};
use weir_units::{BitRate, Bytes, Instant};

use super::scenario::Link;

/// A queue of limited bytes in front of a rate, then a delay or a loss.
///
/// Invariants:
/// - Packets leave in the order of their arrival, and no earlier than `delay` after it.
/// - The packets of any interval are at most the rate times the interval, plus one burst.
/// - The queued bytes never exceed the buffer.
pub(super) struct Line<P> {
    rate: BitRate,
    buffer: Bytes,
    burst_time: Duration,
    delay: Duration,
    /// Probability of a loss, in parts of 2^64.
    loss: u64,
    rng: SplitMix,
    /// The time at which the token bucket will be full again.
    full_at: Instant,
    /// The times at which packets leave the queue, and their bytes.
    waiting: VecDeque<(Instant, Bytes)>,
    waits: Bytes,
    on_the_way: VecDeque<(Instant, P)>,
}

impl<P> Line<P> {
    /// An empty line with half of the link's round trip.
    pub(super) fn new(link: Link, seed: u64) -> Line<P> {
        let Wire { rate, queue, burst } = Wire::of(link.rate, link.buffer());
        Line {
            rate,
            buffer: queue,
            burst_time: rate.time_to_send(burst),
            delay: Duration::from_secs_f64(link.rtt_ms / 2e3),
            // The product saturates at the largest number, which is practically always a loss.
            loss: (link.loss * 2f64.powi(64)) as u64,
            rng: SplitMix::new(seed),
            full_at: Instant::default(),
            waiting: VecDeque::new(),
            waits: Bytes(0),
            on_the_way: VecDeque::new(),
        }
    }

    /// A packet of `len` bytes at layer 2 arrives. Returns false if the buffer has no room for it. `now`
    /// never decreases.
    pub(super) fn arrive(&mut self, now: Instant, len: Bytes, packet: P) -> bool {
        while let Some((_, left)) = pop_until(&mut self.waiting, now) {
            self.waits.0 -= left.0;
        }
        if self.waits.0 + len.0 > self.buffer.0 {
            return false;
        }
        self.full_at = Instant(self.full_at.max(now).0 + self.rate.time_to_send(len));
        let leaves = now.max(Instant(self.full_at.0.saturating_sub(self.burst_time)));
        self.waiting.push_back((leaves, len));
        self.waits.0 += len.0;
        if self.rng.next_u64() >= self.loss {
            self.on_the_way.push_back((Instant(leaves.0 + self.delay), packet));
        }
        true
    }

    /// The time at which the next packet leaves.
    pub(super) fn due(&self) -> Option<Instant> {
        self.on_the_way.front().map(|(due, _)| *due)
    }

    /// The next packet that is due.
    pub(super) fn depart(&mut self, now: Instant) -> Option<P> {
        pop_until(&mut self.on_the_way, now).map(|(_, packet)| packet)
    }
}

/// The first entry, if it is due.
fn pop_until<T>(queue: &mut VecDeque<(Instant, T)>, now: Instant) -> Option<(Instant, T)> {
    queue.front().filter(|(at, _)| *at <= now)?;
    queue.pop_front()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(mbit: u64, rtt_ms: f64, buffer_bdp: f64, loss: f64) -> Link {
        Link { rate: BitRate::mbit(mbit), rtt_ms, buffer_bdp, loss }
    }
    fn at(us: u64) -> Instant {
        Instant(Duration::from_micros(us))
    }

    #[test]
    fn lone_packet_takes_half_a_round_trip_and_a_burst_the_rate() {
        let mut line = Line::new(link(10, 20.0, 4.0, 0.0), 1);
        for nth in 0..4 {
            assert!(line.arrive(at(0), Bytes(1250), nth));
        }
        // A burst is 3028 bytes: two packets leave at once, then one a millisecond of 10 Mbit/s.
        assert_eq!(line.due(), Some(at(10_000)));
        assert_eq!(line.depart(at(9_999)), None);
        assert_eq!((line.depart(at(10_000)), line.depart(at(10_000))), (Some(0), Some(1)));
        let third = at(10_000 + (3 * 1250 - 3028) * 8 / 10 + 1);
        assert_eq!((line.depart(at(10_000)), line.depart(third)), (None, Some(2)));
        assert_eq!(line.depart(at(20_000)), Some(3));
        assert_eq!((line.depart(at(99_000)), line.due()), (None, None));
    }

    #[test]
    fn losses_are_those_of_the_scenario_and_take_their_rate() {
        let mut line = Line::new(link(100, 10.0, 1.0, 0.1), 7);
        let mut out = 0;
        for nth in 0..20_000u64 {
            // The offered load is twice the rate, so half of the packets find no room.
            line.arrive(at(nth * 50), Bytes(1250), nth);
            while line.depart(at(nth * 50)).is_some() {
                out += 1;
            }
        }
        // 1 s carries 10,000 packets; a tenth is lost, with a standard deviation of 30.
        assert!((8_800..9_200).contains(&out), "{out}");
    }

    proptest! {
        #[test]
        fn output_is_in_order_late_enough_and_within_rate_and_buffer(
            packets in prop::collection::vec((0u64..3_000, 64u64..=1514), 1..300),
            mbit in 1u64..200,
            buffer_bdp in 0.1f64..5.0,
        ) {
            let link = link(mbit, 10.0, buffer_bdp, 0.0);
            let burst = Wire::of(link.rate, link.buffer()).burst;
            let mut line = Line::new(link, 1);
            let (mut now, mut taken) = (0, Vec::new());
            for (nth, (gap, len)) in packets.iter().enumerate() {
                now += gap;
                if line.arrive(at(now), Bytes(*len), nth) {
                    taken.push((nth, now, *len));
                }
                prop_assert!(line.waits <= link.buffer());
            }
            let (mut came, mut sent) = (Vec::new(), 0);
            while let Some(due) = line.due() {
                let nth = line.depart(due).expect("what is due departs");
                let (_, arrived, len) = taken[came.len()];
                prop_assert!(due >= Instant(at(arrived).0 + line.delay));
                sent += len;
                // From the first arrival on, the bytes that have left, less a burst, fit into the rate times
                // the elapsed time.
                let since = (due.0 - line.delay - at(taken[0].1).0).as_nanos() + 1;
                let carried = since * u128::from(link.rate.bits_per_sec()) / 8_000_000_000;
                prop_assert!(u128::from(sent) <= carried + u128::from(burst.0) + 1, "{} of {}", sent, carried);
                came.push(nth);
            }
            prop_assert_eq!(came, taken.iter().map(|(nth, ..)| *nth).collect::<Vec<_>>());
        }
    }
}
