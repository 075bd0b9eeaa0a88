mod quota;
mod rights;

use super::*;
use crate::{
    agent::{
        class_key::ClassKey,
        clock::{Clock, Reading},
    },
    config::RESERVED,
};
use weir_agree::{Directions, Selector};
use weir_api::EventKind;
use weir_units::Bytes;

/// The current time of this machine.
fn utc() -> Utc {
    Utc::from(std::time::SystemTime::now())
}

const CONFIG: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n[agreements]\n";

pub(super) fn config(more: &str) -> Config {
    crate::config::parse(&format!("{CONFIG}{more}"), std::path::Path::new("test.toml")).unwrap()
}

/// Agreements with their own database.
pub(crate) struct StoredAgreements {
    pub(crate) agreements: Agreements,
    pub(crate) store: Store,
    _dir: tempfile::TempDir,
}

impl StoredAgreements {
    pub(crate) fn new() -> StoredAgreements {
        StoredAgreements::with("")
    }

    pub(crate) fn with(more: &str) -> StoredAgreements {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let agreements = Agreements::open(&config(more), &store, utc()).unwrap().unwrap();
        StoredAgreements { agreements, store, _dir: dir }
    }
}

pub(crate) fn offer(service: &str, mbit: u64) -> Offer {
    let text = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{service}"}},
            "terms":{{"min":"{mbit}mbit","max":"{mbit}mbit"}}}}"#
    );
    weir_agree::Document::read(&text, weir_agree::Language::Json).unwrap()
}

pub(super) fn moment(seconds: u64) -> ClockReading {
    let utc = Utc::from_millis(1_800_000_000_000 + 1_000 * seconds as i64);
    ClockReading { utc, monotonic: Instant(std::time::Duration::from_secs(1_000 + seconds)) }
}

pub(super) fn client() -> Name {
    Name::new("0/acme").unwrap()
}

#[test]
fn what_is_agreed_is_there_after_a_restart_and_no_id_is_given_twice() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("");
    let (before, gone) = {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let web = agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement;
        let db = agreements.offer(&client(), None, offer("db", 30), &store, moment(0)).unwrap().agreement;
        agreements.terminate(db.id.as_str(), &store, moment(1).utc).unwrap();
        agreements.finish(|_| true, &store, moment(1).utc);
        assert_eq!(agreements.in_force(Direction::Upload, moment(2).utc).len(), 1);
        (web, db.id)
    };
    let store = Store::open(dir.path()).unwrap();
    let mut agreements = Agreements::open(&config, &store, moment(5).utc).unwrap().unwrap();
    assert_eq!(agreements.one(before.id.as_str()).unwrap(), &before);
    assert_eq!(agreements.one(gone.as_str()).unwrap().state, AgreementState::Terminated);
    assert_eq!(agreements.promised(Direction::Upload, moment(5).utc), BitRate::mbit(20));
    let next = agreements.offer(&client(), None, offer("db", 70), &store, moment(5)).unwrap().agreement;
    assert!(next.id != before.id && next.id != gone);
    assert!(agreements.offer(&client(), None, offer("mail", 1), &store, moment(5)).is_err());
}

#[test]
fn promise_of_what_arrives_outlives_a_link_that_does_not_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let now = moment(9).utc;
    let mut shared = config("");
    shared.link.download = Some(BitRate::mbit(50));
    let with = |direction| {
        let mut offer = offer("web", 20);
        offer.terms.direction = direction;
        offer
    };
    let id = {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&shared, &store, moment(0).utc).unwrap().unwrap();
        let templates: Vec<_> = agreements.templates().iter().map(|t| t.terms.direction).collect();
        assert_eq!(templates, [Directions::Upload, Directions::Download]);
        let agreed = agreements.offer(&client(), None, with(Directions::Both), &store, moment(0)).unwrap();
        agreed.agreement.id
    };
    let in_force = |agreements: &Agreements| {
        let sum = |direction| agreements.in_force(direction, now).iter().map(|one| one.min.0).sum::<u64>();
        Direction::ALL.map(|direction| BitRate(sum(direction)))
    };
    for (config, rates) in [(config(""), [20, 0]), (shared, [20, 20])] {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, now).unwrap().unwrap();
        assert_eq!(in_force(&agreements), rates.map(BitRate::mbit));
        assert_eq!(agreements.one(id.as_str()).unwrap().offer.terms.direction, Directions::Both);
        assert_eq!(agreements.calendar(Direction::Download, now, None).is_ok(), rates[1] > 0);
        // 45 of 50 Mbit/s may be promised of what arrives.
        agreements.promised_to_classes(Direction::Download, BitRate::mbit(30));
        let mut more = offer("db", 26);
        more.terms.direction = Directions::Download;
        assert!(agreements.offer(&client(), None, more, &store, moment(10)).is_err());
        assert_eq!(
            agreements.promised(Direction::Download, now),
            BitRate::mbit(20),
            "its bandwidth stays reserved"
        );
    }
}

