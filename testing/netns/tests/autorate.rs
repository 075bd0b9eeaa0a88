//! A link whose rate changes: weir's capacity follows it, by what the link's own traffic tells.
//!
//! The wire behind the uplink changes its rate under load, as a modem does. Its queue would hold half a second.

use std::{
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use weir_api::{EventKind, FollowState, Follows, LinkView};
use weir_netlab::{
    topology::{Family, Mode, Spec, Wire},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{
    Echo, EngineKind, Need, Node, Rate, Stream, can_run, containers, for_each_engine, measure_once,
    wait_within,
};
use weir_units::{BitRate, Bytes};

for_each_engine!(@in htb Htb capacity_follows_the_link_and_shares_hold);
for_each_engine!(@in edt Edt capacity_follows_the_link_and_shares_hold);

/// The bounds of the configuration.
const MIN: BitRate = BitRate::mbit(2);
const MAX: BitRate = BitRate::mbit(40);
/// The queue that 95 of 100 packets may see (`delay`), and the wire's own timers.
const DELAY_MS: f64 = 30.0 + 5.0;
/// The same of what arrives, where senders obey a round trip later. The wire's queue alone would be 500 to 1250 ms.
const ARRIVES_MS: f64 = 2.0 * DELAY_MS;
/// The wire's queue at 20 Mbit/s: 0.5 s.
const QUEUE: Bytes = Bytes(1_250_000);
const SETTLES: Duration = Duration::from_millis(1_500);
const MEASURED: Duration = Duration::from_secs(3);

fn node(engine: EngineKind, more: &str) -> Node {
    let wire = Some(Wire::of(BitRate::mbit(20), QUEUE));
    let mut node =
        Node::build(&Spec { containers: containers(3), mode: Mode::Routed, wire, ..Spec::default() });
    let config = node.config().following(MIN, MAX, more).engine(engine);
    node.start(&config);
    node.weir(&["set", &node.name("C2"), "weight=2"]);
    node
}

/// Gives the wire another rate. Its queue stays.
fn carries(node: &Node, mbit: u64) {
    let rate = mbit * 1_000_000;
    let burst = (rate / 8 / 1_000).max(3 * 1_514);
    for device in ["wn", "ws"] {
        let change =
            format!("qdisc change dev {device} root tbf rate {rate}bit burst {burst} limit {}\n", QUEUE.0);
        node.topology.wire().tc(&change).expect("the wire takes another rate");
    }
}

fn link(node: &Node) -> LinkView {
    serde_json::from_str(&node.weir(&["link", "--json"])).expect("it is a view")
}

fn follows(node: &Node) -> Follows {
    link(node).follows.expect("it follows")
}

fn capacity_follows_the_link_and_shares_hold(engine: EngineKind) {
    let node = node(engine, "");
    let server = node.topology.server_address(Family::V4);
    let echo = Echo::at(node.topology.srv(), server);
    let flows = ["C1", "C1", "C2", "C2"];
    let streams = flows.map(|label| Stream::tcp(node.netns(label), node.topology.srv(), server));
    let all: Vec<&Stream> = streams.iter().collect();
    for mbit in [20, 8, 20] {
        carries(&node, mbit);
        sleep(SETTLES);
        let measure = || {
            let (got, trips) = scope(|scope| {
                let pings = scope.spawn(|| echo.ask(node.netns("C3"), 120, Duration::from_millis(20)));
                (Stream::goodputs(&all, MEASURED), pings.join().expect("it asks"))
            });
            let used = got.iter().sum::<f64>() * 1514.0 / 1448.0 / mbit as f64;
            let part = (got[2] + got[3]) / got.iter().sum::<f64>();
            let (p50, p95) = (trips.percentile(50.0), trips.percentile(95.0));
            let now = follows(&node);
            println!(
                "{mbit} Mbit/s: {got:.2?}, {:.1} % used, C2 has {part:.3}, an idle container waits {p50:.1} / \
                 {p95:.1} ms, {now:?}",
                used * 100.0
            );
            (used, part, p95)
        };
        let holds = |(used, part, p95): &(f64, f64, f64)| {
            (0.88..1.03).contains(used) && (part - 2.0 / 3.0).abs() <= 0.05 * 2.0 / 3.0 && *p95 <= DELAY_MS
        };
        let (used, part, p95) = measure_once(measure, holds);
        assert!((0.88..1.03).contains(&used), "{:.1} % of {mbit} Mbit/s are used", used * 100.0);
        assert!((part - 2.0 / 3.0).abs() <= 0.05 * 2.0 / 3.0, "C2 has {part:.3} instead of 2/3");
        assert!(p95 <= DELAY_MS, "an idle container waits {p95:.1} ms at {mbit} Mbit/s");
    }
    let told = node.client().events(false).expect("the agent answers").map(|event| event.expect("an event"));
    let told: Vec<String> = told.filter(|e| e.what == EventKind::CapacityChanged).map(|e| e.detail).collect();
    assert!(told.iter().any(|detail| detail.contains("the link's queue is")), "{told:?}");
    assert!(told.len() < 10, "{told:?}");
}

/// The wire's rate and queue lie before the node: senders obey a round trip after a drop.
#[test]
fn download_follows_the_link_and_shares_hold() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let wire = Some(Wire::of(BitRate::mbit(20), QUEUE));
    let mut node =
        Node::build(&Spec { containers: containers(3), mode: Mode::Routed, wire, ..Spec::default() });
    let range = format!("download = {{ min = \"{MIN}\", max = \"{MAX}\" }}");
    let config = node.config().link(&range).engine(EngineKind::Htb);
    node.start(&config);
    node.weir(&["set", &node.name("C2"), "down.weight=2"]);
    let server = node.topology.server_address(Family::V4);
    let echo = Echo::at(node.topology.srv(), server);
    let flows = ["C1", "C1", "C2", "C2"];
    let streams = flows.map(|label| Stream::tcp_back(node.netns(label), node.topology.srv(), server));
    let all: Vec<&Stream> = streams.iter().collect();
    for mbit in [20, 8, 20] {
        carries(&node, mbit);
        sleep(SETTLES * 3);
        let received = || ["C1", "C2"].map(|label| node.class(label).down.expect("it receives").bytes.0);
        let measure = || {
            let (before, begin) = (received(), Instant::now());
            let (got, trips) = scope(|scope| {
                let pings = scope.spawn(|| echo.ask(node.netns("C3"), 200, Duration::from_millis(20)));
                (Stream::goodputs(&all, MEASURED * 4 / 3), pings.join().expect("it asks"))
            });
            // A reader has packets behind a lost one only with it. The scheduler counts them as they pass.
            let (after, seconds) = (received(), begin.elapsed().as_secs_f64());
            let [c1, c2] = [0, 1].map(|class| (after[class] - before[class]) as f64 * 8e-6 / seconds);
            let (used, part) = ((c1 + c2) / mbit as f64, c2 / (c1 + c2));
            let (p50, p95) = (trips.percentile(50.0), trips.percentile(95.0));
            let now = link(&node).download_follows.expect("it follows");
            println!(
                "{mbit} Mbit/s arrive: {got:.2?}, {:.1} % used, C2 has {part:.3}, an idle container waits {p50:.1} / \
                 {p95:.1} ms, {now:?}",
                used * 100.0
            );
            (used, part, p95)
        };
        let holds = |(used, part, p95): &(f64, f64, f64)| {
            (0.85..1.06).contains(used) && (part - 2.0 / 3.0).abs() <= 0.05 * 2.0 / 3.0 && *p95 <= ARRIVES_MS
        };
        let (used, part, p95) = measure_once(measure, holds);
        assert!((0.85..1.06).contains(&used), "{:.1} % of {mbit} Mbit/s are used", used * 100.0);
        assert!((part - 2.0 / 3.0).abs() <= 0.05 * 2.0 / 3.0, "C2 has {part:.3} instead of 2/3");
        assert!(p95 <= ARRIVES_MS, "an idle container waits {p95:.1} ms at {mbit} Mbit/s");
    }
    let view = link(&node);
    assert_eq!(view.follows, None, "the upload has one rate");
    let why = node.weir(&["explain", &node.name("C2")]);
    assert!(why.contains("download: the capacity follows its rate between 2mbit and 40mbit: "), "{why}");
    assert!(filters(&node).contains("weir_sent"));
    let script = node.weir(&["export", "tc", "--download", "--json"]);
    let export: weir_api::Export = serde_json::from_str(&script).expect("it is an export");
    assert!(export.capacity < BitRate::mbit(30), "the rate in force: {}", export.capacity);
    node.weir(&["link", "set", "download=5mbit"]);
    let view = link(&node);
    let by_hand = view.download.expect("the download is shared");
    assert_eq!((by_hand.capacity, by_hand.configured), (BitRate::mbit(5), Some(MAX)));
    assert_eq!(view.download_follows, None);
    assert!(!filters(&node).contains("weir_sent"), "its programs have gone");
    node.weir(&["link", "reset"]);
    assert!(link(&node).download_follows.is_some() && filters(&node).contains("weir_sent"));
    let told = node.client().events(false).expect("the agent answers").map(|event| event.expect("an event"));
    let told: Vec<String> = told.filter(|e| e.what == EventKind::CapacityChanged).map(|e| e.detail).collect();
    assert!(told.iter().any(|detail| detail.contains("download: capacity")), "{told:?}");
}

/// The other direction's capacity by hand replaces neither the rate in force nor the scheduler's.
#[test]
fn download_by_hand_leaves_a_followed_upload_alone() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let wire = Some(Wire::of(BitRate::mbit(20), QUEUE));
    let mut node =
        Node::build(&Spec { containers: containers(1), mode: Mode::Routed, wire, ..Spec::default() });
    let config = node.config().following(MIN, MAX, "").engine(EngineKind::Htb).link("download = \"40mbit\"");
    node.start(&config);
    carries(&node, 8);
    let server = node.topology.server_address(Family::V4);
    let _flows = [(); 4].map(|()| Stream::tcp(node.netns("C1"), node.topology.srv(), server));
    sleep(SETTLES * 2);
    node.weir(&["link", "set", "download=30mbit"]);
    let classes = node.sh(&["tc", "class", "show", "dev", "weir0"]);
    let root = classes.lines().find(|line| line.starts_with("class htb 1:1 root")).expect("it has a root");
    println!("{root}, {:?}", follows(&node));
    assert!(!root.contains("rate 40Mbit"), "the wire carries 8 Mbit/s: {root}");
}

