//! The book: offers in, answers out, and what is in force when.

mod common;

use std::time::Duration;

use common::*;
use proptest::prelude::*;
use weir_agree::*;
use weir_share::Reservable;
use weir_units::{BitRate, Bytes, Instant};

const NOW: Utc = Utc::from_millis(1_800_000_000_000);

fn at(seconds: i64) -> Utc {
    Utc::from_millis(NOW.millis() + 1_000 * seconds)
}

/// Long enough after the offers before it.
fn moment(seconds: i64) -> ClockReading {
    ClockReading { utc: at(seconds), monotonic: Instant(Duration::from_secs(1_000_000 + seconds as u64)) }
}

/// The paper's link: 100 Mbit/s, U_res 0.95, U_oth 0.05.
fn link() -> Limits {
    let part = |part| Reservable::new(part).unwrap();
    let split = Split::new(part(0.95), Some(part(0.05)), part(1.0)).unwrap();
    Limits { split, ..Limits::new(BitRate::mbit(100)) }
}

fn book() -> AgreementLedger {
    AgreementLedger::new(link(), LedgerLimits::default())
}

/// Fig. 2's offer for another service and time.
fn offer(service: &str, mbit: u64, start: Option<i64>, end: Option<i64>) -> Offer {
    let rate = BitRate::mbit(mbit);
    let mut offer = fig2();
    offer.service.name = name(service);
    offer.terms = Terms { start: start.map(at), end: end.map(at), ..Terms::new(rate, rate) };
    offer
}

fn accept(ledger: &mut AgreementLedger, offer: Offer, id: &str) -> Agreement {
    ledger.offer(offer, name(id), moment(0)).unwrap().agreement
}

fn in_force(ledger: &AgreementLedger, seconds: i64) -> Vec<(String, u64)> {
    let mbit = |rate: BitRate| rate.0 / 1_000_000;
    ledger.in_force(at(seconds)).into_iter().map(|f| (f.id.to_string(), mbit(f.max))).collect()
}

/// All that can be seen of a book.
fn seen(ledger: &AgreementLedger) -> impl PartialEq + std::fmt::Debug + use<> {
    let profile: Vec<_> = ledger.calendar(Direction::Upload).profile(NOW, None).collect();
    let force = format!("{:?}", ledger.in_force(at(1)));
    (ledger.agreements().cloned().collect::<Vec<_>>(), profile, ledger.next_change(NOW), force)
}

#[test]
fn papers_five_customers_are_accepted_and_the_sixth_hears_the_rest() {
    let mut ledger = book();
    for i in 1..=5 {
        let agreement = accept(&mut ledger, offer(&format!("www{i}"), 19, None, None), &format!("a{i}"));
        assert_eq!(agreement.state, AgreementState::Observed);
        assert_eq!(agreement.service_state, ServiceState::Ready);
        assert_eq!(agreement.selector, Selector::service(&name(&format!("www{i}"))));
    }
    let rejection = ledger.offer(offer("www6", 19, None, None), name("a6"), moment(0)).unwrap_err();
    assert!(matches!(
        rejection,
        Rejection::Refused(Refusal::NoCapacity(Shortage {
            largest_min: None,
            earliest: Earliest::Never,
            ..
        }))
    ));
    assert_eq!(ledger.in_force(at(0)).len(), 5);
}

#[test]
fn of_two_offers_for_the_last_megabit_the_first_wins() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 94, None, None), "a");
    accept(&mut ledger, offer("b", 1, None, None), "b");
    assert!(ledger.offer(offer("c", 1, None, None), name("c"), moment(0)).is_err());
}

#[test]
fn agreements_begin_and_end_at_their_moments_and_not_before() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 10, Some(10), Some(20)), "a");
    accept(&mut ledger, offer("b", 20, None, Some(15)), "b");
    assert_eq!(ledger.next_change(at(0)), Some(at(10)));
    assert_eq!(ledger.next_change(at(10)), Some(at(15)));
    assert_eq!(ledger.next_change(at(20)), None);
    assert_eq!(in_force(&ledger, 9), [("b".into(), 20)]);
    assert_eq!(in_force(&ledger, 10), [("a".into(), 10), ("b".into(), 20)]);
    assert_eq!(in_force(&ledger, 15), [("a".into(), 10)]);

    assert_eq!(ledger.advance(Utc::from_millis(at(10).millis() - 1)), []);
    let change = |id, state, service_state| Change { id: name(id), state, service_state };
    assert_eq!(ledger.advance(at(10)), [change("a", AgreementState::Observed, ServiceState::Ready)]);
    assert_eq!(
        ledger.advance(at(20)),
        [
            change("b", AgreementState::Complete, ServiceState::Completed),
            change("a", AgreementState::Complete, ServiceState::Completed),
        ]
    );
    assert_eq!((ledger.next_change(NOW), ledger.in_force(at(20)).len()), (None, 0));
    assert_eq!(ledger.calendar(Direction::Upload).instants(), 0);
}

