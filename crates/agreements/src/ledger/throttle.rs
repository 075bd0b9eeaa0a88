use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_units::Instant;

use crate::Name;

/// How often: `burst` at once, then one `every` so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// At once, at least one.
    pub burst: u32,
    /// Between two from then on.
    pub every: Duration,
}

impl Pace {
    /// Takes one from a bucket that is full at `full_at`. Returns when it is full then, or how long
    /// it stays empty.
    fn take(self, full_at: Instant, now: Instant) -> Result<Instant, Duration> {
        let full_at = full_at.max(now) + self.every;
        let capacity = self.every.saturating_mul(self.burst.max(1));
        match full_at.since(now).saturating_sub(capacity) {
            Duration::ZERO => Ok(full_at),
            wait => Err(wait),
        }
    }
}

/// How often offers may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// From one party.
    pub party: Pace,
    /// From all parties together that have no agreement.
    pub strangers: Pace,
    /// How many strangers are told apart at a time.
    pub told_apart: usize,
}

impl Default for ThrottleLimits {
    /// 20 at once and then one a second from a party; 200 at once and then 25 a second from all
    /// strangers; 10,000 strangers.
    fn default() -> ThrottleLimits {
        ThrottleLimits {
            party: Pace { burst: 20, every: Duration::from_secs(1) },
            strangers: Pace { burst: 200, every: Duration::from_millis(40) },
            told_apart: 10_000,
        }
    }
}

/// Token buckets, one a party and one for all that have no agreement.
///
/// A bucket is the moment at which it is full again; one that is full is forgotten. So memory is
/// bounded by the parties with an agreement and [`ThrottleLimits::told_apart`], whatever names
/// clients invent; and invented clients can use up the strangers' bucket, but not a customer's.
#[derive(Debug, Clone)]
pub struct Throttle {
    limits: ThrottleLimits,
    full_at: BTreeMap<Name, Instant>,
    by_time: BTreeSet<(Instant, Name)>,
    strangers: Instant,
}

impl Throttle {
    /// With every bucket full.
    #[must_use]
    pub fn new(limits: ThrottleLimits) -> Throttle {
        let (full_at, by_time) = (BTreeMap::new(), BTreeSet::new());
        Throttle { limits, full_at, by_time, strangers: Instant::default() }
    }

    /// Sets how often offers may come from now on.
    pub fn set_limits(&mut self, limits: ThrottleLimits) {
        self.limits = limits;
    }

    /// Lets one pass from `party`, which is `known` if it has an agreement.
    ///
    /// # Errors
    /// After what time to try again. Nothing is taken then.
    pub fn pass(&mut self, party: &Name, known: bool, now: Instant) -> Result<(), Duration> {
        while self.by_time.first().is_some_and(|(full_at, _)| *full_at <= now) {
            if let Some((_, party)) = self.by_time.pop_first() {
                self.full_at.remove(&party);
            }
        }
        let old = self.full_at.get(party).copied();
        let full_at = self.limits.party.take(old.unwrap_or(now), now)?;
        if !known {
            if let (None, true, Some((free, _))) =
                (old, self.full_at.len() >= self.limits.told_apart, self.by_time.first())
            {
                return Err(free.since(now));
            }
            self.strangers = self.limits.strangers.take(self.strangers, now)?;
        }
        if let Some(old) = old {
            self.by_time.remove(&(old, party.clone()));
        }
        self.full_at.insert(party.clone(), full_at);
        self.by_time.insert((full_at, party.clone()));
        Ok(())
    }

    /// How many parties have a bucket that is not full.
    #[must_use]
    pub fn parties(&self) -> usize {
        self.full_at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> Name {
        Name::new(&format!("party-{i}")).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant(Duration::from_millis(millis))
    }

    #[test]
    fn a_party_has_its_burst_and_then_its_pace() {
        let mut throttle = Throttle::new(ThrottleLimits::default());
        assert!((0..20).all(|_| throttle.pass(&name(1), false, at(0)).is_ok()));
        assert_eq!(throttle.pass(&name(1), false, at(0)), Err(Duration::from_secs(1)));
        assert_eq!(throttle.pass(&name(1), false, at(400)), Err(Duration::from_millis(600)));
        assert_eq!(throttle.pass(&name(1), false, at(1_000)), Ok(()));
        assert!(throttle.pass(&name(1), false, at(1_000)).is_err());
        assert!(throttle.pass(&name(2), false, at(1_000)).is_ok());
    }

    #[test]
    fn a_million_offers_from_one_client_take_one_bucket_and_pass_at_its_pace() {
        let mut throttle = Throttle::new(ThrottleLimits::default());
        let passed =
            (0..1_000_000u64).filter(|i| throttle.pass(&name(1), false, at(i / 100)).is_ok()).count();
        assert_eq!((passed, throttle.parties()), (20 + 9, 1));
    }

    #[test]
    fn million_invented_clients_take_bounded_memory() {
        let mut throttle = Throttle::new(ThrottleLimits::default());
        let (mut most, mut passed) = (0, 0);
        for i in 0..1_000_000 {
            let now = at(i as u64 / 100);
            passed += usize::from(throttle.pass(&name(i), false, now).is_ok());
            most = most.max(throttle.parties());
            if i % 100_000 == 0 {
                assert_eq!(throttle.pass(&name(usize::MAX), true, now), Ok(()));
            }
        }
        assert_eq!(passed, 200 + 249);
        assert!(most <= 250, "{most}");
    }

    #[test]
    fn strangers_that_cannot_be_told_apart_wait_for_one_that_is_forgotten() {
        let mut throttle = Throttle::new(ThrottleLimits { told_apart: 2, ..ThrottleLimits::default() });
        assert!((0..2).all(|i| throttle.pass(&name(i), false, at(0)).is_ok()));
        assert_eq!(throttle.pass(&name(2), false, at(0)), Err(Duration::from_secs(1)));
        assert!(throttle.pass(&name(0), false, at(0)).is_ok());
        assert_eq!(throttle.pass(&name(2), false, at(1_000)), Ok(()));
    }
}
