use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::Utc;

/// Why a guarantee was not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The link carries less than it is configured to: its own queue was full, or its capacity fell below
    /// what is promised.
    LinkSlower,
    /// The engine could not hold the division, or another process had altered it.
    EngineFault,
    /// The host sends what does not pass the scheduler.
    HostTraffic,
    /// Nothing that was looked at explains it.
    Unknown,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 4] = [Cause::LinkSlower, Cause::EngineFault, Cause::HostTraffic, Cause::Unknown];

    const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::LinkSlower => "the link is slower than configured",
            Cause::EngineFault => "the engine had a fault",
            Cause::HostTraffic => "the host's traffic passed the scheduler by",
            Cause::Unknown => "unknown",
        })
    }
}

/// A time in which an agreement got less than it asked for and was promised.
///
/// Invariants: `start < end`; `violated <= end - start`; `worst >= mean` but for rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// When it began.
    pub start: Utc,
    /// When it was last seen.
    pub end: Utc,
    /// How long it fell short in that time, ms: single seconds may have been met.
    pub violated_ms: u64,
    /// The promise.
    pub guarantee: BitRate,
    /// The shortfall in the worst second.
    pub worst: BitRate,
    /// The average shortfall while it fell short.
    pub mean: BitRate,
    /// The shortfall in all.
    pub lacking: Bytes,
    /// The cause of most of it.
    pub cause: Cause,
    /// The shortfall by cause, in [`Cause::ALL`]'s order.
    by_cause: [Bytes; 4],
}

impl Violation {
    /// One interval that fell short by `lacking`, which ended at `at`.
    pub(super) fn seen(
        at: Utc,
        time: Duration,
        guarantee: BitRate,
        lacking: Bytes,
        cause: Cause,
    ) -> Violation {
        let mut by_cause = [Bytes(0); 4];
        by_cause[cause.index()] = lacking;
        let depth = BitRate::of(lacking, time);
        let violated_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (start, end) = (at.before(time), at);
        Violation { start, end, violated_ms, guarantee, worst: depth, mean: depth, lacking, cause, by_cause }
    }

    /// The same with a later one.
    pub(super) fn merge(&mut self, later: &Violation) {
        self.end = self.end.max(later.end);
        self.violated_ms = self.violated_ms.saturating_add(later.violated_ms);
        self.guarantee = self.guarantee.max(later.guarantee);
        self.worst = self.worst.max(later.worst);
        self.lacking.0 = self.lacking.0.saturating_add(later.lacking.0);
        self.mean = BitRate::of(self.lacking, Duration::from_millis(self.violated_ms.max(1)));
        for (all, one) in self.by_cause.iter_mut().zip(later.by_cause) {
            all.0 = all.0.saturating_add(one.0);
        }
        let most = |cause: &Cause| self.by_cause[cause.index()];
        // Of causes that explain as much, the first.
        self.cause = Cause::ALL.into_iter().rev().max_by_key(most).unwrap_or(Cause::Unknown);
    }

    /// From its beginning to its end.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.end.since(self.start)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} for {:.1} s: {} short of {} on average, {} at worst; cause: {}",
            self.start,
            self.length().as_secs_f64(),
            self.mean,
            self.guarantee,
            self.worst,
            self.cause
        )
    }
}
