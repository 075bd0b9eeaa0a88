//! Byte quotas, and the ceiling that applies after them.
//!
//! qCon 3.3: "a container has used up the quotas allowed for a day or a month". Days and months
//! are those of UTC.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::Utc;

/// How much may be sent before the ceiling drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// In a day.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::bounded::optional_size"
    )]
    pub day: Option<Bytes>,
    /// In a month.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::bounded::optional_size"
    )]
    pub month: Option<Bytes>,
    /// The ceiling for what is left of the day or month. As with qCon's maximum, it goes before
    /// a minimum.
    #[serde(deserialize_with = "crate::bounded::rate")]
    pub after: BitRate,
}

/// A report that is further ahead of the clock comes from a clock that was wrong.
pub(crate) const MAX_AHEAD: Duration = Duration::from_secs(3_600);

/// The bytes sent in the day and in the month of the last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Usage {
    at: Utc,
    day: Bytes,
    month: Bytes,
    /// A later day that the clock has left. A version before 2026-11-30 does not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<LeftDay>,
}

/// The bytes sent in a day before the clock was set back to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LeftDay {
    /// The last report.
    at: Utc,
    day: Bytes,
    /// Sent in that day's month, if the clock went back to an earlier month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    month: Option<Bytes>,
}

impl Usage {
    /// Counts what was sent up to `at`. Bytes across midnight count for the day of `at`, so report
    /// in short intervals; a report from before the last one counts for that one's day.
    #[must_use]
    pub fn add(self, sent: Bytes, at: Utc) -> Usage {
        let at = at.max(self.at);
        let sum = |now: Bytes| Bytes(now.0.saturating_add(sent.0));
        Usage { at, day: sum(self.sent_in_day(at)), month: sum(self.sent_in_month(at)), ..self }
    }

    /// The same bytes, counted for the day and the month of `now`, if the last report is more than an hour ahead.
    ///
    /// A clock that was ahead ends a day too early. The bytes after that have passed all the same, so a quota
    /// that is used up stays so until the next midnight. After a smaller step back the bytes belong to the day
    /// that had begun. They still count when it begins again, so that its quota is not given twice.
    #[must_use]
    pub(crate) fn set_back(self, now: Utc) -> Usage {
        if !self.is_ahead_of(now) {
            return self;
        }
        let month = (self.at.month() > now.month()).then_some(self.month);
        let here = (self.at.day() > now.day()).then_some(LeftDay { at: self.at, day: self.day, month });
        // The latest day was the present one before all steps.
        let left = self.left.filter(|left| here.is_none_or(|here| left.at >= here.at)).or(here);
        Usage { at: now, left, ..self }
    }

    /// The counts at `now`, if the day that the clock left has come again. Its bytes count after a step of the clock
    /// to it (`is_step`), because the day had begun before. Without a step the clock was ahead when it counted them,
    /// and the day starts with none.
    #[must_use]
    pub(crate) fn set_forward(self, now: Utc, is_step: bool) -> Usage {
        let Some(left) = self.left.filter(|left| now >= left.at.day()) else { return self };
        let usage = Usage { left: None, ..self };
        if !is_step {
            return usage;
        }
        let day = if left.at.day() == now.day() { left.day } else { Bytes(0) };
        let month = left.month.filter(|_| left.at.month() == now.month()).unwrap_or_default();
        let sum = |one: Bytes, other: Bytes| Bytes(one.0.saturating_add(other.0));
        let (day, month) = (sum(day, self.sent_in_day(now)), sum(month, self.sent_in_month(now)));
        Usage { at: now.max(self.at), day, month, ..usage }
    }

    /// Whether it remembers a day that the clock has left.
    pub(crate) fn has_left_day(&self) -> bool {
        self.left.is_some()
    }

    /// Whether the clock was set back by more than an hour since the last report.
    pub(crate) fn is_ahead_of(&self, now: Utc) -> bool {
        self.at.since(now) > MAX_AHEAD
    }

    /// The moment of the last report.
    pub(crate) fn last_report(&self) -> Utc {
        self.at
    }

