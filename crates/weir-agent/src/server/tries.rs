//! Bounds of callers over TCP: failed tries of an address, and requests of a token.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use weir_units::Instant;

/// The most addresses that are remembered.
const MAX_ADDRESSES: usize = 1_024;
/// Failed tries of an address at once, and the time after which it has one more.
const TRIES: Rate = Rate { most: 10, every: Duration::from_secs(6) };
/// Requests of a token at once, and the time after which it has one more.
const REQUESTS: Rate = Rate { most: 100, every: Duration::from_millis(50) };

#[derive(Debug, Clone, Copy)]
struct Rate {
    most: u32,
    every: Duration,
}

/// The rest of a rate.
#[derive(Debug, Clone, Copy)]
struct Left {
    count: u32,
    at: Instant,
}

impl Left {
    fn full(rate: Rate, now: Instant) -> Left {
        Left { count: rate.most, at: now }
    }

    fn earn(&mut self, rate: Rate, now: Instant) {
        let earned = now.since(self.at).as_nanos() / rate.every.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.at = Instant(self.at.0.saturating_add(rate.every.saturating_mul(earned)));
        self.count = rate.most.min(self.count.saturating_add(earned));
    }

    /// The time until there is one more.
    fn wait(&self, rate: Rate, now: Instant) -> Duration {
        rate.every.saturating_sub(now.since(self.at))
    }
}

/// The bounds in use.
#[derive(Debug, Default)]
pub(super) struct Tries {
    of_addresses: BTreeMap<IpAddr, Left>,
    of_tokens: BTreeMap<String, Left>,
    /// Failed tries since the start.
    pub(super) failed: u64,
}

impl Tries {
    /// # Errors
    /// The time that an address must wait before it may try again.
    pub(super) fn may_try(&mut self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let Some(left) = self.of_addresses.get_mut(&from) else { return Ok(()) };
        left.earn(TRIES, now);
        if left.count == 0 { Err(left.wait(TRIES, now)) } else { Ok(()) }
    }

    /// Counts a failed try.
    pub(super) fn failed(&mut self, from: IpAddr, now: Instant) {
        self.failed += 1;
        if self.of_addresses.len() >= MAX_ADDRESSES && !self.of_addresses.contains_key(&from) {
            // An address that failed long ago has all its tries again.
            self.of_addresses.values_mut().for_each(|left| left.earn(TRIES, now));
            let oldest = self.of_addresses.iter().max_by_key(|(_, left)| (left.count, now.since(left.at)));
            if let Some(oldest) = oldest.map(|(from, _)| *from) {
                self.of_addresses.remove(&oldest);
            }
        }
        let left = self.of_addresses.entry(from).or_insert(Left::full(TRIES, now));
        left.earn(TRIES, now);
        left.count = left.count.saturating_sub(1);
    }

    /// # Errors
    /// The time until a token may ask again.
    pub(super) fn may_ask(&mut self, token: &str, now: Instant) -> Result<(), Duration> {
        // Removed tokens are forgotten with the next new one.
        if self.of_tokens.len() >= MAX_ADDRESSES {
            self.of_tokens.clear();
        }
        let left = self.of_tokens.entry(token.to_owned()).or_insert(Left::full(REQUESTS, now));
        left.earn(REQUESTS, now);
        if left.count == 0 {
            return Err(left.wait(REQUESTS, now));
        }
        left.count -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_millis(ms))
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn an_address_has_10_failed_tries_and_one_more_each_6_s() {
        let mut tries = Tries::default();
        for _ in 0..10 {
            tries.may_try(address(1), at(0)).unwrap();
            tries.failed(address(1), at(0));
        }
        assert_eq!(tries.may_try(address(1), at(1_000)), Err(Duration::from_secs(5)));
        assert_eq!(tries.may_try(address(2), at(1_000)), Ok(()), "another address is not held back");
        assert_eq!(tries.may_try(address(1), at(6_000)), Ok(()));
        tries.failed(address(1), at(6_000));
        assert!(tries.may_try(address(1), at(6_001)).is_err());
        assert_eq!(tries.failed, 11);
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_leave_the_worst_held_back() {
        let mut tries = Tries::default();
        for _ in 0..10 {
            tries.failed(address(0), at(0));
        }
        for n in 1..5_000 {
            tries.failed(address(n), at(1));
        }
        assert!(tries.of_addresses.len() <= MAX_ADDRESSES);
        assert!(tries.may_try(address(0), at(2)).is_err());
    }

    #[test]
    fn a_token_has_100_requests_at_once_and_20_each_second() {
        let mut tries = Tries::default();
        let mut passed = |ms| (0..1_000).filter(|_| tries.may_ask("ops", at(ms)).is_ok()).count();
        assert_eq!((passed(0), passed(1_000), passed(1_049), passed(60_000)), (100, 20, 0, 100));
    }
}
