//! The engine that the agent takes, and its words about those that it cannot.

use weir_api::Verdict;
use weir_datapath::engine::EngineKind;
use weir_netlab::topology::Spec;
use weir_netns_tests::{Agent, Need, Node, can_run, containers};

/// The verdict of `weir doctor` on each engine: works, or why not.
fn verdicts(node: &Node) -> Vec<(EngineKind, Result<(), String>)> {
    let doctor = node.client().doctor().expect("the agent answers");
    let verdict = |kind: EngineKind| {
        let name = format!("engine {kind}");
        let check = doctor.checks.iter().find(|c| c.name == name).expect("doctor tries every engine");
        println!("{name}: {}", check.found);
        (kind, if check.verdict == Verdict::Ok { Ok(()) } else { Err(check.found.clone()) })
    };
    EngineKind::ALL.into_iter().map(verdict).collect()
}

#[test]
fn auto_takes_the_best_engine_here_also_after_a_crash() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config().link("engine = \"auto\"");
    node.start(&config);
    let taken = node.client().status().expect("the agent answers").engine;
    let verdicts = verdicts(&node);
    let best = verdicts.iter().find(|(_, works)| works.is_ok()).expect("some engine works");
    assert_eq!(taken, best.0.name());
    // A better engine that was not taken is named with the reason.
    let log = node.agent().log();
    for (kind, _) in verdicts.iter().take_while(|(_, works)| works.is_err()) {
        assert!(log.contains(&format!("{kind} was not taken: ")), "{kind} is not in the log:\n{log}");
    }

    node.agent().kill();
    node.restart();
    assert_eq!(node.client().status().expect("the agent answers").engine, taken);
    let log = node.agent().log();
    assert!(!log.contains("was not taken"), "engines were tried again:\n{log}");
    assert!(node.agent().stop());
    assert!(!node.sh(&["ip", "-br", "link"]).contains("weir0"), "the scheduler's device is left");
}

#[test]
fn engine_that_this_kernel_lacks_is_refused_with_the_reason() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let lacking: Vec<(EngineKind, String)> =
        verdicts(&node).into_iter().filter_map(|(kind, works)| Some((kind, works.err()?))).collect();
    assert!(node.agent().stop());
    if lacking.is_empty() {
        println!("SKIPPED: this kernel lacks nothing that an engine needs");
        return;
    }
    let before = node.sh(&["ip", "-o", "link"]);
    for (kind, why) in lacking {
        let config = node.config().link(&format!("engine = \"{kind}\""));
        let error = match Agent::start(node.topology.node(), &config) {
            Ok(_) => panic!("{kind} runs, but doctor says: {why}"),
            Err(error) => format!("{error:#}"),
        };
        let wanted = format!("[link] engine: {kind} does not work here: ");
        assert!(error.contains(&wanted) && error.contains(&why), "{error}");
        assert_eq!(node.sh(&["ip", "-o", "link"]), before, "{kind} has left something");
    }
}
