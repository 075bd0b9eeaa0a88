//! Promises about what arrives.

mod common;

use std::time::Duration;

use common::*;
use proptest::{prelude::*, sample::select};
use weir_agree::*;
use weir_share::Reservable;
use weir_units::{BitRate, Instant};

const NOW: Utc = Utc::from_millis(1_800_000_000_000);

fn at(seconds: i64) -> Utc {
    Utc::from_millis(NOW.millis() + 1_000 * seconds)
}

fn limits(mbit: u64) -> Limits {
    let split = Split::new(Reservable::new(0.9).unwrap(), None, Reservable::default()).unwrap();
    Limits { split, ..Limits::new(BitRate::mbit(mbit)) }
}

/// 90 of 100 Mbit/s may be promised of what leaves, and 45 of 50 of what arrives.
fn book() -> AgreementLedger {
    let mut ledger = AgreementLedger::new(limits(100), LedgerLimits::default());
    ledger.set_link(limits(100), Some(limits(50)));
    ledger
}

fn offer(service: &str, mbit: u64, direction: Directions, seconds: Option<(i64, i64)>) -> Offer {
    let rate = BitRate::mbit(mbit);
    let (start, end) = seconds.unzip();
    let mut offer = fig2();
    offer.service.name = name(service);
    offer.terms = Terms { start: start.map(at), end: end.map(at), direction, ..Terms::new(rate, rate) };
    offer
}

fn answer(ledger: &mut AgreementLedger, offer: Offer, id: &str) -> Result<Accepted, Rejection> {
    ledger.offer(offer, name(id), ClockReading { utc: NOW, monotonic: Instant(Duration::from_secs(1)) })
}

fn reserved(ledger: &AgreementLedger) -> [u64; 2] {
    Direction::ALL.map(|one| ledger.calendar(one).reserved_at(at(1)).0 / 1_000_000)
}

#[test]
fn each_direction_has_a_calendar_of_its_own() {
    let mut ledger = book();
    for (service, mbit, direction, sums) in [
        ("a", 60, Directions::Upload, [60, 0]),
        ("b", 30, Directions::Download, [60, 30]),
        ("c", 10, Directions::Both, [70, 40]),
    ] {
        answer(&mut ledger, offer(service, mbit, direction, None), service).unwrap();
        assert_eq!(reserved(&ledger), sums, "{service}");
    }
    let directions: Vec<Directions> = ledger.in_force(NOW).iter().map(|one| one.direction).collect();
    assert_eq!(directions, [Directions::Upload, Directions::Download, Directions::Both]);
    ledger.terminate(&name("c"), NOW).unwrap();
    assert_eq!(reserved(&ledger), [60, 30]);
    // The same container may have an agreement in each direction, and no second one in the same direction.
    answer(&mut ledger, offer("a", 5, Directions::Download, None), "d").unwrap();
    let twice = answer(&mut ledger, offer("a", 5, Directions::Both, None), "e").unwrap_err();
    assert!(matches!(twice, Rejection::SelectorTaken { .. }), "{twice}");
    assert_eq!(reserved(&ledger), [60, 35]);
}

#[test]
fn promise_about_both_is_admitted_in_both_directions_or_in_none() {
    let mut ledger = book();
    answer(&mut ledger, offer("a", 20, Directions::Download, None), "a").unwrap();
    answer(&mut ledger, offer("b", 70, Directions::Upload, None), "b").unwrap();
    // 20 Mbit/s are free of what leaves, and 25 of what arrives.
    let refused = Fault::from(&answer(&mut ledger, offer("c", 30, Directions::Both, None), "c").unwrap_err());
    assert!(refused.message.starts_with("download: cannot promise 30mbit"), "{}", refused.message);
    assert_eq!(refused.counter_offer.unwrap().min, Some(BitRate::mbit(20)));
    assert_eq!(reserved(&ledger), [70, 20]);
    let accepted = answer(&mut ledger, offer("c", 20, Directions::Both, None), "c").unwrap();
    assert_eq!((accepted.agreement.offer.terms.direction, reserved(&ledger)), (Directions::Both, [90, 40]));

    // The earliest start is one that both have room for.
    let mut ledger = book();
    answer(&mut ledger, offer("a", 45, Directions::Download, Some((0, 20))), "a").unwrap();
    answer(&mut ledger, offer("b", 90, Directions::Upload, Some((15, 30))), "b").unwrap();
    answer(&mut ledger, offer("c", 40, Directions::Download, Some((30, 50))), "c").unwrap();
    let refused = answer(&mut ledger, offer("d", 10, Directions::Both, Some((0, 5))), "d").unwrap_err();
    assert_eq!(Fault::from(&refused).counter_offer.unwrap().start, Some(at(50)), "{refused}");

    // A maximum that neither direction could hold is refused with one that both can.
    let large = Fault::from(&answer(&mut book(), offer("d", 95, Directions::Both, None), "d").unwrap_err());
    assert_eq!(large.code, FaultCode::MaxAboveReservable);
    assert_eq!(large.counter_offer.unwrap().max, Some(BitRate::mbit(45)));
}

