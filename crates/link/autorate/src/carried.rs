//! The rate that the link carried, by round trips alone.

use std::{collections::VecDeque, time::Duration};

use weir_units::{Bytes, Instant};

/// Departures and answers are kept for this time.
const KEPT: Duration = Duration::from_secs(12);
/// Answers that are further apart tell no rate.
const APART: Duration = Duration::from_secs(2);

/// The bytes that left the scheduler, and those of them that have passed the link.
///
/// A link sends in order, so all that left before an answered packet has passed the link, or is lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    /// The bytes that had left at the end of each tick. They only grow.
    left: VecDeque<(Instant, u64)>,
    /// The bytes that had passed, where round trips told it. They only grow.
    passed: VecDeque<(Instant, u64)>,
}

impl Carried {
    /// Adds what left since the last call.
    pub(crate) fn leave(&mut self, now: Instant, sent: Bytes) {
        let before = self.left.back().map_or(0, |(_, bytes)| *bytes);
        self.left.push_back((now, before.saturating_add(sent.0)));
        for kept in [&mut self.left, &mut self.passed] {
            while kept.front().is_some_and(|(at, _)| now.since(*at) > KEPT) {
                kept.pop_front();
            }
        }
    }

    /// Takes note of an answer: its packet left a round trip ago.
    pub(crate) fn answer(&mut self, now: Instant, round_trip: Duration) {
        let Some(bytes) = self.left_at(now, round_trip) else { return };
        // A late answer is of an earlier packet than the one before it.
        let before = self.passed.back().map_or(0, |(_, bytes)| *bytes);
        self.passed.push_back((now, bytes.max(before)));
    }

    /// The bytes that had left this long ago. Between two ticks they leave evenly.
    fn left_at(&self, now: Instant, ago: Duration) -> Option<u64> {
        let later = self.left.partition_point(|(at, _)| now.since(*at) > ago);
        let (begin, before) = *self.left.get(later.checked_sub(1)?)?;
        let Some((end, after)) = self.left.get(later).copied() else { return Some(before) };
        let part = (now.since(begin) - ago).as_secs_f64() / end.since(begin).as_secs_f64();
        Some(before + ((after - before) as f64 * part) as u64)
    }

    /// The answers before now tell nothing any more.
    pub(crate) fn forget_answers(&mut self) {
        self.passed.clear();
    }

    /// Bytes per second that passed in this time or a little longer, if an answer came now and one before it.
    pub(crate) fn rate(&self, now: Instant, over: Duration) -> Option<f64> {
        let bytes = self.passed.back().filter(|(at, _)| *at == now)?.1;
        let (since, before) = *self.passed.iter().rev().find(|(at, _)| now.since(*at) >= over)?;
        let time = now.since(since);
        (time <= APART).then(|| (bytes - before) as f64 / time.as_secs_f64())
    }

    /// The bytes that have left since the packet that was answered last.
    pub(crate) fn on_the_way(&self) -> Option<Bytes> {
        let ((_, left), (_, passed)) = (self.left.back()?, self.passed.back()?);
        Some(Bytes(left.saturating_sub(*passed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_millis(ms))
    }

    const OVER: Duration = Duration::from_millis(200);

    #[test]
    fn growing_queue_tells_the_links_rate() {
        let mut carried = Carried::default();
        // 4 bytes leave in a millisecond, and one passes. The queue is 3 ms longer after each.
        for ms in (0..=2_000).step_by(50) {
            carried.leave(at(ms), Bytes(if ms == 0 { 0 } else { 200 }));
            // The packet that is answered at `ms` left at a quarter of it, 20 ms for the path later.
            carried.answer(at(ms), Duration::from_millis(20 + (ms.saturating_sub(20)) * 3 / 4));
        }
        let rate = carried.rate(at(2_000), OVER).unwrap();
        assert!((rate / 1_000.0 - 1.0).abs() < 0.02, "{rate} bytes/s");
        assert_eq!(carried.on_the_way().unwrap().0 / 10, (8_000 - (2_000 - 20)) / 10);
    }

    #[test]
    fn answers_of_another_time_tell_no_rate() {
        let mut carried = Carried::default();
        let rtt = Duration::from_millis(20);
        for ms in (0..=100).step_by(50) {
            carried.leave(at(ms), Bytes(100));
            carried.answer(at(ms), rtt);
        }
        assert_eq!(carried.rate(at(100), OVER), None, "they are too close");
        for ms in (150..=5_000).step_by(50) {
            carried.leave(at(ms), Bytes(100));
        }
        assert_eq!(carried.rate(at(5_000), OVER), None, "no answer came now");
        carried.answer(at(5_000), rtt);
        assert_eq!(carried.rate(at(5_000), OVER), None, "they are too far apart");
        for ms in (5_050..=5_300).step_by(50) {
            carried.leave(at(ms), Bytes(100));
            carried.answer(at(ms), rtt);
        }
        let rate = carried.rate(at(5_300), OVER).unwrap();
        assert!((rate / 2_000.0 - 1.0).abs() < 0.02, "{rate} bytes/s");
        carried.forget_answers();
        carried.answer(at(5_300), rtt);
        assert_eq!(carried.rate(at(5_300), OVER), None);
    }

    #[test]
    fn round_trip_longer_than_all_that_is_known_tells_nothing() {
        let mut carried = Carried::default();
        for ms in (0..=1_000).step_by(50) {
            carried.leave(at(ms), Bytes(100));
            carried.answer(at(ms), Duration::from_secs(2));
        }
        assert_eq!((carried.rate(at(1_000), OVER), carried.on_the_way()), (None, None));
    }
}
