//! The units weir counts in: [`BitRate`], [`Bytes`], [`Instant`] and [`TcHandle`]. [`chain`] writes an error.
//!
//! No clock, no I/O. Text forms follow `tc(8)`, with one difference that is deliberate:
//! `20Mbps` means bits, as in WS-Agreement and in everyday use (tc reads it as bytes).

mod error;
mod handle;
mod rate;
mod size;

pub use error::chain;
pub use handle::{ParseHandleError, TcHandle};
pub use rate::{BitRate, ParseRateError};
pub use size::{Bytes, ParseSizeError};

use std::time::Duration;

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
