//! A part of the calendar.

use std::fmt;

use weir_units::Utc;

/// From one moment to another: the first is in it, the last is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    /// The first moment of it.
    pub start: Utc,
    /// The first moment after it; none if it has no end.
    pub end: Option<Utc>,
}

impl Interval {
    /// Whether that moment is in it.
    #[must_use]
    pub fn contains(&self, moment: Utc) -> bool {
        self.start <= moment && self.end.is_none_or(|end| moment < end)
    }

    /// Whether some moment is in both.
    #[must_use]
    pub(crate) fn overlaps(&self, other: &Interval) -> bool {
        self.end.is_none_or(|end| other.start < end) && other.end.is_none_or(|end| self.start < end)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Some(end) => write!(f, "{} to {end}", self.start),
            None => write!(f, "{} on", self.start),
        }
    }
}
