//! Several links at a time: each divides its own capacity between what its routes send there.

use std::{thread::sleep, time::Duration};

use weir_netlab::{topology::UPLINK, traffic::UDP_PAYLOAD};
use weir_netns_tests::{
    EngineBounds, EngineKind, Node, Rate, Stream, for_each_engine, measure_once,
    two_links::{BY_SECOND, FAR, SECOND, node},
};
use weir_units::BitRate;

for_each_engine!(queues: links_that_routes_take_are_shared_each_by_itself);

const FIRST_MBIT: u64 = 40;
const SECOND_MBIT: u64 = 10;
const MEASURED: Duration = Duration::from_secs(2);

/// A datagram's bytes on layer 2 as a part of its payload.
const FRAME: f64 = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;

/// Starts the agent on both links.
fn start(node: &mut Node, engine: EngineKind, awaited: &[&str]) {
    let names: Vec<String> = awaited.iter().map(|label| node.name(label)).collect();
    let config = node.config().engine(engine).capacity(BitRate::mbit(FIRST_MBIT));
    let config = config.beside(SECOND, BitRate::mbit(SECOND_MBIT)).awaiting(&names);
    node.start(&config);
}

/// Measures that streams get these shares, Mbit/s of layer 2.
fn exact(what: &str, streams: &[&Stream], wanted: &[f64], tolerance: f64) {
    let measure = || {
        let got = Stream::goodputs(streams, MEASURED);
        let got: Vec<f64> = got.iter().map(|mbit| mbit * FRAME).collect();
        println!("{what}: {got:.2?} of {wanted:.2?} Mbit/s");
        got.iter().zip(wanted).map(|(got, wanted)| (got / wanted - 1.0).abs()).fold(0.0, f64::max)
    };
    let off = measure_once(measure, |off| *off <= tolerance);
    assert!(off <= tolerance, "{what}: {:.1} % off", off * 100.0);
}

/// The devices of weir on the node.
fn devices(node: &Node) -> Vec<String> {
    let shown = node.sh(&["ip", "-o", "link", "show", "type", "ifb"]);
    shown.lines().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned())).collect()
}

fn links_that_routes_take_are_shared_each_by_itself(engine: EngineKind) {
    let mut node = node(2);
    start(&mut node, engine, &["C1", "C2"]);
    assert_eq!(devices(&node), ["weir0", "weir1"]);
    node.weir(&["set", &node.name("C1"), "max=30mbit"]);
    node.weir(&["set", &node.name("C2"), "weight=4"]);
    let send = |label, to| Stream::udp(node.netns(label), node.topology.srv(), to, Rate::Unlimited);
    let streams = [send("C1", FAR), send("C2", FAR), send("C1", BY_SECOND), send("C2", BY_SECOND)];
    let all = streams.each_ref();
    let tolerance = engine.tolerance(false).max(0.02);
    sleep(engine.settles() + Duration::from_millis(1_500));
    exact("on both links", &all, &[8.0, 32.0, 2.0, 8.0], tolerance);

    // A class that leaves one link alone leaves the other one as it is.
    streams[1].set(Rate::Of(BitRate::ZERO));
    sleep(engine.settles() + Duration::from_millis(1_500));
    exact("one of the first link is silent", &[all[0], all[2], all[3]], &[30.0, 2.0, 8.0], tolerance);

    // The next agent takes both schedulers over.
    node.agent().kill();
    node.restart();
    sleep(Duration::from_millis(500));
    exact("after a crash", &[all[0], all[2], all[3]], &[30.0, 2.0, 8.0], tolerance);
    drop(streams);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!(devices(&node), Vec::<String>::new());
    for device in [UPLINK, SECOND] {
        let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", device]);
        assert!(!qdiscs.contains("clsact"), "{device}: {qdiscs}");
    }
}
