//! The bytes that changes without an operator may add to the audit.
//!
//! A local user can start and stop containers, and a customer can make and end agreements, for hours. Without a bound
//! their records would push out all others.

use std::time::Duration;

use weir_units::Instant;

/// The bytes at once: some 3,000 changes.
const BURST: i64 = 1 << 20;
/// The bytes of a second from then on. A day has 2.6 MiB of them.
const PER_SECOND: i64 = 32;
/// The bytes from which on an empty allowance counts again, so that one record has the changes of minutes.
const AGAIN: i64 = 4 << 10;

/// The bytes left at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// A large record may leave it below zero.
    left: i64,
    at: Instant,
    is_empty: bool,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, at: now, is_empty: false }
    }

    /// Whether a record may be written now.
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        let seconds = now.since(self.at).as_secs();
        let earned = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(PER_SECOND);
        self.left = BURST.min(self.left.saturating_add(earned));
        self.at = Instant(self.at.0 + Duration::from_secs(seconds));
        self.is_empty &= self.left < AGAIN;
        !self.is_empty
    }

    /// Takes the bytes of a written record.
    pub(super) fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub_unsigned(bytes);
        self.is_empty |= self.left <= 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    #[test]
    fn a_flood_writes_at_most_its_burst_and_its_rate() {
        const DAY: i64 = 86_400;
        let (mut allowance, mut written, record) = (Allowance::new(at(0)), 0, 300);
        for second in 0..86_400 {
            for _ in 0..10 {
                if allowance.is_open(at(second)) {
                    allowance.take(300);
                    written += record;
                }
            }
        }
        assert!(written <= BURST + DAY * PER_SECOND + record, "{written}");
        assert!(written >= BURST + DAY * PER_SECOND - AGAIN - record, "{written}");
    }

    #[test]
    fn an_empty_allowance_waits_for_some_minutes_of_changes() {
        let mut allowance = Allowance::new(at(0));
        allowance.take(1 << 20);
        assert!(!allowance.is_open(at(127)));
        assert!(allowance.is_open(at(128)), "4 KiB at 32 bytes a second");
    }
}