#[test]
fn what_arrives_is_promised_to_a_container_of_a_link_that_shares_it() {
    let mut without = AgreementLedger::new(limits(100), LedgerLimits::default());
    for direction in [Directions::Download, Directions::Both] {
        let refused = answer(&mut without, offer("a", 5, direction, None), "a").unwrap_err();
        assert_eq!(Fault::from(&refused).code, FaultCode::DirectionNotOffered, "{refused}");
        let mut port = offer("a", 5, direction, None);
        port.terms.selector.source_port = Some(8001);
        let refused = answer(&mut book(), port, "a").unwrap_err();
        assert!(refused.to_string().contains("source port 8001"), "{refused}");
        assert_eq!(Fault::from(&refused).code, FaultCode::DirectionNotOffered);
    }
    assert_eq!(reserved(&without), [0, 0]);

    // An agreement of a link that has shared its download stays, and counts when it is shared again.
    let mut ledger = book();
    answer(&mut ledger, offer("a", 40, Directions::Download, None), "a").unwrap();
    ledger.set_link(limits(100), None);
    assert!(answer(&mut ledger, offer("b", 1, Directions::Download, None), "b").is_err());
    ledger.set_link(limits(100), Some(limits(50)));
    assert!(answer(&mut ledger, offer("c", 10, Directions::Download, None), "c").is_err());
    assert!(answer(&mut ledger, offer("d", 5, Directions::Download, None), "d").is_ok());
}

#[test]
fn promise_is_extended_in_both_directions_or_in_none() {
    let mut ledger = book();
    answer(&mut ledger, offer("a", 10, Directions::Both, Some((0, 10))), "a").unwrap();
    answer(&mut ledger, offer("b", 85, Directions::Upload, Some((30, 40))), "b").unwrap();
    answer(&mut ledger, offer("c", 40, Directions::Download, Some((20, 40))), "c").unwrap();
    let refused = Fault::from(&ledger.renew(&name("a"), Some(at(35)), NOW).unwrap_err());
    assert_eq!(refused.counter_offer.unwrap().end, Some(at(20)), "{}", refused.message);
    let held = |ledger: &AgreementLedger, second: i64| {
        Direction::ALL.map(|one| ledger.calendar(one).reserved_at(at(second)).0 / 1_000_000)
    };
    assert_eq!(held(&ledger, 15), [0, 0]);
    ledger.renew(&name("a"), Some(at(20)), NOW).unwrap();
    assert_eq!((held(&ledger, 15), held(&ledger, 20)), ([10, 10], [0, 40]));
    // The packets stay taken, too.
    let same = answer(&mut ledger, offer("a", 1, Directions::Download, Some((15, 18))), "d").unwrap_err();
    assert!(matches!(same, Rejection::SelectorTaken { .. }), "{same}");
    ledger.advance(at(20));
    assert_eq!(ledger.agreement(&name("a")).unwrap().state, AgreementState::Complete);
}

proptest! {
    /// Neither direction is promised more than it has, and each counter-offer is accepted.
    #[test]
    fn random_promises_fit_in_each_direction_and_counter_offers_hold(
        offers in prop::collection::vec(
            (
                0..4usize,
                1..60u64,
                select(vec![Directions::Upload, Directions::Download, Directions::Both]),
                (0..50i64, 1..30i64),
                any::<bool>(),
            ),
            1..25,
        ),
    ) {
        let mut ledger = book();
        let mut made: Vec<(Name, Offer)> = Vec::new();
        for (i, (service, mbit, direction, (start, length), is_ended)) in offers.into_iter().enumerate() {
            let asked = offer(&format!("s{service}"), mbit, direction, Some((start, start + length)));
            let id = format!("a{i}");
            match ledger.decide(&asked, &name(&id), NOW) {
                Ok(_) => {
                    let monotonic = Instant(Duration::from_secs(1_000 * i as u64));
                    let now = ClockReading { utc: NOW, monotonic };
                    ledger.offer(asked.clone(), name(&id), now).unwrap();
                    made.push((name(&id), asked));
                }
                Err(rejection) => {
                    let counter = Fault::from(&rejection).counter_offer.unwrap_or_default();
                    let retry = |change: &dyn Fn(&mut Terms)| {
                        let mut again = asked.clone();
                        change(&mut again.terms);
                        ledger.decide(&again, &name("again"), NOW)
                    };
                    if let Some(min) = counter.min {
                        prop_assert!(min < asked.terms.min);
                        prop_assert!(retry(&|terms| terms.min = min).is_ok(), "{min} of {rejection}");
                    }
                    if let Some(from) = counter.start {
                        let until = from.after(Duration::from_secs(length as u64));
                        let later = retry(&|terms| (terms.start, terms.end) = (Some(from), Some(until)));
                        prop_assert!(later.is_ok(), "{from} of {rejection}");
                    }
                }
            }
            if is_ended && let Some((id, _)) = made.pop() {
                ledger.terminate(&id, NOW).unwrap();
            }
            for (direction, most) in [(Direction::Upload, 90), (Direction::Download, 45)] {
                for second in 0..80 {
                    let holds = |terms: &Terms| {
                        terms.direction.has(direction) && terms.start <= Some(at(second)) && Some(at(second)) < terms.end
                    };
                    let sum = made.iter().map(|(_, offer)| &offer.terms).filter(|t| holds(t)).map(|t| t.min.0).sum();
                    prop_assert_eq!(ledger.calendar(direction).reserved_at(at(second)), BitRate(sum));
                    prop_assert!(sum <= BitRate::mbit(most).0);
                }
            }
        }
    }
}
