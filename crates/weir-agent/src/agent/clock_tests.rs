use proptest::prelude::*;
use weir_agree::Direction;
use weir_api::EventKind;

use super::*;

const DAY: u64 = 86_400;
/// 2027-01-15T08:00:00Z.
const NOW: u64 = 1_800_000_000;

/// The clocks `seconds` after a start at [`NOW`], with the calendar's clock off by `off` seconds.
fn at(seconds: u64, off: i64) -> Reading {
    let wall = Duration::from_secs((NOW + seconds).saturating_add_signed(off));
    Reading { wall, boot: Duration::from_secs(1_000 + seconds), is_synchronized: false }
}

fn synchronized(reading: Reading) -> Reading {
    Reading { is_synchronized: true, ..reading }
}

fn seconds(clock: &Clock, reading: Reading) -> i64 {
    clock.now(reading.boot).millis() / 1_000
}

fn started() -> Clock {
    Clock::start(at(0, 0), "this", None)
}

#[test]
fn a_step_of_a_day_for_3_s_changes_nothing_and_is_told() {
    for off in [DAY as i64, -(DAY as i64), 10 * 365 * DAY as i64, -(NOW as i64)] {
        for is_synchronized in [false, true] {
            let mut clock = started();
            let mut news = Vec::new();
            for second in 0..60 {
                let stepped = (10..13).contains(&second);
                let reading = Reading { is_synchronized, ..at(second, if stepped { off } else { 0 }) };
                news.extend(clock.look(reading));
                assert_eq!(seconds(&clock, reading), (NOW + second) as i64, "{off} s off, second {second}");
                assert_eq!(clock.doubt().is_some(), stepped);
            }
            assert!(matches!(&news[..], [ClockEvent::Doubted(_), ClockEvent::Back(_)]), "{news:?}");
        }
    }
}

#[test]
fn a_step_that_stands_is_believed_after_10_min_and_synchronised_after_2() {
    for off in [DAY as i64, -(DAY as i64)] {
        for (is_synchronized, stands) in [(false, 600), (true, 120)] {
            let mut clock = started();
            let mut believed = None;
            for second in 1..700 {
                let reading = Reading { is_synchronized, ..at(second, off) };
                if let Some(ClockEvent::Believed(_)) = clock.look(reading) {
                    believed = Some(second);
                }
                let off = if believed.is_some() { off } else { 0 };
                assert_eq!(seconds(&clock, reading), (NOW + second) as i64 + off);
            }
            assert_eq!(believed, Some(1 + stands), "{off} s off, synchronised: {is_synchronized}");
        }
    }
}

#[test]
fn a_clock_at_1970_is_never_believed_and_the_right_time_at_once() {
    let stored = started().mark().unwrap();
    let off = -(NOW as i64);
    let mut clock = Clock::start(at(50, off), "next boot", Some(&stored));
    for second in 50..10_000 {
        clock.look(at(second, off));
        assert_eq!(seconds(&clock, at(second, off)), (NOW + second - 50) as i64);
        assert_eq!(clock.mark(), None, "a guess is not stored");
    }
    assert!(clock.doubt().unwrap().contains("is never believed"));
    let right = synchronized(at(10_000, DAY as i64));
    assert!(matches!(clock.look(right), Some(ClockEvent::Believed(_))));
    assert_eq!(seconds(&clock, right), (NOW + 10_000 + DAY) as i64);
    assert!(clock.doubt().is_none() && clock.mark().is_some());
}

#[test]
fn an_agent_that_starts_again_in_a_boot_is_not_misled_by_a_step() {
    let stored = started().mark().unwrap();
    for off in [DAY as i64, -(DAY as i64)] {
        let mut clock = Clock::start(at(3_000, off), "this", Some(&stored));
        assert!(matches!(clock.look(at(3_000, off)), Some(ClockEvent::Doubted(_))));
        assert_eq!(seconds(&clock, at(3_000, off)), (NOW + 3_000) as i64);
    }
}

/// The believed time, in seconds after [`NOW`], of a boot in which the clock is ahead by `off` seconds
/// until second `right`, where it is right and synchronised.
fn booted(off: i64, right: u64, to: u64) -> (Vec<i64>, Vec<ClockEvent>) {
    let stored = started().mark().unwrap();
    let reading = |second| if second < right { at(second, off) } else { synchronized(at(second, 0)) };
    let mut clock = Clock::start(reading(0), "next boot", Some(&stored));
    let mut events = Vec::new();
    let times = (0..to).map(|second| {
        events.extend(clock.look(reading(second)));
        seconds(&clock, reading(second)) - NOW as i64
    });
    (times.collect(), events)
}