#[test]
fn end_of_an_agreement_waits_for_the_scheduler_of_its_own_direction() {
    let mut config = config("");
    config.link.download = Some(BitRate::mbit(50));
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
    let mut make = |service, direction| {
        let mut offer = offer(service, 5);
        offer.terms.direction = direction;
        let id = agreements.offer(&client(), None, offer, &store, moment(0)).unwrap().agreement.id;
        agreements.terminate(id.as_str(), &store, moment(1).utc).unwrap();
        id
    };
    let [up, down] = [make("a", Directions::Upload), make("b", Directions::Download)];
    let both = make("c", Directions::Both);
    let states = |agreements: &Agreements| {
        [&up, &down, &both].map(|id| agreements.one(id.as_str()).unwrap().state == AgreementState::Terminated)
    };
    agreements.finish(|direction| direction == Direction::Upload, &store, moment(2).utc);
    assert_eq!(states(&agreements), [true, false, false]);
    agreements.finish(|_| true, &store, moment(3).utc);
    assert_eq!(states(&agreements), [true; 3]);
}

#[test]
fn what_classes_are_promised_is_not_promised_to_agreements() {
    let mut stored = StoredAgreements::new();
    // 95 Mbit/s may be promised, 90 of them to agreements.
    stored.agreements.promised_to_classes(Direction::Upload, BitRate::mbit(25));
    let StoredAgreements { agreements, store, .. } = &mut stored;
    let fault = agreements.offer(&client(), None, offer("web", 71), store, moment(0)).unwrap_err();
    assert_eq!(fault.counter_offer.unwrap().min, Some(BitRate::mbit(70)));
    assert!(agreements.offer(&client(), None, offer("web", 70), store, moment(0)).is_ok());
}

#[test]
fn an_operator_who_decides_has_offers_wait() {
    let mut stored = StoredAgreements::with("decide = \"operator\"\n");
    let StoredAgreements { agreements, store, .. } = &mut stored;
    let offered = agreements.offer(&client(), None, offer("web", 20), store, moment(0)).unwrap().agreement;
    assert_eq!(offered.state, AgreementState::Pending);
    assert!(agreements.in_force(Direction::Upload, moment(1).utc).is_empty());
    let accepted = agreements.decide(offered.id.as_str(), true, store, moment(2).utc).unwrap();
    assert_eq!((accepted.state, accepted.from), (AgreementState::Observed, moment(2).utc));
    let other = agreements.offer(&client(), None, offer("db", 20), store, moment(3)).unwrap().agreement;
    agreements.decide(other.id.as_str(), false, store, moment(4).utc).unwrap();
    assert_eq!(store.agreements().unwrap().agreements.len(), 2);
    assert_eq!(agreements.in_force(Direction::Upload, moment(5).utc).len(), 1);
}

#[test]
fn offer_that_no_one_decides_is_rejected_at_its_end_also_after_a_restart() {
    let rules = "decide = \"operator\"\n";
    let mut stored = StoredAgreements::with(rules);
    let StoredAgreements { agreements, store, .. } = &mut stored;
    let until = |end| {
        let mut offer = offer("web", 20);
        offer.terms.end = Some(moment(end).utc);
        offer
    };
    let one = agreements.offer(&client(), None, until(3), store, moment(0)).unwrap().agreement.id;
    let two = agreements.offer(&client(), None, until(9), store, moment(0)).unwrap().agreement.id;
    agreements.happened();
    agreements.advance(moment(4).utc);
    agreements.settle(store, moment(4).utc);
    let told = agreements.happened();
    assert_eq!(
        (told.len(), &told[0].what, told[0].id.as_ref()),
        (1, &EventKind::AgreementRejected, Some(&one))
    );
    assert!(told[0].detail.starts_with("no decision came before its end: acme has 20mbit"), "{told:?}");

    let mut after = Agreements::open(&config(rules), store, moment(10).utc).unwrap().unwrap();
    for id in [&one, &two] {
        assert_eq!(after.one(id.as_str()).unwrap().state, AgreementState::Rejected);
    }
    let told: Vec<_> = after.happened().into_iter().map(|happened| (happened.what, happened.id)).collect();
    assert_eq!(told, [(EventKind::AgreementRejected, Some(two))]);
}

