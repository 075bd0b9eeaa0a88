//! Several links: weir shares the one that the default route takes, and moves with it under load.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread::sleep,
    time::{Duration, Instant},
};

use weir_api::{EventKind, LinkView};
use weir_netlab::{
    topology::{Mode, Spec, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{Need, Node, Rate, Stream, can_run, containers, measure_once};
use weir_units::BitRate;

/// The second link's device on the node.
const SECOND: &str = "up1";
/// A destination that only default routes lead to.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 9, 9));
const FIRST_MBIT: u64 = 40;
const SECOND_MBIT: u64 = 10;
/// The time from the change of the route to exact shares.
const SETTLES: Duration = Duration::from_millis(1_500);
const MEASURED: Duration = Duration::from_millis(1_500);

/// A node with two links to a server, and a default route by each. The first one's is better.
fn node() -> Node {
    let node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    let (home, srv) = (node.topology.node(), node.topology.srv());
    let made = home
        .ip(&format!(
            "link add {SECOND} type veth peer name eth1 netns {}\n\
             link set dev {SECOND} up\naddr add 10.96.0.1/30 dev {SECOND}\n",
            srv.name()
        ))
        .and_then(|()| {
            srv.ip(&format!("link set dev eth1 up\naddr add 10.96.0.2/30 dev eth1\naddr add {FAR}/32 dev lo\nlink set dev lo up\n"))
        });
    made.expect("a second link can be made");
    for netns in [home, srv] {
        for device in ["all", "default"] {
            netns.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0").expect("it can be set");
        }
    }
    for device in ["eth0", "eth1"] {
        srv.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0").expect("it can be set");
    }
    route(&node, "add", UPLINK);
    route(&node, "add", SECOND);
    node
}

/// Adds or deletes the default route by a link.
fn route(node: &Node, verb: &str, device: &str) {
    let (via, metric) = if device == UPLINK { ("10.98.0.2", "100") } else { ("10.96.0.2", "700") };
    node.sh(&["ip", "route", verb, "default", "via", via, "dev", device, "metric", metric]);
}

fn link(node: &Node) -> LinkView {
    serde_json::from_str(&node.weir(&["link", "--json"])).expect("it is a view")
}

fn events(node: &Node, what: EventKind) -> Vec<String> {
    let events = node.client().events(false).expect("the agent answers");
    let events = events.map(|event| event.expect("it is an event"));
    events.filter(|event| event.what == what).map(|event| event.detail).collect()
}

/// Weir's qdiscs and filters on a device.
fn traces(node: &Node, device: &str) -> String {
    let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", device]);
    let own: Vec<&str> = qdiscs.lines().filter(|line| line.contains("clsact")).collect();
    let filters = ["ingress", "egress"].map(|hook| {
        let shown = node.topology.node().exec(&["tc", "filter", "show", "dev", device, hook]);
        shown.map_or(String::new(), |shown| shown.stdout)
    });
    format!("{}{}", own.join("\n"), filters.concat())
}

#[test]
fn route_that_moves_under_load_takes_the_shares_and_the_promises_along() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node();
    let config = node.config().capacity(BitRate::mbit(FIRST_MBIT)).beside(SECOND, BitRate::mbit(SECOND_MBIT));
    node.start(&config.awaiting(&[node.name("C2")]));
    assert_eq!((link(&node).device.as_str(), link(&node).others.len()), (UPLINK, 1));
    let refused = node.ran(&["link", "set", "capacity=30mbit"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("several links"), "{refused:?}");
    node.weir(&["set", &node.name("C1"), "min=30mbit"]);
    node.weir(&["set", &node.name("C2"), "weight=4"]);
    let send = |label| Stream::udp(node.netns(label), node.topology.srv(), FAR, Rate::Unlimited);
    let streams = ["C1", "C2"].map(send);
    let frame = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;
    let exact = |what: &str, wanted: [f64; 2]| {
        let measure = || {
            let got = Stream::goodputs(&streams.each_ref(), MEASURED);
            println!("{what}: {:.2?} of {wanted:.2?} Mbit/s", [got[0] * frame, got[1] * frame]);
            let off = |i: usize| (got[i] * frame / wanted[i] - 1.0).abs();
            off(0).max(off(1))
        };
        let off = measure_once(measure, |off| *off <= 0.03);
        assert!(off <= 0.03, "{what}: {:.1} % off", off * 100.0);
    };
    sleep(SETTLES);
    exact("on the first link", [30.0, 10.0]);
    assert!(traces(&node, UPLINK).contains("clsact"), "{}", traces(&node, UPLINK));
    assert_eq!(traces(&node, SECOND), "", "the second link is left alone");

    let moved = Instant::now();
    route(&node, "del", UPLINK);
    sleep(SETTLES);
    exact("on the second link", [2.0, 8.0]);
    println!(
        "exact at the latest {:?} after the move, measured for {MEASURED:?}",
        moved.elapsed() - MEASURED
    );
    assert_eq!(traces(&node, UPLINK), "", "nothing is left on the first link");
    assert!(traces(&node, SECOND).contains("clsact"));
    let view = link(&node);
    assert_eq!((view.device.as_str(), view.upload.capacity), (SECOND, BitRate::mbit(SECOND_MBIT)));
    assert_eq!(view.others[0].device, UPLINK);
    assert!(view.unpromised[0].contains("its minimum of 30mbit is not promised"), "{view:?}");
    assert_eq!(node.class("C1").policy.min, None);
    let told = events(&node, EventKind::Link).join("\n");
    assert!(
        told.contains("the default route goes by up1: sharing 10mbit on up1, and up0 is not shared"),
        "{told}"
    );
    let told = events(&node, EventKind::NotEnforced).join("\n");
    assert!(told.contains("its minimum of 30mbit is not promised"), "{told}");

    // The next agent finds the link by the route, too.
    node.agent().kill();
    node.restart();
    assert_eq!((link(&node).device.as_str(), traces(&node, UPLINK).as_str()), (SECOND, ""));

    route(&node, "add", UPLINK);
    sleep(SETTLES);
    exact("on the first link again", [30.0, 10.0]);
    assert_eq!(traces(&node, SECOND), "", "nothing is left on the second link");
    assert_eq!(node.class("C1").policy.min, Some(BitRate::mbit(30)), "its promise is back");
    let told = events(&node, EventKind::Promised).join("\n");
    assert!(told.contains("its minimum of 30mbit is promised now"), "{told}");

    // The kernel tells of no route that goes with its link.
    node.sh(&["ip", "link", "set", "dev", UPLINK, "down"]);
    sleep(SETTLES);
    exact("on the second link, as the first one is down", [2.0, 8.0]);
    // Without a default route the agent stays where it is.
    route(&node, "del", SECOND);
    sleep(Duration::from_millis(800));
    assert_eq!(link(&node).device, SECOND);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!([UPLINK, SECOND].map(|device| traces(&node, device)), ["", ""]);
}