#[test]
fn an_accepted_offer_has_the_same_answer_and_another_with_its_id_none() {
    let mut ledger = book();
    let first = Offer { id: Some(name("o1")), ..offer("a", 60, None, Some(60)) };
    let second = Offer { id: Some(name("o2")), ..offer("b", 60, None, Some(60)) };
    let made = accept(&mut ledger, first.clone(), "a1");
    ledger.offer(second.clone(), name("a2"), moment(1)).unwrap_err();
    let before = seen(&ledger);

    let again = ledger.offer(first.clone(), name("a3"), moment(2)).unwrap();
    assert_eq!((again.agreement, again.repeated), (made, true));
    assert!(ledger.offer(second.clone(), name("a4"), moment(3)).is_err());
    for same_id in ["o1", "o2"] {
        let other = Offer { id: Some(name(same_id)), ..offer("c", 1, None, Some(60)) };
        let error = ledger.offer(other, name("a5"), moment(4)).unwrap_err();
        assert_eq!(error, Rejection::OfferIdReused { id: name(same_id) });
    }
    assert_eq!(seen(&ledger), before);

    // Ids are each party's own.
    let mut of_another = offer("c", 1, None, Some(60));
    of_another.context.initiator = name("another");
    of_another.id = Some(name("o1"));
    assert!(!ledger.offer(of_another, name("a6"), moment(5)).unwrap().repeated);
}

#[test]
fn an_agreements_id_that_is_taken_is_not_held_against_the_offer() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 1, None, None), "a1");
    let second = Offer { id: Some(name("o2")), ..offer("b", 1, None, None) };
    let error = ledger.offer(second.clone(), name("a1"), moment(0)).unwrap_err();
    assert_eq!(error, Rejection::IdTaken { id: name("a1") });
    assert!(ledger.offer(second, name("a2"), moment(0)).is_ok());
}

#[test]
fn a_refused_offer_that_is_sent_again_is_decided_by_what_is_free_then() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 80, None, None), "a");
    accept(&mut ledger, offer("b", 10, None, None), "b");
    let again = Offer { id: Some(name("rep")), ..offer("c", 20, None, None) };
    let taken = |ledger: &mut AgreementLedger, seconds| {
        let refusal = ledger.offer(again.clone(), name("c"), moment(seconds)).unwrap_err();
        let Rejection::Refused(Refusal::NoCapacity(shortage)) = refusal else { panic!("{refusal}") };
        shortage.largest_min
    };
    assert_eq!(taken(&mut ledger, 1), Some(BitRate::mbit(5)));
    ledger.terminate(&name("b"), at(2)).unwrap();
    assert_eq!(taken(&mut ledger, 3), Some(BitRate::mbit(15)));
    ledger.terminate(&name("a"), at(4)).unwrap();
    assert!(!ledger.offer(again.clone(), name("c"), moment(5)).unwrap().repeated);
    assert!(ledger.offer(again, name("d"), moment(6)).unwrap().repeated);
}

#[test]
fn a_rejected_offers_id_is_kept_until_too_many_others_were_made() {
    let limits = LedgerLimits { rejections: 2, ..LedgerLimits::default() };
    let mut ledger = AgreementLedger::new(link(), limits);
    accept(&mut ledger, offer("a", 60, None, Some(60)), "a");
    // The second answer to one offer takes no other's place.
    for (i, id) in ["o1", "o2", "o3", "o3"].into_iter().enumerate() {
        let refused = Offer { id: Some(name(id)), ..offer("b", 60, None, Some(60)) };
        assert!(ledger.offer(refused, name(id), moment(i as i64)).is_err());
    }
    let mut other = |id: &str| {
        let other = Offer { id: Some(name(id)), ..offer("c", 1, None, Some(60)) };
        ledger.offer(other, name(&format!("of-{id}")), moment(6)).map(drop)
    };
    for id in ["o2", "o3"] {
        assert_eq!(other(id), Err(Rejection::OfferIdReused { id: name(id) }));
    }
    assert_eq!(other("o1"), Ok(()));
}

