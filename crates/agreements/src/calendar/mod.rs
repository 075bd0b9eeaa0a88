//! Admission over a calendar of reservations.

mod limits;
mod refusal;
mod tree;

pub use limits::{GRAIN, Limits, Oversubscription, OversubscriptionError, Split, SplitError};
pub use refusal::{Bandwidth, Earliest, Refusal, Shortage};

use weir_units::BitRate;

use crate::{Interval, Utc};
use tree::{Gap, Steps};

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// `NetMinBandwidth`, B_r.
    pub min: BitRate,
    /// `NetMaxBandwidth`, B_r^max.
    pub max: BitRate,
    /// The first moment; none for now.
    pub start: Option<Utc>,
    /// The first moment after it; none for no end.
    pub end: Option<Utc>,
}

/// An admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// From when to when.
    pub interval: Interval,
    /// The promises at the busiest moment of it, this included.
    pub reserved: BitRate,
    /// The rate that may be promised in all.
    pub promisable: BitRate,
    /// Only if the link is oversubscribed by configuration.
    pub oversubscribed: Option<Oversubscribed>,
}

/// That more may be promised than there is, and how much more is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversubscribed {
    /// As configured.
    pub factor: Oversubscription,
    /// By how much the promises of the busiest moment exceed U_res B_eth.
    pub excess: BitRate,
}

/// Bandwidth that is reserved in a calendar, from when to when. Hand it back to release it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is dropped stays reserved"]
pub struct Booking {
    interval: Interval,
    grains: i64,
}

impl Booking {
    /// From when to when.
    #[must_use]
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// How much: the minimum, rounded up to the grain.
    #[must_use]
    pub fn reserved(&self) -> BitRate {
        rate(self.grains)
    }
}

/// The sum of reservations over time.
///
/// Anastasi et al., section 3.2, with rates in place of fractions (times B_eth) and with the
/// advance reservations that the paper leaves as future work: a request for an interval is
/// accepted iff
///
/// ```text
/// U_r <= U_r^max <= U_res                         preliminary constraints
/// sum over C of U_c^min + U_r <= U_res            Eq. 2, at every moment of the interval
/// ```
///
/// Bandwidth is allocated in units of [`GRAIN`]. A minimum that is no multiple of it keeps the next
/// multiple reserved, because a refusal would shut out every offer in `Kibps` and `Mibps` (1 Mibps
/// is 104.8576 grains), and rounding down would promise what is not there. The promised and
/// enforced minimum is exact. Below one grain a rate is refused.
///
/// Admission, insertion and removal are O(log n) in the number of instants of change. A refusal
/// also says when the request would fit, and looks behind one busy time after the other for it,
/// at most [`Limits::search`] of them, O(log n) each at worst. Memory: 56 bytes an instant of change,
/// two instants a reservation, at most twice that when the table has just grown.
#[derive(Debug, Clone)]
pub struct Calendar {
    limits: Limits,
    steps: Steps,
    horizon: Utc,
}

fn rate(grains: i64) -> BitRate {
    BitRate(u64::try_from(grains).unwrap_or(0).saturating_mul(GRAIN.0))
}

/// Rounded up: what a minimum keeps reserved.
fn grains(rate: BitRate) -> i64 {
    rate.0.div_ceil(GRAIN.0) as i64
}

impl Calendar {
    /// With nothing reserved.
    #[must_use]
    pub fn new(limits: Limits) -> Calendar {
        Calendar { limits, steps: Steps::default(), horizon: Utc::MIN }
    }

    /// The limits of admission.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// For a link or a division that has changed. Reservations stay, even if they are now too many;
    /// the calendar then admits nothing until enough of them are over.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The reservations at that moment, in whole grains.
    #[must_use]
    pub fn reserved_at(&self, at: Utc) -> BitRate {
        rate(self.steps.value(at.max(self.horizon).millis()))
    }

    /// The most that is reserved at any moment of the interval.
    #[must_use]
    pub fn peak(&self, interval: Interval) -> BitRate {
        rate(self.highest(interval))
    }

    /// The first moment after that one at which what is reserved changes.
    #[must_use]
    pub fn next_change(&self, after: Utc) -> Option<Utc> {
        self.steps.next(after.max(self.horizon).millis()).map(Utc::from_millis)
    }

