//! What becomes of the division of a killed agent: `weir agent --restore` removes it whatever the configuration says.

use std::fs;

use weir_netlab::topology::{Spec, UPLINK};
use weir_netns_tests::{
    Need, Node, Ran, can_run, containers,
    kernel::{SCHEDULER, index_of, traces},
};

/// Starts the program with the agent's files. It must end by itself.
fn begun(node: &mut Node, more: &[&str]) -> Ran {
    let path = node.agent().config_path();
    let path = path.to_str().expect("it is text");
    node.ran(&[&["agent", "--config", path], more].concat())
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
