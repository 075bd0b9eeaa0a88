use proptest::prelude::*;

use super::*;

const LINK: BitRate = BitRate::mbit(95);
const GUARANTEE: BitRate = BitRate::mbit(8);
const TICK: Duration = Duration::from_millis(100);
/// The guarantee over a tick.
const FULL: u64 = 100_000;

fn id() -> Name {
    Name::new("a-1").unwrap()
}

fn start() -> Utc {
    "2026-11-20T11:00:00Z".parse().unwrap()
}

fn good() -> Conditions {
    Conditions { capacity: LINK, carried: LINK.bytes_in(TICK), ..Conditions::default() }
}

/// Looks every 100 ms from `start`: delivered bytes and whether more waits.
fn watch(
    monitor: &mut Monitor,
    from: Utc,
    looks: &[(u64, bool)],
    conditions: Conditions,
) -> Vec<MonitorEvent> {
    let mut news = Vec::new();
    for (n, (delivered, waits)) in (1..).zip(looks) {
        let (delivered, at) = (Bytes(*delivered), from.after(TICK * n));
        let look = Look { at, time: TICK, guarantee: GUARANTEE, delivered, waits: *waits, conditions };
        news.extend(monitor.look(&id(), &look));
    }
    news
}

fn for_seconds(seconds: usize, look: (u64, bool)) -> Vec<(u64, bool)> {
    vec![look; seconds * 10]
}

#[test]
fn a_violation_has_its_start_length_depth_and_cause() {
    let mut monitor = Monitor::new();
    let slow = Conditions { link_full: true, carried: Bytes(200_000), ..good() };
    assert_eq!(watch(&mut monitor, start(), &for_seconds(2, (FULL, true)), good()), []);
    assert_eq!(monitor.state(&id()), GuaranteeState::Fulfilled);
    let bad = start().after(Duration::from_secs(2));
    let mut looks = for_seconds(3, (FULL / 2, true));
    looks.extend(for_seconds(1, (FULL / 4, true)));
    let news = watch(&mut monitor, bad, &looks, slow);
    assert!(matches!(news[..], [MonitorEvent::Violated(v)] if v.start == bad), "{news:?}");
    assert_eq!(monitor.state(&id()), GuaranteeState::Violated);
    let after = bad.after(Duration::from_secs(4));
    let news = watch(&mut monitor, after, &for_seconds(6, (FULL, true)), good());
    let [MonitorEvent::Restored(violation)] = news[..] else { panic!("{news:?}") };
    assert_eq!((violation.start, violation.end, violation.violated_ms), (bad, after, 4000));
    assert_eq!((violation.worst, violation.mean), (BitRate::mbit(6), BitRate::kbit(4500)));
    assert_eq!((violation.lacking, violation.cause), (Bytes(2_250_000), Cause::LinkSlower));
    assert_eq!(
        violation.to_string(),
        "2026-11-20T11:00:02Z for 4.0 s: 4.5mbit short of 8mbit on average, 6mbit at worst; cause: the link \
         is slower than configured"
    );
    let month = monitor.month(&id()).unwrap();
    assert_eq!((month.violations.len(), month.violated_ms, month.observed_ms), (1, 4000, 12_000));
    assert!((month.availability() - 8.0 / 12.0).abs() < 1e-9);
}

#[test]
fn the_cause_is_what_was_seen() {
    let cases = [
        (Conditions { engine_fault: true, link_full: true, carried: Bytes(0), ..good() }, Cause::EngineFault),
        (Conditions { bypassed: Bytes(500_000), ..good() }, Cause::HostTraffic),
        (Conditions { link_full: true, carried: Bytes(500_000), ..good() }, Cause::LinkSlower),
        // A link that carries what it should is not slow, however full it is.
        (Conditions { suspended: true, bypassed: Bytes(500_000), ..good() }, Cause::LinkSlower),
        (Conditions { link_full: true, ..good() }, Cause::Unknown),
        (good(), Cause::Unknown),
    ];
    for (conditions, cause) in cases {
        let mut monitor = Monitor::new();
        let news = watch(&mut monitor, start(), &for_seconds(1, (FULL / 2, true)), conditions);
        assert!(
            matches!(news[..], [MonitorEvent::Violated(v)] if v.cause == cause),
            "{conditions:?}: {news:?}"
        );
    }
}

#[test]
fn violations_that_are_less_than_five_seconds_apart_are_one() {
    for (between, violations) in [(4, 1), (5, 2)] {
        let mut monitor = Monitor::new();
        let mut looks = for_seconds(1, (0, true));
        looks.extend(for_seconds(between, (FULL, true)));
        looks.extend(for_seconds(1, (0, true)));
        watch(&mut monitor, start(), &looks, good());
        let month = monitor.month(&id()).unwrap();
        assert_eq!((month.violations.len(), month.violated_ms), (violations, 2000), "{between} s between");
    }
}

#[test]
fn what_nobody_looked_at_is_no_violation_and_ends_one() {
    let mut monitor = Monitor::new();
    watch(&mut monitor, start(), &for_seconds(2, (0, true)), good());
    let at = start().after(Duration::from_secs(60));
    let look = Look {
        at,
        time: Duration::from_secs(58),
        guarantee: GUARANTEE,
        delivered: Bytes(0),
        waits: true,
        conditions: good(),
    };
    let news = monitor.look(&id(), &look);
    assert!(matches!(news[..], [MonitorEvent::Restored(v)] if v.violated_ms == 2000), "{news:?}");
    assert_eq!(monitor.month(&id()).unwrap().observed_ms, 2000);
}

