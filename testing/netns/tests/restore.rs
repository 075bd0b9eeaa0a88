//! The division of a killed agent. A start that fails leaves it in force or removes all of it. `weir agent --restore`
//! removes it without a good configuration.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use weir_datapath::engine::selftest;
use weir_netlab::topology::{Family, Spec, UPLINK};
use weir_netns_tests::{
    EngineKind, Need, Node, Ran, Stream, can_run, containers,
    kernel::{SCHEDULER, index_of, traces},
};
use weir_units::BitRate;

/// Less than the wire carries, so that a link that is not shared is faster.
const CAPACITY: BitRate = BitRate::mbit(20);

/// Starts the program with the agent's files. It must end by itself.
fn begun(node: &mut Node, more: &[&str]) -> Ran {
    let path = node.agent().config_path();
    let path = path.to_str().expect("it is text");
    node.ran(&[&["agent", "--config", path], more].concat())
}

/// The root qdisc of the scheduler's device.
fn root(node: &Node) -> String {
    let all = node.sh(&["tc", "qdisc", "show", "dev", SCHEDULER]);
    all.lines().find(|line| line.contains(" root ")).unwrap_or_default().to_owned()
}

fn goodput(node: &Node) -> f64 {
    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let stream = Stream::tcp(node.netns("C1"), srv, address);
    std::thread::sleep(Duration::from_millis(500));
    stream.goodput(Duration::from_secs(1))
}

/// An engine that this kernel lacks a part of.
fn lacking() -> Option<EngineKind> {
    let lacks = |kind: &EngineKind| matches!(selftest::set_up(*kind), Err(selftest::Failure::Engine(_)));
    [EngineKind::Edt, EngineKind::Bpf].into_iter().find(lacks)
}

#[test]
fn engine_that_does_not_work_is_refused_and_the_division_stays() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let Some(engine) = lacking() else {
        println!("SKIPPED: this kernel has all engines");
        return;
    };
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let found = traces(node.topology.node());
    node.start(&node.config().capacity(CAPACITY));
    node.agent().kill();
    let (divided, before) = (root(&node), traces(node.topology.node()));
    assert!(divided.starts_with("qdisc htb 1:"), "{divided}");

    let other = node.config().capacity(CAPACITY).engine(engine);
    node.agent().rewrite(&other).expect("can write");
    let refused = begun(&mut node, &[]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let why = format!("[link] engine: {engine} does not work here");
    assert!(refused.stderr.contains(&why), "{refused:?}");
    let said = "the division of an earlier agent stays in force (`weir agent --restore` removes it)";
    assert!(refused.stderr.contains(said), "{refused:?}");
    assert_eq!((root(&node), traces(node.topology.node())), (divided, before));
    let got = goodput(&node);
    assert!(got < CAPACITY.as_mbit(), "{got} Mbit/s of {CAPACITY}");

    let restored = begun(&mut node, &["--restore"]);
    assert_eq!((restored.code, restored.stdout.as_str()), (Some(0), "everything is put back\n"));
    assert_eq!(traces(node.topology.node()), found, "something is left");
}

#[test]
fn start_that_fails_after_it_replaced_a_scheduler_removes_the_division() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let found = traces(node.topology.node());
    node.start(&node.config().capacity(CAPACITY));
    node.agent().kill();
    // As another engine would have left it. The name of the download's device is taken.
    node.sh(&["tc", "qdisc", "del", "dev", SCHEDULER, "root"]);
    node.sh(&["tc", "qdisc", "add", "dev", SCHEDULER, "root", "handle", "1:", "pfifo"]);
    node.sh(&["ip", "link", "add", "weir0d", "type", "bridge"]);
    let more = node.config().capacity(CAPACITY).link("download = \"20mbit\"");
    node.agent().rewrite(&more).expect("can write");
    let failed = begun(&mut node, &[]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    for words in ["weir: the link is not shared now: ", "weir0d"] {
        assert!(failed.stderr.contains(words), "{failed:?}");
    }
    node.sh(&["ip", "link", "del", "weir0d"]);
    assert_eq!(traces(node.topology.node()), found, "something is left");
    let got = goodput(&node);
    assert!(got > CAPACITY.as_mbit(), "{got} Mbit/s of a link that is not shared");
}