/// One TCP flow of class C2 has a tenth of the link, and datagrams have the rest.
#[test]
fn mostly_datagrams_follow_the_link_by_round_trips() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(EngineKind::Htb, "");
    node.weir(&["set", &node.name("C1"), "weight=18"]);
    let server = node.topology.server_address(Family::V4);
    let echo = Echo::at(node.topology.srv(), server);
    let datagrams = Stream::udp(node.netns("C1"), node.topology.srv(), server, Rate::Unlimited);
    let flow = Stream::tcp(node.netns("C2"), node.topology.srv(), server);
    for mbit in [20, 8, 20] {
        carries(&node, mbit);
        sleep(SETTLES * 2);
        let measure = || {
            let (got, trips) = scope(|scope| {
                let pings = scope.spawn(|| echo.ask(node.netns("C3"), 120, Duration::from_millis(20)));
                (Stream::goodputs(&[&datagrams, &flow], MEASURED), pings.join().expect("it asks"))
            });
            let datagrams = got[0] * (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;
            let used = (datagrams + got[1] * 1514.0 / 1448.0) / mbit as f64;
            let p95 = trips.percentile(95.0);
            let now = follows(&node);
            println!(
                "{mbit} Mbit/s: {got:.2?}, {:.1} % used, an idle container waits {:.1} / {p95:.1} ms, {now:?}",
                used * 100.0,
                trips.percentile(50.0),
            );
            (used, got[1] / got.iter().sum::<f64>(), p95)
        };
        let holds = |(used, part, p95): &(f64, f64, f64)| {
            (0.88..1.03).contains(used) && *part < 0.25 && *p95 <= DELAY_MS
        };
        let (used, part, p95) = measure_once(measure, holds);
        assert!((0.88..1.03).contains(&used), "{:.1} % of {mbit} Mbit/s are used", used * 100.0);
        assert!(part < 0.25, "TCP has {part:.3}: its acknowledgements would tell the rate");
        assert!(p95 <= DELAY_MS, "an idle container waits {p95:.1} ms at {mbit} Mbit/s");
    }
}