#[test]
fn a_terminated_agreement_frees_bandwidth_and_selector_at_once() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 95, None, None), "a");
    ledger.terminate(&name("a"), at(10)).unwrap();
    assert_eq!(ledger.agreement(&name("a")).unwrap().state, AgreementState::ObservedAndTerminating);
    assert_eq!(
        (ledger.in_force(at(10)).len(), ledger.calendar(Direction::Upload).reserved_at(at(10))),
        (0, BitRate::ZERO)
    );
    assert_eq!(ledger.agreement(&name("a")).unwrap().until, Some(at(10)));
    assert!(ledger.offer(offer("a", 95, None, None), name("b"), moment(10)).is_ok());
    let error = ledger.terminate(&name("a"), at(11)).unwrap_err();
    assert_eq!(error.to_string(), "cannot terminate an agreement that is ObservedAndTerminating");
    ledger.finish_termination(&name("a"), at(12)).unwrap();
    assert_eq!(ledger.agreement(&name("a")).unwrap().state, AgreementState::Terminated);
    assert!(matches!(ledger.renew(&name("a"), None, at(12)), Err(Rejection::State(_))));
    assert_eq!(ledger.terminate(&name("x"), NOW), Err(Rejection::UnknownAgreement(name("x"))));
}

#[test]
fn a_renewal_moves_the_end_and_is_refused_without_a_trace() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 60, None, Some(10)), "a");
    accept(&mut ledger, offer("b", 60, Some(20), Some(30)), "b");
    let before = seen(&ledger);
    let refused = ledger.renew(&name("a"), Some(at(25)), at(1)).unwrap_err();
    assert!(matches!(
        refused,
        Rejection::Refused(Refusal::NoCapacityToExtend { busiest, .. }) if busiest == at(20)
    ));
    assert_eq!(Fault::from(&refused).counter_offer.unwrap().end, Some(at(20)));
    assert_eq!(seen(&ledger), before);
    ledger.renew(&name("a"), Some(at(20)), at(1)).unwrap();
    assert_eq!(ledger.agreement(&name("a")).unwrap().until, Some(at(20)));
    assert_eq!(ledger.next_change(at(1)), Some(at(20)));
    assert_eq!(in_force(&ledger, 15), [("a".into(), 60)]);
    let taken = ledger.offer(offer("a", 1, Some(15), Some(18)), name("x"), moment(1)).unwrap_err();
    assert!(matches!(taken, Rejection::SelectorTaken { until, .. } if until == Some(at(20))));

    // The same packets are another agreement's from then on.
    accept(&mut ledger, offer("c", 1, None, Some(10)), "c");
    accept(&mut ledger, offer("c", 1, Some(10), Some(20)), "d");
    let before = seen(&ledger);
    assert!(matches!(ledger.renew(&name("c"), Some(at(11)), at(1)), Err(Rejection::SelectorTaken { .. })));
    assert_eq!(seen(&ledger), before);

    let mut expires = offer("e", 1, None, Some(10));
    expires.context.expiration = Some(at(15));
    accept(&mut ledger, expires, "e");
    for (end, words) in [(Some(at(16)), "to 2027-01-15T08:00:16Z"), (None, "without an end")] {
        let refused = ledger.renew(&name("e"), end, at(1)).unwrap_err();
        assert!(matches!(refused, Rejection::EndAfterExpiration { .. }), "{refused}");
        let told = refused.to_string();
        assert!(told.starts_with(&format!("cannot promise bandwidth {words} in an agreement")), "{told}");
    }
    ledger.renew(&name("e"), Some(at(15)), at(1)).unwrap();
}

#[test]
fn packets_are_promised_to_one_agreement_at_a_time() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 1, Some(10), Some(20)), "a");
    let error = ledger.offer(offer("a", 1, Some(19), Some(30)), name("b"), moment(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot promise bandwidth to container a: another agreement does from 2027-01-15T08:00:10Z to \
         2027-01-15T08:00:20Z"
    );
    accept(&mut ledger, offer("a", 1, Some(20), Some(30)), "b");
    let mut selected = offer("a", 1, Some(10), Some(20));
    selected.terms.selector.source_port = Some(8001);
    let agreement = accept(&mut ledger, selected, "c");
    assert_eq!(agreement.selector, Selector { source_port: Some(8001), ..Selector::default() });
}