#[test]
fn restore_needs_no_configuration_that_is_good() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let tunable = |node: &Node| {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/tcp_tso_rtt_log");
        node.netns("C1").within(read).expect("can enter").ok()
    };
    let seen = |node: &Node| (traces(node.topology.node()), tunable(node));
    let found = seen(&node);
    for (what, words) in [
        ("broken", "cannot use configuration"),
        ("missing", "there is no such file"),
        ("deviceless", ""),
        ("clsact", ""),
        ("download", ""),
    ] {
        let config = node.config();
        node.start(&match what {
            "clsact" => config.link("attach = \"clsact\""),
            "download" => config.link("download = \"50mbit\""),
            _ => config,
        });
        node.agent().kill();
        assert_ne!(seen(&node), found, "{what}: a crash leaves something");
        let (path, state) = (node.agent().config_path(), node.agent().state_path());
        let text = fs::read_to_string(&path).expect("can read");
        let mut more = vec!["--restore"];
        match what {
            "broken" => fs::write(&path, text.replace("capacity =", "capacity")).expect("can write"),
            "deviceless" => fs::write(&path, text.replace(UPLINK, "nowhere")).expect("can write"),
            "missing" => {
                fs::remove_file(&path).expect("it is ours");
                more.extend(["--state", state.to_str().expect("it is text")]);
            }
            _ => {}
        }
        let restored = begun(&mut node, &more);
        let answer = (restored.code, restored.stdout.as_str());
        assert_eq!(answer, (Some(0), "everything is put back\n"), "{what}: {restored:?}");
        assert!(restored.stderr.contains(words), "{what}: {restored:?}");
        for untrue in ["started:", "class-added"] {
            assert!(!restored.stderr.contains(untrue), "{what}: {restored:?}");
        }
        assert_eq!(seen(&node), found, "{what}: something is left");
        assert!(!node.socket().exists() || what == "missing", "{what}: the dead socket is left");
    }
}

#[test]
fn restore_without_a_state_leaves_clsact_and_says_so() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    node.start(&node.config());
    node.agent().kill();
    let nowhere = node.agent().state_path().join("nowhere");
    let nowhere = nowhere.to_str().expect("it is text").to_owned();
    let restored = begun(&mut node, &["--restore", "--state", &nowhere]);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    assert!(restored.stdout.contains("but clsact qdiscs"), "{restored:?}");
    assert!(restored.stderr.contains(&format!("there is no state in {nowhere}")), "{restored:?}");
    assert_eq!(index_of(node.topology.node(), SCHEDULER), None);
    assert_eq!(node.sh(&["tc", "filter", "show", "dev", UPLINK, "egress"]), "");
    assert!(node.sh(&["tc", "qdisc", "show", "dev", UPLINK]).contains("clsact"));
    // With the state, it goes too.
    let restored = begun(&mut node, &["--restore"]);
    assert_eq!(restored.stdout, "everything is put back\n", "{restored:?}");
    assert!(!node.sh(&["tc", "qdisc", "show", "dev", UPLINK]).contains("clsact"));
}

/// A lock's file can be removed. The agent still answers at its socket.
#[test]
fn restore_beside_an_agent_whose_lock_was_removed_is_refused() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    node.start(&node.config());
    let before = traces(node.topology.node());
    for is_removed in [false, true] {
        if is_removed {
            let namespace = fs::metadata(node.topology.node().path()).expect("it is there").ino();
            fs::remove_file(format!("/run/weir/agent-{namespace}.lock")).expect("the agent holds it");
        }
        let refused = begun(&mut node, &["--restore"]);
        let why =
            if is_removed { "cannot put anything back: an agent answers at " } else { "another weir agent" };
        assert!(refused.code == Some(1) && refused.stderr.contains(why), "{refused:?}");
        assert_eq!(traces(node.topology.node()), before);
    }
}
