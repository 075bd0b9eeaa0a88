//! The cost of a packet on the node, counted in instructions.
//!
//! In a guest with instruction counting (`make test-vm`) a nanosecond is one instruction of
//! its one processor, and a packet is delivered before the call that sends it returns: the
//! time of a call is what the packet costs, the same on every host. On other kernels these
//! tests say so and pass.

use std::{
    net::{SocketAddr, UdpSocket},
    thread::sleep,
    time::{Duration, Instant},
};

use weir_datapath::engine::EngineKind;
use weir_netlab::topology::{Family, Spec};
use weir_netns_tests::{Need, Node, can_run, containers, in_virtual_time};
use weir_units::BitRate;

/// No packet waits for its turn at this capacity.
const CAPACITY: BitRate = BitRate::gbit(100);
/// Payload of a small packet and of a full one. Only the small one's cost is judged: the source of
/// a full one's memory differs by up to 450 instructions from one start to the next, with any
/// scheduler.
const SIZES: [usize; 2] = [200, 1400];
/// The bound of each other engine's cost of a packet, as a part of all that the HTB engine adds.
/// For those with a device it bounds the scheduler too, as a part of HTB's own cost, beyond the way
/// to the device
const BUDGETS: [(&str, f64, Option<f64>); 4] = [
    ("bpf", 1.0, Some(1.0)),
    ("bpf-credit", 1.0, Some(1.0)),
    ("edt", 0.85, Some(0.6)),
    ("pacing", 0.6, None),
];
/// The bound of the HTB engine, as a part of the cost of the same scheduler set up by hand.
const OF_BY_HAND: f64 = 1.4;

fn counts() -> bool {
    let counts = in_virtual_time();
    if !counts {
        println!("SKIPPED: this kernel does not run in virtual time (`make test-vm` boots one that does)");
    }
    counts
}

/// Instructions for one packet from the first container to the server: the mean of some, the
/// least of several such means, since timers and other processes only add to them, and of several
/// sockets, as their hashes differ.
fn of_a_packet(node: &Node, size: usize) -> f64 {
    (0..3).map(|_| of_a_socket(node, size)).fold(f64::INFINITY, f64::min)
}

fn of_a_socket(node: &Node, size: usize) -> f64 {
    const PACKETS: u32 = 1000;
    const REPETITIONS: usize = 6;
    let address = node.topology.server_address(Family::V4);
    // No process reads: once its buffer is full, packets are dropped there.
    let sink = node.topology.srv().within(|| UdpSocket::bind((address, 0))).expect("can enter");
    let target = sink.as_ref().expect("can listen").local_addr().expect("it has one");
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let socket = node.netns("C1").within(|| UdpSocket::bind(any)).expect("can enter").expect("can open");
    socket.connect(target).expect("can connect");
    let payload = vec![0; size];
    let mean = || {
        let start = Instant::now();
        for _ in 0..PACKETS {
            socket.send(&payload).expect("it can send");
        }
        start.elapsed().as_nanos() as f64 / f64::from(PACKETS)
    };
    mean();
    (0..REPETITIONS).map(|_| mean()).fold(f64::INFINITY, f64::min)
}

fn of_packets(node: &Node, name: &str) -> [f64; 2] {
    let cost = SIZES.map(|size| of_a_packet(node, size));
    println!("{name:14} {:7.0} instructions for {} B, {:7.0} for {} B", cost[0], SIZES[0], cost[1], SIZES[1]);
    cost
}

/// The same with HTB on an ifb, filters and all, as an operator would set it up.
fn by_hand(node: &Node) -> [f64; 2] {
    let (netns, veth) = (node.topology.node(), node.topology.containers()[0].host_interface());
    netns.ip("link add hand0 type ifb\nlink set dev hand0 up\n").expect("can make it");
    let set_up = netns.tc(&format!(
        "qdisc add dev hand0 root handle 1: htb default 10\n\
         class add dev hand0 parent 1: classid 1:1 htb rate 100gbit ceil 100gbit burst 1m cburst 1m quantum 200000\n\
         class add dev hand0 parent 1:1 classid 1:10 htb rate 100gbit ceil 100gbit burst 1m cburst 1m quantum 200000\n\
         qdisc add dev hand0 parent 1:10 handle 10: bfifo limit 1000000\n\
         qdisc add dev {veth} handle ffff: ingress\n\
         filter add dev {veth} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev hand0\n"
    ));
    set_up.expect("tc takes it");
    let cost = of_packets(node, "htb by hand");
    netns.tc(&format!("qdisc del dev {veth} ingress\n")).expect("can remove it");
    netns.ip("link del hand0\n").expect("can remove it");
    cost
}

