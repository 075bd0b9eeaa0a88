//! The trials of a node and the kernel's counters of drawn connections.

use std::{net::IpAddr, time::Duration};

use weir_cc::{AdviceSettings, Advisor, Algorithm, FlowRecord, Rule, Rules};
use weir_units::{BitRate, Bytes, Instant};

fn algorithm(name: &str) -> Algorithm {
    name.parse().unwrap()
}

fn settings() -> AdviceSettings {
    let start = |name| Rule { start: Some(algorithm(name)), ..Rule::default() };
    AdviceSettings {
        to: ["10.0.0.0/8", "192.0.2.0/24"].map(|to| to.parse().unwrap()).to_vec(),
        share: 0.25,
        candidates: vec![start("bbr")],
        turn_s: 10,
    }
}

fn flow(took_us: u64) -> FlowRecord {
    FlowRecord {
        ended_ms: 0,
        class: None,
        to: IpAddr::from([192, 0, 2, 1]),
        remote_port: 443,
        local_port: 40_000,
        direction: None,
        sent: Bytes(50_000),
        received: Bytes(0),
        took_us,
        first: algorithm("cubic"),
        last: algorithm("cubic"),
        switched_at: None,
        least_rtt_us: 10_000,
        smoothed_rtt_us: 12_000,
        most_rtt_us: 35_000,
        retransmits: 0,
        delivery_rate: BitRate::mbit(10),
        rule: None,
        tried: false,
    }
}

fn turn(advisor: &mut Advisor, number: u64) {
    let now = Instant(Duration::from_secs(10 * number));
    assert!(advisor.turn(now, &Rules::default(), &algorithm("cubic"), || 1).is_some());
}

/// An advisor whose second network has its baseline, and the turn of that.
fn learned() -> (Advisor, u32) {
    let mut advisor = Advisor::new(Some(settings()), Default::default(), 0);
    turn(&mut advisor, 0);
    let of_second = |advisor: &Advisor| advisor.assignments()[1].turn;
    let first = of_second(&advisor);
    (0..5_000).for_each(|nth| advisor.observe(first, false, &flow(10_000 + nth % 100)));
    turn(&mut advisor, 1);
    let now = of_second(&advisor);
    (advisor, now)
}

#[test]
fn connections_drawn_and_not_ended_leave_room_for_fewer() {
    let (mut advisor, first) = learned();
    assert_eq!(advisor.slots(), [0, 1]);
    // The first network has no baseline yet.
    assert_eq!([0, 1].map(|slot| advisor.most_drawn(slot)), [0, 20]);
    advisor.set_drawn(1, 15);
    assert_eq!(advisor.most_drawn(1), 20);
    for _ in 0..15 {
        advisor.ended(first);
        advisor.observe(first, true, &flow(10_000));
    }
    assert_eq!(advisor.most_drawn(1), 35);
    // Late ones are charged, and 200 others pay for one.
    advisor.set_drawn(1, 18);
    for _ in 0..3 {
        advisor.ended(first);
        advisor.observe(first, true, &flow(5_000_000));
    }
    assert_eq!(advisor.most_drawn(1), 18 + 17);
    (0..201).for_each(|_| advisor.observe(first, false, &flow(10_000)));
    assert_eq!(advisor.most_drawn(1), 18 + 18);
    // Connections that do not end count for six turns.
    advisor.set_drawn(1, 28);
    (2..7).for_each(|number| turn(&mut advisor, number));
    assert_eq!(advisor.most_drawn(1), 36);
    turn(&mut advisor, 7);
    assert_eq!(advisor.most_drawn(1), 28 + 18);
}

#[test]
fn counters_begin_anew_with_programs_and_flight_is_lost_with_the_agent() {
    let (mut advisor, _) = learned();
    advisor.set_drawn(1, 5);
    // The programs were loaded again, and have drawn two.
    advisor.set_drawn(1, 2);
    assert_eq!(advisor.most_drawn(1), 2 + 20 - 7);
    let stored = serde_json::to_string(advisor.trials()).unwrap();
    let mut after = Advisor::new(Some(settings()), serde_json::from_str(&stored).unwrap(), 100);
    turn(&mut after, 0);
    assert_eq!(after.most_drawn(1), 13, "seven flows may end late, and no one will tell");
}