#[test]
fn a_month_that_ends_is_given_out_and_a_restart_goes_on_with_it() {
    let mut monitor = Monitor::new();
    let from = "2026-11-30T23:59:58Z".parse().unwrap();
    let news = watch(&mut monitor, from, &for_seconds(4, (FULL, true)), good());
    let [MonitorEvent::MonthEnded(ended)] = &news[..] else { panic!("{news:?}") };
    assert_eq!((ended.month().to_string().as_str(), ended.observed_ms), ("2026-11-01T00:00:00Z", 1000));
    assert_eq!(ended.hours.len(), 30 * 24);
    let text = serde_json::to_string(&monitor.month(&id()).unwrap()).unwrap();
    let mut after = Monitor::new();
    after.restore(id(), serde_json::from_str(&text).unwrap());
    watch(&mut after, "2026-12-01T00:00:10Z".parse().unwrap(), &for_seconds(3, (FULL, true)), good());
    assert_eq!(after.month(&id()).unwrap().observed_ms, monitor.month(&id()).unwrap().observed_ms + 3000);
}

#[test]
fn a_clock_set_back_leads_to_the_earlier_month_and_its_record() {
    let mut monitor = Monitor::new();
    watch(&mut monitor, start(), &for_seconds(2, (FULL, true)), good());
    let ahead = start().after(Duration::from_secs(400 * 86_400));
    let news = watch(&mut monitor, ahead, &for_seconds(3, (FULL, true)), good());
    let [MonitorEvent::MonthEnded(ended)] = &news[..] else { panic!("{news:?}") };
    // The month from before the step goes on.
    let back = start().after(Duration::from_secs(60));
    let wrong = monitor.return_to(&id(), (**ended).clone());
    assert!(matches!(&wrong[..], [MonitorEvent::MonthEnded(m)] if m.observed_ms == 3_000), "{wrong:?}");
    assert_eq!(watch(&mut monitor, back, &for_seconds(1, (FULL, true)), good()), []);
    assert_eq!(monitor.month(&id()).map(|m| (m.month(), m.observed_ms)), Some((start().month(), 3_000)));
    // Without a record it is empty.
    watch(&mut monitor, ahead, &for_seconds(1, (FULL, true)), good());
    let news = watch(&mut monitor, back, &for_seconds(1, (FULL, true)), good());
    assert!(matches!(&news[..], [MonitorEvent::MonthEnded(_)]), "{news:?}");
    assert_eq!(monitor.watched_month(&id()), Some(start().month()));
}

#[test]
fn a_violation_ends_where_the_clock_is_set_back_within_a_month() {
    let mut monitor = Monitor::new();
    watch(&mut monitor, start(), &for_seconds(1, (0, true)), good());
    let back = start().before(Duration::from_secs(7 * 86_400));
    let news = watch(&mut monitor, back, &for_seconds(1, (FULL, true)), good());
    assert!(matches!(&news[..], [MonitorEvent::Restored(v)] if v.violated_ms == 1_000), "{news:?}");
}

proptest! {
    #[test]
    fn who_asks_for_less_or_gets_the_guarantee_is_never_wronged(
        looks in prop::collection::vec((0..3 * FULL, any::<bool>()), 1..300),
    ) {
        let looks: Vec<(u64, bool)> =
            looks.into_iter().map(|(bytes, waits)| (if waits { bytes.max(FULL) } else { bytes }, waits)).collect();
        let mut monitor = Monitor::new();
        prop_assert_eq!(watch(&mut monitor, start(), &looks, good()), []);
        prop_assert_eq!(monitor.month(&id()).unwrap().violated_ms, 0);
    }

    #[test]
    fn what_is_recorded_is_what_was_missing(
        seconds in prop::collection::vec(prop::sample::select(vec![0, FULL / 2, FULL * 9 / 10, FULL, 2 * FULL]), 1..120),
    ) {
        let looks: Vec<(u64, bool)> = seconds.iter().flat_map(|bytes| for_seconds(1, (*bytes, true))).collect();
        let mut monitor = Monitor::new();
        let news = watch(&mut monitor, start(), &looks, good());
        let month = monitor.month(&id()).unwrap();
        let short = || seconds.iter().filter(|bytes| **bytes < FULL * 95 / 100);
        prop_assert_eq!(month.violations.iter().map(|v| v.violated_ms).sum::<u64>(), 1000 * short().count() as u64);
        let lacking: u64 = short().map(|bytes| (FULL - bytes) * 10).sum();
        prop_assert_eq!(month.violations.iter().map(|v| v.lacking.0).sum::<u64>(), lacking);
        prop_assert_eq!(month.promised.0, FULL * looks.len() as u64);
        for violation in &month.violations {
            prop_assert!(violation.start < violation.end && violation.worst >= violation.mean);
            prop_assert!(violation.length() >= Duration::from_millis(violation.violated_ms));
        }
        for pair in month.violations.windows(2) {
            prop_assert!(pair[1].start.since(pair[0].end) >= MERGE);
        }
        let begun = news.iter().filter(|n| matches!(n, MonitorEvent::Violated(_))).count();
        prop_assert_eq!(begun, month.violations.len());
    }

    #[test]
    fn memory_is_bounded_however_long_and_bad_it_is(hours in 1u64..2000) {
        let mut monitor = Monitor::new();
        for n in 0..hours.min(700) {
            let at = start().after(Duration::from_secs(n * 6));
            watch(&mut monitor, at, &for_seconds(1, (0, true)), good());
        }
        let month = monitor.month(&id()).unwrap();
        prop_assert!(month.violations.len() <= MAX_VIOLATIONS);
        prop_assert_eq!(month.violations.len() as u64 + month.more_violations, hours.min(700));
        prop_assert!(month.hours.len() <= 744);
    }
}
