//! The flows inside one class: each has its part, none loses packets to the others, and what weir changes for it in
//! the containers is undone.

use std::{fs, thread::sleep, time::Duration};

use weir_netlab::topology::{Family, Netns, Spec};
use weir_netns_tests::{
    EngineKind, Need, Node, Rate, Stream, can_run, containers, for_each_engine, measure_once,
};
use weir_units::BitRate;

for_each_engine!(@in htb Htb flows_of_a_class_have_equal_parts_and_lose_nothing, tunable_is_undone);
for_each_engine!(@in edt Edt flows_of_a_class_have_equal_parts_and_lose_nothing);

/// Of the class.
const MAX: BitRate = BitRate::mbit(5);
const FLOWS: u32 = 8;
/// A flow's part may be so far from equal.
const EQUAL: f64 = 0.1;

const KERNELS: &str = "9";
const OURS: &str = "1";

/// `net.ipv4.tcp_tso_rtt_log`; none on kernels before 5.18.
fn tunable(netns: &Netns) -> Option<String> {
    let read = || fs::read_to_string("/proc/sys/net/ipv4/tcp_tso_rtt_log");
    netns.within(read).expect("can enter").ok().map(|text| text.trim().to_owned())
}

/// Flows that begin one after another, while the class is busy. A datagram's sender has three tenths.
fn flows_of_a_class_have_equal_parts_and_lose_nothing(engine: EngineKind) {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), tso: true, ..Spec::default() });
    let config = node.config().engine(engine);
    node.start(&config);
    node.weir(&["set", &node.name("C1"), &format!("max={MAX}")]);
    let (from, to, address) =
        (node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4));
    let datagrams = Stream::udp(from, to, address, Rate::Of(BitRate(MAX.0 * 3 / 10)));
    let flows: Vec<Stream> = (0..FLOWS)
        .map(|_| {
            sleep(Duration::from_millis(300));
            Stream::tcp(from, to, address)
        })
        .collect();
    sleep(Duration::from_secs(2));
    let all: Vec<&Stream> = flows.iter().collect();
    let measure = || {
        let got = Stream::goodputs(&all, Duration::from_secs(4));
        let mean = got.iter().sum::<f64>() / f64::from(FLOWS);
        let worst = got.iter().map(|rate| (rate / mean - 1.0).abs()).fold(0.0, f64::max);
        println!("{engine}: {got:.2?} Mbit/s, {:.1} % off at worst", worst * 100.0);
        worst
    };
    let worst = measure_once(measure, |worst| *worst <= EQUAL);
    assert!(worst <= EQUAL, "a flow is {:.1} % off an equal part", worst * 100.0);
    let classes = node.client().classes().expect("the agent answers");
    let class = classes.iter().find(|class| class.name == node.name("C1")).expect("it is there");
    assert_eq!(class.drops, 0, "{class:?}");
    drop(flows);
    let (sent, received) = datagrams.finish();
    assert_eq!(sent, received, "bytes of datagrams");
}

/// Another value than the kernel's is someone's choice.
fn tunable_is_undone(engine: EngineKind) {
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    if tunable(node.topology.node()).is_none() {
        println!("SKIPPED: this kernel has no net.ipv4.tcp_tso_rtt_log (since Linux 5.18)");
        return;
    }
    node.netns("C2").sysctl("net.ipv4.tcp_tso_rtt_log", "7").expect("it can be set");
    let values =
        |node: &Node| [node.topology.node(), node.netns("C1"), node.netns("C2")].map(|n| tunable(n).unwrap());
    assert_eq!(values(&node), [KERNELS, KERNELS, "7"]);
    let config = node.config().engine(engine);
    node.start(&config);
    assert_eq!(values(&node), [OURS, OURS, "7"]);
    assert!(node.agent().stop());
    assert_eq!(values(&node), [KERNELS, KERNELS, "7"]);

    // The next agent undoes what a killed one left.
    node.start(&config);
    node.agent().kill();
    assert_eq!(values(&node), [OURS, OURS, "7"]);
    node.start(&config);
    assert!(node.agent().stop());
    assert_eq!(values(&node), [KERNELS, KERNELS, "7"]);
    node.start(&config);
    node.agent().kill();
    let path = node.agent().config_path();
    node.weir(&["agent", "--config", path.to_str().expect("it is text"), "--restore"]);
    assert_eq!(values(&node), [KERNELS, KERNELS, "7"]);
}
