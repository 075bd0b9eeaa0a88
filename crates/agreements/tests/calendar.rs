//! The calendar against a naive one: a list of reservations, asked moment by moment.

use std::time::Duration;

use proptest::prelude::*;
use weir_agree::{Booking, Calendar, Earliest, GRAIN, Interval, Limits, Refusal, Request, Shortage, Utc};
use weir_units::BitRate;

/// The reservable part of the tests' link, in grains.
const MOST: u64 = 9;
/// Moments of the tests' world, in milliseconds.
const WORLD: i64 = 40;

/// 10 grains, of which nine may be promised; no skew; every busy time is looked behind.
fn limits() -> Limits {
    let ahead = Duration::from_millis(WORLD as u64);
    Limits { skew: Duration::ZERO, ahead, search: u32::MAX, ..Limits::new(BitRate(10 * GRAIN.0)) }
}

fn utc(t: i64) -> Utc {
    Utc::from_millis(t)
}

#[derive(Debug, Clone, Copy)]
struct Held {
    interval: Interval,
    grains: u64,
}

fn level(held: &[Held], t: i64) -> u64 {
    held.iter().filter(|h| h.interval.contains(utc(t))).map(|h| h.grains).sum()
}

/// Moments that tell an interval: those of the world, and one beyond for what has no end.
fn moments(interval: Interval) -> impl Iterator<Item = i64> {
    let end = interval.end.map_or(4 * WORLD, Utc::millis);
    interval.start.millis()..end
}

fn fits(held: &[Held], grains: u64, interval: Interval) -> bool {
    moments(interval).all(|t| level(held, t) + grains <= MOST)
}

fn request(grains: u64, interval: Interval) -> Request {
    let rate = BitRate(grains * GRAIN.0);
    Request { min: rate, max: rate, start: Some(interval.start), end: interval.end }
}

/// Tests the counter-offers of a refusal: each would be accepted, and nothing better would.
fn check_counter_offers(calendar: &Calendar, held: &[Held], shortage: &Shortage, now: i64) {
    let interval = shortage.interval;
    let asked = shortage.asked.0.div_ceil(GRAIN.0);
    let accepted = |grains: u64, interval: Interval| {
        let naive = fits(held, grains, interval);
        assert_eq!(calendar.check(&request(grains, interval), utc(now)).is_ok(), naive);
        naive
    };
    let largest = shortage.largest_min.map_or(0, |rate| rate.0 / GRAIN.0);
    assert!(largest < asked);
    assert!(largest == 0 || accepted(largest, interval));
    assert!(!accepted(largest + 1, interval));
    assert_eq!(level(held, shortage.busiest.millis()), shortage.reserved.0 / GRAIN.0);

    let from = interval.start.millis();
    let shifted = |start: i64| Interval {
        start: utc(start),
        end: interval.end.map(|end| utc(end.millis() - from + start)),
    };
    let earliest = (from..=now + WORLD).find(|&start| fits(held, asked, shifted(start)));
    match shortage.earliest {
        Earliest::At(start) => {
            assert_eq!(Some(start.millis()), earliest);
            assert!(accepted(asked, shifted(start.millis())));
            assert!((from..start.millis()).all(|start| !accepted(asked, shifted(start))));
        }
        Earliest::Never => assert_eq!(earliest, None),
        other => panic!("every busy time is looked behind: {other:?}"),
    }
}

#[derive(Debug, Clone)]
enum Op {
    Reserve { grains: u64, start: i64, length: Option<i64> },
    Extend { which: usize, by: Option<i64> },
    Release { which: usize, at: i64 },
    Pass { time: i64 },
}

fn op() -> impl Strategy<Value = Op> {
    let length = || prop::option::weighted(0.9, 1..15i64);
    prop_oneof![
        8 => (1..=MOST, 0..=WORLD, length())
            .prop_map(|(grains, start, length)| Op::Reserve { grains, start, length }),
        2 => (any::<usize>(), length()).prop_map(|(which, by)| Op::Extend { which, by }),
        3 => (any::<usize>(), 0..WORLD).prop_map(|(which, at)| Op::Release { which, at }),
        1 => (1..5i64).prop_map(|time| Op::Pass { time }),
    ]
}

