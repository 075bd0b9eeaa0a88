//! What is sent under agreements, and their quotas.

use super::*;

#[test]
fn a_quota_that_is_used_up_lowers_the_ceiling_and_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("");
    let store = Store::open(dir.path()).unwrap();
    let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
    let mut offer = offer("web", 20);
    let after = BitRate::mbit(2);
    offer.terms.quota = Some(weir_agree::Quota { day: Some(weir_units::Bytes(1_000)), month: None, after });
    let id = agreements.offer(&client(), None, offer, &store, moment(0)).unwrap().agreement.id;
    let sent = |bytes| [sent(&id, bytes)];
    agreements.count(&sent(999), &store, moment(1));
    assert_eq!(agreements.in_force(Direction::Upload, moment(1).utc)[0].max, BitRate::mbit(20));
    agreements.happened();
    agreements.count(&sent(1), &store, moment(2));
    assert_eq!(agreements.in_force(Direction::Upload, moment(2).utc)[0].max, after);
    assert_eq!(agreements.happened()[0].what, "agreement-quota-used-up");
    drop((agreements, store));

    let store = Store::open(dir.path()).unwrap();
    let agreements = Agreements::open(&config, &store, moment(3).utc).unwrap().unwrap();
    assert_eq!(agreements.in_force(Direction::Upload, moment(3).utc)[0].max, after);
}

#[test]
fn quota_is_told_once_each_way_by_day_and_by_month() {
    let mut stored = StoredAgreements::new();
    let StoredAgreements { agreements, store, .. } = &mut stored;
    let mut offer = offer("web", 20);
    let after = BitRate::mbit(2);
    offer.terms.quota = Some(weir_agree::Quota { day: Some(weir_units::Bytes(1_000)), month: None, after });
    let id = agreements.offer(&client(), None, offer, store, moment(0)).unwrap().agreement.id;
    agreements.happened();
    let told = |agreements: &mut Agreements| -> Vec<EventKind> {
        agreements.happened().into_iter().map(|one| one.what).collect()
    };
    let sent = |bytes| {
        let class = ClassKey::from("docker:web");
        let (demand, delivered) = (weir_share::Demand::UNLIMITED, weir_units::Bytes(bytes));
        let time = std::time::Duration::from_millis(100);
        [Delivery {
            direction: Direction::Upload,
            id: id.clone(),
            class,
            guarantee: BitRate::mbit(20),
            demand,
            delivered,
            time,
            waits: true,
        }]
    };
    agreements.count(&sent(1_000), store, moment(1));
    assert_eq!(told(agreements), ["agreement-quota-used-up"]);
    agreements.count(&sent(500), store, moment(2));
    assert_eq!(told(agreements), Vec::<&str>::new());
    agreements.count(&sent(10), store, moment(86_400));
    assert_eq!(told(agreements), ["agreement-quota-back"]);
    let status = agreements.status(agreements.one(id.as_str()).unwrap(), None, &[], moment(86_400).utc);
    let counted = (status.sent_today, status.sent_this_month);
    assert_eq!(counted, (weir_units::Bytes(10), weir_units::Bytes(1_510)));
}

#[test]
fn quota_of_a_day_is_given_once_though_the_clock_leaves_it() {
    for is_restarted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = config("");
        let (noon, back, again, midnight) = (3 * 86_400, 2 * 86_400, 3 * 86_400 + 3_600, 4 * 86_400);
        let mut store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(noon).utc).unwrap().unwrap();
        let mut limited = offer("web", 20);
        let after = BitRate::mbit(2);
        limited.terms.quota = Some(weir_agree::Quota { day: Some(Bytes(1_000)), month: None, after });
        let id = agreements.offer(&client(), None, limited, &store, moment(noon)).unwrap().agreement.id;
        agreements.advance(moment(noon).utc);
        agreements.ledger.count(&id, Bytes(1_000), moment(noon).utc).unwrap();
        agreements.advance(moment(back).utc);
        agreements.save_counted(&store, false);
        if is_restarted {
            drop((agreements, store));
            store = Store::open(dir.path()).unwrap();
            agreements = Agreements::open(&config, &store, moment(back).utc).unwrap().unwrap();
        }
        agreements.advance(moment(again).utc);
        let most =
            |agreements: &Agreements, at| agreements.in_force(Direction::Upload, moment(at).utc)[0].max;
        assert_eq!(most(&agreements, again), after, "restarted: {is_restarted}");
        assert_eq!(most(&agreements, midnight), BitRate::mbit(20));
        agreements.save_counted(&store, false);
    }
}

