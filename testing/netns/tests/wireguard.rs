//! Tunnels of WireGuard over the uplink: each packet is charged once, with the tunnel's headers, to the class of
//! its inner packet.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::topology::{Family, Mode, Spec, Uplink};
use weir_netns_tests::{
    EngineBounds, EngineKind, Node, Origin, Rate, Stream, can_have, containers, for_each_engine, kernel,
    measure_once,
    two_links::{self, BY_SECOND, SECOND},
    wireguard::{self, FAR, TUNNEL_MTU},
};
use weir_units::BitRate;

for_each_engine!(queues:
    packets_in_a_tunnel_are_charged_once_with_its_headers,
    a_tunnel_over_ipv6_is_charged_its_longer_header,
    a_class_by_port_holds_in_a_tunnel,
    a_tunnel_by_the_second_link_is_charged_there,
    a_tunnels_program_is_put_back_and_taken_away,
);

const CAPACITY: BitRate = BitRate::mbit(20);
const MEASURED: Duration = Duration::from_secs(3);
/// The program at a tunnel's egress.
const PROGRAM: &str = "weir_tunnel";
/// A datagram that fills the tunnel's MTU.
const FULL: usize = TUNNEL_MTU - IP_UDP;
/// An inner packet of 76 bytes, which the tunnel fills up to 80.
const SMALL: usize = 48;
const IP_UDP: usize = 28;
const ETHERNET: usize = 14;

fn node(engine: EngineKind, family: Family, sections: &str) -> Option<Node> {
    if !can_have(Uplink::WireGuard) {
        return None;
    }
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    wireguard::connect(&node, family);
    let config = node.config().engine(engine).capacity(CAPACITY).sections(sections);
    node.start(&config);
    node.weir(&["set", &node.name("C2"), "weight=3"]);
    Some(node)
}

/// Bytes that have left the node.
fn left(node: &Node) -> u64 {
    let text = node.topology.wire().exec(&["ip", "-s", "-j", "link", "show", "dev", "wn"]);
    let links: serde_json::Value = serde_json::from_str(&text.expect("ip runs").stdout).expect("JSON");
    links[0]["stats64"]["rx"]["bytes"].as_u64().expect("a count")
}

/// Bytes on the uplink of a datagram through the tunnel, in tc's count.
fn on_uplink(payload: usize, family: Family) -> f64 {
    let inner = payload + IP_UDP;
    let padded = inner.next_multiple_of(16).min(TUNNEL_MTU);
    let headers = if family == Family::V4 { 60 } else { 80 };
    (padded + headers + ETHERNET) as f64
}

/// Two containers send datagrams of `payload` bytes through the tunnel, and the second one beside it too where
/// `direct`. Checks what leaves the node, and each one's part of it.
fn divide(
    node: &Node,
    engine: EngineKind,
    family: Family,
    what: &str,
    payload: usize,
    is_direct: bool,
) -> Option<String> {
    let srv = node.topology.srv();
    let address = if is_direct { node.topology.server_address(Family::V4) } else { FAR };
    let rate = Rate::Of(BitRate::mbit(18));
    let send = |label, to| Stream::udp_from(node.netns(label), Origin::default(), srv, to, rate, payload);
    let streams = [send("C1", FAR), send("C2", address)];
    sleep(engine.settles() + Duration::from_secs(2));
    let packet = [
        on_uplink(payload, family),
        if is_direct { (payload + IP_UDP + ETHERNET) as f64 } else { on_uplink(payload, family) },
    ];
    let measure = || {
        let (begin, before) = (Instant::now(), left(node));
        let got = Stream::goodputs(&streams.each_ref(), MEASURED);
        let all = (left(node) - before) as f64 * 8e-6 / begin.elapsed().as_secs_f64() / CAPACITY.as_mbit();
        let parts = [0, 1].map(|i| got[i] * packet[i] / payload as f64 / CAPACITY.as_mbit());
        println!(
            "{engine} {what}: {all:.4} of the capacity left, C1 has {:.4}, C2 {:.4}",
            parts[0], parts[1]
        );
        (all, parts)
    };
    let is_right = |(all, [first, second]): &(f64, [f64; 2])| {
        (all - 1.0).abs() < 0.01 && (first / 0.25 - 1.0).abs() < 0.02 && (second / 0.75 - 1.0).abs() < 0.02
    };
    let before = node.class("host").bytes.0;
    let measured = measure_once(measure, is_right);
    let host = node.class("host").bytes.0 - before;
    if host > 20_000 {
        return Some(format!("{what}: host is charged {host} bytes"));
    }
    (!is_right(&measured)).then(|| format!("{what}: {measured:.4?}"))
}