/// An agreement without a weight in its terms has its class's weight.
#[test]
fn spare_is_shared_by_weight_only_where_the_node_says_so() {
    let weighted = || {
        let mut weighted = offer("web", 20);
        weighted.terms.share = Share::Weighted;
        weighted.terms.weight = weir_share::Weight::new(3).unwrap();
        weighted
    };
    let mut equal = StoredAgreements::with("share = \"additive\"\n");
    let fault = equal.agreements.offer(&client(), None, weighted(), &equal.store, moment(0)).unwrap_err();
    assert_eq!((fault.code, fault.accepted), (FaultCode::ShareNotOffered, vec!["additive".to_owned()]));
    let mut stored = StoredAgreements::new();
    let StoredAgreements { agreements, store, .. } = &mut stored;
    agreements.offer(&client(), None, weighted(), store, moment(0)).unwrap();
    agreements.offer(&client(), None, offer("db", 20), store, moment(0)).unwrap();
    let weights: Vec<_> =
        agreements.in_force(Direction::Upload, moment(1).utc).iter().map(|one| one.weight).collect();
    assert_eq!(weights, [weir_share::Weight::new(3).ok(), None], "without a word the class keeps its own");
}

#[test]
fn what_begins_at_once_is_told_and_what_waits_for_a_word_when_that_is_yes() {
    let told = |agreements: &mut Agreements| -> Vec<EventKind> {
        agreements.happened().into_iter().map(|one| one.what).collect()
    };
    let mut stored = StoredAgreements::new();
    stored.agreements.offer(&client(), None, offer("web", 20), &stored.store, moment(0)).unwrap();
    assert_eq!(told(&mut stored.agreements), ["agreement-accepted", "agreement-activated"]);
    let mut later = offer("db", 20);
    later.terms.start = Some(moment(60).utc);
    stored.agreements.offer(&client(), None, later, &stored.store, moment(0)).unwrap();
    assert_eq!(told(&mut stored.agreements), ["agreement-accepted"]);
    stored.agreements.advance(moment(60).utc);
    assert_eq!(told(&mut stored.agreements), ["agreement-activated"]);

    let mut stored = StoredAgreements::with("decide = \"operator\"\n");
    let waits = stored.agreements.offer(&client(), None, offer("web", 20), &stored.store, moment(0)).unwrap();
    assert_eq!(told(&mut stored.agreements), ["agreement-pending"]);
    let id = waits.agreement.id;
    stored.agreements.decide(id.as_str(), true, &stored.store, moment(1).utc).unwrap();
    assert_eq!(told(&mut stored.agreements), ["agreement-accepted", "agreement-activated"]);
}

/// An agreement that was terminating at the crash is terminated after it.
#[test]
fn termination_goes_on_after_a_crash_and_old_ones_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("keep_days = 1\n");
    let id = {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let id = agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement.id;
        agreements.terminate(id.as_str(), &store, moment(1).utc).unwrap();
        id
    };
    let store = Store::open(dir.path()).unwrap();
    let stored = || store.agreements().unwrap().agreements;
    assert_eq!(stored()[0].0.state, AgreementState::ObservedAndTerminating, "its end is on disk");
    let mut agreements = Agreements::open(&config, &store, moment(2).utc).unwrap().unwrap();
    agreements.finish(|_| true, &store, moment(2).utc);
    assert_eq!(agreements.one(id.as_str()).unwrap().state, AgreementState::Terminated);
    assert_eq!(stored()[0].0.state, AgreementState::Terminated);
    agreements.settle(&store, moment(3_600).utc);
    assert_eq!(stored().len(), 1);
    agreements.settle(&store, moment(2 * 86_400).utc);
    assert_eq!((stored().len(), agreements.all().count()), (0, 0));
}