#[test]
fn dry_run_tells_and_changes_nothing_and_a_rate_by_hand_ends_it() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(EngineKind::Htb, ", dry_run = true");
    carries(&node, 20);
    let server = node.topology.server_address(Family::V4);
    let _flows = [(); 4].map(|()| Stream::tcp(node.netns("C1"), node.topology.srv(), server));
    let begin = Instant::now();
    let view = loop {
        let view = link(&node);
        let told = view.follows.clone().expect("it tells");
        assert!(told.dry_run && told.failure.is_none(), "{told:?}");
        if told.capacity < BitRate::mbit(30) {
            break view;
        }
        assert!(begin.elapsed() < SETTLES * 2, "the wire carries 20 Mbit/s: {told:?}");
        sleep(Duration::from_millis(50));
    };
    assert_eq!(view.upload.capacity, MAX, "a dry run shares the highest rate");

    node.weir(&["link", "set", "capacity=5mbit"]);
    let view = link(&node);
    assert_eq!((view.upload.capacity, view.follows), (BitRate::mbit(5), None));
    assert!(!filters(&node).contains("weir_sent"), "its programs have gone");
    node.weir(&["link", "reset"]);
    assert!(follows(&node).dry_run && filters(&node).contains("weir_sent"));
    // The agent puts back a program that another one took away.
    node.sh(&["tc", "filter", "del", "dev", "up0", "egress", "pref", "32258"]);
    assert!(!filters(&node).contains("weir_sent"));
    let is_back = || {
        let text = filters(&node);
        if text.contains("weir_sent") { Ok(()) } else { Err(text) }
    };
    let took = wait_within(Duration::from_millis(1_500), is_back);
    println!("the program is back within {:?}", took.unwrap_or_else(|late| panic!("it is not back: {late}")));
}

fn filters(node: &Node) -> String {
    let uplink = weir_netlab::topology::UPLINK;
    node.sh(&["tc", "filter", "show", "dev", uplink, "egress"])
}

#[test]
fn traffic_that_no_one_acknowledges_ends_at_the_lowest_rate() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(EngineKind::Htb, "");
    let server = node.topology.server_address(Family::V4);
    let streams = [Stream::udp(node.netns("C1"), node.topology.srv(), server, Rate::Unlimited)];
    sleep(SETTLES * 2);
    let now = follows(&node);
    assert_eq!(now.state, FollowState::Blind, "{now:?}");
    assert!(now.capacity < BitRate::kbit(2_300), "{now:?}");
    let frames = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;
    let got = Stream::goodputs(&streams.each_ref(), MEASURED)[0] * frames;
    assert!((1.9..2.4).contains(&got), "{got:.2} Mbit/s");
    let plan = node.ran(&["set", &node.name("C1"), "min=2mbit"]);
    assert!(
        plan.code != Some(0) && plan.stderr.contains("1.9mbit"),
        "minima are of the lowest rate: {plan:?}"
    );
}