#[test]
fn bytes_under_an_agreement_without_a_quota_outlive_the_agent() {
    for is_ended in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let config = config("");
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let id = agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement.id;
        // A first minute is over at once, as the agent has written nothing yet.
        for at in [1, 7, 30] {
            agreements.count(&[sent(&id, 500)], &store, moment(at));
        }
        if is_ended {
            agreements.save_counted(&store, true);
        } else {
            agreements.count(&[], &store, moment(62));
        }
        drop((agreements, store));
        let store = Store::open(dir.path()).unwrap();
        let agreements = Agreements::open(&config, &store, moment(63).utc).unwrap().unwrap();
        let status = agreements.status(agreements.one(id.as_str()).unwrap(), None, &[], moment(63).utc);
        assert_eq!((status.sent_today, status.sent_this_month), (Bytes(1_500), Bytes(1_500)), "{is_ended}");
    }
}

#[test]
fn restart_over_midnight_is_no_step_of_the_clock() {
    // The tests' first moment is 08:00.
    let midnight = 3 * 86_400 + 16 * 3_600;
    let (before, after, ahead) = (midnight - 60, midnight + 60, midnight + 7_200);
    let lowered = BitRate::mbit(2);
    let most_after = |stored: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let config = config("");
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let mut limited = offer("web", 20);
        let quota = weir_agree::Quota { day: Some(Bytes(1_000)), month: None, after: lowered };
        limited.terms.quota = Some(quota);
        let id = agreements.offer(&client(), None, limited, &store, moment(0)).unwrap().agreement.id;
        agreements.ledger.count(&id, Bytes(1_000), moment(ahead).utc).unwrap();
        agreements.advance(moment(before).utc);
        agreements.save_counted(&store, false);
        if let Some(at) = stored {
            let wall = std::time::Duration::from_millis(moment(at).utc.millis() as u64);
            let reading = Reading { wall, boot: wall, is_synchronized: true };
            store.save_clock(&Clock::start(reading, "this", None).mark().unwrap()).unwrap();
        }
        drop((agreements, store));
        let store = Store::open(dir.path()).unwrap();
        let agreements = Agreements::open(&config, &store, moment(after).utc).unwrap().unwrap();
        agreements.in_force(Direction::Upload, moment(after).utc)[0].max
    };
    assert_eq!(most_after(Some(before)), BitRate::mbit(20));
    assert_eq!(most_after(Some(before - 86_400)), lowered, "the clock was set forward by a day");
    assert_eq!(most_after(None), lowered, "without a stored time it may have been set");
}

#[test]
fn quota_renews_at_midnight_after_the_clock_was_ahead_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("");
    let (wrong, day) = (400 * 86_400, 86_400);
    let quota = |day| weir_agree::Quota { day: Some(Bytes(day)), month: None, after: BitRate::mbit(2) };
    let sent_today = |agreements: &Agreements, id: &Name, at| {
        agreements.status(agreements.one(id.as_str()).unwrap(), None, &[], moment(at).utc).sent_today
    };
    let id = {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let mut limited = offer("web", 20);
        limited.terms.quota = Some(quota(1_000));
        let id = agreements.offer(&client(), None, limited, &store, moment(0)).unwrap().agreement.id;
        agreements.ledger.count(&id, Bytes(1_000), moment(wrong).utc).unwrap();
        agreements.counted.insert(id.clone());
        agreements.save_counted(&store, false);
        agreements.advance(moment(0).utc);
        assert_eq!(agreements.in_force(Direction::Upload, moment(0).utc)[0].max, BitRate::mbit(2));
        assert_eq!(agreements.in_force(Direction::Upload, moment(day).utc)[0].max, BitRate::mbit(20));
        assert_eq!(sent_today(&agreements, &id, day), Bytes(0));
        // The database still has the usage of the wrong clock.
        id
    };
    let store = Store::open(dir.path()).unwrap();
    let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
    assert_eq!(
        (sent_today(&agreements, &id, 0), sent_today(&agreements, &id, day)),
        (Bytes(1_000), Bytes(0))
    );
    agreements.save_counted(&store, false);
    drop((agreements, store));
    // The mended usage is stored, so an agent of the next day does not take it for its own.
    let store = Store::open(dir.path()).unwrap();
    let agreements = Agreements::open(&config, &store, moment(day).utc).unwrap().unwrap();
    assert_eq!(sent_today(&agreements, &id, day), Bytes(0));
}