/// Earlier promises beyond the new limit are kept and reported.
#[test]
fn changed_rules_hold_for_later_offers_and_older_excess_is_told() {
    let mut stored = StoredAgreements::new();
    let StoredAgreements { agreements, store, .. } = &mut stored;
    agreements.offer(&client(), None, offer("web", 70), store, moment(0)).unwrap();
    assert_eq!(agreements.excess(Direction::Upload, moment(1).utc), BitRate::ZERO);
    let half = config("reservable = 0.5\n");
    agreements.reconfigure(half.agreements.clone().unwrap(), &half.link);
    assert_eq!(agreements.excess(Direction::Upload, moment(1).utc), BitRate::mbit(20));
    assert!(agreements.offer(&client(), None, offer("db", 10), store, moment(1)).is_err());
    assert_eq!(
        agreements.in_force(Direction::Upload, moment(1).utc).len(),
        1,
        "what was promised before is kept"
    );
}

#[test]
fn minima_that_a_smaller_capacity_cannot_hold_are_suspended_by_age() {
    let mut stored = StoredAgreements::new();
    let StoredAgreements { agreements, store, .. } = &mut stored;
    let mut ids = Vec::new();
    for (n, (name, mbit)) in [("web", 30), ("db", 40), ("log", 15)].into_iter().enumerate() {
        let made = agreements.offer(&client(), None, offer(name, mbit), store, moment(n as u64)).unwrap();
        ids.push(made.agreement.id);
    }
    let suspended = |agreements: &Agreements| -> Vec<Option<BitRate>> {
        let all = agreements.in_force(Direction::Upload, moment(9).utc);
        ids.iter().map(|id| all.iter().find(|one| one.id == *id).unwrap().suspended).collect()
    };
    assert_eq!(suspended(agreements), [None; 3]);
    let mut config = config("");
    for (capacity, expected) in [
        (50, [None, Some(BitRate::mbit(15)), None]),
        (30, [Some(BitRate::mbit(27)), Some(BitRate::mbit(27)), None]),
        (90, [None, None, Some(BitRate::mbit(11))]),
        (95, [None; 3]),
    ] {
        config.link.capacity = BitRate::mbit(capacity);
        agreements.reconfigure(config.agreements.clone().unwrap(), &config.link);
        assert_eq!(suspended(agreements), expected, "{capacity} Mbit/s");
    }
    config.link.capacity = BitRate::mbit(50);
    agreements.reconfigure(config.agreements.clone().unwrap(), &config.link);
    let status = agreements.status_without_class(agreements.one(ids[1].as_str()).unwrap(), moment(9).utc);
    assert_eq!(status.in_force.map(|force| force.min), Some(BitRate::ZERO));
}

/// The plan is about another capacity, and leaves the agreements as they are.
#[test]
fn plan_of_a_smaller_capacity_suspends_the_agreements_that_it_cannot_hold() {
    let mut stored = StoredAgreements::new();
    let StoredAgreements { agreements, store, .. } = &mut stored;
    for (n, (name, mbit)) in [("web", 30), ("db", 40)].into_iter().enumerate() {
        agreements.offer(&client(), None, offer(name, mbit), store, moment(n as u64)).unwrap();
    }
    let (now, none) = (moment(9).utc, BitRate::ZERO);
    let mut config = config("");
    for (capacity, suspended, excess) in [
        (100, [None; 2], 0),
        (50, [None, Some(BitRate::mbit(15))], 25_000),
        (75, [None, Some(BitRate::kbit(37_500))], 2_500),
    ] {
        config.link.capacity = BitRate::mbit(capacity);
        let (set, minors) = (Default::default(), Default::default());
        let mut table = ClassTable::new(config.clone(), set, minors, Default::default(), none);
        let above = agreements.plan(&mut table, Direction::Upload, now);
        let of: Vec<Option<BitRate>> = table.agreements().iter().map(|one| one.suspended).collect();
        assert_eq!((of, above), (suspended.to_vec(), BitRate::kbit(excess)), "{capacity} Mbit/s");
    }
    assert!(agreements.in_force(Direction::Upload, now).iter().all(|one| one.suspended.is_none()));
    assert_eq!(agreements.excess(Direction::Upload, now), none);
}

/// Its use and its renewal are reported once each. Days and months count apart.
/// A clock that is a day behind for an hour, with a restart before it is right again or without one.
/// An agreement without a quota shows its bytes. They are written once a minute, and at the agent's end.
/// A clock that is ahead and set back before midnight. The day that it has counted comes while the agent restarts.
/// A clock 400 days ahead, which is set back, and an agent that finds the usage of that clock in its database.
/// Of two agreements about one class the first one has it.
#[test]
fn agreements_in_force_come_by_age_and_not_by_the_text_of_their_ids() {
    let mut stored = StoredAgreements::new();
    let mut answer = |n: u64| {
        let one = offer(&format!("web{n}"), 1);
        let answer = stored.agreements.offer(&client(), None, one, &stored.store, moment(60 * n));
        answer.unwrap().agreement.id
    };
    let ids: Vec<Name> = (0..11).map(&mut answer).collect();
    let in_force = stored.agreements.in_force(Direction::Upload, moment(1000).utc);
    assert_eq!(in_force.into_iter().map(|one| one.id).collect::<Vec<_>>(), ids);
}

