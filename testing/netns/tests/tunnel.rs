//! Uplinks without an Ethernet header: packets belong to the classes that they belong to elsewhere, and
//! are charged what the uplink carries of them.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Spec, Uplink},
    traffic::{Load, UDP_PAYLOAD},
};
use weir_netns_tests::{
    EngineBounds, EngineKind, Node, Origin, Rate, Stream, can_have, containers, for_each_engine, measure_once,
};
use weir_units::BitRate;

for_each_engine!(queues:
    a_class_by_port_on_tun_keeps_its_maximum,
    a_class_by_port_on_raw_ip_keeps_its_maximum,
    a_class_by_port_on_ppp_keeps_its_maximum,
    a_class_by_port_on_wireguard_keeps_its_maximum,
    payload_on_tun_is_the_capacity_less_its_headers,
    payload_on_ppp_is_the_capacity_less_its_headers,
    payload_on_wireguard_is_the_capacity_less_its_headers,
);

const SELECTED: &str = "[[class]]\nname = \"feed\"\nmax = \"2mbit\"\nmatch = { port = 8090 }\n";
/// The payload of a small datagram: on Ethernet a seventh of it would be the header's.
const SMALL: usize = 72;
/// Headers of IPv4 and UDP.
const IP_UDP: usize = 28;

fn a_class_by_port_on_tun_keeps_its_maximum(engine: EngineKind) {
    class_by_port(engine, Uplink::Tunnel);
}

fn a_class_by_port_on_raw_ip_keeps_its_maximum(engine: EngineKind) {
    class_by_port(engine, Uplink::RawIp);
}

fn a_class_by_port_on_ppp_keeps_its_maximum(engine: EngineKind) {
    class_by_port(engine, Uplink::Ppp);
}

fn a_class_by_port_on_wireguard_keeps_its_maximum(engine: EngineKind) {
    class_by_port(engine, Uplink::WireGuard);
}

fn payload_on_tun_is_the_capacity_less_its_headers(engine: EngineKind) {
    payload(engine, Uplink::Tunnel);
}

fn payload_on_ppp_is_the_capacity_less_its_headers(engine: EngineKind) {
    payload(engine, Uplink::Ppp);
}

fn payload_on_wireguard_is_the_capacity_less_its_headers(engine: EngineKind) {
    payload(engine, Uplink::WireGuard);
}

fn spec(uplink: Uplink, count: usize) -> Spec {
    Spec { containers: containers(count), mode: Mode::Routed, uplink, ..Spec::default() }
}

fn class_by_port(engine: EngineKind, uplink: Uplink) {
    if !can_have(uplink) {
        return;
    }
    let mut node = Node::build(&spec(uplink, 1));
    let config = node.config().engine(engine).sections(SELECTED);
    node.start(&config);
    let srv = node.topology.srv();
    for family in [Family::V4, Family::V6] {
        for sender in ["host", "C1"] {
            let (from, to) = (node.netns(sender), node.topology.server_address(family));
            let (rate, payload) = (Rate::Of(BitRate::mbit(8)), UDP_PAYLOAD as usize);
            let origin = |port| Origin { port, dscp: 0 };
            let selected = Stream::udp_from(from, origin(8090), srv, to, rate, payload);
            let other = Stream::udp_from(from, origin(8091), srv, to, rate, payload);
            sleep(engine.settles());
            let goodputs = Stream::goodputs(&[&selected, &other], Duration::from_millis(1000));
            let what = format!("{engine} {uplink} {family} {sender}: {goodputs:.2?} Mbit/s");
            println!("{what}");
            assert!((1.8..2.0).contains(&goodputs[0]), "the class does not have its 2 Mbit/s: {what}");
            assert!(goodputs[1] > 7.0, "what no class selects is held back: {what}");
            drop(selected);
            empty(&node);
        }
    }
}

/// Waits until the class's queue is empty: packets that the last sender left there, a second of its
/// maximum, leave before those of the next one.
fn empty(node: &Node) {
    let end = Instant::now() + Duration::from_secs(3);
    while node.class("feed").backlog.0 > 0 {
        assert!(Instant::now() < end, "packets still wait in the class after 3 s");
        sleep(Duration::from_millis(20));
    }
}

/// TCP of a container, of the host and of both fills the capacity, and so do a container's small
/// datagrams. No part of it goes to a header that the uplink does not have.
fn payload(engine: EngineKind, uplink: Uplink) {
    if !can_have(uplink) {
        return;
    }
    let mut node = Node::build(&spec(uplink, 1));
    // Fewer small datagrams than a machine can send.
    let capacity = BitRate::mbit(20);
    let config = node.config().engine(engine).capacity(capacity);
    node.start(&config);
    let (srv, to) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let mut failed = Vec::new();
    let mut check = |what: &str, senders: &[&str], expected: f64, start: &dyn Fn(&str) -> Stream| {
        let streams: Vec<Stream> = senders.iter().map(|sender| start(sender)).collect();
        sleep(engine.settles() + Duration::from_millis(1500));
        let measure = || {
            let all: Vec<&Stream> = streams.iter().collect();
            Stream::goodputs(&all, Duration::from_millis(2000)).iter().sum::<f64>() / expected
        };
        let is_full = |part: &f64| (part - 1.0).abs() < 0.01;
        let part = measure_once(measure, is_full);
        println!("{engine} {uplink} {what}: {:.2} of {expected:.2} Mbit/s, {part:.4}", part * expected);
        if !is_full(&part) {
            failed.push(format!("{what} {part:.4}"));
        }
    };
    let tcp = capacity.as_mbit() * Load::Tcp.payload_share_on(uplink, Family::V4);
    let connect = |sender: &str| Stream::tcp(node.netns(sender), srv, to);
    check("TCP of a container", &["C1"], tcp, &connect);
    check("TCP of the host", &["host"], tcp, &connect);
    check("TCP of both", &["C1", "host"], tcp, &connect);
    let small = capacity.as_mbit() * SMALL as f64 / (SMALL + IP_UDP) as f64;
    let rate = Rate::Of(BitRate::mbit(20));
    let flood = |sender: &str| Stream::udp_from(node.netns(sender), Origin::default(), srv, to, rate, SMALL);
    check("small datagrams of a container", &["C1"], small, &flood);
    assert!(failed.is_empty(), "{engine} {uplink}: not what the link carries: {failed:?}");
}
