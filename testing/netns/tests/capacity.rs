//! `weir link set`: the link's capacity at run time, with its promises, over restarts and back.

use std::{thread::sleep, time::Duration};

use weir_agree::{Document, Language, Offer};
use weir_api::{EventKind, LinkView, Plan};
use weir_netlab::{
    topology::{Family, Mode, Spec},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{CAPACITY, Need, Node, Rate, Stream, can_run, containers, measure_once};
use weir_units::BitRate;

/// The time until the division follows a change.
const SETTLES: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(1);

fn node() -> Node {
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    // C1 is not enforced while its promise is suspended.
    node.start(&node.config().link("download = \"50mbit\"").awaiting(&[node.name("C2")]));
    // C2's promise is the older one.
    node.weir(&["set", &node.name("C2"), "min=25mbit"]);
    node.weir(&["set", &node.name("C1"), "min=30mbit", "down.min=20mbit"]);
    node
}

fn floors(node: &Node) -> [Option<BitRate>; 2] {
    ["C1", "C2"].map(|label| node.class(label).policy.min)
}

fn mbit(rate: u64) -> Option<BitRate> {
    Some(BitRate::mbit(rate))
}

/// The events of changed capacities.
fn told(node: &Node) -> Vec<String> {
    let events = node.client().events(false).expect("the agent answers");
    let events = events.map(|event| event.expect("it is an event"));
    events.filter(|event| event.what == EventKind::CapacityChanged).map(|event| event.detail).collect()
}

#[test]
fn capacity_set_under_load_holds_and_suspends_the_latest_promise() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node();
    let server = node.topology.server_address(Family::V4);
    let send = |label| Stream::udp(node.netns(label), node.topology.srv(), server, Rate::Unlimited);
    let streams = ["C1", "C2"].map(send);
    let of_link = |what: &str, capacity: f64| {
        sleep(SETTLES);
        let frames = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;
        let measure = || {
            let got = Stream::goodputs(&streams.each_ref(), MEASURED);
            let sum = got.iter().sum::<f64>() * frames;
            println!("{what}: {got:.2?} of {capacity} Mbit/s, {sum:.2} on the wire");
            (sum / capacity - 1.0).abs()
        };
        let off = measure_once(measure, |off| *off <= 0.03);
        assert!(off <= 0.03, "{what}: {:.1} % off", off * 100.0);
    };
    of_link("as configured", CAPACITY.as_mbit());
    node.weir(&["link", "set", "capacity=30mbit"]);
    assert_eq!(floors(&node), [None, mbit(25)], "the older promise wins");
    of_link("set by hand", 30.0);
    node.weir(&["link", "reset"]);
    assert_eq!(floors(&node), [mbit(30), mbit(25)]);
    of_link("reset", CAPACITY.as_mbit());
}

#[test]
fn older_agreement_keeps_its_minimum_when_the_capacity_falls() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let config = node.config().sections("[agreements]\n").awaiting(&[node.name("C1"), node.name("C2")]);
    node.start(&config);
    // The older one is the second by name.
    for (label, min) in [("C2", "30mbit"), ("C1", "40mbit")] {
        let text = format!(
            r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{}"}},
                "terms":{{"min":"{min}","max":"80mbit"}}}}"#,
            node.name(label)
        );
        let offer: Offer = Offer::read(&text, Language::Json).expect("it is an offer");
        node.client().offer(&offer).expect("it fits");
        sleep(Duration::from_millis(5));
    }
    assert_eq!(floors(&node), [mbit(40), mbit(30)]);
    let server = node.topology.server_address(Family::V4);
    let send = |label| Stream::udp(node.netns(label), node.topology.srv(), server, Rate::Unlimited);
    let streams = ["C1", "C2"].map(send);
    let plan = node.weir(&["link", "set", "capacity=35mbit", "--dry-run"]);
    let c1 = node.name("C1");
    for line in [
        format!("! {c1}: its minimum of 40mbit is not promised"),
        "older agreements leave 1.5mbit".to_owned(),
        "agreements above the reservable part".to_owned(),
    ] {
        assert!(plan.contains(&line), "{line}:\n{plan}");
    }
    assert!(!plan.contains(&format!("! {}", node.name("C2"))), "the older one keeps its minimum:\n{plan}");
    assert_eq!(floors(&node), [mbit(40), mbit(30)], "a plan changes nothing");
    node.weir(&["link", "set", "capacity=35mbit"]);
    sleep(SETTLES);
    assert_eq!(floors(&node), [None, mbit(30)]);
    let got = measure_once(|| Stream::goodputs(&streams.each_ref(), MEASURED)[1], |got| *got >= 28.0);
    println!("the older one has {got:.2} of 30 Mbit/s");
    assert!(got >= 28.0, "the older one has {got:.2} of 30 Mbit/s");
    let why =
        "its minimum of 40mbit is not promised: the capacity has fallen, and older agreements leave 1.5mbit";
    for shown in [node.weir(&["link"]), node.weir(&["status"]), node.weir(&["ps"])] {
        assert!(shown.contains(why), "{shown}");
    }
    node.weir(&["link", "reset"]);
    sleep(SETTLES);
    assert_eq!(floors(&node), [mbit(40), mbit(30)], "it comes back with the capacity");
}