#[test]
fn a_quota_lowers_the_ceiling_until_its_day_is_over() {
    let mut ledger = book();
    let mut limited = offer("a", 10, None, None);
    limited.terms.quota = Some(Quota { day: Some(Bytes(1_000)), month: None, after: BitRate::mbit(2) });
    accept(&mut ledger, limited, "a");
    ledger.count(&name("a"), Bytes(999), at(1)).unwrap();
    assert_eq!((in_force(&ledger, 1), ledger.next_change(at(1))), (vec![("a".into(), 10)], None));
    ledger.count(&name("a"), Bytes(1), at(2)).unwrap();
    let midnight = NOW.next_day();
    let force = &ledger.in_force(at(2))[0];
    assert_eq!((force.min, force.max), (BitRate::mbit(2), BitRate::mbit(2)));
    assert_eq!(force.limited_until, Some(midnight));
    assert_eq!(ledger.next_change(at(2)), Some(midnight));
    assert_eq!(ledger.in_force(midnight)[0].max, BitRate::mbit(10));
    ledger.count(&name("a"), Bytes(0), midnight).unwrap();
    assert_eq!(ledger.next_change(midnight), None);
}

#[test]
fn a_template_bounds_offers_and_selects_for_those_that_do_not() {
    let mut ledger = book();
    ledger.set_template(template()).unwrap();
    let by = |mbit: u64, end| {
        let mut offer = offer("camera", mbit, None, end);
        offer.context.template_id = Some(name("video"));
        offer
    };
    let reject = |ledger: &mut AgreementLedger, offer| ledger.offer(offer, name("x"), moment(0)).unwrap_err();
    assert!(matches!(
        reject(&mut ledger, by(21, Some(60))),
        Rejection::BandwidthOutsideTemplate { which: Bandwidth::Min, most, .. } if most == BitRate::mbit(20)
    ));
    assert!(matches!(reject(&mut ledger, by(20, None)), Rejection::TimeOutsideTemplate { .. }));
    let unknown = Offer { context: Context { template_id: Some(name("audio")), ..fig2().context }, ..fig2() };
    let rejection = reject(&mut ledger, unknown);
    assert_eq!(
        rejection.to_string(),
        "cannot agree by template audio: there is none of that id (known: video)"
    );
    let longest = i64::from(template().constraints.longest_s.unwrap());
    assert!(matches!(reject(&mut ledger, by(20, Some(longest + 1))), Rejection::TimeOutsideTemplate { .. }));
    let agreement = accept(&mut ledger, by(20, Some(longest)), "a");
    assert_eq!(agreement.selector, template().terms.selector);
    assert!(matches!(ledger.renew(&name("a"), None, at(1)), Err(Rejection::TimeOutsideTemplate { .. })));
}

#[test]
fn a_template_that_contradicts_itself_is_not_offered() {
    let mut broken = template();
    broken.terms.selector.dscp = Some(64);
    let mut ledger = book();
    assert!(matches!(ledger.set_template(broken), Err(TermsError::Selector(_))));
    assert_eq!(ledger.templates().count(), 0);
}

#[test]
fn a_counter_offer_that_something_else_forbids_is_not_made() {
    let mut ledger = book();
    ledger.set_template(template()).unwrap();
    accept(&mut ledger, offer("a", 90, None, Some(60)), "a");
    let mut asked = offer("camera", 20, None, Some(120));
    asked.context.template_id = Some(name("video"));
    accept(
        &mut ledger,
        Offer {
            terms: Terms { start: Some(at(130)), ..offer("c", 1, None, Some(140)).terms },
            ..asked.clone()
        },
        "c",
    );
    let shortage =
        |ledger: &mut AgreementLedger, offer: Offer| match ledger.offer(offer, name("x"), moment(0)) {
            Err(Rejection::Refused(Refusal::NoCapacity(shortage))) => shortage,
            other => panic!("{other:?}"),
        };
    // From 60 to 180 there is room, but from 130 on the packets are another agreement's.
    let refused = shortage(&mut ledger, asked.clone());
    assert_eq!((refused.largest_min, refused.earliest), (Some(BitRate::mbit(5)), Earliest::Unknown));

    // Less than a template's least is not offered.
    let mut least = template();
    least.constraints.min_at_least = Some(BitRate::mbit(10));
    ledger.set_template(least).unwrap();
    assert_eq!(shortage(&mut ledger, asked).largest_min, None);
}

