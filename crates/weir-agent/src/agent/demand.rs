//! Estimates a class's demand from its rate and its backlog. Pure.
//!
//! The estimate does not use the policy. A class with a queue takes all it is given. A class without
//! one wants about the rate it sends at. A silent class is not active.
//!
//! There are two estimates. The demand has room above what the class sends, so that its rate suffices
//! before the next look. The present rate has none, and decides which classes get what it leaves.

use std::{collections::VecDeque, time::Duration};

use weir_share::Demand;
use weir_units::{BitRate, Bytes, Instant};

/// The counters of a class at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Bytes sent since the class exists.
    pub(crate) bytes: u64,
    /// Bytes in the queue.
    pub(crate) backlog: u64,
}

/// The time without a queue after which a class no longer counts as held back.
const RELENT: Duration = Duration::from_millis(500);
/// The time without traffic after which a class is no longer active.
const SLEEP: Duration = Duration::from_millis(1500);
/// The period over which the displayed rate is averaged.
const SHOWN: Duration = Duration::from_secs(1);
/// The present rate is a mean over this time.
const PRESENT: Duration = Duration::from_millis(300);
/// A class that sends nothing for this time takes nothing at present.
const PAUSE: Duration = Duration::from_millis(200);
/// The smallest backlog in bytes that counts as a queue. Fewer bytes may be packets in passing.
const QUEUE: u64 = 3 * 1514;
/// A smaller change of what a class takes does not divide the link again.
const NOTICED: BitRate = BitRate::kbit(50);
/// A class is steady if what it takes has not moved for this time.
const STEADY: Duration = Duration::from_secs(1);
/// A rate that differs by at most one part in this number, or by [`LITTLE`], has not moved.
const STIR: u64 = 8;
/// See [`STIR`]: a few packets in [`PRESENT`].
const LITTLE: BitRate = BitRate::kbit(200);
/// No move counts in this time from the first look. A class may be known to take all from [`PRESENT`] on.
const FOUND: Duration = Duration::from_millis(600);
/// The smallest demand of an active class.
const MIN_DEMAND: BitRate = BitRate::kbit(64);

/// The estimator of one class.
#[derive(Debug, Clone)]
pub(crate) struct Estimator {
    last: Option<(Instant, Sample)>,
    demand: Demand,
    /// When the class was last held back.
    hungry_at: Option<Instant>,
    /// When the class last sent.
    sent_at: Option<Instant>,
    /// The highest rates without a queue: since `peak_since`, and in the window before.
    peak: (BitRate, BitRate),
    peak_since: Instant,
    /// Moments and byte counts of the last second, oldest first.
    window: VecDeque<(Instant, u64)>,
    present: Demand,
    /// The present rate when a change was last told.
    told: Demand,
    /// The present rate when it last moved.
    rest: Demand,
    moved_at: Option<Instant>,
    is_steady: bool,
    /// The first look at the class.
    first_at: Option<Instant>,
    /// It was looked at for long enough to know its rate. An agent that takes over leaves it what it had until then.
    is_known: bool,
    backpressured: Duration,
}

impl Estimator {
    pub(crate) fn new() -> Estimator {
        Estimator {
            last: None,
            demand: Demand::NONE,
            hungry_at: None,
            sent_at: None,
            peak: (BitRate::ZERO, BitRate::ZERO),
            peak_since: Instant::default(),
            window: VecDeque::new(),
            present: Demand::NONE,
            told: Demand::NONE,
            rest: Demand::NONE,
            moved_at: None,
            is_steady: true,
            first_at: None,
            is_known: false,
            backpressured: Duration::ZERO,
        }
    }

    /// Takes a sample. `allocation` is the class's allocation since the last sample. Returns whether the
    /// link is to be divided again.
    pub(crate) fn observe(&mut self, now: Instant, sample: Sample, allocation: BitRate) -> bool {
        let before = self.demand;
        let looked = now.since(*self.first_at.get_or_insert(now));
        self.is_known = looked > PRESENT;
        self.estimate(now, sample, allocation);
        self.present = self.estimate_present(now, sample, allocation);
        let (is, told) = (self.present.get().0, self.told.get().0);
        let is_apart = is.abs_diff(told) > (told / 16).max(NOTICED.0);
        if is_apart {
            self.told = self.present;
        }
        let was_steady = self.is_steady;
        self.is_steady = self.rests(now, looked > FOUND);
        is_apart || self.demand != before || self.is_steady != was_steady
    }