fn packets_in_a_tunnel_are_charged_once_with_its_headers(engine: EngineKind) {
    let Some(node) = node(engine, Family::V4, "") else { return };
    let faults: Vec<String> = [
        ("full datagrams", FULL, false),
        ("small datagrams", SMALL, false),
        ("full datagrams, C2 beside the tunnel", FULL, true),
    ]
    .into_iter()
    .filter_map(|(what, payload, is_direct)| divide(&node, engine, Family::V4, what, payload, is_direct))
    .collect();
    assert!(faults.is_empty(), "{engine}: {faults:#?}\n{}", node.weir(&["ps"]));
}

fn a_tunnel_over_ipv6_is_charged_its_longer_header(engine: EngineKind) {
    let Some(node) = node(engine, Family::V6, "") else { return };
    let fault = divide(&node, engine, Family::V6, "full datagrams over IPv6", FULL, false);
    assert!(fault.is_none(), "{engine}: {fault:?}\n{}", node.weir(&["ps"]));
}

/// Ports are inside of what is encrypted. The host's own packets have the class that they have elsewhere.
fn a_class_by_port_holds_in_a_tunnel(engine: EngineKind) {
    let feed = "[[class]]\nname = \"feed\"\nmax = \"2mbit\"\nmatch = { port = 8090 }\n";
    let Some(node) = node(engine, Family::V4, feed) else { return };
    let srv = node.topology.srv();
    for sender in ["host", "C1"] {
        let from = |port| {
            let origin = Origin { port, dscp: 0 };
            Stream::udp_from(node.netns(sender), origin, srv, FAR, Rate::Of(BitRate::mbit(8)), FULL)
        };
        let streams = [from(8090), from(8091)];
        sleep(engine.settles() + Duration::from_secs(1));
        let before = node.class("host").bytes.0;
        let begin = Instant::now();
        let got = Stream::goodputs(&streams.each_ref(), MEASURED);
        let host = (node.class("host").bytes.0 - before) as f64 * 8e-6 / begin.elapsed().as_secs_f64();
        let selected = got[0] * on_uplink(FULL, Family::V4) / FULL as f64;
        println!(
            "{engine} {sender}: {selected:.3} Mbit/s by the port, {:.3} by another; host has {host:.3}",
            got[1]
        );
        assert!((1.9..2.03).contains(&selected), "the class does not have its 2 Mbit/s: {selected:.3}");
        assert!(got[1] > 7.5, "what no class selects is held back: {:.3}", got[1]);
        let due = if sender == "host" { 8.0 * on_uplink(FULL, Family::V4) / FULL as f64 } else { 0.0 };
        assert!((host - due).abs() < 0.2, "host has {host:.3} of {due:.3} Mbit/s");
        drop(streams);
        let end = Instant::now() + Duration::from_secs(3);
        while node.class("feed").backlog.0 > 0 {
            assert!(Instant::now() < end, "packets still wait in the class after 3 s");
            sleep(Duration::from_millis(20));
        }
    }
}