#[test]
fn an_oversubscribed_link_says_so_in_every_answer_also_after_a_restart() {
    let factor = Oversubscription::new(1.5).unwrap();
    let link = Limits { oversubscription: Some(factor), ..link() };
    let mut ledger = AgreementLedger::new(link, LedgerLimits::default());
    let asks = |service, id| Offer { id: Some(name(id)), ..offer(service, 60, None, Some(60)) };
    let said = |ledger: &mut AgreementLedger, service, id, new| {
        ledger.offer(asks(service, id), name(new), moment(0)).unwrap().oversubscribed.unwrap()
    };
    assert_eq!(said(&mut ledger, "a", "o1", "a"), Oversubscribed { factor, excess: BitRate::ZERO });
    assert_eq!(said(&mut ledger, "b", "o2", "b"), Oversubscribed { factor, excess: BitRate::mbit(25) });
    let mut restored = AgreementLedger::new(link, LedgerLimits::default());
    for agreement in ledger.agreements() {
        restored.restore(agreement.clone(), Usage::default());
    }
    let again = restored.offer(asks("b", "o2"), name("c"), moment(0)).unwrap();
    assert_eq!((again.repeated, again.oversubscribed), (true, Some(said(&mut ledger, "b", "o2", "d"))));
}

#[test]
fn an_end_comes_from_the_terms_or_else_from_the_expiration() {
    let mut ledger = book();
    let expires = |service, end| {
        let mut offer = offer(service, 1, None, end);
        offer.context.expiration = Some(at(50));
        offer
    };
    assert_eq!(accept(&mut ledger, expires("a", None), "a").until, Some(at(50)));
    assert_eq!(accept(&mut ledger, expires("b", Some(40)), "b").until, Some(at(40)));
    let rejection = ledger.offer(expires("c", Some(51)), name("c"), moment(0)).unwrap_err();
    assert_eq!(rejection, Rejection::EndAfterExpiration { end: Some(at(51)), expiration: at(50) });
}

#[test]
fn agreements_are_counted_of_a_party_and_in_all() {
    let limits = LedgerLimits { agreements: 3, of_account: 2, ..LedgerLimits::default() };
    let mut ledger = AgreementLedger::new(link(), limits);
    accept(&mut ledger, offer("a", 1, None, Some(10)), "a");
    accept(&mut ledger, offer("b", 1, None, Some(20)), "b");
    let of = |party: &str, service: &str| {
        let mut offer = offer(service, 1, None, Some(10));
        offer.context.initiator = name(party);
        offer
    };
    let mut reject = |offer| ledger.offer(offer, name("x"), moment(0)).unwrap_err();
    assert_eq!(
        reject(of("customer", "c")),
        Rejection::TooManyAgreements { limit: 2, account: Some(name("customer")) }
    );
    accept(&mut ledger, of("other", "c"), "c");
    let rejection = ledger.offer(of("third", "d"), name("d"), moment(0)).unwrap_err();
    assert_eq!(rejection, Rejection::TooManyAgreements { limit: 3, account: None });
    // Agreements that are over take no place, also while they are remembered.
    ledger.advance(at(10));
    let late = Offer { terms: Terms { end: None, ..of("customer", "d").terms }, ..of("customer", "d") };
    assert!(ledger.offer(late, name("d"), moment(10)).is_ok());
    assert_eq!(ledger.forget_until(at(10)).len(), 2);
}

#[test]
fn account_with_most_agreements_that_are_over_has_its_oldest_forgotten() {
    let limits = LedgerLimits { agreements: 4, ..LedgerLimits::default() };
    let mut ledger = AgreementLedger::new(link(), limits);
    let make = |ledger: &mut AgreementLedger, account: &str, i: i64| {
        let id = name(&format!("{account}{i}"));
        let offer = offer(id.as_str(), 1, Some(i), Some(i + 1));
        let account = name(account);
        // All of them name the same party.
        let from = Sender { client: &account, account: &account };
        ledger.offer_from(from, offer, id, AgreementState::Observed, moment(i)).unwrap();
        ledger.advance(at(i + 1));
        ledger.forget_excess().into_iter().map(|agreement| agreement.id).collect::<Vec<_>>()
    };
    for i in [0, 1] {
        assert_eq!(make(&mut ledger, "quiet", i), []);
    }
    assert_eq!((make(&mut ledger, "busy", 2), make(&mut ledger, "busy", 3)), (vec![], vec![]));
    assert_eq!(make(&mut ledger, "busy", 4), [name("busy2")]);
    assert_eq!(make(&mut ledger, "busy", 5), [name("busy3")]);
    let left: Vec<_> = ledger.agreements().map(|agreement| agreement.id.clone()).collect();
    assert_eq!(left, ["busy4", "busy5", "quiet0", "quiet1"].map(name));
}