    /// The reservations from `from` on: each moment of change before `to` and the rate from then
    /// on. The first entry is `from`, or the first moment that is not forgotten if that is later.
    pub fn profile(&self, from: Utc, to: Option<Utc>) -> impl Iterator<Item = (Utc, BitRate)> + '_ {
        let from = from.max(self.horizon);
        std::iter::successors(Some(from), |&at| self.next_change(at))
            .take_while(move |&at| to.is_none_or(|to| at < to))
            .map(|at| (at, self.reserved_at(at)))
    }

    /// Tests a request. Changes nothing.
    ///
    /// # Errors
    /// [`Refusal`] for the first constraint that does not hold.
    pub fn check(&self, request: &Request, now: Utc) -> Result<Grant, Refusal> {
        let interval = self.check_request(request, now)?;
        self.check_capacity(request.min, interval, now)
    }

    /// Tests what needs no calendar: times, and the preliminary constraints.
    pub(crate) fn check_request(&self, request: &Request, now: Utc) -> Result<Interval, Refusal> {
        let interval = self.interval(request, now)?;
        self.check_rates(request)?;
        Ok(interval)
    }

    /// Admits a request, and reserves its minimum.
    ///
    /// # Errors
    /// [`Refusal`] for the first constraint that does not hold; nothing is changed then.
    pub fn reserve(&mut self, request: &Request, now: Utc) -> Result<(Booking, Grant), Refusal> {
        let grant = self.check(request, now)?;
        Ok((self.insert(request.min, grant.interval), grant))
    }

    /// Reserves what was admitted before, without a test.
    pub fn insert(&mut self, min: BitRate, interval: Interval) -> Booking {
        let booking = Booking { interval, grains: grains(min) };
        self.add(interval, booking.grains);
        booking
    }

    /// Tests whether what was admitted may last longer. Changes nothing. Only the added time is
    /// tested: from the present end to the new one, or without an end.
    ///
    /// # Errors
    /// [`Refusal`] for the first constraint that does not hold.
    pub(crate) fn check_extension(
        &self,
        booking: &Booking,
        end: Option<Utc>,
        now: Utc,
    ) -> Result<Grant, Refusal> {
        let Some(old) = booking.interval.end else { return Err(Refusal::NoEnd) };
        match end {
            _ if old <= now => Err(Refusal::Over { end: old, now }),
            Some(asked) if asked <= old => Err(Refusal::NotLater { asked, end: old }),
            _ => self.check_capacity(booking.reserved(), Interval { start: old, end }, now).map_err(|_| {
                let promisable = self.limits.promisable();
                let limit = (promisable.0 / GRAIN.0) as i64 - booking.grains;
                let busiest = self.steps.first_above(old.millis(), limit).map_or(old, Utc::from_millis);
                let (rate, reserved) = (booking.reserved(), self.reserved_at(busiest));
                Refusal::NoCapacityToExtend { rate, end: old, busiest, reserved, promisable }
            }),
        }
    }

    /// Lets an admitted request last longer, or without an end.
    ///
    /// # Errors
    /// [`Refusal`] for the first constraint that does not hold. Nothing is changed then.
    pub fn extend(&mut self, booking: &mut Booking, end: Option<Utc>, now: Utc) -> Result<Grant, Refusal> {
        let grant = self.check_extension(booking, end, now)?;
        self.add(grant.interval, booking.grains);
        booking.interval.end = end;
        Ok(grant)
    }

    /// Frees what is reserved from `at` on.
    pub fn release(&mut self, booking: Booking, at: Utc) {
        let Interval { start, end } = booking.interval;
        let start = start.max(at).max(self.horizon);
        if end.is_none_or(|end| start < end) {
            self.add(Interval { start, end }, -booking.grains);
        }
    }

    /// Forgets what was reserved before that moment, for good.
    pub fn forget_before(&mut self, at: Utc) {
        if at > self.horizon {
            self.steps.forget_until(at.millis());
            self.horizon = at;
        }
    }

    /// The moment before which everything is forgotten.
    pub(crate) fn forgets_until(&self) -> Utc {
        self.horizon
    }

    /// How many instants of change there are, at most two a reservation.
    #[must_use]
    pub fn instants(&self) -> usize {
        self.steps.len()
    }

    /// Bytes held.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.steps.memory()
    }

    fn add(&mut self, interval: Interval, grains: i64) {
        let start = interval.start.max(self.horizon);
        if interval.end.is_some_and(|end| end <= start) {
            return;
        }
        self.steps.add(start.millis(), grains);
        if let Some(end) = interval.end {
            self.steps.add(end.millis(), -grains);
        }
    }

    fn highest(&self, interval: Interval) -> i64 {
        let from = interval.start.max(self.horizon).millis();
        self.steps.highest(from, interval.end.map(Utc::millis))
    }

    fn interval(&self, request: &Request, now: Utc) -> Result<Interval, Refusal> {
        let start = request.start.unwrap_or(now);
        let (skew, latest) = (self.limits.skew, now.after(self.limits.ahead));
        match request.end {
            Some(end) if end < start => return Err(Refusal::EndBeforeStart { start, end }),
            Some(end) if end == start => return Err(Refusal::ZeroLength { at: start }),
            _ if start.after(skew) < now => return Err(Refusal::StartInPast { start, now, skew }),
            _ if start > latest => return Err(Refusal::TooFarAhead { start, latest }),
            _ => {}
        }
        // A start within the skew is one now; so is, for what is then over, the end.
        let start = start.max(now);
        match request.end {
            Some(end) if end <= start => Err(Refusal::ZeroLength { at: end }),
            end => Ok(Interval { start, end }),
        }
    }

    /// The preliminary constraints.
    fn check_rates(&self, request: &Request) -> Result<(), Refusal> {
        let Request { min, max, .. } = *request;
        for (which, asked) in [(Bandwidth::Min, min), (Bandwidth::Max, max)] {
            if asked < GRAIN {
                return Err(Refusal::BelowGrain { which, asked });
            }
            if asked > BitRate::MAX {
                return Err(Refusal::TooLarge { which, asked });
            }
        }
        let reservable = self.limits.reservable();
        if min > max {
            return Err(Refusal::MinAboveMax { min, max });
        }
        if max > reservable {
            return Err(Refusal::MaxAboveReservable { max, reservable, link: self.limits.link });
        }
        Ok(())
    }

    /// Eq. 2.
    fn check_capacity(&self, min: BitRate, interval: Interval, now: Utc) -> Result<Grant, Refusal> {
        let promisable = self.limits.promisable();
        let most = (promisable.0 / GRAIN.0) as i64;
        let (asked, reserved) = (grains(min), self.highest(interval));
        if reserved + asked > most {
            let from = interval.start.max(self.horizon).millis();
            let busiest = self.steps.first_above(from, reserved - 1).unwrap_or(from);
            return Err(Refusal::NoCapacity(Shortage {
                asked: min,
                interval,
                reserved: rate(reserved),
                busiest: Utc::from_millis(busiest),
                promisable,
                largest_min: (reserved < most).then(|| rate(most - reserved)),
                earliest: self.earliest(most - asked, interval, now),
            }));
        }
        let reserved = rate(reserved + asked);
        Ok(Grant { interval, reserved, promisable, oversubscribed: self.oversubscribed(reserved) })
    }

    /// The warning about promises of `reserved` together.
    pub(crate) fn oversubscribed(&self, reserved: BitRate) -> Option<Oversubscribed> {
        let excess = reserved.saturating_sub(self.limits.reservable());
        self.limits.oversubscription.map(|factor| Oversubscribed { factor, excess })
    }

    /// The first time as long as `interval`, not before it, in which no more than `limit` is
    /// reserved.
    fn earliest(&self, limit: i64, interval: Interval, now: Utc) -> Earliest {
        let latest = now.after(self.limits.ahead);
        let length = interval.end.map(|end| end.millis() - interval.start.millis());
        let from = interval.start.max(self.horizon).millis();
        match self.steps.first_gap(from, limit, length, self.limits.search) {
            Gap::At(start) if start + length.unwrap_or(0) > Utc::MAX.millis() => Earliest::Never,
            Gap::At(start) | Gap::NotBefore(start) if start > latest.millis() => Earliest::Never,
            Gap::At(start) => Earliest::At(Utc::from_millis(start)),
            Gap::NotBefore(moment) => Earliest::NotBefore(Utc::from_millis(moment)),
            Gap::None => Earliest::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_share::Reservable;

    const NOW: Utc = Utc::from_millis(1_800_000_000_000);

    /// The paper's link: 100 Mbit/s, U_res 0.95, U_oth 0.05.
    fn calendar() -> Calendar {
        let part = |part| Reservable::new(part).unwrap();
        let split = Split::new(part(0.95), Some(part(0.05)), part(1.0)).unwrap();
        Calendar::new(Limits { split, ..Limits::new(BitRate::mbit(100)) })
    }

    fn at(seconds: i64) -> Utc {
        Utc::from_millis(NOW.millis() + 1_000 * seconds)
    }

    fn asks(mbit: u64, start: i64, end: Option<i64>) -> Request {
        let rate = BitRate::mbit(mbit);
        Request { min: rate, max: rate, start: Some(at(start)), end: end.map(at) }
    }

    #[test]
    fn five_customers_of_19_fit_the_papers_link_and_no_sixth() {
        let mut calendar = calendar();
        for _ in 0..5 {
            let _customer = calendar.reserve(&asks(19, 0, None), NOW).unwrap();
        }
        assert_eq!(calendar.reserved_at(NOW), BitRate::mbit(95));
        let sixth = Request { min: GRAIN, max: GRAIN, start: None, end: None };
        let refusal = calendar.reserve(&sixth, NOW).unwrap_err();
        let Refusal::NoCapacity(shortage) = refusal else { panic!("{refusal}") };
        assert_eq!((shortage.largest_min, shortage.earliest), (None, Earliest::Never));
        assert_eq!((shortage.reserved, shortage.promisable), (BitRate::mbit(95), BitRate::mbit(95)));
    }

    #[test]
    fn a_profile_tells_nothing_of_moments_that_are_forgotten() {
        let mut calendar = calendar();
        let _customer = calendar.reserve(&asks(60, 10, Some(20)), NOW).unwrap();
        calendar.forget_before(at(15));
        let profile = |from, to| calendar.profile(at(from), to).collect::<Vec<_>>();
        let known = [(at(15), BitRate::mbit(60)), (at(20), BitRate::ZERO)];
        assert_eq!(profile(-1_000, None), known);
        assert_eq!(profile(16, None), [(at(16), BitRate::mbit(60)), known[1]]);
        assert_eq!(profile(-1_000, Some(at(15))), []);
    }

    #[test]
    fn a_refusal_names_what_is_taken_when_and_both_counter_offers() {
        let mut calendar = calendar();
        let _first = calendar.reserve(&asks(60, 10, Some(20)), NOW).unwrap();
        let refusal = calendar.check(&asks(40, 5, Some(15)), NOW).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "cannot promise 40mbit from 2027-01-15T08:00:05Z to 2027-01-15T08:00:15Z: 60mbit of the 95mbit that \
             may be promised are taken at 2027-01-15T08:00:10Z, 35mbit would be accepted, and 40mbit from \
             2027-01-15T08:00:20Z on"
        );
    }

    #[test]
    fn each_bad_request_has_its_own_refusal_with_its_numbers() {
        let calendar = calendar();
        let (mbit, good) = (BitRate::mbit, asks(19, 0, Some(60)));
        let refusal = |request: Request| calendar.check(&request, NOW).unwrap_err();
        for (min, max) in [(0, 19_000_000), (9_999, 19_000_000)] {
            let (min, max) = (BitRate(min), BitRate(max));
            let want = Refusal::BelowGrain { which: Bandwidth::Min, asked: min };
            assert_eq!(refusal(Request { min, max, ..good }), want);
        }
        assert_eq!(
            refusal(Request { max: BitRate(0), ..good }),
            Refusal::BelowGrain { which: Bandwidth::Max, asked: BitRate(0) }
        );
        assert_eq!(
            refusal(Request { max: BitRate(u64::MAX), ..good }),
            Refusal::TooLarge { which: Bandwidth::Max, asked: BitRate(u64::MAX) }
        );
        assert_eq!(
            refusal(Request { min: mbit(20), ..good }),
            Refusal::MinAboveMax { min: mbit(20), max: mbit(19) }
        );
        assert_eq!(
            refusal(Request { max: mbit(96), ..good }),
            Refusal::MaxAboveReservable { max: mbit(96), reservable: mbit(95), link: mbit(100) }
        );
        assert_eq!(refusal(asks(19, 10, Some(9))), Refusal::EndBeforeStart { start: at(10), end: at(9) });
        assert_eq!(refusal(asks(19, 10, Some(10))), Refusal::ZeroLength { at: at(10) });
        let skew = calendar.limits().skew;
        assert_eq!(refusal(asks(19, -31, Some(60))), Refusal::StartInPast { start: at(-31), now: NOW, skew });
        assert_eq!(refusal(asks(19, -20, Some(-10))), Refusal::ZeroLength { at: at(-10) });
        let late = Request { start: Some(Utc::MAX), end: None, ..good };
        assert_eq!(
            refusal(late),
            Refusal::TooFarAhead { start: Utc::MAX, latest: NOW.after(calendar.limits().ahead) }
        );
    }

    #[test]
    fn a_start_within_the_skew_is_one_now() {
        let grant = calendar().check(&asks(19, -30, Some(60)), NOW).unwrap();
        assert_eq!(grant.interval, Interval { start: NOW, end: Some(at(60)) });
    }

    #[test]
    fn a_minimum_between_two_grains_keeps_the_higher_one_reserved() {
        let mut calendar = calendar();
        let mebibit = BitRate(1 << 20);
        let request = Request { min: mebibit, max: mebibit, start: None, end: None };
        let (booking, _) = calendar.reserve(&request, NOW).unwrap();
        assert_eq!(booking.reserved(), BitRate::kbit(1_050));
        assert_eq!(calendar.reserved_at(NOW), BitRate::kbit(1_050));
    }

    #[test]
    fn more_is_promised_than_there_is_only_if_configured_and_then_it_is_said() {
        let mut calendar = calendar();
        let grant = calendar.check(&asks(95, 0, None), NOW).unwrap();
        assert_eq!(grant.oversubscribed, None);
        let factor = Oversubscription::new(1.5).unwrap();
        calendar.set_limits(Limits { oversubscription: Some(factor), ..*calendar.limits() });
        let (_booking, grant) = calendar.reserve(&asks(95, 0, None), NOW).unwrap();
        assert_eq!(grant.oversubscribed, Some(Oversubscribed { factor, excess: BitRate::ZERO }));
        let grant = calendar.check(&asks(40, 0, None), NOW).unwrap();
        assert_eq!(grant.oversubscribed, Some(Oversubscribed { factor, excess: BitRate::mbit(40) }));
        assert!(calendar.check(&asks(48, 0, None), NOW).is_err());
        // The part of one customer is still a part of the capacity.
        assert!(matches!(calendar.check(&asks(96, 0, None), NOW), Err(Refusal::MaxAboveReservable { .. })));
    }

    #[test]
    fn an_extension_is_tested_for_what_it_adds_only() {
        let mut calendar = calendar();
        let (mut booking, _) = calendar.reserve(&asks(60, 0, Some(10)), NOW).unwrap();
        let (_other, _) = calendar.reserve(&asks(60, 20, Some(30)), NOW).unwrap();
        assert!(matches!(
            calendar.extend(&mut booking, Some(at(21)), NOW),
            Err(Refusal::NoCapacityToExtend { busiest, .. }) if busiest == at(20)
        ));
        assert!(calendar.extend(&mut booking, None, NOW).is_err());
        calendar.extend(&mut booking, Some(at(20)), NOW).unwrap();
        assert_eq!(booking.interval().end, Some(at(20)));
        assert_eq!(calendar.peak(Interval { start: at(10), end: Some(at(20)) }), BitRate::mbit(60));
        assert_eq!(
            calendar.extend(&mut booking, Some(at(20)), NOW),
            Err(Refusal::NotLater { asked: at(20), end: at(20) })
        );
        assert_eq!(
            calendar.extend(&mut booking, Some(at(30)), at(20)),
            Err(Refusal::Over { end: at(20), now: at(20) })
        );
    }

    #[test]
    fn smaller_link_keeps_promises_and_admits_nothing_meanwhile() {
        let mut calendar = calendar();
        let _booking = calendar.reserve(&asks(60, 0, Some(10)), NOW).unwrap();
        calendar.set_limits(Limits { link: BitRate::mbit(50), ..*calendar.limits() });
        let refusal = calendar.check(&asks(1, 0, Some(5)), NOW).unwrap_err();
        let Refusal::NoCapacity(shortage) = refusal else { panic!("{refusal}") };
        assert_eq!((shortage.largest_min, shortage.earliest), (None, Earliest::At(at(10))));
    }

    #[test]
    fn refusal_looks_behind_as_many_busy_times_as_configured() {
        let mut calendar = calendar();
        let busy = (0..10).map(|i| {
            calendar.insert(BitRate::mbit(95), Interval { start: at(10 * i), end: Some(at(10 * i + 5)) })
        });
        busy.for_each(drop);
        calendar.set_limits(Limits { search: 3, ..*calendar.limits() });
        let refusal = calendar.check(&asks(1, 0, Some(6)), NOW).unwrap_err();
        let Refusal::NoCapacity(shortage) = refusal else { panic!("{refusal}") };
        assert_eq!(shortage.earliest, Earliest::NotBefore(at(40)));
        calendar.set_limits(Limits { search: 64, ..*calendar.limits() });
        let refusal = calendar.check(&asks(1, 0, Some(6)), NOW).unwrap_err();
        let Refusal::NoCapacity(shortage) = refusal else { panic!("{refusal}") };
        assert_eq!(shortage.earliest, Earliest::At(at(95)));
    }
}
