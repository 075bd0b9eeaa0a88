//! From the counts at the uplink to the signals of a tick.

use std::time::Duration;

use weir_units::{Bytes, Instant};

use crate::{Signals, window::Window};

/// The packets' headers are those of this time.
const HEADERS_OVER: Duration = Duration::from_secs(1);
/// Without this part of the traffic in TCP, acknowledgements do not tell the link's rate.
///
/// The part of the last second stands for that of each tick. The less of it there is, the more a change of it
/// is taken for one of the link.
const LEAST_PART: f64 = 0.35;

/// Counts that only grow, and what is at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of all packets that left the scheduler, as it counts them.
    pub sent: u64,
    /// Bytes of TCP payload among them.
    pub sent_payload: u64,
    /// Bytes of TCP payload that was answered.
    pub acked_payload: u64,
    /// The sum of answered bytes, each times its flow's base in microseconds.
    pub acked_base_us: u64,
    /// Round trips.
    pub samples: u64,
    /// Bytes of TCP payload that has left and was not answered yet.
    pub on_the_way: u64,
    /// The least round trip above its flow's base in the last 60 ms.
    pub queue: Option<Duration>,
    /// The time since an answer, if one is due.
    pub unanswered: Option<Duration>,
}

/// Turns counts into signals.
#[derive(Debug, Clone)]
pub struct Meter {
    last: Option<Counts>,
    sent: Window,
    payload: Window,
    base: Duration,
}

impl Default for Meter {
    fn default() -> Meter {
        let (sent, payload) = (Window::new(HEADERS_OVER), Window::new(HEADERS_OVER));
        Meter { last: None, sent, payload, base: Duration::ZERO }
    }
}

impl Meter {
    /// The signals since the last call. `None` at the first one, and after counts that began again.
    pub fn signals(&mut self, now: Instant, counts: &Counts, is_busy: bool) -> Option<Signals> {
        let last = self.last.replace(*counts)?;
        let grown = |of: fn(&Counts) -> u64| of(counts).checked_sub(of(&last));
        let sent = grown(|c| c.sent)?;
        let acked = grown(|c| c.acked_payload)?;
        let base_us = grown(|c| c.acked_base_us)?;
        self.sent.add(now, sent);
        self.payload.add(now, grown(|c| c.sent_payload)?);
        if let Some(mean) = base_us.checked_div(acked) {
            self.base = Duration::from_micros(mean);
        }
        // Bytes on the line for one of TCP payload: its headers, and what is not TCP.
        let (all, payload) = (self.sent.sum(now), self.payload.sum(now));
        let is_told = payload as f64 >= LEAST_PART * all as f64 && payload > 0;
        let on_the_line = |bytes: u64| Bytes((bytes as f64 * all as f64 / payload as f64) as u64);
        Some(Signals {
            queue: counts.queue,
            base: self.base,
            samples: grown(|c| c.samples)?,
            acked: is_told.then(|| on_the_line(acked)),
            sent: Bytes(sent),
            on_the_way: is_told.then(|| on_the_line(counts.on_the_way)),
            is_busy,
            unanswered: counts.unanswered,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_millis(ms))
    }

    #[test]
    fn headers_and_other_traffic_are_added_to_what_tcp_acknowledges() {
        let mut meter = Meter::default();
        let first = Counts { sent: 1_000, ..Counts::default() };
        assert_eq!(meter.signals(at(0), &first, true), None, "counts of an unknown time");
        // Half of the traffic is TCP.
        let second = Counts {
            sent: 21_000,
            sent_payload: 10_000,
            acked_payload: 5_000,
            acked_base_us: 5_000 * 20_000,
            samples: 3,
            on_the_way: 5_000,
            ..Counts::default()
        };
        meter.signals(at(50), &second, true);
        let third =
            Counts { sent: 41_000, sent_payload: 20_000, acked_payload: 10_000, samples: 5, ..second };
        let signals = meter.signals(at(100), &third, false).unwrap();
        assert_eq!((signals.acked, signals.sent), (Some(Bytes(10_000)), Bytes(20_000)));
        assert_eq!((signals.on_the_way, signals.samples), (Some(Bytes(10_000)), 2));
        assert_eq!((signals.base, signals.is_busy), (Duration::ZERO, false));
        let told = meter.signals(
            at(150),
            &Counts { acked_base_us: 5_000 * 20_000 * 2, acked_payload: 15_000, ..third },
            true,
        );
        assert_eq!(told.unwrap().base, Duration::from_millis(20));
    }

    #[test]
    fn little_tcp_does_not_tell_the_rate() {
        let mut meter = Meter::default();
        meter.signals(at(0), &Counts::default(), true);
        let counts =
            Counts { sent: 100_000, sent_payload: 10_000, acked_payload: 10_000, ..Counts::default() };
        meter.signals(at(50), &counts, true);
        let twice = Counts { sent: 200_000, sent_payload: 20_000, acked_payload: 20_000, ..counts };
        let signals = meter.signals(at(100), &twice, true).unwrap();
        assert_eq!((signals.acked, signals.on_the_way), (None, None));
    }

    #[test]
    fn counts_that_begin_again_are_no_signals() {
        let mut meter = Meter::default();
        meter.signals(at(0), &Counts { sent: 5_000, ..Counts::default() }, true);
        assert_eq!(meter.signals(at(50), &Counts { sent: 100, ..Counts::default() }, true), None);
        assert!(meter.signals(at(100), &Counts { sent: 200, ..Counts::default() }, true).is_some());
    }
}
