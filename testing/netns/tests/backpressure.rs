//! A class that floods is held back in its own socket: it loses nothing, and no other class
//! notices.

use weir_netlab::{
    stats,
    topology::{Family, Mode, Spec},
    traffic::{Load, Outcome},
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, TOLERANCE, can_run, compare, containers, measure_once, party, title,
};

/// How much of the flood may be lost.
const LOSS: f64 = 0.01;
/// How much later an idle class's answers may come, ms.
const RISE_MS: f64 = 3.0;

#[derive(Debug)]
struct Seen {
    outcome: Outcome,
    worst: f64,
    loss: f64,
    median_ms: f64,
}

impl Seen {
    fn good(&self, unloaded_ms: f64) -> bool {
        self.worst <= TOLERANCE && self.loss < LOSS && self.median_ms - unloaded_ms < RISE_MS
    }
}

fn median(ms: &[f64]) -> f64 {
    stats::median(ms).expect("there are answers")
}

fn p99(ms: &[f64]) -> f64 {
    stats::percentile(ms, 99.0).expect("there are answers")
}

/// One class floods with three times its share, two send TCP, a fourth only pings.
fn flood(mode: Mode, family: Family) {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::BrNetfilter]) {
        return;
    }
    let spec = Spec { containers: containers(4), mode, br_netfilter: Some(true), ..Spec::default() };
    let mut node = Node::build(&spec);
    // A third of the link is its share.
    let flood = Load::Udp(CAPACITY);
    let division = Division::of([
        party("C1").sends(flood),
        party("C2").sends(Load::Tcp),
        party("C3").sends(Load::Tcp),
        party("C4"),
    ]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    let what = title(mode, "flood", true, &family.to_string());
    let expected = division.expected(CAPACITY, family);

    let silence = || Division::default().run(&node, &["C4"], family, 4);
    let silence = measure_once(silence, |outcome| outcome.pings[0].ms.len() > 50);
    let unloaded = &silence.pings[0];
    assert!(unloaded.ms.len() > 50, "{} answers on an idle link", unloaded.ms.len());
    let unloaded_ms = median(&unloaded.ms);
    let seen = measure_once(
        || {
            let before = node.class("C1").drops;
            let outcome = division.run(&node, &["C4"], family, 6);
            let measured: Vec<(String, f64)> =
                outcome.flows.iter().map(|flow| (flow.label.clone(), flow.goodput)).collect();
            let worst = compare(&what, &measured, &expected);
            let loss = outcome.flows[0].loss.expect("UDP tells");
            let pings = &outcome.pings[0];
            let median_ms = median(&pings.ms);
            println!(
                "{what:<44} C1    loss {:.3} %, {} drops",
                loss * 100.0,
                node.class("C1").drops - before
            );
            println!(
                "{what:<44} C4    ping median {median_ms:.2} ms, unloaded {unloaded_ms:.2} (rise {:+.2}); \
                 p99 {:.2}, unloaded {:.2}; {} of {} answered",
                median_ms - unloaded_ms,
                p99(&pings.ms),
                p99(&unloaded.ms),
                pings.received,
                pings.sent,
            );
            Seen { outcome, worst, loss, median_ms }
        },
        |seen| seen.good(unloaded_ms),
    );
    let held = node.class("C1").backpressured_ms;
    println!("{what:<44} C1    held back for {held} ms");
    assert!(seen.worst <= TOLERANCE, "a share is {:.2} % off", seen.worst * 100.0);
    assert!(seen.loss < LOSS, "the flood lost {:.2} %", seen.loss * 100.0);
    let rise = seen.median_ms - unloaded_ms;
    assert!(rise < RISE_MS, "an idle class's answers come {rise:.2} ms later");
    let pings = &seen.outcome.pings[0];
    assert!(pings.received + 2 >= pings.sent, "{} of {} pings are answered", pings.received, pings.sent);
    assert!(held > 3000, "a flood has a queue all the time, the agent says for {held} ms");
}

#[test]
fn a_flood_from_a_bridged_container_is_held_back_and_not_lost() {
    flood(Mode::Bridged, Family::V4);
}

#[test]
fn a_flood_from_a_routed_container_is_held_back_and_not_lost() {
    flood(Mode::Routed, Family::V4);
}

#[test]
fn a_flood_over_ipv6_is_held_back_and_not_lost() {
    flood(Mode::Routed, Family::V6);
}