proptest! {
    #[test]
    fn it_admits_what_a_naive_one_admits_and_is_never_overbooked(ops in prop::collection::vec(op(), 1..40)) {
        let (mut calendar, mut held, mut now) = (Calendar::new(limits()), Vec::<Held>::new(), 0);
        // None for what is left of a reservation that was given back.
        let mut bookings = Vec::<Option<Booking>>::new();
        for op in ops {
            let before: Vec<_> = calendar.profile(utc(now), None).collect();
            let mut refused = false;
            match op {
                Op::Reserve { grains, start, length } => {
                    let start = utc(now + start);
                    let end = length.map(|length| utc(start.millis() + length));
                    let interval = Interval { start, end };
                    match calendar.reserve(&request(grains, interval), utc(now)) {
                        Ok((booking, grant)) => {
                            prop_assert!(fits(&held, grains, interval));
                            held.push(Held { interval, grains });
                            bookings.push(Some(booking));
                            let peak = moments(interval).map(|t| level(&held, t)).max().unwrap();
                            prop_assert_eq!(grant.reserved.0 / GRAIN.0, peak);
                            prop_assert_eq!(grant.interval, interval);
                        }
                        Err(Refusal::NoCapacity(shortage)) => {
                            refused = true;
                            prop_assert!(!fits(&held, grains, interval));
                            prop_assert_eq!(shortage.interval, interval);
                            check_counter_offers(&calendar, &held, &shortage, now);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                Op::Extend { which, by } if !held.is_empty() => {
                    let i = which % held.len();
                    let Some(booking) = &mut bookings[i] else { continue };
                    let Held { interval, grains } = held[i];
                    let end = interval.end.and_then(|end| by.map(|by| utc(end.millis() + by)));
                    match (interval.end, calendar.extend(booking, end, utc(now))) {
                        (Some(old), Ok(_)) => {
                            let added = Interval { start: old, end };
                            prop_assert!(fits(&held, grains, added));
                            held[i].interval.end = end;
                        }
                        (Some(old), Err(Refusal::NoCapacityToExtend { busiest, .. })) => {
                            refused = true;
                            let (added, offered) = (Interval { start: old, end }, Interval { start: old, end: Some(busiest) });
                            prop_assert!(!fits(&held, grains, added));
                            prop_assert!(fits(&held, grains, offered));
                            prop_assert!(level(&held, busiest.millis()) + grains > MOST);
                        }
                        (Some(old), Err(Refusal::Over { .. })) => prop_assert!(old <= utc(now)),
                        (end, refusal) => prop_assert!(end.is_none() && refusal == Err(Refusal::NoEnd)),
                    }
                }
                Op::Release { which, at } if !held.is_empty() => {
                    let i = which % held.len();
                    let at = now + at;
                    let Some(booking) = bookings[i].take() else { continue };
                    bookings.swap_remove(i);
                    calendar.release(booking, utc(at));
                    let mut gone = held.swap_remove(i);
                    if gone.interval.start < utc(at) {
                        gone.interval.end = gone.interval.end.map_or(Some(utc(at)), |end| Some(end.min(utc(at))));
                        held.push(gone);
                        bookings.push(None);
                    }
                }
                Op::Pass { time } => {
                    now += time;
                    calendar.forget_before(utc(now));
                }
                Op::Extend { .. } | Op::Release { .. } => {}
            }
            if refused {
                prop_assert_eq!(calendar.profile(utc(now), None).collect::<Vec<_>>(), before);
            }
            for t in now..4 * WORLD {
                let reserved = level(&held, t);
                prop_assert!(reserved <= MOST, "{reserved} at {t}");
                prop_assert_eq!(calendar.reserved_at(utc(t)), BitRate(reserved * GRAIN.0), "at {}", t);
            }
        }
    }

    #[test]
    fn requests_that_fit_together_are_admitted_in_any_order(
        (requests, shuffled) in prop::collection::vec((1..=3u64, 0..WORLD, 1..15i64), 1..20)
            .prop_flat_map(|requests| (Just(requests.clone()), Just(requests).prop_shuffle())),
    ) {
        // Those that do not fit behind the ones before them are left out of both orders.
        let interval = |start, length| Interval { start: utc(start), end: Some(utc(start + length)) };
        let mut fit = Vec::new();
        let mut first = Calendar::new(limits());
        for &(grains, start, length) in &requests {
            if first.reserve(&request(grains, interval(start, length)), utc(0)).is_ok() {
                fit.push((grains, start, length));
            }
        }
        let mut second = Calendar::new(limits());
        for request_of in shuffled {
            if let Some(i) = fit.iter().position(|f| *f == request_of) {
                let (grains, start, length) = fit.swap_remove(i);
                prop_assert!(second.reserve(&request(grains, interval(start, length)), utc(0)).is_ok());
            }
        }
        let whole = |calendar: &Calendar| calendar.profile(utc(0), None).collect::<Vec<_>>();
        prop_assert_eq!(whole(&first), whole(&second));
    }

    #[test]
    fn a_calendar_whose_reservations_are_all_given_back_is_empty(
        requests in prop::collection::vec((1..=3u64, 0..WORLD, 1..15i64), 1..20),
    ) {
        let mut calendar = Calendar::new(limits());
        let bookings: Vec<_> = requests
            .into_iter()
            .map(|(grains, start, length)| {
                let interval = Interval { start: utc(start), end: Some(utc(start + length)) };
                calendar.insert(BitRate(grains * GRAIN.0), interval)
            })
            .collect();
        bookings.into_iter().for_each(|booking| calendar.release(booking, utc(0)));
        prop_assert_eq!(calendar.instants(), 0);
    }
}
