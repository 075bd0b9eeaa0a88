//! The default route moves from one link to another under load, and promises move with it.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_agree::{Document, Language, Offer};
use weir_api::{EventKind, LinkView};
use weir_netlab::{topology::UPLINK, traffic::UDP_PAYLOAD};
use weir_netns_tests::{
    Need, Node, Rate, Stream, can_run, measure_once, sleep_running,
    two_links::{FAR, SECOND, node, route},
    wait_within,
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

/// Waits until the agent has followed the default route to this link, and told the first container's class so.
#[track_caller]
fn follows(node: &Node, device: &str) {
    let took = wait_within(Duration::from_millis(800), || {
        let (view, class) = (link(node), node.class("C1"));
        // It is promised something on the first link alone.
        let is_there = [class.enforced, class.policy.min.is_some()] == [device == UPLINK; 2];
        if view.device == device && is_there { Ok(()) } else { Err(format!("{}, {class:?}", view.device)) }
    });
    let took = took.unwrap_or_else(|late| panic!("the agent has not moved to {device}: {late}"));
    println!("the agent is on {device} within {took:?}");
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
    let refused = node.ran(&["link", "set", "--link", "eth9", "capacity=30mbit"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("the links are up0, up1"), "{refused:?}");
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
    sleep_running(SETTLES);
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
    sleep_running(SETTLES);
    exact("on the first link again", [30.0, 10.0]);
    assert_eq!(node.class("C1").policy.min, Some(BitRate::mbit(30)), "its promise is back");
    let told = events(&node, EventKind::Promised).join("\n");
    assert!(told.contains("its minimum of 30mbit is promised now"), "{told}");

    // The kernel tells of no route that goes with its link.
    node.sh(&["ip", "link", "set", "dev", UPLINK, "down"]);
    sleep_running(SETTLES);
    exact("on the second link, as the first one is down", [2.0, 8.0]);
    // Without a default route the agent stays where it is.
    route(&node, "del", SECOND);
    sleep(Duration::from_millis(800));
    assert_eq!(link(&node).device, SECOND);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!([UPLINK, SECOND].map(|device| traces(&node, device)), ["", ""]);
}

/// A promise of an agreement, a download, a range and a capacity by hand, on the link that has them.
#[test]
fn agreements_downloads_and_capacities_stay_with_their_links() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(2);
    let config = node.config().capacity(BitRate::mbit(FIRST_MBIT)).link("download = \"20mbit\"");
    let config = config.beside_with(SECOND, BitRate::mbit(SECOND_MBIT), "download = \"6mbit\"");
    let config = config.sections("[agreements]\n").awaiting(&[node.name("C2")]);
    node.start(&config);
    let text = format!(
        r#"{{"context":{{"initiator":"shop"}},"service":{{"term":"t","name":"{}"}},
            "terms":{{"min":"30mbit","max":"36mbit"}}}}"#,
        node.name("C1")
    );
    let offer = Offer::read(&text, Language::Json).expect("it is an offer");
    node.client().offer(&offer).expect("it fits");
    node.weir(&["link", "set", "--link", SECOND, "capacity=8mbit"]);
    let view = link(&node);
    assert_eq!(
        (view.others[0].capacity, view.others[0].configured_capacity),
        (BitRate::mbit(8), Some(BitRate::mbit(10)))
    );
    assert_eq!(node.class("C1").policy.min, Some(BitRate::mbit(30)));
    assert_eq!(node.class("C1").on_links[0].policy.min, None, "agreements are about the main link");

    route(&node, "del", UPLINK);
    follows(&node, SECOND);
    let view = link(&node);
    let download = view.download.expect("both share it").capacity;
    assert_eq!(
        (view.device.as_str(), view.upload.capacity, download),
        (SECOND, BitRate::mbit(8), BitRate::mbit(6))
    );
    assert_eq!(view.upload.configured, Some(BitRate::mbit(10)));
    assert_eq!(view.others[0].download.as_ref().map(|down| down.capacity), Some(BitRate::mbit(20)));
    let class = node.class("C1");
    assert!(!class.enforced && class.policy.min.is_none(), "{class:?}");
    assert!(view.unpromised.iter().any(|why| why.contains("agreements are promised")), "{view:?}");
    let streams =
        ["C1", "C2"].map(|label| Stream::udp(node.netns(label), node.topology.srv(), FAR, Rate::Unlimited));
    sleep_running(SETTLES);
    let measure = || {
        let got: f64 = Stream::goodputs(&streams.each_ref(), MEASURED).iter().sum();
        got * (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64
    };
    let good = |whole: &f64| (whole / 8.0 - 1.0).abs() < 0.03;
    let whole = measure_once(measure, good);
    assert!(good(&whole), "{whole:.2} Mbit/s of the 8 by hand");

    route(&node, "add", UPLINK);
    follows(&node, UPLINK);
    let class = node.class("C1");
    assert!(class.enforced, "{class:?}");
    assert_eq!(class.policy.min, Some(BitRate::mbit(30)), "its promise is back");
    node.weir(&["undo"]);
    assert_eq!(link(&node).others[0].configured_capacity, None, "the capacity by hand is taken back");
}

/// `/metrics` has the count, and a counter never falls.
#[test]
fn count_of_writes_stays_when_a_link_is_shared_no_longer() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(2);
    let alone = node.config().capacity(BitRate::mbit(FIRST_MBIT));
    node.start(&alone.clone().beside(SECOND, BitRate::mbit(SECOND_MBIT)).awaiting(&[node.name("C2")]));
    sleep(SETTLES);
    let writes = |node: &Node| node.client().status().expect("the agent answers").class_changes;
    let before = writes(&node);
    node.agent().rewrite(&alone).expect("the file can be written");
    let begin = Instant::now();
    while !link(&node).others.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(3), "{SECOND} is still shared");
        sleep(Duration::from_millis(20));
    }
    let after = writes(&node);
    assert!(after >= before, "{after} after {before}");
}