fn a_tunnel_by_the_second_link_is_charged_there(engine: EngineKind) {
    if !can_have(Uplink::WireGuard) {
        return;
    }
    let mut node = two_links::node(2);
    wireguard::connect_between(&node, "10.96.0.1", &BY_SECOND.to_string());
    let config = node.config().engine(engine).capacity(CAPACITY).beside(SECOND, BitRate::mbit(10));
    let names = ["C1", "C2"].map(|label| node.name(label));
    node.start(&config.awaiting(&names));
    node.weir(&["set", &names[1], "weight=3"]);
    let flood = |label| {
        let rate = Rate::Of(BitRate::mbit(9));
        Stream::udp_from(node.netns(label), Origin::default(), node.topology.srv(), FAR, rate, FULL)
    };
    let streams = ["C1", "C2"].map(flood);
    sleep(engine.settles() + Duration::from_secs(2));
    let first = || ["C1", "C2", "host"].map(|label| node.class(label).bytes.0);
    let on_second = |label| {
        let class = node.class(label);
        class.on_links.iter().find(|part| part.link == SECOND).expect("it has a part").bytes.0
    };
    let (before, host) = (first(), on_second("host"));
    let measure = || {
        let got = Stream::goodputs(&streams.each_ref(), MEASURED);
        got.iter().map(|mbit| mbit * on_uplink(FULL, Family::V4) / FULL as f64).collect::<Vec<f64>>()
    };
    let is_right =
        |got: &Vec<f64>| got.iter().zip([2.5, 7.5]).all(|(got, due)| (got / due - 1.0).abs() < 0.02);
    let got = measure_once(measure, is_right);
    println!("{engine}: {got:.3?} of [2.5, 7.5] Mbit/s by the second link");
    assert!(is_right(&got), "{engine}: {got:.3?}\n{}", node.weir(&["ps"]));
    let grown: Vec<u64> = first().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(grown.iter().all(|bytes| *bytes < 20_000), "{engine}: the first link is charged {grown:?}");
    let host = on_second("host") - host;
    assert!(host < 20_000, "{engine}: host is charged {host} bytes");
}

fn a_tunnels_program_is_put_back_and_taken_away(engine: EngineKind) {
    if !can_have(Uplink::WireGuard) {
        return;
    }
    let has_tcx = weir_bpf::attach::tcx_egress(1).is_ok();
    for attach in ["clsact", "tcx"].into_iter().take(if has_tcx { 2 } else { 1 }) {
        let mut node =
            Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
        wireguard::connect(&node, Family::V4);
        let before = kernel::traces(node.topology.node());
        let config = node.config().engine(engine).capacity(CAPACITY).link(&format!("attach = \"{attach}\""));
        node.start(&config);
        let home = node.topology.node();
        let is_caught = |device: &str| match attach {
            "tcx" => kernel::tcx_programs_at_egress(home, device).iter().any(|(_, name)| name == PROGRAM),
            _ => node.sh(&["tc", "filter", "show", "dev", device, "egress"]).contains(PROGRAM),
        };
        let wait = |device: &str, what: &str| {
            let end = Instant::now() + Duration::from_secs(5);
            while !is_caught(device) {
                assert!(Instant::now() < end, "{attach}: {what} is not caught: {}", node.weir(&["status"]));
                sleep(Duration::from_millis(50));
            }
        };
        assert!(is_caught("wg0"), "{attach}: the tunnel is not caught");
        let checks = node.client().doctor().expect("it answers").checks;
        let check = checks.iter().find(|check| check.name == "tunnels").expect("there is a tunnel");
        assert_eq!(check.found, "packets in wg0 are charged once, to their sender's class");
        // Another process takes the program away.
        match kernel::tcx_programs_at_egress(home, "wg0").as_slice() {
            [(id, _)] => {
                let index = kernel::index_of(home, "wg0").expect("it is there");
                let detached = home.within(|| weir_bpf::attach::detach_tcx_egress(*id, index));
                detached.expect("it can be entered").expect("it is there");
            }
            _ => drop(node.sh(&["tc", "qdisc", "del", "dev", "wg0", "clsact"])),
        }
        assert!(!is_caught("wg0"), "{attach}: the program is still there");
        wait("wg0", "the robbed tunnel");
        node.sh(&["ip", "link", "add", "wg1", "type", "wireguard"]);
        wait("wg1", "a new tunnel");
        node.sh(&["ip", "link", "del", "wg1"]);
        assert!(node.agent().stop(), "{attach}: it puts everything back");
        let after = kernel::traces(node.topology.node());
        assert_eq!(after, before, "{attach}");
    }
}
