use serde::{Deserialize, Serialize};
use weir_units::Bytes;

use super::{Second, Violation};
use crate::Utc;

/// Violations that a month keeps one by one; of further ones only sums.
pub const MAX_VIOLATIONS: usize = 500;
/// In the longest month.
const HOURS: usize = 31 * 24;
const HOUR_MS: i64 = 3_600_000;

/// The record of an agreement in a month of UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Month {
    month: Utc,
    /// How long it was watched in force, ms.
    pub observed_ms: u64,
    /// How long of that more was waiting than could be sent, ms.
    pub waiting_ms: u64,
    /// How long the guarantee was not met, ms.
    pub violated_ms: u64,
    /// The guarantee over the time in which more was waiting.
    pub promised: Bytes,
    /// The bytes delivered while more was waiting.
    pub delivered: Bytes,
    /// The bytes delivered in all.
    pub sent: Bytes,
    /// Violations in the order of their ends, at most [`MAX_VIOLATIONS`].
    pub violations: Vec<Violation>,
    /// Violations that there was no room for.
    pub more_violations: u64,
    /// By hour of the month; up to the last hour that was watched.
    pub hours: Vec<Hour>,
}

/// The same of an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Hour {
    /// How long more was waiting than could be sent, ms.
    pub waiting_ms: u64,
    /// The guarantee over that time.
    pub promised: Bytes,
    /// The bytes delivered in that time.
    pub delivered: Bytes,
}

impl Month {
    /// A month of which nothing is known; `month` is its first moment.
    pub(crate) fn new(month: Utc) -> Month {
        Month {
            month: month.month(),
            observed_ms: 0,
            waiting_ms: 0,
            violated_ms: 0,
            promised: Bytes(0),
            delivered: Bytes(0),
            sent: Bytes(0),
            violations: Vec::new(),
            more_violations: 0,
            hours: Vec::new(),
        }
    }

    /// Its first moment.
    #[must_use]
    pub fn month(&self) -> Utc {
        self.month
    }

    /// The part of the watched time in which the guarantee was met, 0 to 1; 1 without a look.
    #[must_use]
    pub fn availability(&self) -> f64 {
        if self.observed_ms == 0 { 1.0 } else { 1.0 - self.violated_ms as f64 / self.observed_ms as f64 }
    }

    pub(super) fn add(&mut self, at: Utc, second: &Second, violated: bool) {
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let promised = second.promised();
        self.observed_ms += ms(second.time);
        self.waiting_ms += ms(second.waiting);
        if violated {
            self.violated_ms += ms(second.time);
        }
        self.promised.0 = self.promised.0.saturating_add(promised.0);
        self.delivered.0 = self.delivered.0.saturating_add(second.delivered);
        self.sent.0 = self.sent.0.saturating_add(second.sent);
        let hour = usize::try_from((at.millis() - self.month.millis()) / HOUR_MS).unwrap_or(0).min(HOURS - 1);
        if self.hours.len() <= hour {
            self.hours.resize(hour + 1, Hour::default());
        }
        let hour = &mut self.hours[hour];
        hour.waiting_ms += ms(second.waiting);
        hour.promised.0 = hour.promised.0.saturating_add(promised.0);
        hour.delivered.0 = hour.delivered.0.saturating_add(second.delivered);
    }

    pub(super) fn record(&mut self, violation: Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        } else {
            self.more_violations += 1;
        }
    }
}
