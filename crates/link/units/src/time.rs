//! Moments: on a monotonic clock, and of the calendar.

use std::time::{Duration, SystemTime};

/// A moment on a monotonic clock whose origin the caller chose.
///
/// Pure crates take it as an argument instead of reading a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub Duration);

impl Instant {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, rhs: Duration) -> Instant {
        Instant(self.0 + rhs)
    }
}

/// A moment of the calendar: milliseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// With the feature `calendar`, text is RFC 3339, written in UTC (`2026-11-20T11:00:00Z`). An offset
/// is read, and parts of a millisecond are cut off.
///
/// Invariant: from [`Utc::MIN`] to [`Utc::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Utc(pub(crate) i64);

pub(crate) const DAY_MS: i64 = 86_400_000;

impl Utc {
    /// 1970-01-01T00:00:00Z.
    pub const MIN: Utc = Utc(0);
    /// 9999-12-30T22:00:00Z, the last moment that the text form is sure to hold.
    pub const MAX: Utc = Utc(253_402_207_200_000);

    /// That many milliseconds since 1970; what lies outside of [`Utc::MIN`] to [`Utc::MAX`]
    /// becomes the nearer of the two.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Utc {
        if millis < Utc::MIN.0 {
            Utc::MIN
        } else if millis > Utc::MAX.0 {
            Utc::MAX
        } else {
            Utc(millis)
        }
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The same of a number without a sign, as file names and peers write it.
    #[must_use]
    pub const fn from_unix_millis(millis: u64) -> Utc {
        if millis > Utc::MAX.0 as u64 { Utc::MAX } else { Utc(millis as i64) }
    }

    /// Milliseconds since 1970, without a sign.
    #[must_use]
    pub const fn unix_millis(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Utc) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// That much later, at most [`Utc::MAX`]; parts of a millisecond are cut off.
    #[must_use]
    pub fn after(self, time: Duration) -> Utc {
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Utc::from_millis(self.0.saturating_add(millis))
    }

    /// That much earlier, at least [`Utc::MIN`].
    #[must_use]
    pub fn before(self, time: Duration) -> Utc {
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Utc::from_millis(self.0.saturating_sub(millis))
    }

    /// The first moment of this moment's second.
    #[must_use]
    pub fn second(self) -> Utc {
        Utc(self.0 - self.0 % 1000)
    }

    /// The first moment of this moment's day.
    #[must_use]
    pub fn day(self) -> Utc {
        Utc(self.0 - self.0 % DAY_MS)
    }

    /// The first moment of the day after.
    #[must_use]
    pub fn next_day(self) -> Utc {
        Utc::from_millis(self.day().0 + DAY_MS)
    }
}

impl From<SystemTime> for Utc {
    /// A time before 1970 is [`Utc::MIN`].
    fn from(time: SystemTime) -> Utc {
        Utc::MIN.after(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_calendar_are_its_last_moment() {
        assert_eq!(Utc::from_unix_millis(u64::MAX), Utc::MAX);
        assert_eq!(Utc::from_unix_millis(Utc::MAX.unix_millis() + 1), Utc::MAX);
        assert_eq!(Utc::from_unix_millis(1_234).unix_millis(), 1_234);
        assert_eq!(Utc::MIN.unix_millis(), 0);
    }
}
