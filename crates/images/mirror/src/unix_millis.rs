//! Wall-clock time, which outlives restarts; passed as an argument wherever it decides something.

use std::time::{Duration, SystemTime};

/// Milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The system's clock.
    #[must_use]
    pub fn now() -> UnixMillis {
        UnixMillis::of(SystemTime::now())
    }

    /// Of a file's time.
    #[must_use]
    pub fn of(time: SystemTime) -> UnixMillis {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// How long ago `earlier` was; zero if it was not.
    #[must_use]
    pub fn since(self, earlier: UnixMillis) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Earlier by `duration`.
    #[must_use]
    pub fn before(self, duration: Duration) -> UnixMillis {
        UnixMillis(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Later by `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> UnixMillis {
        UnixMillis(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}