/// A capacity that falls leaves the part that no agreement may have, to the host and all that has no agreement.
#[test]
fn promises_in_force_leave_the_part_that_no_agreement_may_have() {
    let StoredAgreements { mut agreements, store, _dir } = StoredAgreements::new();
    for (service, min) in [("video", 30), ("camera", 5)] {
        agreements.offer(&client(), None, offer(service, min), &store, moment(0)).unwrap();
    }
    let suspended = |agreements: &Agreements, capacity: u64| {
        let mut link = agreements.link.clone();
        link.capacity = BitRate::mbit(capacity);
        let all = agreements.in_force_on(&link, Direction::Upload, moment(1).utc);
        all.iter().map(|one| one.suspended).collect::<Vec<_>>()
    };
    assert_eq!(suspended(&agreements, 39), [None, None]);
    assert_eq!(suspended(&agreements, 38), [None, Some(BitRate::kbit(4_200))]);
    assert_eq!(suspended(&agreements, 30), [Some(BitRate::mbit(27)), None]);
}

/// Another tenant can neither take packets of a container that is under an agreement, nor shut its owner out by a part
/// of the packets.
#[test]
fn figures_count_all_agreements_in_force_and_show_violated_ones_first() {
    let StoredAgreements { mut agreements, store, _dir } = StoredAgreements::new();
    let ids = ["a", "b", "c"].map(|service| {
        agreements.offer(&client(), None, offer(service, 5), &store, moment(0)).unwrap().agreement.id
    });
    agreements.ledger.set_guarantee(&ids[2], weir_agree::GuaranteeState::Violated).unwrap();
    let up = agreements.in_force(Direction::Upload, moment(1).utc);
    let suspended = |one: &Agreed| Agreed { suspended: Some(BitRate::ZERO), ..one.clone() };
    let down: Vec<Agreed> = up.iter().filter(|one| one.id == ids[2]).map(suspended).collect();
    let figures = agreements.figures(up.iter().chain(&down), 2);
    let shown: Vec<_> = figures.shown.iter().map(|one| (&one.id, one.min, one.is_met)).collect();
    assert_eq!(figures.in_force, 3);
    assert_eq!(shown, [(&ids[2], BitRate::ZERO, false), (&ids[0], BitRate::mbit(5), true)]);
}

fn sent(id: &Name, bytes: u64) -> Delivery {
    Delivery {
        direction: Direction::Upload,
        id: id.clone(),
        class: "docker:web".into(),
        guarantee: BitRate::mbit(20),
        demand: weir_share::Demand::UNLIMITED,
        delivered: weir_units::Bytes(bytes),
        time: std::time::Duration::from_millis(100),
        waits: true,
    }
}

/// 4,000 agreements, and the steps of a turn without a change: the time of one, and the lists are the same ones.
#[test]
fn turn_without_a_change_copies_no_agreement() {
    let mut stored = StoredAgreements::with("most = 5000\nmost_of_party = 5000\noffers_at_once = 5000\n");
    let StoredAgreements { agreements, store, .. } = &mut stored;
    // The clock of the machine that runs this test may be later than the moments here.
    agreements.latest = Utc::MIN;
    let small = |nth: u64| {
        let mut offer = offer(&format!("service-{nth}"), 1);
        (offer.terms.min, offer.terms.max) = (BitRate::kbit(16), BitRate::mbit(1));
        offer
    };
    for nth in 0..4_000 {
        let agreement = agreements
            .ledger
            .offer(small(nth), Name::new(&format!("a-{nth}")).unwrap(), moment(nth))
            .unwrap();
        assert!(!agreement.repeated);
    }
    let now = moment(5_000);
    agreements.advance(now.utc);
    let turn = |agreements: &mut Agreements| {
        Direction::ALL.map(|direction| agreements.enforceable_now(direction, now.utc).0)
    };
    let first = turn(agreements);
    assert_eq!((first[0].len(), first[1].len()), (4_000, 0));
    let began = std::time::Instant::now();
    for _ in 0..20 {
        for (one, same) in first.iter().zip(turn(agreements)) {
            assert!(Arc::ptr_eq(one, &same));
        }
    }
    println!("{:?} a turn", began.elapsed() / 20);
    let began = std::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(agreements.in_force(Direction::Upload, now.utc).len(), 4_000);
    }
    println!("{:?} to read the book", began.elapsed() / 20);
    // Bytes counted without a quota change nothing, and an end does.
    let id = Name::new("a-7").unwrap();
    agreements.count(&[sent(&id, 1_000)], store, now);
    assert!(Arc::ptr_eq(&first[0], &turn(agreements)[0]));
    agreements.ledger.terminate(&id, now.utc).unwrap();
    assert_eq!(turn(agreements)[0].len(), 3_999);
}