/// The way through weir's programs and device, with the kernel's plainest queue for a scheduler.
fn way(node: &mut Node) -> [f64; 2] {
    let config = node.config().capacity(CAPACITY).link("engine = \"htb\"");
    node.start(&config);
    // A dead agent repairs nothing.
    node.agent().kill();
    node.topology.node().tc("qdisc replace dev weir0 root pfifo limit 1000\n").expect("tc takes it");
    let cost = of_packets(node, "the way");
    node.start(&config);
    assert!(node.agent().stop());
    cost
}

#[test]
fn no_engine_costs_a_packet_more_than_its_budget() {
    if !counts() || !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    // New interfaces speak for some seconds, and have the node look at what passes.
    sleep(Duration::from_secs(5));
    let nothing = of_packets(&node, "no qdisc");
    let again = of_packets(&node, "no qdisc again");
    assert!((again[0] / nothing[0] - 1.0).abs() <= 0.005, "counts differ from one time to the next");
    let added = |cost: [f64; 2]| cost[0] - nothing[0];
    let hand = added(by_hand(&node));
    let measure = |node: &mut Node, kind: EngineKind| {
        let config = node.config().capacity(CAPACITY).link(&format!("engine = \"{kind}\""));
        node.start(&config);
        let cost = of_packets(node, kind.name());
        assert!(node.agent().stop());
        added(cost)
    };
    let htb = measure(&mut node, EngineKind::Htb);
    let way = added(way(&mut node));
    let mut beyond = Vec::new();
    let mut judge = |name: &str, ratio: f64, what: &str, most: f64| {
        println!("{name}: {ratio:.3} of {what}; at most {most}");
        if ratio > most {
            beyond.push(format!("{name}: {ratio:.3} of {what}, over {most}"));
        }
    };
    println!("for a packet of {} B: the way adds {way:.0} instructions, with htb {htb:.0}", SIZES[0]);
    judge("htb", htb / hand, "what htb by hand adds", OF_BY_HAND);
    for kind in EngineKind::ALL.into_iter().filter(|kind| *kind != EngineKind::Htb) {
        let budget = BUDGETS.iter().find(|(name, ..)| *name == kind.name());
        let (_, of_all, of_scheduler) = budget.unwrap_or_else(|| panic!("engine {kind} has no budget"));
        let cost = measure(&mut node, kind);
        judge(kind.name(), cost / htb, "what htb adds in all", *of_all);
        if let Some(most) = of_scheduler {
            judge(kind.name(), (cost - way) / (htb - way), "what htb itself adds", *most);
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// The bound of selectors for a packet: for the first kind of them, with the reading of the packet,
/// and for each further one.
const FIRST_KIND: f64 = 900.0;
const FURTHER_KIND: f64 = 400.0;
/// The bound of four times as many selectors of one kind: a hash table's bucket has a few of them,
/// some 20 instructions each, and the hash is drawn again with every table. Looking at all of the
/// further 48 would add a thousand.
const MANY_OF_A_KIND: f64 = 150.0;

/// `count` classes with a selector each that no packet here matches, of that many kinds.
fn selectors(count: u16, kinds: u16) -> String {
    let one = |i: u16| {
        let remote = format!("fd00::/{}", 128 - i % kinds);
        format!("[[class]]\nname = \"s{i}\"\nmatch = {{ port = {}, remote = \"{remote}\" }}\n", 20_000 + i)
    };
    (0..count).map(one).collect()
}

#[test]
fn selectors_cost_a_packet_by_their_kinds_and_not_by_their_number() {
    if !counts() || !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    sleep(Duration::from_secs(5));
    of_packets(&node, "no qdisc");
    let mut measure = |count: u16, kinds: u16| {
        let config = node.config().capacity(CAPACITY).sections(&selectors(count, kinds));
        node.start(&config);
        let cost = of_packets(&node, &format!("{count} of {kinds} kinds"));
        assert!(node.agent().stop());
        cost[0]
    };
    let none = measure(0, 1);
    let (few, many) = (measure(16, 1) - none, measure(64, 1) - none);
    let kinds = measure(64, 16) - none;
    println!("16 of one kind add {few:.0} instructions, 64 {many:.0}, 64 of 16 kinds {kinds:.0}");
    assert!(few <= FIRST_KIND && many <= FIRST_KIND, "the first kind adds {FIRST_KIND} at the most");
    assert!((many - few).abs() <= MANY_OF_A_KIND, "64 cost what 16 do, but for {MANY_OF_A_KIND}");
    assert!(kinds - many <= 15.0 * FURTHER_KIND, "each further kind adds {FURTHER_KIND} at the most");
}
