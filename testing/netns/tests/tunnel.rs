//! An uplink without an Ethernet header: packets belong to the classes that they belong to elsewhere.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Spec, Uplink},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{EngineBounds, EngineKind, Node, Origin, Rate, Stream, containers, for_each_engine};
use weir_units::BitRate;

for_each_engine!(queues: a_class_by_port_on_a_tunnel_keeps_its_maximum);

const SELECTED: &str = "[[class]]\nname = \"feed\"\nmax = \"2mbit\"\nmatch = { port = 8090 }\n";

fn a_class_by_port_on_a_tunnel_keeps_its_maximum(engine: EngineKind) {
    let spec =
        Spec { containers: containers(1), mode: Mode::Routed, uplink: Uplink::Tunnel, ..Spec::default() };
    let mut node = Node::build(&spec);
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
            let what = format!("{engine} {family} {sender}: {goodputs:.2?} Mbit/s");
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