    /// Whether the present rate has not moved for [`STEADY`]. The first looks at a class count as no move: an
    /// agent that takes over finds senders that were there before.
    fn rests(&mut self, now: Instant, may_move: bool) -> bool {
        let (is, was) = (self.present, self.rest);
        let is_near = is.get().0.abs_diff(was.get().0) <= (was.get().0 / STIR).max(LITTLE.0);
        if is.is_unlimited() != was.is_unlimited() || !is_near {
            self.rest = is;
            self.moved_at = may_move.then_some(now);
        }
        self.moved_at.is_none_or(|at| now.since(at) >= STEADY)
    }

    /// The rate that the class takes at present, unlimited if it takes all it is given.
    fn estimate_present(&self, now: Instant, sample: Sample, allocation: BitRate) -> Demand {
        let is_within = |at: Option<Instant>| at.is_some_and(|at| now.since(at) < PAUSE);
        if !is_within(self.sent_at) {
            return Demand::NONE;
        }
        let old = self.window.iter().rev().find(|(at, _)| now.since(*at) >= PRESENT).or(self.window.front());
        let rate = old.map_or(BitRate::ZERO, |(at, bytes)| {
            BitRate::of(Bytes(sample.bytes.saturating_sub(*bytes)), now.since(*at))
        });
        // A connection that has lost packets takes less for a moment.
        let has_all = self.demand.is_unlimited() && rate.0 >= allocation.0 / 2;
        if has_all || sample.backlog >= QUEUE { Demand::UNLIMITED } else { Demand::rate(rate) }
    }

    /// The estimate with room above.
    fn estimate(&mut self, now: Instant, sample: Sample, allocation: BitRate) -> Demand {
        let (then, before) = *self.last.get_or_insert((now, sample));
        self.last = Some((now, sample));
        let elapsed = now.since(then);
        // The counters of a re-created class start at zero.
        let sent = Bytes(sample.bytes.checked_sub(before.bytes).unwrap_or(sample.bytes));
        self.window.push_back((now, sample.bytes));
        while self.window.len() > 2 && now.since(self.window[1].0) >= SHOWN {
            self.window.pop_front();
        }
        if before.backlog > 0 {
            self.backpressured += elapsed;
        }
        if elapsed.is_zero() {
            return self.demand;
        }
        let rate = BitRate::of(sent, elapsed);
        if sent.0 > 0 || sample.backlog > 0 {
            self.sent_at = Some(now);
        }
        let nearly_all = self.is_known && allocation > MIN_DEMAND && rate.0 >= allocation.0 / 10 * 9;
        if sample.backlog >= QUEUE || nearly_all {
            self.hungry_at = Some(now);
        }
        if now.since(self.peak_since) >= RELENT {
            self.peak = (rate, self.peak.0);
            self.peak_since = now;
        } else {
            self.peak.0 = self.peak.0.max(rate);
        }
        let within = |at: Option<Instant>, time| at.is_some_and(|at| now.since(at) < time);
        self.demand = if within(self.hungry_at, RELENT) {
            Demand::UNLIMITED
        } else if within(self.sent_at, SLEEP) {
            let peak = self.peak.0.max(self.peak.1);
            let wanted = peak.scale(5, 4).max(MIN_DEMAND);
            match self.demand.get() {
                // The old demand is near enough. A steady rate then changes nothing.
                old if self.demand.is_active()
                    && !self.demand.is_unlimited()
                    && peak.scale(23, 20) <= old
                    && wanted.0 >= old.0 / 2 =>
                {
                    self.demand
                }
                _ => Demand::rate(grid(wanted)),
            }
        } else {
            Demand::NONE
        };
        self.demand
    }

