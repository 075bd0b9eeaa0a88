//! Months, and moments as text (RFC 3339).

use std::{fmt, str::FromStr};

use jiff::{Timestamp, ToSpan as _, civil::DateTime, tz::Offset};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Utc;

/// The text is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as a moment: write RFC 3339 with an offset, from {min} to {max}, such as 2026-11-20T11:00:00Z",
    min = Utc::MIN, max = Utc::MAX
)]
pub struct ParseUtcError(pub String);

impl Utc {
    /// The first moment of this moment's month.
    #[must_use]
    pub fn month(self) -> Utc {
        Utc::of(self.civil().date().first_of_month().to_datetime(jiff::civil::Time::midnight()))
    }

    /// The first moment of the month after.
    #[must_use]
    pub fn next_month(self) -> Utc {
        self.month().civil().checked_add(1.month()).map_or(Utc::MAX, Utc::of)
    }

    fn timestamp(self) -> Timestamp {
        Timestamp::from_millisecond(self.0).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn civil(self) -> DateTime {
        Offset::UTC.to_datetime(self.timestamp())
    }

    fn of(civil: DateTime) -> Utc {
        Offset::UTC.to_timestamp(civil).map_or(Utc::MAX, |t| Utc::from_millis(t.as_millisecond()))
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

impl FromStr for Utc {
    type Err = ParseUtcError;
    fn from_str(text: &str) -> Result<Utc, ParseUtcError> {
        let shown = || ParseUtcError(text.chars().take(64).collect());
        if text.len() > 64 || text.contains('[') {
            return Err(shown());
        }
        let millis = text.parse::<Timestamp>().map_err(|_| shown())?.as_millisecond();
        let moment = Utc::from_millis(millis);
        if moment.0 == millis { Ok(moment) } else { Err(shown()) }
    }
}

impl Serialize for Utc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Utc {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Utc, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Utc;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a moment as RFC 3339 text such as \"2026-11-20T11:00:00Z\"")
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Utc, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::DAY_MS;

    fn utc(text: &str) -> Utc {
        text.parse().unwrap()
    }

    #[test]
    fn moments_are_read_with_any_offset_and_written_in_utc() {
        assert_eq!(utc("2026-11-20T12:00:00.5+01:00").to_string(), "2026-11-20T11:00:00.5Z");
        assert_eq!(utc("1970-01-01T00:00:00Z"), Utc::MIN);
        assert_eq!(Utc::MAX.to_string().parse(), Ok(Utc::MAX));
        assert_eq!(utc("2026-11-20T11:00:00.0019Z").millis() % 1_000, 1);
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-11-20",
            "2026-11-20T11:00:00",
            "2026-13-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "9999-12-31T00:00:00Z",
            "-002026-01-01T00:00:00Z",
            "2026-11-20T11:00:00+01:00[Europe/Paris]",
        ] {
            assert_eq!(text.parse::<Utc>(), Err(ParseUtcError(text.into())));
        }
        let error = "9999-12-31T00:00:00Z".parse::<Utc>().unwrap_err().to_string();
        assert!(error.contains("from 1970-01-01T00:00:00Z to 9999-12-30T22:00:00Z, such as"), "{error}");
        assert!("2".repeat(1 << 20).parse::<Utc>().unwrap_err().0.len() == 64);
    }

    #[test]
    fn days_and_months_begin_at_midnight_utc() {
        let moment = utc("2028-02-29T23:59:59.999Z");
        assert_eq!(moment.day(), utc("2028-02-29T00:00:00Z"));
        assert_eq!(moment.next_day(), utc("2028-03-01T00:00:00Z"));
        assert_eq!(moment.month(), utc("2028-02-01T00:00:00Z"));
        assert_eq!(moment.next_month(), utc("2028-03-01T00:00:00Z"));
        assert_eq!(utc("2026-12-31T12:00:00Z").next_month(), utc("2027-01-01T00:00:00Z"));
        assert_eq!(Utc::MAX.next_month(), Utc::MAX);
    }

    proptest! {
        #[test]
        fn writing_and_reading_keep_the_millisecond(millis in 0..Utc::MAX.0) {
            prop_assert_eq!(Utc(millis).to_string().parse(), Ok(Utc(millis)));
        }

        #[test]
        fn a_moment_lies_in_its_day_and_in_its_month(millis in 0..Utc::MAX.0 - 32 * DAY_MS) {
            let moment = Utc(millis);
            prop_assert!(moment.day() <= moment && moment < moment.next_day());
            prop_assert!(moment.month() <= moment.day() && moment.next_day() <= moment.next_month());
            prop_assert_eq!(moment.next_month().month(), moment.next_month());
        }
    }
}
