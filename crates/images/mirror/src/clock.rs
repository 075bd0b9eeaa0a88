//! The system's clock. It is read here only.

use std::time::SystemTime;

use weir_units::Utc;

/// The time of the system's clock.
#[must_use]
pub fn now_utc() -> Utc {
    Utc::from(SystemTime::now())
}
