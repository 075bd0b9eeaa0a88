//! Datagrams larger than a packet, more of them than the rate carries: what arrives is whole.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Spec},
    traffic::Eager,
};
use weir_netns_tests::{EngineKind, Node, TOLERANCE, containers, for_each_engine, measure_once};

for_each_engine!(queues: of_large_datagrams_beyond_a_rate_those_that_arrive_are_whole);

/// The rate of a sender, Mbit/s, and the payload in it of 12.5 KB in nine fragments.
const RATE: f64 = 5.0;
const PAYLOAD: f64 = 12_500.0 / (8.0 * 1514.0 + 702.0);

fn of_large_datagrams_beyond_a_rate_those_that_arrive_are_whole(engine: EngineKind) {
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let name = node.name("C1");
    let limits = format!("[host]\nmax = \"5mbit\"\n[[class]]\nname = \"{name}\"\nmax = \"5mbit\"\n");
    let config = node.config().engine(engine).sections(&limits);
    node.start(&config);
    for who in ["C1", "host"] {
        let from = if who == "host" { node.topology.node() } else { node.netns(who) };
        let address = node.topology.server_address(Family::V4);
        let eager = Eager::start(from, node.topology.srv(), address).expect("it can send");
        sleep(Duration::from_secs(1));
        let measure = || {
            let (begin, arrived, class) = (Instant::now(), eager.arrived(), node.class(who));
            sleep(Duration::from_secs(2));
            let (after, seconds) = (node.class(who), begin.elapsed().as_secs_f64());
            let rate = |bytes: u64| bytes as f64 * 8e-6 / seconds;
            let whole = rate(eager.arrived() - arrived) / PAYLOAD;
            let sent = rate(after.bytes.0 - class.bytes.0);
            println!("{engine} {who}: {sent:.2} Mbit/s are sent, {whole:.2} of them arrive whole");
            whole
        };
        // HTB's queues drop packet by packet from a sender that is not held back.
        if who == "host" && engine == EngineKind::Htb {
            measure();
            continue;
        }
        let off = |whole: &f64| (whole / RATE - 1.0).abs();
        let whole = measure_once(measure, |w| off(w) <= TOLERANCE);
        assert!(off(&whole) <= TOLERANCE, "{engine} {who}: {whole:.2} of {RATE} Mbit/s arrive whole");
    }
}
