//! The special parts of the engine of departure times: a program at the scheduler's device whose
//! maps hold policies and clocks. Shares and faults are in `conformance`, `random`, `active` and
//! `faults`.

use std::{thread::sleep, time::Duration};

use weir_bpf::attach;
use weir_netlab::{
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, FLOOD, Node, assert_shares, containers,
    kernel::{self, SCHEDULER},
    party, wait_within,
};

const SECOND: Duration = Duration::from_secs(1);
const PROGRAM: &str = "weir_edt";
const TOLERANCE: f64 = 0.02;

fn division() -> Division {
    Division::of([
        party("C1").min(30).sends(FLOOD),
        party("C2").weight(2).sends(Load::Tcp),
        party("C3").weight(3).max(15).sends(FLOOD),
    ])
}

fn node() -> Node {
    let mut node = Node::build(&Spec { containers: containers(3), tso: false, ..Spec::default() });
    let config = node.config().engine(EngineKind::Edt).division(&node, &division());
    node.start(&config);
    node
}

#[track_caller]
fn shares_hold(node: &Node, what: &str) {
    let outcome = division().run(node, &[], Family::V4, 4);
    let got: Vec<(String, f64)> = outcome.flows.iter().map(|f| (f.label.clone(), f.goodput)).collect();
    assert_shares(what, &got, &division().expected(CAPACITY, Family::V4), TOLERANCE);
}

/// The program at the scheduler's device.
fn program(node: &Node) -> Option<u32> {
    let index = kernel::index_of(node.topology.node(), SCHEDULER)?;
    let ids = node.topology.node().within(|| attach::tcx_egress(index)).expect("it can be entered");
    ids.expect("TCX").into_iter().find(|id| attach::program_name(*id).is_ok_and(|name| name == PROGRAM))
}

/// The id of one of its maps.
fn map(node: &Node, name: &str) -> u32 {
    let maps = attach::program_maps(program(node).expect("it is there")).expect("it has maps");
    let is = |id: &u32| node.sh(&["bpftool", "map", "show", "id", &id.to_string()]).contains(name);
    maps.into_iter().find(is).unwrap_or_else(|| panic!("no map {name}"))
}

/// Writes 64-bit words into the beginning of a row of a map, as another process of root could.
fn scribble(node: &Node, map_name: &str, row: u16, words: &[u64], len: usize) {
    let id = map(node, map_name).to_string();
    let mut value: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    value.resize(len, 0);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>();
    let mut argv = ["bpftool", "map", "update", "id", &id, "key", "hex"].map(str::to_owned).to_vec();
    argv.extend(hex(&u32::from(row).to_ne_bytes()));
    argv.extend(["value", "hex"].map(str::to_owned));
    argv.extend(hex(&value));
    node.sh(&argv.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Waits for one more repair.
#[track_caller]
fn repaired(node: &Node, what: &str, before: u64) {
    let took = wait_within(SECOND, || {
        let repairs = node.client().status().expect("it answers").repairs;
        if repairs > before { Ok(()) } else { Err(()) }
    });
    let took = took.unwrap_or_else(|late| panic!("{what}: nothing is said after {SECOND:?}: {late}"));
    println!("{what:<44} repaired within {took:?}");
}

fn minor(node: &Node, label: &str) -> u16 {
    let handle = node.class(label).handle.expect("it has a handle");
    u16::from_str_radix(handle.split(':').nth(1).unwrap_or_default(), 16).expect("tc's way of writing it")
}

#[test]
fn the_next_agent_goes_on_with_the_same_clocks_and_counters() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    let mut node = node();
    shares_hold(&node, "before");
    let clocks = map(&node, "weir_edt_clocks");
    let bytes = node.class("C1").bytes.0;
    assert!(bytes > 1_000_000, "{bytes}");
    node.agent().kill();
    shares_hold(&node, "without an agent");
    node.restart();
    assert_eq!(map(&node, "weir_edt_clocks"), clocks);
    let after = node.class("C1").bytes.0;
    assert!(after > bytes / 10 * 19, "{bytes} before, {after} after: what was sent without an agent counts");
    shares_hold(&node, "taken over");
}

#[test]
fn what_somebody_writes_into_the_maps_is_set_right_within_a_second() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    let node = node();
    let repairs = || node.client().status().expect("it answers").repairs;
    let c1 = minor(&node, "C1");
    for (map, row, words, len) in [
        // A ceiling of 1 kB/s, weight 9.
        ("weir_edt_rules", c1, [0, 1000, 1000, 9].as_slice(), 32),
        // Nobody.
        ("weir_edt_rules", c1, [0].as_slice(), 32),
        // A link of 1 kB/s.
        ("weir_edt_link", 0, [1000].as_slice(), 40),
    ] {
        let before = repairs();
        scribble(&node, map, row, words, len);
        repaired(&node, map, before);
    }
    shares_hold(&node, "repaired");
    // Clocks are the program's own: one that is hours ahead is set back by it, with an agent
    // or without.
    let far = u64::MAX / 4;
    scribble(&node, "weir_edt_clocks", c1, &[far, 0, 0, 1 << 40, 1, 0, 0, 1000], 136);
    sleep(SECOND);
    shares_hold(&node, "with a clock set right");
}

