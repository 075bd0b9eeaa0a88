//! How long the thread looks for packets before it sleeps. Pure.

use std::time::Duration;

/// Waking costs a processor some 10 microseconds, and more for the packet that woke it. Looking
/// costs as long as it lasts. So it looks only while packets follow each other: as the kernel does
/// for processors of virtual machines (`halt_poll_ns`), longer each time that one came soon after
/// it slept, and not at all after a longer pause. Where it looks before others run, nothing may
/// come because it looks: the sender waits for this processor. After each look without a packet it
/// sleeps through twice the number of pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BusyPoll {
    look: Duration,
    /// Times in a row that it has looked for longer and longer, and nothing came.
    misses: u32,
    /// Pauses that it still leaves alone.
    alone: u32,
}

impl BusyPoll {
    /// A pause that might have been looked through is not longer.
    const LONGEST: Duration = Duration::from_micros(50);
    const FIRST: Duration = Duration::from_micros(10);
    /// It looks in at least one of this power of two pauses.
    const MAX_BACKOFF: u32 = 10;

    /// How long to look before the next sleep.
    pub(super) fn look(self) -> Duration {
        self.look
    }

    /// There was a pause of this length, looked through or slept.
    pub(super) fn paused(&mut self, pause: Duration) {
        if pause > BusyPoll::LONGEST {
            if self.look > Duration::ZERO {
                self.misses = (self.misses + 1).min(BusyPoll::MAX_BACKOFF);
                self.alone = 1 << self.misses;
            }
            self.look = Duration::ZERO;
        } else if pause <= self.look {
            self.misses = 0;
        } else if self.alone > 0 {
            self.alone -= 1;
        } else {
            self.look = (2 * self.look).clamp(BusyPoll::FIRST, BusyPoll::LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For pauses of this length: their number, the number slept through at least in part, and the
    /// time of looking in all.
    fn pauses(busy_poll: &mut BusyPoll, micros: u64, count: u32) -> (u32, Duration) {
        let pause = Duration::from_micros(micros);
        let (mut slept, mut looked) = (0, Duration::ZERO);
        for _ in 0..count {
            slept += u32::from(pause > busy_poll.look());
            looked += pause.min(busy_poll.look());
            busy_poll.paused(pause);
        }
        (slept, looked)
    }

    #[test]
    fn while_packets_follow_each_other_it_soon_does_not_sleep_any_more() {
        for micros in [5, 15, 30, 50] {
            let (slept, _) = pauses(&mut BusyPoll::default(), micros, 1_000);
            assert!((1..=4).contains(&slept), "pauses of {micros} us: {slept} of 1000 slept");
        }
    }

    #[test]
    fn who_has_nothing_to_do_looks_once_at_the_most_and_then_sleeps_at_once() {
        let mut busy_poll = BusyPoll::default();
        pauses(&mut busy_poll, 50, 1_000);
        let (slept, looked) = pauses(&mut busy_poll, 100_000, 1_000);
        assert_eq!((slept, looked), (1_000, BusyPoll::LONGEST));
        assert_eq!(
            pauses(&mut BusyPoll::default(), 100, 1_000),
            (1_000, Duration::ZERO),
            "10,000 packets a second"
        );
    }

    #[test]
    fn who_sends_only_while_nobody_looks_for_it_is_soon_left_alone() {
        const SENDS: Duration = Duration::from_micros(5);
        let (mut busy_poll, mut looked) = (BusyPoll::default(), Duration::ZERO);
        for _ in 0..10_000 {
            looked += busy_poll.look();
            busy_poll.paused(busy_poll.look() + SENDS);
        }
        assert!(looked < 10_000 * SENDS / 10, "{looked:?}");
        assert!(looked > Duration::ZERO, "it would be well if it could");
        let (slept, _) = pauses(&mut busy_poll, 5, 2_000);
        assert!(slept <= (1 << BusyPoll::MAX_BACKOFF) + 4, "and looks again where that helps: {slept}");
    }
}