    /// The estimated demand.
    pub(crate) fn demand(&self) -> Demand {
        self.demand
    }

    /// The rate that the class takes at present, unlimited if it takes all it is given.
    pub(crate) fn present(&self) -> Demand {
        self.present
    }

    /// Whether the class has taken about the same for a time.
    pub(crate) fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// The average rate of the last second.
    pub(crate) fn rate(&self) -> BitRate {
        match (self.window.front(), self.window.back()) {
            (Some(&(t0, b0)), Some(&(t1, b1))) => BitRate::of(Bytes(b1.saturating_sub(b0)), t1.since(t0)),
            _ => BitRate::ZERO,
        }
    }

    /// How long the class has had a queue.
    pub(crate) fn backpressured(&self) -> Duration {
        self.backpressured
    }
}

/// The next step at or above `rate`, on a scale of four steps per octave.
fn grid(rate: BitRate) -> BitRate {
    let octave = 1u64 << rate.0.max(4).ilog2();
    let step = octave / 4;
    BitRate(rate.0.max(4).div_ceil(step) * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Feeds `rate` for `ticks` with a backlog of `backlog`. Returns the last demand.
    fn feed(
        e: &mut Estimator,
        clock: &mut (Instant, u64),
        ticks: u32,
        rate: BitRate,
        backlog: u64,
    ) -> Demand {
        for _ in 0..ticks {
            clock.0 = clock.0 + TICK;
            clock.1 += rate.bytes_in(TICK).0;
            e.observe(clock.0, Sample { bytes: clock.1, backlog }, BitRate::mbit(20));
        }
        e.demand()
    }

    fn started() -> (Estimator, (Instant, u64)) {
        let mut e = Estimator::new();
        let clock = (Instant(Duration::from_secs(5)), 1000);
        e.observe(clock.0, Sample { bytes: 1000, backlog: 0 }, BitRate::mbit(20));
        (e, clock)
    }

    #[test]
    fn a_class_with_a_queue_wants_whatever_it_is_given_at_once() {
        let (mut e, mut clock) = started();
        assert_eq!(feed(&mut e, &mut clock, 1, BitRate::mbit(2), 50_000), Demand::UNLIMITED);
    }

    #[test]
    fn a_class_that_uses_nearly_all_it_may_wants_more() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 3, BitRate::mbit(2), 0);
        assert_eq!(feed(&mut e, &mut clock, 1, BitRate::mbit(19), 0), Demand::UNLIMITED);
    }

    #[test]
    fn a_class_without_a_queue_wants_a_little_more_than_it_sends() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 1, BitRate::mbit(2), 50_000);
        let demand = feed(&mut e, &mut clock, 12, BitRate::mbit(4), 0).get();
        assert!(demand >= BitRate::mbit(5) && demand <= BitRate::mbit(7), "{demand}");
    }

    #[test]
    fn present_rate_is_what_the_class_sends_and_nothing_in_a_pause() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 5, BitRate::mbit(4), 0);
        let present = e.present().get();
        assert!(present.0.abs_diff(BitRate::mbit(4).0) < 50_000, "{present}");
        feed(&mut e, &mut clock, 2, BitRate::ZERO, 0);
        assert_eq!(e.present(), Demand::NONE);
        assert!(e.demand().is_active(), "it may come back");
    }

    #[test]
    fn class_with_a_queue_takes_all_and_its_mean_once_the_queue_is_gone() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 5, BitRate::mbit(4), 0);
        feed(&mut e, &mut clock, 1, BitRate::mbit(4), 50_000);
        assert_eq!(e.present(), Demand::UNLIMITED);
        feed(&mut e, &mut clock, 1, BitRate::mbit(4), 0);
        assert_eq!(e.demand(), Demand::UNLIMITED);
        assert!(e.present().get() < BitRate::mbit(5), "{:?}", e.present());
    }

    #[test]
    fn link_is_divided_again_when_a_class_takes_much_less() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 12, BitRate::mbit(4), 0);
        let mut look = |rate: BitRate| {
            clock.0 = clock.0 + TICK;
            clock.1 += rate.bytes_in(TICK).0;
            e.observe(clock.0, Sample { bytes: clock.1, backlog: 0 }, BitRate::mbit(20))
        };
        assert!(!look(BitRate::kbit(4_010)));
        assert!(look(BitRate::mbit(1)));
    }

    #[test]
    fn class_is_steady_a_second_after_its_rate_last_moved() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 10, BitRate::mbit(4), 0);
        assert!(e.is_steady(), "its first rate counts as no move");
        feed(&mut e, &mut clock, 20, BitRate::kbit(4_300), 0);
        assert!(e.is_steady());
        feed(&mut e, &mut clock, 3, BitRate::mbit(6), 0);
        assert!(!e.is_steady(), "it sends half more");
        feed(&mut e, &mut clock, 9, BitRate::mbit(6), 0);
        assert!(!e.is_steady());
        feed(&mut e, &mut clock, 2, BitRate::mbit(6), 0);
        assert!(e.is_steady());
        feed(&mut e, &mut clock, 1, BitRate::mbit(6), 50_000);
        assert!(!e.is_steady(), "it begins to take all");
        feed(&mut e, &mut clock, 11, BitRate::mbit(20), 50_000);
        assert!(e.is_steady());
    }

    #[test]
    fn class_without_a_queue_is_steady_when_it_is_found_to_take_all() {
        // TCP that an agent finds when it takes over.
        let (mut e, mut clock) = started();
        for _ in 0..20 {
            feed(&mut e, &mut clock, 1, BitRate::kbit(19_500), 0);
            assert!(
                e.is_steady(),
                "{:?} after the first look",
                clock.0.since(Instant(Duration::from_secs(5)))
            );
        }
        assert!(e.demand().is_unlimited());
    }

    #[test]
    fn first_looks_of_an_agent_do_not_tell_that_a_class_takes_all_it_may() {
        let (mut e, mut clock) = started();
        let mut look = || {
            clock.0 = clock.0 + TICK;
            clock.1 += BitRate::mbit(4).bytes_in(TICK).0;
            // The division of an agent that has just begun.
            e.observe(clock.0, Sample { bytes: clock.1, backlog: 0 }, BitRate::mbit(4));
            e.demand().is_unlimited()
        };
        assert!((0..3).all(|_| !look()));
        assert!(look(), "it is known now");
    }

    #[test]
    fn small_swings_change_nothing() {
        let (mut e, mut clock) = started();
        let first = feed(&mut e, &mut clock, 12, BitRate::mbit(4), 0);
        for rate in [3_900, 4_100, 3_600, 4_200, 4_000] {
            assert_eq!(feed(&mut e, &mut clock, 3, BitRate::kbit(rate), 0), first);
        }
    }

    #[test]
    fn silence_ends_activity_and_the_first_packet_begins_it() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 3, BitRate::mbit(4), 0);
        assert!(feed(&mut e, &mut clock, 10, BitRate::ZERO, 0).is_active());
        assert_eq!(feed(&mut e, &mut clock, 10, BitRate::ZERO, 0), Demand::NONE);
        assert!(feed(&mut e, &mut clock, 1, BitRate::kbit(10), 0).is_active());
    }

    #[test]
    fn the_time_with_a_queue_is_counted_and_the_rate_is_of_the_last_second() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 10, BitRate::mbit(8), 9_000);
        assert_eq!(e.backpressured(), TICK * 9);
        assert_eq!(e.rate(), BitRate::mbit(8));
        feed(&mut e, &mut clock, 11, BitRate::ZERO, 0);
        assert_eq!(e.rate(), BitRate::ZERO);
    }

    #[test]
    fn a_class_made_anew_does_not_count_backwards() {
        let (mut e, mut clock) = started();
        feed(&mut e, &mut clock, 2, BitRate::mbit(4), 0);
        clock.1 = 0;
        feed(&mut e, &mut clock, 1, BitRate::mbit(4), 0);
        assert!(e.demand().is_active() && !e.demand().is_unlimited());
    }
}