#[test]
fn agreement_that_began_under_a_clock_ahead_begins_again_after_a_restart() {
    let StoredAgreements { mut agreements, store, _dir } = StoredAgreements::new();
    let mut later = offer("web", 5);
    later.terms.start = Some(moment(1_000).utc);
    agreements.offer(&client(), None, later, &store, moment(0)).unwrap();
    agreements.advance(moment(2_000).utc);
    agreements.settle(&store, moment(2_000).utc);
    drop(agreements);
    let mut next = Agreements::open(&config(""), &store, moment(10).utc).unwrap().unwrap();
    let enforced = |agreements: &mut Agreements, at: u64| {
        agreements.advance(moment(at).utc);
        agreements.enforceable_now(Direction::Upload, moment(at).utc).0.len()
    };
    assert_eq!([10, 999, 1_000, 3_000].map(|at| enforced(&mut next, at)), [0, 0, 1, 1]);
}

/// The agreements to enforce are those of the book at any moment, after any change.
#[test]
fn agreements_to_enforce_are_those_of_the_book_after_any_change() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let more = "offers_at_once = 5000\n";
        let mut stored = StoredAgreements::with(more);
        let StoredAgreements { agreements, store, .. } = &mut stored;
        agreements.latest = Utc::MIN;
        let (mut now, mut known) = (3_000_000, Vec::new());
        for step in 0..150 {
            let at = |seconds: u64| moment(seconds).utc;
            match random.u32(..9) {
                0 | 1 => {
                    let mut offer = offer(&format!("service-{step}"), random.u64(1..20));
                    offer.terms.start = random.bool().then(|| at(now + random.u64(..200_000)));
                    let from = offer.terms.start.unwrap_or(at(now));
                    offer.terms.end = random
                        .bool()
                        .then(|| Utc::from_millis(from.millis() + 1000 * random.i64(1..300_000)));
                    offer.terms.quota = random.bool().then(|| weir_agree::Quota {
                        day: Some(weir_units::Bytes(1_000)),
                        month: random.bool().then_some(weir_units::Bytes(3_000)),
                        after: BitRate::mbit(1),
                    });
                    let made = agreements.offer(&client(), None, offer, store, moment(now));
                    known.extend(made.map(|made| made.agreement.id));
                }
                2 if !known.is_empty() => {
                    let id = known.swap_remove(random.usize(..known.len()));
                    let _ = agreements.terminate(id.as_str(), store, at(now));
                }
                3 if !known.is_empty() => {
                    let end = random.bool().then(|| at(now + random.u64(1..400_000)));
                    let _ = agreements.renew(random.choice(&known).unwrap().as_str(), end, store, at(now));
                }
                4 | 5 if !known.is_empty() => {
                    let id = random.choice(&known).unwrap();
                    agreements.count(&[sent(id, random.u64(1..900))], store, moment(now));
                }
                6 => {
                    let mut config = config(more);
                    config.link.capacity = BitRate::mbit(random.u64(5..100));
                    agreements.reconfigure(config.agreements.clone().unwrap(), &config.link);
                }
                7 => now += random.u64(..100_000),
                _ => now -= random.u64(..2_000).min(now),
            }
            agreements.advance(at(now));
            agreements.finish(|_| true, store, at(now));
            for direction in Direction::ALL {
                let (agreed, promised) = agreements.enforceable_now(direction, at(now));
                assert_eq!(
                    agreed[..],
                    agreements.in_force(direction, at(now))[..],
                    "seed {seed}, step {step}"
                );
                assert_eq!(promised, agreements.promised(direction, at(now)));
            }
        }
    }
}