#[test]
fn a_clock_a_day_ahead_at_boot_waits_for_a_time_server() {
    let (times, events) = booted(DAY as i64, 60, 100);
    assert!(matches!(&events[..], [ClockEvent::Doubted(_), ClockEvent::Back(_)]), "{events:?}");
    assert_eq!(times, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_node_that_was_off_for_a_day_believes_its_clock_after_2_min() {
    // No time server answers.
    let (times, events) = booted(DAY as i64, u64::MAX, 200);
    assert!(matches!(&events[..], [ClockEvent::Doubted(_), ClockEvent::Believed(_)]), "{events:?}");
    let ClockEvent::Doubted(text) = &events[0] else { unreachable!() };
    assert!(text.contains("stood for 2 min (at once where the kernel says"), "{text}");
    let ahead: Vec<bool> = times.iter().map(|time| *time >= DAY as i64).collect();
    assert_eq!(ahead.iter().position(|ahead| *ahead), Some(120));
    // The clock was synchronised before the agent started.
    let stored = started().mark().unwrap();
    let mut clock = Clock::start(synchronized(at(50, DAY as i64)), "next boot", Some(&stored));
    assert_eq!(clock.look(synchronized(at(50, DAY as i64))), None);
    assert_eq!(seconds(&clock, at(50, 0)), (NOW + 50 + DAY) as i64);
}

#[test]
fn a_later_boot_believes_a_clock_that_is_an_hour_later() {
    let (times, events) = booted(3_600, u64::MAX, 3);
    assert_eq!((times, events), (vec![3_600, 3_601, 3_602], vec![]));
}

#[test]
fn a_stored_time_that_was_wrong_is_left_behind_when_the_clock_has_stood() {
    let stored = Clock::start(at(0, DAY as i64), "this", None).mark().unwrap();
    let mut clock = Clock::start(at(0, 0), "next boot", Some(&stored));
    let news = (0..=600).filter_map(|second| clock.look(at(second, 0))).collect::<Vec<_>>();
    assert!(matches!(&news[..], [ClockEvent::Doubted(_), ClockEvent::Believed(_)]), "{news:?}");
    assert_eq!(seconds(&clock, at(600, 0)), (NOW + 600) as i64);
}

#[test]
fn a_stored_time_survives_its_text() {
    let stored = started().mark().unwrap();
    let text = serde_json::to_string(&stored).unwrap();
    assert_eq!(serde_json::from_str::<Mark>(&text).unwrap(), stored);
}

#[test]
fn this_machines_clocks_can_be_read() {
    let (first, second) = (read(), read());
    assert!(first.boot > Duration::ZERO && second.boot >= first.boot);
    assert!(!boot_id().is_empty());
}

proptest! {
    #[test]
    fn steps_that_do_not_stand_never_move_the_believed_time(
        steps in prop::collection::vec((1_u64..119, 1_u64..500, -400_000_000_i64..400_000_000), 1..40),
        is_synchronized in any::<bool>(),
    ) {
        let (mut clock, mut second) = (started(), 0);
        for (stays, apart, off) in steps {
            for n in 0..stays + apart {
                second += 1;
                let reading = Reading { is_synchronized, ..at(second, if n < stays { off } else { 0 }) };
                clock.look(reading);
                // Corrections of up to 2 s are followed.
                prop_assert!((seconds(&clock, reading) - (NOW + second) as i64).abs() <= 2);
            }
        }
    }

    #[test]
    fn a_step_that_stands_is_believed_in_the_end(off in -30_000_000_i64..400_000_000) {
        let mut clock = started();
        for second in 1..=602 {
            clock.look(at(second, off));
        }
        prop_assert_eq!(seconds(&clock, at(602, off)), (NOW + 602) as i64 + off);
        prop_assert!(clock.doubt().is_none());
    }

    #[test]
    fn slow_corrections_are_followed(rates in prop::collection::vec(-500_i64..500, 1..50)) {
        // Each rate is in parts per million for one minute, as the kernel slews.
        let (mut clock, mut off, mut second) = (started(), 0_i64, 0_u64);
        for rate in rates {
            for _ in 0..60 {
                (second, off) = (second + 1, off + rate);
                let exact = at(second, 0);
                let wall = i64::try_from(exact.wall.as_micros()).unwrap() + off;
                let reading = Reading { wall: Duration::from_micros(wall as u64), ..exact };
                prop_assert_eq!(clock.look(reading), None);
                prop_assert_eq!(clock.now(reading.boot).millis(), wall / 1_000);
            }
        }
    }
}

/// Runs two agreements by the believed time, second by second. `off` gives the error of the calendar's
/// clock. Returns the seconds at which the agreements begin and end.
fn lived(off: impl Fn(u64) -> i64) -> Vec<(u64, EventKind)> {
    use crate::agent::{
        agree::{Agreements, offer},
        store::Store,
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let text = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n[agreements]\n";
    let config = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let mut clock = started();
    let mut agreements = Agreements::open(&config, &store, clock.now(at(0, 0).boot)).unwrap().unwrap();
    let true_time = |second| utc(Duration::from_secs(NOW + second));
    for (service, start, end) in [("now", None, 100), ("later", Some(50), 150)] {
        let mut offer = offer(service, 20);
        (offer.terms.start, offer.terms.end) = (start.map(true_time), Some(true_time(end)));
        let now = weir_agree::ClockReading { utc: true_time(0), monotonic: weir_units::Instant::default() };
        agreements.offer(&weir_agree::Name::new("1/acme").unwrap(), None, offer, &store, now).unwrap();
    }
    agreements.happened();
    let mut seen = Vec::new();
    for second in 1..300 {
        let reading = at(second, off(second));
        clock.look(reading);
        let now = clock.now(reading.boot);
        agreements.advance(now);
        let in_force = agreements.in_force(Direction::Upload, now).len();
        let expected = usize::from(second < 100) + usize::from((50..150).contains(&second));
        assert_eq!(in_force, expected, "second {second}");
        seen.extend(agreements.happened().into_iter().map(|one| (second, one.what)));
    }
    seen
}

#[test]
fn agreements_begin_and_end_at_their_moments_whatever_the_clock_does() {
    let right = [
        (50, EventKind::AgreementActivated),
        (100, EventKind::AgreementExpired),
        (150, EventKind::AgreementExpired),
    ];
    assert_eq!(lived(|_| 0), right);
    for off in [DAY as i64, -(DAY as i64), -(NOW as i64)] {
        // A jump of 3 s at each second of a change, and between them.
        for begin in [10, 48, 49, 50, 51, 98, 99, 100, 148, 150] {
            assert_eq!(lived(|second| if (begin..begin + 3).contains(&second) { off } else { 0 }), right);
        }
        // An error that stays for the whole time.
        assert_eq!(lived(|_| off), right);
    }
}
