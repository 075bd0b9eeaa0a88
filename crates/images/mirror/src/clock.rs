//! The system's clock. It is read here only.

use std::time::{Duration, SystemTime};

use weir_units::Utc;

/// The time of the system's clock.
#[must_use]
pub fn now_utc() -> Utc {
    Utc::from(SystemTime::now())
}

/// `now` may be read a moment before `until` was made, and clocks are corrected by little.
const SLACK: Duration = Duration::from_secs(60);

/// Whether a pause that ends at `until` holds at `now`. It lasts at most `most`: one that ends later than that by more than
/// [`SLACK`] is from before the clock was set back, and is over.
#[must_use]
pub(crate) fn holds(until: Utc, now: Utc, most: Duration) -> bool {
    now < until && until.since(now) <= most + SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_from_before_the_clock_was_set_back_is_over() {
        let (most, now) = (Duration::from_secs(10), Utc::from_unix_millis(86_400_000));
        let until = now.after(most);
        for (at, is_on) in [(now, true), (until.before(Duration::from_millis(1)), true), (until, false)] {
            assert_eq!(holds(until, at, most), is_on, "{at:?}");
        }
        assert!(holds(until, now.before(Duration::from_secs(1)), most), "it was read a moment before");
        assert!(!holds(until, now.before(SLACK * 2), most));
    }
}
