//! How long the thread looks for packets before it sleeps. Pure.

use std::time::Duration;

/// Whoever is woken costs a processor some 10 microseconds, and the packet that woke it more; whoever looks
/// costs as long as it looks. So it looks only while packets follow each other: as the kernel does for
/// processors of virtual machines (`halt_poll_ns`), longer each time that one came soon after it slept, and
/// not at all after a longer pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest(Duration);

impl Rest {
    /// A pause that might have been looked through is not longer.
    const LONGEST: Duration = Duration::from_micros(50);
    const FIRST: Duration = Duration::from_micros(10);

    /// How long to look before the next sleep.
    pub(super) fn look(self) -> Duration {
        self.0
    }

    /// There was a pause of this length, looked through or slept.
    pub(super) fn paused(&mut self, pause: Duration) {
        if pause > Rest::LONGEST {
            self.0 = Duration::ZERO;
        } else if pause > self.0 {
            self.0 = (2 * self.0).clamp(Rest::FIRST, Rest::LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of pauses of this length, so many: how many were slept through, at least in part, and for how
    /// long it looked in all.
    fn pauses(rest: &mut Rest, micros: u64, count: u32) -> (u32, Duration) {
        let pause = Duration::from_micros(micros);
        let (mut slept, mut looked) = (0, Duration::ZERO);
        for _ in 0..count {
            slept += u32::from(pause > rest.look());
            looked += pause.min(rest.look());
            rest.paused(pause);
        }
        (slept, looked)
    }

    #[test]
    fn while_packets_follow_each_other_it_soon_does_not_sleep_any_more() {
        for micros in [5, 15, 30, 50] {
            let (slept, _) = pauses(&mut Rest::default(), micros, 1_000);
            assert!((1..=4).contains(&slept), "pauses of {micros} us: {slept} of 1000 slept");
        }
    }

    #[test]
    fn who_has_nothing_to_do_looks_once_at_the_most_and_then_sleeps_at_once() {
        let mut rest = Rest::default();
        pauses(&mut rest, 50, 1_000);
        let (slept, looked) = pauses(&mut rest, 100_000, 1_000);
        assert_eq!((slept, looked), (1_000, Rest::LONGEST));
        assert_eq!(
            pauses(&mut Rest::default(), 100, 1_000),
            (1_000, Duration::ZERO),
            "10,000 packets a second"
        );
    }
}
