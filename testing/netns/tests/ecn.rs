//! The bpf engine tells a connection that fills its class by ECN marks, if it knows them (CoDel,
//! RFC 8289 and RFC 3168). One that does not is held back by its queue: what still belongs to a
//! socket of this machine is not dropped.

use std::{thread::sleep, time::Duration};

use weir_netlab::{
    topology::{Family, Netns, Spec},
    traffic::Load,
};
use weir_netns_tests::{Division, EngineBounds, EngineKind, Node, Rate, Stream, containers, party};

/// A counter of `/proc/net/netstat` or `/proc/net/snmp`: the line of names comes before that of values.
fn counter(netns: &Netns, file: &str, group: &str, name: &str) -> u64 {
    let text = netns.exec(&["cat", &format!("/proc/self/net/{file}")]).expect("it can be read").stdout;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let value = pairs.find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{file} has no {name}")).1;
    value.parse().expect("a number")
}

/// The state of one container's connection.
#[derive(Debug)]
struct Told {
    /// Packets that came to the server marked.
    marked: u64,
    /// Packets that its class dropped.
    dropped: u64,
    /// Segments that it sent again.
    again: u64,
}

/// Fills the class of C1 with one connection for some seconds.
fn fill(knows_ecn: bool) -> Told {
    let mut node = Node::build(&Spec { containers: containers(1), tso: false, ..Spec::default() });
    node.netns("C1").sysctl("net.ipv4.tcp_ecn", if knows_ecn { "1" } else { "0" }).expect("root may");
    let division = Division::of([party("C1").max(5).sends(Load::Tcp)]);
    let config = node.config().engine(EngineKind::Bpf).division(&node, &division);
    node.start(&config);
    let netns = node.netns("C1");
    let stream = Stream::tcp(netns, node.topology.srv(), node.topology.server_address(Family::V4));
    stream.set(Rate::Unlimited);
    sleep(Duration::from_secs(4));
    let told = Told {
        marked: counter(node.topology.srv(), "netstat", "IpExt", "InCEPkts"),
        dropped: node.class("C1").drops,
        again: counter(netns, "snmp", "Tcp", "RetransSegs"),
    };
    println!("knows ECN: {knows_ecn}: {told:?}");
    let rate = stream.goodput(Duration::from_secs(1));
    assert!(rate > 4.0, "{rate:.2} of 4.78 Mbit/s: too many were marked or dropped");
    told
}

#[test]
fn a_connection_that_knows_ecn_is_marked_and_loses_nothing() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let told = fill(true);
    assert!(told.marked >= 3 && told.dropped == 0 && told.again == 0, "{told:?}");
}

#[test]
fn a_connection_that_does_not_know_ecn_is_held_back_and_loses_nothing() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let told = fill(false);
    assert!(told.marked == 0 && told.dropped == 0 && told.again == 0, "{told:?}");
}
