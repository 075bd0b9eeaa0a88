use std::time::Duration;

use weir_units::Instant;

use super::*;
use crate::{
    AgreementLedger, ClockReading, Conditions, Document as _, Language, LedgerLimits, Limits, Look, Monitor,
    Name, Offer,
};

/// An agreement on 19 Mbit/s of a customer with a nasty name, and an hour of it with a violation.
fn report() -> Report {
    let start: Utc = "2026-11-20T11:00:00Z".parse().unwrap();
    let offer = Offer::read(include_str!("../../docs/fig2.xml"), Language::Xml).unwrap();
    let mut ledger = AgreementLedger::new(Limits::new(BitRate::mbit(100)), LedgerLimits::default());
    let now = ClockReading { utc: start, monotonic: Instant(Duration::ZERO) };
    let id = Name::new("a-1").unwrap();
    let agreement = ledger.offer(offer, id.clone(), now).unwrap().agreement;
    let mut monitor = Monitor::new();
    for n in 1..=3600u32 {
        let part = if (100..110).contains(&n) { 2 } else { 1 };
        let look = Look {
            at: start.after(Duration::from_secs(1) * n),
            time: Duration::from_secs(1),
            guarantee: BitRate::mbit(19),
            delivered: Bytes(2_375_000 / part),
            waits: true,
            conditions: Conditions { engine_fault: true, ..Conditions::default() },
        };
        monitor.look(&id, &look);
    }
    let report = Report::new(&agreement, monitor.month(&id).unwrap(), start.after(Duration::from_secs(3601)));
    Report { party: "A & <B>".to_owned(), ..report }
}

#[test]
fn the_json_of_a_report_has_what_was_promised_delivered_and_missed() {
    let report = report();
    let text = serde_json::to_string(&report).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["month"], &json["party"]), (&"2026-11".into(), &"A & <B>".into()));
    assert_eq!(json["seen"]["promised"], 3600 * 2_375_000u64);
    assert_eq!(json["seen"]["delivered"], 3600 * 2_375_000u64 - 10 * 1_187_500);
    assert_eq!(json["seen"]["violations"][0]["cause"], "engine-fault");
    assert_eq!(json["seen"]["violations"][0]["violated_ms"], 10_000);
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn the_page_is_whole_says_all_of_it_and_trusts_no_name() {
    let page = report().html();
    for part in [
        "<title>Agreement a-1, 2026-11</title>",
        "A &amp; &lt;B&gt;",
        "99.722 %",
        "1 h 0 min",
        "one violation",
        "<td>2026-11-20T11:01:39Z</td><td class=\"n\">10.0 s</td><td class=\"n\">9.5mbit</td>",
        "the engine had a fault",
        "<svg",
        // Hour 467 of 720, 880 px wide, in an area 260 px high for 1.1 times 19 Mbit/s.
        "M640.78 270V33.96H642.00V270z",
        "M640.78 33.64H642.00",
        "text-anchor=\"end\">15</text>",
        "</svg>",
    ] {
        assert!(page.contains(part), "{part}\nis not in\n{page}");
    }
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
}

#[test]
fn a_month_without_a_look_can_be_reported() {
    let empty = Report { seen: Month::new("2026-02-10T00:00:00Z".parse().unwrap()), ..report() };
    let page = empty.html();
    assert!(page.contains("no violation") && page.contains("0.0 s"), "{page}");
}

#[test]
fn availability_is_never_rounded_up() {
    assert_eq!((percent(1.0), percent(0.999_999_9)), ("100.000 %".to_owned(), "99.999 %".to_owned()));
}
