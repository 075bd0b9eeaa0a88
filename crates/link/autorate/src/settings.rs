//! The bounds of a link whose rate changes.

use std::time::Duration;

use weir_units::BitRate;

/// The queueing delay that is aimed at if none is given.
pub const DELAY: Duration = Duration::from_millis(30);

/// The bounds, and the queueing delay that 95 of 100 packets should not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    min: BitRate,
    max: BitRate,
    delay: Duration,
}

/// The error of bounds that no link has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The least rate is too low, or not below the highest.
    #[error("min {min} is not between {} and max {max}", Settings::LEAST)]
    Bounds {
        /// The least rate.
        min: BitRate,
        /// The highest rate.
        max: BitRate,
    },
    /// The delay is out of its bounds.
    #[error("delay {0:?} is not between 5ms and 1s")]
    Delay(Duration),
}

impl Settings {
    /// The lowest rate that can be followed.
    pub const LEAST: BitRate = BitRate::kbit(64);

    /// # Errors
    /// [`SettingsError`].
    pub fn new(min: BitRate, max: BitRate, delay: Duration) -> Result<Settings, SettingsError> {
        if min < Settings::LEAST || min >= max {
            return Err(SettingsError::Bounds { min, max });
        }
        if !(Duration::from_millis(5)..=Duration::from_secs(1)).contains(&delay) {
            return Err(SettingsError::Delay(delay));
        }
        Ok(Settings { min, max, delay })
    }

    /// The lowest capacity. Minima are promised against it.
    #[must_use]
    pub fn min(&self) -> BitRate {
        self.min
    }

    /// The highest capacity.
    #[must_use]
    pub fn max(&self) -> BitRate {
        self.max
    }

    /// The queueing delay that 95 of 100 packets should not exceed.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }
}