#[test]
fn limits_that_change_bound_the_next_offers() {
    let limits = LedgerLimits { of_account: 1, ..LedgerLimits::default() };
    let mut ledger = AgreementLedger::new(link(), limits);
    accept(&mut ledger, offer("a", 1, None, None), "a");
    let send = |ledger: &mut AgreementLedger| {
        let again = Offer { id: Some(name("o-1")), ..offer("b", 1, None, None) };
        ledger.offer(again, name("b"), moment(0))
    };
    assert!(matches!(send(&mut ledger), Err(Rejection::TooManyAgreements { limit: 1, .. })));
    ledger.set_limits(LedgerLimits { of_account: 2, ..limits });
    assert!(send(&mut ledger).is_ok());
    let pace = ThrottleLimits { party: Pace { burst: 1, every: Duration::from_secs(60) }, ..limits.throttle };
    ledger.set_limits(LedgerLimits { throttle: pace, ..limits });
    assert!(matches!(send(&mut ledger), Err(Rejection::TooManyOffers { .. })));
}

#[test]
fn no_more_is_promised_than_there_is_after_the_clock_was_a_day_ahead() {
    let mut ledger = book();
    accept(&mut ledger, offer("old", 10, None, None), "old");
    ledger.advance(at(86_400));
    ledger.advance(at(0));
    accept(&mut ledger, offer("a", 80, Some(0), Some(3_600)), "a");
    let calendar = |ledger: &AgreementLedger| ledger.calendar(Direction::Upload).reserved_at(at(60));
    assert_eq!(calendar(&ledger), BitRate::mbit(90));
    let second = ledger.offer(offer("b", 80, Some(0), Some(3_600)), name("b"), moment(0)).unwrap_err();
    assert!(matches!(second, Rejection::Refused(Refusal::NoCapacity(_))), "{second:?}");
    let same = ledger.offer(offer("a", 1, Some(0), Some(3_600)), name("c"), moment(0)).unwrap_err();
    assert!(matches!(same, Rejection::SelectorTaken { .. }), "{same:?}");
    // The bandwidth that was reserved again is given back.
    for id in ["old", "a"] {
        ledger.terminate(&name(id), at(60)).unwrap();
    }
    assert_eq!(calendar(&ledger), BitRate::ZERO);
}

#[test]
fn flood_of_offers_is_refused_with_a_time_to_wait() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 1, None, None), "a");
    let monotonic = moment(0).monotonic;
    let mut refused = 0;
    for i in 0..10_000 {
        let flood = Offer { id: Some(name(&format!("o{i}"))), ..offer("b", 99, None, None) };
        match ledger.offer(flood, name(&format!("b{i}")), ClockReading { utc: NOW, monotonic }) {
            Err(Rejection::TooManyOffers { retry_after, .. }) => {
                assert_eq!(retry_after, Duration::from_secs(1));
                refused += 1;
            }
            answer => assert!(matches!(answer, Err(Rejection::Refused(_))), "{answer:?}"),
        }
    }
    assert_eq!((refused, ledger.agreements().count()), (10_000 - 19, 1));
    let fault = Fault::from(&ledger.offer(offer("b", 1, None, None), name("b"), moment(0)).unwrap_err());
    assert_eq!((fault.code, fault.retry_after_ms), (FaultCode::TooManyOffers, Some(1_000)));
}

#[test]
fn a_fault_carries_the_counter_offers() {
    let mut ledger = book();
    accept(&mut ledger, offer("a", 60, None, Some(60)), "a");
    let rejection = ledger.offer(offer("b", 40, None, Some(60)), name("b"), moment(0)).unwrap_err();
    let fault = Fault::from(&rejection);
    let counter =
        CounterOffer { min: Some(BitRate::mbit(35)), start: Some(at(60)), ..CounterOffer::default() };
    assert_eq!((fault.code, fault.counter_offer.as_deref()), (FaultCode::NoCapacity, Some(&counter)));
    let xml = fault.write(Language::Xml, NOW);
    assert!(xml.contains("<weir:Min unit=\"Mbps\">35</weir:Min>"), "{xml}");
    assert!(xml.contains("<weir:Start>2027-01-15T08:01:00Z</weir:Start>"), "{xml}");
    let json: serde_json::Value = serde_json::from_str(&fault.write(Language::Json, NOW)).unwrap();
    assert_eq!(json["fault"]["counter_offer"]["min"], 35_000_000);
    let back: Fault = serde_json::from_value(json["fault"].clone()).unwrap();
    assert_eq!(back, fault);

    let rejection = ledger.offer(offer("b", 96, None, Some(60)), name("b"), moment(0)).unwrap_err();
    let fault = Fault::from(&rejection);
    assert_eq!(fault.code, FaultCode::MaxAboveReservable);
    assert_eq!(fault.counter_offer.unwrap().max, Some(BitRate::mbit(95)));
}