#[test]
fn capacity_by_hand_outlives_a_restart_until_it_is_taken_back() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node();
    let view = |node: &Node| -> LinkView {
        serde_json::from_str(&node.weir(&["link", "--json"])).expect("it is a view")
    };
    let before = view(&node);
    let plan: Plan =
        serde_json::from_str(&node.weir(&["link", "set", "capacity=30mbit", "--dry-run", "--json"]))
            .expect("it is a plan");
    assert!(plan.settings.iter().any(|s| s.key == "[link] capacity" && s.after == "30mbit"), "{plan:?}");
    let c1 = node.name("C1");
    let of_c1 = plan.classes.iter().find(|change| change.name == c1).and_then(|change| change.after.as_ref());
    assert!(of_c1.is_some_and(|after| after.not_promised.is_some()), "{plan:?}");
    assert_eq!(view(&node), before, "a plan changes nothing");

    let shown = node.weir(&["link", "set", "capacity=30mbit", "download=10mbit"]);
    for line in [
        format!("capacity   30mbit by hand ({CAPACITY} configured)"),
        "download   10mbit by hand (50mbit configured)".to_owned(),
        format!("! {c1}: its minimum of 30mbit is not promised"),
        format!("! download: {c1}: its minimum of 20mbit is not promised"),
    ] {
        assert!(shown.contains(&line), "{line}:\n{shown}");
    }
    assert_eq!(
        told(&node),
        [
            format!("capacity 30mbit, was {CAPACITY}: set by hand, by user 0"),
            "download 10mbit, was 50mbit: set by hand, by user 0".to_owned()
        ]
    );
    for bad in ["capacity=1kbit", "download=900gbit", "rate=3mbit"] {
        let refused = node.ran(&["link", "set", bad]);
        assert!(refused.code != Some(0) && !refused.stderr.is_empty(), "{bad}: {refused:?}");
    }
    let status = node.weir(&["status"]);
    assert!(status.contains(&format!("30mbit by hand ({CAPACITY} configured)")), "{status}");
    let ps = node.weir(&["ps"]);
    assert!(ps.contains("`weir link reset` returns to that"), "{ps}");
    let explained = node.weir(&["explain", &c1]);
    assert!(explained.contains("the link's 30mbit are set by hand"), "{explained}");

    let set = view(&node);
    assert!(node.agent().stop(), "it puts everything back");
    node.restart();
    assert_eq!(view(&node), set, "a restart keeps it");
    assert_eq!((floors(&node), node.class("C1").down.unwrap().policy.min), ([None, mbit(25)], None));
    let undone = node.weir(&["undo"]);
    assert!(undone.contains("the link's capacity") && undone.contains("[link] download"), "{undone}");
    assert_eq!((view(&node), floors(&node)), (before, [mbit(30), mbit(25)]));
    assert_eq!(node.class("C1").down.unwrap().policy.min, mbit(20), "its promise is back");
}