#[test]
fn a_program_taken_away_is_back_within_a_second() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    let node = node();
    let before = node.client().status().expect("it answers").repairs;
    let index = kernel::index_of(node.topology.node(), SCHEDULER).expect("it is there");
    let id = program(&node).expect("it is there");
    let detached = node.topology.node().within(|| attach::detach_tcx_egress(id, index));
    detached.expect("it can be entered").expect("it is there");
    repaired(&node, "the program detached", before);
    assert!(program(&node).is_some());
    for (what, qdisc) in [
        ("fq's options altered", "parent 1:1 handle 11: fq maxrate 1mbit"),
        ("TBF's rate altered", "root handle 1: tbf rate 1mbit burst 10k limit 100k"),
        ("another qdisc", "root handle 7: pfifo"),
    ] {
        let before = node.client().status().expect("it answers").repairs;
        let words = ["tc", "qdisc", "replace", "dev", SCHEDULER].into_iter();
        node.sh(&words.chain(qdisc.split(' ')).collect::<Vec<_>>());
        repaired(&node, what, before);
    }
    shares_hold(&node, "back");
}

#[test]
fn another_engine_takes_the_program_away() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    let mut node = node();
    node.agent().kill();
    let config = node.config().engine(EngineKind::Htb).division(&node, &division());
    node.agent().rewrite(&config).expect("it can be written");
    node.restart();
    assert_eq!(program(&node), None);
    shares_hold(&node, "by HTB");
}

#[test]
fn super_packets_are_split_on_slow_links_unless_forbidden() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    for (link, split) in [("split = \"auto\"", true), ("split = \"never\"", false)] {
        let mut node = Node::build(&Spec { containers: containers(3), ..Spec::default() });
        let config = node.config().engine(EngineKind::Edt).link(link).division(&node, &division());
        node.start(&config);
        if split {
            shares_hold(&node, link);
        }
        let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", SCHEDULER]);
        let (root, child) =
            (qdiscs.starts_with("qdisc tbf 1: root"), qdiscs.contains("qdisc fq 11: parent 1:1"));
        assert_eq!((root, child), (split, split), "{link}:\n{qdiscs}");
        // The next agent finds it as it is.
        node.agent().kill();
        node.restart();
        assert_eq!(node.sh(&["tc", "qdisc", "show", "dev", SCHEDULER]), qdiscs);
        assert!(node.agent().stop());
    }
}

#[test]
fn flows_over_several_queues_share_as_through_one() {
    if !EngineKind::Edt.is_here() {
        return;
    }
    const QUEUES: usize = 4;
    let mut node = Node::build(&Spec { containers: containers(3), tso: false, ..Spec::default() });
    let config = node.config().engine(EngineKind::Edt).link(&format!("queues = {QUEUES}"));
    node.start(&config.division(&node, &division()));
    let qdiscs = |node: &Node| node.sh(&["tc", "-s", "-d", "qdisc", "show", "dev", SCHEDULER]);
    let of_fq = |text: &str| text.matches("qdisc fq ").count();
    assert!(qdiscs(&node).starts_with("qdisc mq 1: root"), "{}", qdiscs(&node));
    assert_eq!(of_fq(&qdiscs(&node)), QUEUES);
    shares_hold(&node, "over four queues");
    // Three senders' flows, and answers to requests for addresses: not all in one queue.
    let text = qdiscs(&node);
    let used = text.split("qdisc fq ").skip(1).filter(|q| !q.contains("Sent 0 bytes")).count();
    println!("{used} of {QUEUES} queues were used");
    assert!(used > 1, "{text}");

    // One of the queues' qdiscs replaced: all of them are remade, and hold.
    node.sh(&["tc", "qdisc", "replace", "dev", SCHEDULER, "parent", "1:2", "pfifo"]);
    let mended = wait_within(SECOND, || {
        let text = qdiscs(&node);
        if of_fq(&text) == QUEUES { Ok(()) } else { Err(text) }
    });
    mended.unwrap_or_else(|late| panic!("not mended within a second: {late}"));
    shares_hold(&node, "mended");

    node.agent().kill();
    node.restart();
    shares_hold(&node, "under the next agent");
    assert_eq!(of_fq(&qdiscs(&node)), QUEUES);
    assert!(node.agent().stop());
}