prop_compose! {
    fn small_offer()(
        service in 0..4,
        mbit in 0..50u64,
        start in prop::option::of(-2..30i64),
        end in prop::option::of(0..60i64),
        id in prop::option::of(0..6),
        quota in any::<bool>(),
    ) -> Offer {
        let mut offer = offer(&format!("s{service}"), mbit, start.map(|s| s * 20), end);
        offer.id = id.map(|id| name(&format!("o{id}")));
        let after = BitRate::kbit(500);
        offer.terms.quota = quota.then_some(Quota { day: Some(Bytes(1)), month: None, after });
        offer
    }
}

proptest! {
    #[test]
    fn a_restored_book_is_the_book_and_what_was_refused_left_no_trace(
        ops in prop::collection::vec((0..5, small_offer(), any::<prop::sample::Index>()), 1..30),
    ) {
        let mut ledger = book();
        let mut ids = vec![name("none")];
        let mut now = 0;
        for (i, (op, offer, index)) in ops.into_iter().enumerate() {
            now += 1;
            let before = seen(&ledger);
            let (id, asked) = (index.get(&ids).clone(), offer.clone());
            let answer = match op {
                0..3 => {
                    let new = name(&format!("a{i}"));
                    ids.push(new.clone());
                    ledger.offer(offer, new, moment(20 * now)).map(drop)
                }
                3 => ledger.terminate(&id, at(20 * now)),
                _ => ledger.renew(&id, offer.terms.end, at(20 * now)).map(drop),
            };
            if answer.is_err() {
                prop_assert_eq!(seen(&ledger), before);
            }
            if let Err(Rejection::Refused(Refusal::NoCapacity(shortage))) = answer {
                let counter = |change: &dyn Fn(&mut Terms)| {
                    let mut offer = asked.clone();
                    change(&mut offer.terms);
                    ledger.decide(&offer, &name("new"), at(20 * now)).is_ok()
                };
                if let Some(min) = shortage.largest_min {
                    prop_assert!(counter(&|terms| terms.min = min));
                    prop_assert!(!counter(&|terms| terms.min = BitRate(min.0 + GRAIN.0)));
                }
                if let Earliest::At(start) = shortage.earliest {
                    let shift = start.since(shortage.interval.start);
                    let accepted = counter(&|terms| {
                        terms.start = Some(start);
                        terms.end = terms.end.map(|end| end.after(shift));
                    });
                    prop_assert!(accepted);
                }
            }
            if i % 7 == 6 {
                ledger.advance(at(20 * now));
            }
            let reserved: u64 = ledger.in_force(at(20 * now)).iter().map(|f| f.min.0).sum();
            prop_assert!(reserved <= 95_000_000);
        }

        // Through every language, as if from a disk.
        ledger.advance(at(20 * now));
        for language in Language::ALL {
            let mut restored = AgreementLedger::new(link(), LedgerLimits::default());
            for agreement in ledger.agreements() {
                let read = Agreement::read(&agreement.write(language), language).unwrap();
                restored.restore(read, ledger.usage(&agreement.id).unwrap());
            }
            restored.advance(at(20 * now));
            for t in 0..100 {
                prop_assert_eq!(restored.in_force(at(20 * (now + t))), ledger.in_force(at(20 * (now + t))));
                prop_assert_eq!(restored.next_change(at(20 * (now + t))), ledger.next_change(at(20 * (now + t))));
            }
            let profile = |ledger: &AgreementLedger| ledger.calendar(Direction::Upload).profile(at(20 * now), None).collect::<Vec<_>>();
            prop_assert_eq!(profile(&restored), profile(&ledger));
            prop_assert!(restored.agreements().eq(ledger.agreements()));
        }

        // And everything can be undone.
        for id in ids {
            ledger.withdraw(&id);
        }
        prop_assert_eq!((ledger.calendar(Direction::Upload).instants(), ledger.agreements().count()), (0, 0));
        prop_assert_eq!(ledger.next_change(NOW), None);
    }
}

