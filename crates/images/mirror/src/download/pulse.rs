//! The least rate of a registry: a download that is slower gives its place and its room back.

use std::time::Duration;

/// Bytes a second.
pub(super) const MIN_RATE: u64 = 1024;

/// Bytes that came, and the time that was spent on waiting for them.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    bytes: u64,
    waited: Duration,
}

impl Pulse {
    /// Counts bytes that came after a wait. Returns the rate of the window that has ended, in bytes a second,
    /// if it is less than [`MIN_RATE`].
    ///
    /// * `window`: the time over which the rate is averaged. Only waits for the registry count, so that a slow
    ///   disk and a bound on all pulls are not the registry's fault.
    pub(super) fn beat(&mut self, bytes: u64, waited: Duration, window: Duration) -> Option<u64> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.waited = self.waited.saturating_add(waited);
        if self.waited < window {
            return None;
        }
        let Pulse { bytes, waited } = std::mem::take(self);
        let rate = (bytes as f64 / waited.as_secs_f64()) as u64;
        (rate < MIN_RATE).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(30);

    /// The time after which a registry is given up that sends `bytes` in each period of `every`.
    fn given_up_after(bytes: u64, every: Duration) -> Option<Duration> {
        let (mut pulse, mut now) = (Pulse::default(), Duration::ZERO);
        while now < WINDOW * 10 {
            now += every;
            if pulse.beat(bytes, every, WINDOW).is_some() {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn registry_below_the_least_rate_is_given_up_after_a_window() {
        let given_up = given_up_after(1, Duration::from_secs(4)).unwrap();
        assert!((WINDOW..WINDOW + Duration::from_secs(4)).contains(&given_up), "{given_up:?}");
        assert!(given_up_after(MIN_RATE - 1, Duration::from_secs(1)).is_some());
    }

    #[test]
    fn registry_at_the_least_rate_is_kept() {
        for (bytes, every) in [(MIN_RATE, 1000), (5 * MIN_RATE, 5000), (64 << 10, 20)] {
            assert_eq!(
                given_up_after(bytes, Duration::from_millis(every)),
                None,
                "{bytes} bytes in {every} ms"
            );
        }
    }
}
