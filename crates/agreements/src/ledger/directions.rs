//! The reservations of both directions of the link.

use super::{Rejection, check::check_claim, reservations::SelectorReservations};
use crate::{
    Booking, Calendar, Direction, Directions, Grant, Interval, Limits, Oversubscribed, Refusal, Request,
    Selector, Utc,
};
use weir_units::BitRate;

/// The bandwidth and the packets that are under agreement in one direction.
#[derive(Debug)]
struct Reservations {
    calendar: Calendar,
    claims: SelectorReservations,
}

/// Both directions of a link. A promise about both is admitted in both or in none.
#[derive(Debug)]
pub(super) struct LinkReservations {
    upload: Reservations,
    download: Reservations,
    shares_download: bool,
}

/// The bandwidth of one agreement, in each of its directions.
#[derive(Debug)]
pub(super) struct Bookings(Vec<(Direction, Booking)>);

/// The refusal of a direction.
fn refused(direction: Direction) -> impl Fn(Refusal) -> Rejection {
    move |refusal| match direction {
        Direction::Upload => Rejection::Refused(refusal),
        Direction::Download => Rejection::RefusedDownload(refusal),
    }
}

/// The grant of the direction in which more is promised.
fn larger(one: Option<Grant>, other: Grant) -> Option<Grant> {
    let excess = |grant: &Grant| grant.oversubscribed.map(|all| all.excess);
    Some(one.filter(|one| excess(one) >= excess(&other)).unwrap_or(other))
}

impl LinkReservations {
    /// Without agreements. The download is not shared.
    pub(super) fn new(upload: Limits) -> LinkReservations {
        let empty = |limits| Reservations {
            calendar: Calendar::new(limits),
            claims: SelectorReservations::default(),
        };
        LinkReservations {
            upload: empty(upload),
            download: empty(Limits::new(BitRate::ZERO)),
            shares_download: false,
        }
    }

    /// Changes the limits of both directions. `None` for a download that is not shared.
    pub(super) fn set_limits(&mut self, upload: Limits, download: Option<Limits>) {
        self.shares_download = download.is_some();
        self.upload.calendar.set_limits(upload);
        self.download.calendar.set_limits(download.unwrap_or_else(|| Limits::new(BitRate::ZERO)));
    }

    pub(super) fn calendar(&self, direction: Direction) -> &Calendar {
        &self.of(direction).calendar
    }

    fn of(&self, direction: Direction) -> &Reservations {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    fn of_mut(&mut self, direction: Direction) -> &mut Reservations {
        match direction {
            Direction::Upload => &mut self.upload,
            Direction::Download => &mut self.download,
        }
    }

    /// The directions of a promise. The one that reserves less comes first, so that a refusal of a rate
    /// names one that fits both.
    fn narrowest_first(&self, directions: Directions) -> Vec<Direction> {
        let mut all: Vec<Direction> = directions.iter().collect();
        all.sort_by_key(|direction| self.calendar(*direction).limits().reservable());
        all
    }

    /// Tests what needs no calendar.
    pub(super) fn check_request(
        &self,
        directions: Directions,
        request: &Request,
        now: Utc,
    ) -> Result<Interval, Rejection> {
        if directions.has(Direction::Download) && !self.shares_download {
            return Err(Rejection::DownloadNotShared);
        }
        let mut interval = Interval { start: now, end: None };
        for direction in self.narrowest_first(directions) {
            interval = self.calendar(direction).check_request(request, now).map_err(refused(direction))?;
        }
        Ok(interval)
    }

    /// Tests whether packets are free. Arrivals are told apart by their receiver alone.
    pub(super) fn check_selector(
        &self,
        directions: Directions,
        selector: &Selector,
        interval: Interval,
    ) -> Result<(), Rejection> {
        if directions.has(Direction::Download) && selector.whole_container().is_none() {
            return Err(Rejection::DownloadSelector(Box::new(selector.clone())));
        }
        directions.iter().try_for_each(|one| check_claim(&self.of(one).claims, selector, interval))
    }

    /// Tests whether the bandwidth is free.
    pub(super) fn check(
        &self,
        directions: Directions,
        request: &Request,
        now: Utc,
    ) -> Result<Grant, Rejection> {
        let mut grant = None;
        for direction in self.narrowest_first(directions) {
            let one = self.calendar(direction).check(request, now).map_err(refused(direction))?;
            grant = larger(grant, one);
        }
        // A promise has a direction.
        grant.ok_or(Rejection::DownloadNotShared)
    }

    /// Reserves what was admitted before, without a test.
    pub(super) fn take(
        &mut self,
        directions: Directions,
        min: BitRate,
        selector: &Selector,
        interval: Interval,
    ) -> Bookings {
        let take = |direction| {
            let one = self.of_mut(direction);
            one.claims.take(selector, interval);
            (direction, one.calendar.insert(min, interval))
        };
        Bookings(directions.iter().map(take).collect())
    }

    /// Frees the packets, and the bandwidth from `at` on.
    pub(super) fn release(&mut self, bookings: Bookings, selector: &Selector, start: Utc, at: Utc) {
        for (direction, booking) in bookings.0 {
            let one = self.of_mut(direction);
            one.claims.give_back(selector, start);
            one.calendar.release(booking, at);
        }
    }

    /// Lets a promise last longer, in all of its directions or in none. `old` is its present end.
    pub(super) fn extend(
        &mut self,
        bookings: &mut Bookings,
        selector: &Selector,
        (old, end): (Utc, Option<Utc>),
        now: Utc,
    ) -> Result<Grant, Rejection> {
        for (direction, _) in &bookings.0 {
            check_claim(&self.of(*direction).claims, selector, Interval { start: old, end })?;
        }
        let mut first: Option<Rejection> = None;
        for (direction, booking) in &bookings.0 {
            let tested = self.calendar(*direction).check_extension(booking, end, now);
            let refusal = tested.err().map(refused(*direction));
            first = match (first, refusal) {
                (Some(a), Some(b)) if b.latest_end() < a.latest_end() => Some(b),
                (first, refusal) => first.or(refusal),
            };
        }
        if let Some(refusal) = first {
            return Err(refusal);
        }
        let mut grant = None;
        for (direction, booking) in &mut bookings.0 {
            let one = self.of_mut(*direction);
            let granted = one.calendar.extend(booking, end, now).map_err(refused(*direction))?;
            one.claims.take(selector, booking.interval());
            grant = larger(grant, granted);
        }
        grant.ok_or(Refusal::NoEnd.into())
    }

    /// The warning about what is promised in an interval.
    pub(super) fn oversubscribed(
        &self,
        directions: Directions,
        interval: Interval,
    ) -> Option<Oversubscribed> {
        let of = |direction| {
            let calendar = self.calendar(direction);
            calendar.oversubscribed(calendar.peak(interval))
        };
        directions.iter().filter_map(of).max_by_key(|all| all.excess)
    }

    /// Whether times after `now` are forgotten.
    pub(super) fn is_ahead_of(&self, now: Utc) -> bool {
        Direction::ALL.into_iter().any(|direction| self.calendar(direction).forgets_until() > now)
    }

    /// Reserves nothing any more, and forgets no time.
    pub(super) fn clear(&mut self) {
        for direction in Direction::ALL {
            let one = self.of_mut(direction);
            one.calendar = Calendar::new(*one.calendar.limits());
            one.claims = SelectorReservations::default();
        }
    }

    pub(super) fn forget_before(&mut self, at: Utc) {
        Direction::ALL.into_iter().for_each(|direction| self.of_mut(direction).calendar.forget_before(at));
    }
}