    /// Sent in the day of `at`; nothing yet if that day began after the last report.
    #[must_use]
    pub fn sent_in_day(&self, at: Utc) -> Bytes {
        if self.at < at.day() { Bytes(0) } else { self.day }
    }

    /// Sent in the month of `at`; nothing yet if that month began after the last report.
    #[must_use]
    pub fn sent_in_month(&self, at: Utc) -> Bytes {
        if self.at < at.month() { Bytes(0) } else { self.month }
    }
}

impl Quota {
    /// Until when it is used up, seen from `at`; none if it is not. A quota of `n` bytes is used
    /// up when `n` have been sent.
    #[must_use]
    pub(crate) fn used_up_until(&self, usage: &Usage, at: Utc) -> Option<Utc> {
        let month = self.month.is_some_and(|quota| usage.sent_in_month(at) >= quota);
        let day = self.day.is_some_and(|quota| usage.sent_in_day(at) >= quota);
        match (month, day) {
            (true, _) => Some(at.next_month()),
            (_, true) => Some(at.next_day()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Utc {
        text.parse().unwrap()
    }

    const QUOTA: Quota = Quota { day: Some(Bytes(100)), month: Some(Bytes(250)), after: BitRate::kbit(64) };

    #[test]
    fn a_quota_is_used_up_by_its_last_byte_and_comes_back_at_midnight() {
        let noon = utc("2026-11-20T12:00:00Z");
        let usage = Usage::default().add(Bytes(99), noon);
        assert_eq!(QUOTA.used_up_until(&usage, noon), None);
        let usage = usage.add(Bytes(1), noon);
        let midnight = utc("2026-11-21T00:00:00Z");
        assert_eq!(QUOTA.used_up_until(&usage, noon), Some(midnight));
        assert_eq!(QUOTA.used_up_until(&usage, Utc::from_millis(midnight.millis() - 1)), Some(midnight));
        assert_eq!(QUOTA.used_up_until(&usage, midnight), None);
        assert_eq!(usage.add(Bytes(7), midnight).sent_in_day(midnight), Bytes(7));
    }

    #[test]
    fn days_add_up_to_the_month_which_comes_back_on_its_first() {
        let usage = ["2026-11-20T12:00:00Z", "2026-11-21T12:00:00Z", "2026-11-22T12:00:00Z"]
            .into_iter()
            .fold(Usage::default(), |usage, at| usage.add(Bytes(90), utc(at)));
        let (now, first) = (utc("2026-11-22T13:00:00Z"), utc("2026-12-01T00:00:00Z"));
        assert_eq!((usage.sent_in_day(now), usage.sent_in_month(now)), (Bytes(90), Bytes(270)));
        assert_eq!(QUOTA.used_up_until(&usage, now), Some(first));
        assert_eq!(QUOTA.used_up_until(&usage, first), None);
        let of_both = usage.add(Bytes(10), now);
        assert_eq!((of_both.sent_in_day(now), QUOTA.used_up_until(&of_both, now)), (Bytes(100), Some(first)));
    }

    #[test]
    fn a_late_report_is_not_lost_and_turns_no_clock_back() {
        let usage = Usage::default().add(Bytes(10), utc("2026-11-20T12:00:00Z"));
        let usage = usage.add(Bytes(5), utc("2026-11-19T23:59:59Z"));
        assert_eq!(usage.sent_in_day(utc("2026-11-20T12:00:00Z")), Bytes(15));
        assert_eq!(usage.add(Bytes(u64::MAX), utc("2026-11-20T12:00:00Z")).month, Bytes(u64::MAX));
    }

    #[test]
    fn a_step_back_of_400_days_renews_the_quota_at_the_next_midnight() {
        let now = utc("2026-11-20T12:00:00Z");
        let ahead = now.after(Duration::from_secs(400 * 86_400));
        let usage = Usage::default().add(Bytes(250), ahead).set_back(now);
        assert_eq!(usage.sent_in_day(now), Bytes(250), "the bytes passed, whatever the clock said");
        assert_eq!(QUOTA.used_up_until(&usage, now), Some(utc("2026-12-01T00:00:00Z")));
        let tomorrow = utc("2026-11-21T00:00:00Z");
        let next = usage.add(Bytes(7), tomorrow);
        assert_eq!((next.sent_in_day(tomorrow), next.sent_in_month(tomorrow)), (Bytes(7), Bytes(257)));
        assert_eq!(QUOTA.used_up_until(&next, utc("2026-12-01T00:00:00Z")), None);
    }

    #[test]
    fn a_step_back_over_midnight_by_1_s_does_not_give_a_quota_twice() {
        let (before, midnight) = (utc("2026-11-20T23:59:59Z"), utc("2026-11-21T00:00:00Z"));
        let usage = Usage::default().add(Bytes(100), midnight).set_back(before);
        assert!(QUOTA.used_up_until(&usage, before).is_some());
        // The day begins for the second time.
        let usage = usage.add(Bytes(1), midnight);
        assert_eq!(usage.sent_in_day(midnight), Bytes(101));
        assert_eq!(QUOTA.used_up_until(&usage, midnight), Some(utc("2026-11-22T00:00:00Z")));
    }

    #[test]
    fn quota_is_not_given_again_to_a_day_that_the_clock_left_for_another() {
        let now = utc("2026-11-20T12:00:00Z");
        let usage = Usage::default().add(Bytes(100), now);
        for wrong in ["2026-11-19T12:00:00Z", "2026-11-20T01:00:00Z", "2026-10-03T12:00:00Z"].map(utc) {
            let back = usage.set_back(wrong).add(Bytes(10), wrong);
            assert!(QUOTA.used_up_until(&back, wrong).is_some(), "{wrong}");
            let again = now.after(Duration::from_secs(60));
            let right = back.set_forward(again, true);
            assert_eq!(QUOTA.used_up_until(&right, again), Some(utc("2026-11-21T00:00:00Z")), "{wrong}");
            assert!(!right.has_left_day());
            // Bytes under the wrong clock count once, in the day or the month that it told.
            let of_day = if wrong.day() == now.day() { 110 } else { 100 };
            let of_month = if wrong.month() == now.month() { 110 } else { 100 };
            let sent = (right.sent_in_day(again), right.sent_in_month(again));
            assert_eq!(sent, (Bytes(of_day), Bytes(of_month)), "{wrong}");
            let tomorrow = utc("2026-11-21T00:00:00Z");
            assert_eq!(QUOTA.used_up_until(&right.add(Bytes(1), tomorrow), tomorrow), None);
        }
    }

    #[test]
    fn day_that_a_clock_ahead_has_counted_begins_anew_when_it_comes() {
        let (now, ahead) = (utc("2026-11-20T12:00:00Z"), utc("2026-11-21T12:00:00Z"));
        let usage = Usage::default().add(Bytes(100), ahead).set_back(now);
        let midnight = utc("2026-11-21T00:00:00Z");
        assert_eq!(usage.set_forward(now, true), usage, "that day has not come");
        let tomorrow = usage.set_forward(midnight, false);
        assert_eq!((tomorrow.sent_in_day(midnight), tomorrow.has_left_day()), (Bytes(0), false));
    }

    #[test]
    fn usage_of_an_earlier_version_is_read_and_written_as_it_was() {
        let text = r#"{"at":"2026-11-20T12:00:00Z","day":7,"month":9}"#;
        let usage: Usage = serde_json::from_str(text).unwrap();
        assert_eq!((usage.sent_in_day(usage.at), usage.left), (Bytes(7), None));
        assert_eq!(serde_json::to_string(&usage).unwrap(), text);
        let back = usage.set_back(utc("2026-11-19T12:00:00Z"));
        let text = serde_json::to_string(&back).unwrap();
        assert_eq!(serde_json::from_str::<Usage>(&text).unwrap(), back);
    }

    #[test]
    fn a_step_back_within_a_day_keeps_what_was_sent_in_it() {
        let (now, ahead) = (utc("2026-11-20T12:00:00Z"), utc("2026-11-20T20:00:00Z"));
        for (said, at) in [(ahead, now), (now.after(MAX_AHEAD), now.after(MAX_AHEAD))] {
            let usage = Usage::default().add(Bytes(100), said).set_back(now);
            assert_eq!((usage.at, usage.sent_in_day(now)), (at, Bytes(100)), "{said}");
        }
    }
}
