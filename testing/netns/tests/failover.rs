//! The default route moves from one link to another under load, and promises move with it.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_api::{EventKind, LinkView};
use weir_netlab::{topology::UPLINK, traffic::UDP_PAYLOAD};
use weir_netns_tests::{
    Need, Node, Rate, Stream, can_run, measure_once,
    two_links::{FAR, SECOND, node, route},
};
use weir_units::BitRate;

const FIRST_MBIT: u64 = 40;
const SECOND_MBIT: u64 = 10;
/// The time from the change of the route to exact shares.
const SETTLES: Duration = Duration::from_millis(1_500);
const MEASURED: Duration = Duration::from_millis(1_500);

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
    let mut node = node(2);
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
    for device in [UPLINK, SECOND] {
        assert!(traces(&node, device).contains("clsact"), "{device}: {}", traces(&node, device));
    }

    let moved = Instant::now();
    route(&node, "del", UPLINK);
    sleep(SETTLES);
    exact("on the second link", [2.0, 8.0]);
    println!(
        "exact at the latest {:?} after the move, measured for {MEASURED:?}",
        moved.elapsed() - MEASURED
    );
    let waits = node.sh(&["tc", "-s", "qdisc", "show", "dev", "weir0"]);
    let waits: Vec<&str> = waits.lines().filter(|line| line.contains("backlog")).collect();
    assert!(
        waits.iter().all(|line| line.contains("backlog 0b 0p")),
        "nothing waits on the first link: {waits:?}"
    );
    let view = link(&node);
    assert_eq!((view.device.as_str(), view.upload.capacity), (SECOND, BitRate::mbit(SECOND_MBIT)));
    assert_eq!(view.others[0].device, UPLINK);
    assert!(view.unpromised[0].contains("its minimum of 30mbit is not promised"), "{view:?}");
    assert_eq!(node.class("C1").policy.min, None);
    let told = events(&node, EventKind::Link).join("\n");
    assert!(told.contains("the default route goes by up1, and no longer by up0"), "{told}");
    let told = events(&node, EventKind::NotEnforced).join("\n");
    assert!(told.contains("its minimum of 30mbit is not promised"), "{told}");

    // The next agent finds the link by the route, too.
    node.agent().kill();
    node.restart();
    assert_eq!(link(&node).device, SECOND);

    route(&node, "add", UPLINK);
    sleep(SETTLES);
    exact("on the first link again", [30.0, 10.0]);
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
