//! How long a registry that gives nothing is asked again, and how soon.

use std::time::{Duration, Instant};

/// The longest pause between two tries, in units of the first one.
const LONGEST: u32 = 10;

/// Tries in a row that brought nothing.
#[derive(Debug)]
pub(super) struct Backoff {
    tries: u32,
    /// When the last byte came, or the first try began.
    since: Instant,
}

impl Backoff {
    pub(super) fn begin(now: Instant) -> Backoff {
        Backoff { tries: 0, since: now }
    }

    /// Bytes came: it all begins again.
    pub(super) fn renew(&mut self, now: Instant) {
        *self = Backoff::begin(now);
    }

    /// The pause before the next try; none: the next try would come after `limit`.
    ///
    /// * `first`: the pause before the second try; each further one is twice as long.
    /// * `asked`: the pause that the registry asks for.
    /// * `chance`: in 0..1, so that many who were cut at once do not come again at once.
    pub(super) fn pause(
        &mut self,
        first: Duration,
        asked: Option<Duration>,
        limit: Duration,
        now: Instant,
        chance: f64,
    ) -> Option<Duration> {
        let pause =
            (first * 2u32.saturating_pow(self.tries)).min(first * LONGEST).mul_f64(0.5 + chance / 2.0);
        self.tries = self.tries.saturating_add(1).min(LONGEST);
        let pause = asked.map_or(pause, |asked| asked.saturating_add(first.mul_f64(chance)));
        let is_in_time = now.duration_since(self.since).saturating_add(pause) <= limit;
        is_in_time.then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(200);
    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_registry_that_is_away_is_asked_for_fifteen_seconds_and_not_too_often() {
        for chance in [0.0, 0.5, 1.0] {
            let begun = Instant::now();
            let (mut backoff, mut now, mut tries) = (Backoff::begin(begun), begun, 0);
            while let Some(pause) = backoff.pause(FIRST, None, LIMIT, now, chance) {
                assert!((FIRST / 2..=FIRST * LONGEST).contains(&pause), "{pause:?}");
                (now, tries) = (now + pause, tries + 1);
            }
            let asked_for = now.duration_since(begun);
            assert!((Duration::from_secs(15)..=LIMIT).contains(&asked_for), "{asked_for:?}");
            assert!((10..25).contains(&tries), "{tries}");
        }
    }

    #[test]
    fn a_byte_renews_the_patience() {
        let begun = Instant::now();
        let (mut backoff, late) = (Backoff::begin(begun), begun + LIMIT);
        assert_eq!(backoff.pause(FIRST, None, LIMIT, late, 0.5), None);
        backoff.renew(late);
        assert_eq!(backoff.pause(FIRST, None, LIMIT, late, 1.0), Some(FIRST));
    }

    #[test]
    fn the_pause_is_what_the_registry_asks_for_if_there_is_time_for_it() {
        let begun = Instant::now();
        let mut backoff = Backoff::begin(begun);
        let two = Duration::from_secs(2);
        assert_eq!(backoff.pause(FIRST, Some(two), LIMIT, begun, 0.0), Some(two));
        assert_eq!(backoff.pause(FIRST, Some(LIMIT * 2), LIMIT, begun, 0.0), None);
    }
}
