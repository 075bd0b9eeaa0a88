//! The schedulers of qCon's paper on this kernel: its own as written, beside the repaired form, and the
//! DRR of its Fig. 3.

use std::{thread::sleep, time::Duration};

use serde_json::Value;
use weir_netlab::{
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, Need, Node, Senders, Share, can_run, containers, party,
    run_scenario,
};

/// How long each case is measured.
const TIME: Duration = Duration::from_secs(3);

/// The traffic of a division that arrived.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The part of the link that was used.
    used: f64,
    /// The largest error of a share, as a part of what arrived.
    uneven: f64,
}

/// Weights 1:2:3. The containers of these indices send TCP, the others nothing.
fn busy(senders: &[usize]) -> Division {
    let one = |(index, weight): (usize, u32)| {
        let load = if senders.contains(&index) { Load::Tcp } else { Load::Nothing };
        party(&format!("C{}", index + 1)).weight(weight).sends(load)
    };
    Division::of([1, 2, 3].into_iter().enumerate().map(one))
}

fn measure(node: &Node, engine: EngineKind, what: &str, division: &Division) -> Seen {
    let expected = division.expected(CAPACITY, Family::V4);
    node.client().set(&division.to_changes(node)).expect("it fits");
    let senders = Senders::of(node, engine);
    senders.follow(division, &expected);
    sleep(engine.settles() + Duration::from_millis(1500));
    let got = senders.goodputs(TIME);
    let sent: f64 = got.iter().map(|(_, rate)| rate).sum();
    let whole: f64 = expected.iter().map(|share| share.goodput).sum();
    let uneven = |share: &Share| {
        let rate = got.iter().find(|(label, _)| *label == share.label).map_or(0.0, |(_, rate)| *rate);
        (rate / sent / (share.goodput / whole) - 1.0).abs()
    };
    let uneven = expected.iter().filter(|share| share.goodput > 0.0).map(uneven).fold(0.0, f64::max);
    let used = sent / whole;
    println!(
        "{:<17} {what:<20} uses {used:.4} of the link, shares of that are {:.2} % off",
        engine.name(),
        uneven * 100.0
    );
    Seen { used, uneven }
}

/// All send, then the last class is idle, then all send under the agent that follows a killed one.
fn run(engine: EngineKind, tso: bool) -> [Seen; 3] {
    let mut node = Node::build(&Spec { containers: containers(3), tso, ..Spec::default() });
    let config = node.config().link(&engine.to_toml());
    node.start(&config);
    assert_eq!(node.client().status().expect("it answers").engine, engine.name());
    let all = measure(&node, engine, &format!("tso {tso}, all send"), &busy(&[0, 1, 2]));
    let last_idle = measure(&node, engine, &format!("tso {tso}, last idle"), &busy(&[0, 1]));
    // The kernel's timer ends with the agent.
    node.agent().kill();
    node.restart();
    let again = measure(&node, engine, &format!("tso {tso}, adopted"), &busy(&[0, 1, 2]));
    assert!(node.agent().stop());
    [all, last_idle, again]
}

/// Algorithm 1 hands what a class leaves to later classes only. No class comes after the last one.
#[test]
fn papers_form_loses_what_later_classes_leave_and_the_repair_uses_it() {
    // Both are modes of one qdisc.
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let [all, last_idle, adopted] = run(EngineKind::PaperCredit, false);
    for seen in [all, adopted] {
        assert!(seen.used >= 0.99 && seen.uneven <= 0.01, "{seen:?}");
    }
    // The last class has half of the weight.
    assert!((0.49..=0.51).contains(&last_idle.used) && last_idle.uneven <= 0.01, "{last_idle:?}");

    for seen in run(EngineKind::BpfCredit, true) {
        assert!(seen.used >= 0.98 && seen.uneven <= 0.02, "{seen:?}");
    }
}

/// The largest error of a share in a case, in parts of the share.
fn error(report: &Value, case: usize, control: &str) -> f64 {
    let containers = report["cases"][case]["containers"].as_array().expect("containers");
    containers
        .iter()
        .map(|c| c["measured"][control]["error"].as_f64().expect("a number").abs())
        .fold(0.0, f64::max)
}

/// qCon, Fig. 3: a packet leaves DRR as soon as it enters.
#[test]
fn drr_divides_nothing_where_the_line_behind_it_is_full() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    if !Need::Qdisc("drr").is_met() {
        println!("SKIPPED: the kernel's DRR (CONFIG_NET_SCH_DRR) is missing here");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (report, _) = run_scenario("drr-without-root", &["--seconds", "5"], dir.path());
    for case in 0..2 {
        let weir = error(&report, case, "weir");
        assert!(weir <= 0.02, "case {case}: weir is {weir} off");
    }
    // UDP has equal shares: the smallest weight has twice its own. Shares of TCP are a matter of chance.
    let drr = error(&report, 1, "tc");
    assert!(drr >= 0.9, "DRR is only {drr} off");
}