#[test]
fn a_pending_offer_reserves_nothing_until_it_is_accepted() {
    let mut ledger = book();
    let pend = |ledger: &mut AgreementLedger, service: &str, id: &str| {
        let offer = Offer { id: Some(name(service)), ..offer(service, 60, None, None) };
        let client = name("client");
        let from = Sender { client: &client, account: &offer.context.initiator.clone() };
        ledger.offer_from(from, offer, name(id), AgreementState::Pending, moment(0))
    };
    for (service, id) in [("a", "a1"), ("b", "b1"), ("c", "c1")] {
        assert_eq!(pend(&mut ledger, service, id).unwrap().agreement.state, AgreementState::Pending);
    }
    assert!(pend(&mut ledger, "a", "a2").unwrap().repeated);
    assert!(ledger.in_force(at(1)).is_empty());
    assert_eq!(ledger.calendar(Direction::Upload).reserved_at(at(1)), BitRate::ZERO);

    let accepted = ledger.accept(&name("a1"), at(5)).unwrap().agreement;
    assert_eq!((accepted.state, accepted.from), (AgreementState::Observed, at(5)));
    assert!(matches!(ledger.accept(&name("b1"), at(6)), Err(Rejection::Refused(Refusal::NoCapacity(_)))));
    assert_eq!(ledger.agreement(&name("b1")).unwrap().state, AgreementState::Pending);
    ledger.reject(&name("b1"), at(7)).unwrap();
    assert_eq!(ledger.agreement(&name("b1")).unwrap().state, AgreementState::Rejected);
    assert!(ledger.accept(&name("b1"), at(8)).is_err());
    assert!(ledger.reject(&name("a1"), at(8)).is_err());
    ledger.terminate(&name("c1"), at(9)).unwrap();
    ledger.finish_termination(&name("c1"), at(9)).unwrap();
    assert_eq!(ledger.in_force(at(10)).len(), 1);
    assert_eq!(ledger.forget_until(at(9)).len(), 2);
}

#[test]
fn clients_of_one_party_have_a_pace_each() {
    let mut ledger = book();
    let mut send = |client: &str, i: usize| {
        let offer = offer(&format!("s{i}"), 1, None, None);
        let client = name(client);
        let from = Sender { client: &client, account: &client };
        ledger.offer_from(from, offer, name(&format!("a{i}")), AgreementState::Observed, moment(0))
    };
    let burst = LedgerLimits::default().throttle.party.burst as usize;
    assert!((0..burst).all(|i| send("uid 0: customer", i).is_ok()));
    assert!(matches!(send("uid 0: customer", burst), Err(Rejection::TooManyOffers { .. })));
    assert!(send("uid 1: customer", burst + 1).is_ok());
}

#[test]
fn pending_offer_is_rejected_at_its_end_and_its_place_is_free() {
    let mut ledger = AgreementLedger::new(link(), LedgerLimits { agreements: 1, ..LedgerLimits::default() });
    let pend = |ledger: &mut AgreementLedger, id: &str, end| {
        let party = name("acme");
        let from = Sender { client: &party, account: &party };
        let offer = offer("web", 10, None, end);
        ledger.offer_from(from, offer, name(id), AgreementState::Pending, moment(0))
    };
    pend(&mut ledger, "a", Some(3)).unwrap();
    assert!(matches!(pend(&mut ledger, "b", None), Err(Rejection::TooManyAgreements { .. })));
    assert_eq!(ledger.next_change(at(0)), Some(at(3)));
    assert_eq!(ledger.advance(at(2)), []);
    let over =
        Change { id: name("a"), state: AgreementState::Rejected, service_state: ServiceState::Completed };
    assert_eq!(ledger.advance(at(3)), [over]);
    assert_eq!(ledger.next_change(at(0)), None);

    // One that was decided before, or has no end, meets no end.
    pend(&mut ledger, "b", Some(5)).unwrap();
    ledger.reject(&name("b"), at(4)).unwrap();
    pend(&mut ledger, "c", None).unwrap();
    assert_eq!(ledger.advance(at(9)), []);
    assert_eq!(ledger.agreement(&name("c")).unwrap().state, AgreementState::Pending);
}
