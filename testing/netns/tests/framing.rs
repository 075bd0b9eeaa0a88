//! A slow line behind the link: its framing is charged, and no queue stands in it.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread::{scope, sleep},
    time::Duration,
};

use weir_netlab::topology::{Family, Mode, Spec, Wire};
use weir_netns_tests::{
    Echo, EngineKind, Node, Origin, Rate, Stream, containers, for_each_engine, measure_once,
};
use weir_units::{BitRate, Bytes, Framing};

for_each_engine!(@in htb Htb small_packets_fill_a_line_exactly, no_queue_behind_weir_at_99_percent_of_the_line, a_class_that_wakes_leaves_no_queue_behind_weir);
for_each_engine!(@in bpf Bpf small_packets_fill_a_line_exactly, no_queue_behind_weir_at_99_percent_of_the_line, a_class_that_wakes_leaves_no_queue_behind_weir);
for_each_engine!(@in edt Edt small_packets_fill_a_line_exactly, no_queue_behind_weir_at_99_percent_of_the_line, a_class_that_wakes_leaves_no_queue_behind_weir);
for_each_engine!(@in bpf_credit BpfCredit small_packets_fill_a_line_exactly, no_queue_behind_weir_at_99_percent_of_the_line);
for_each_engine!(@in user User small_packets_fill_a_line_exactly, no_queue_behind_weir_at_99_percent_of_the_line, a_class_that_wakes_leaves_no_queue_behind_weir);

/// The line's rate.
const LINE: BitRate = BitRate::mbit(4);
const SETTLES: Duration = Duration::from_millis(1500);
const MEASURED: Duration = Duration::from_secs(1);
/// Looks at the rate that weir tells.
const LOOKS: u32 = 10;
/// An idle container's round trip beside the floods. The queue of the line would add 500 ms, and 16 KiB in it 33 ms.
const MOST_MS: f64 = 6.0;
/// Headers of IPv4 and UDP.
const HEADERS: u64 = 28;

/// The part of the line that floods of small packets use with this framing, and the part that weir tells.
fn used(node: &Node, framing: Framing, payload: u64) -> [f64; 2] {
    let server = node.topology.server_address(Family::V4);
    let flood = |label| {
        let (srv, rate) = (node.topology.srv(), Rate::Of(BitRate::mbit(20)));
        Stream::udp_from(node.netns(label), Origin::default(), srv, server, rate, payload as usize)
    };
    let streams = ["C1", "C2"].map(flood);
    sleep(SETTLES);
    let goodputs = Stream::goodputs(&streams.each_ref(), MEASURED);
    let packets = goodputs.iter().sum::<f64>() * 1e6 / 8.0 / payload as f64;
    let line = framing.line_bytes(payload + HEADERS + 14) as f64 * 8.0;
    // Engine edt counts packets that wait, so that a single look may find some more or fewer.
    let look = |_| {
        sleep(MEASURED / LOOKS);
        node.client().status().expect("the agent answers").rate.as_mbit()
    };
    let told = (0..LOOKS).map(look).sum::<f64>() / f64::from(LOOKS);
    [packets * line / 1e6 / LINE.as_mbit(), told / LINE.as_mbit()]
}

fn small_packets_fill_a_line_exactly(engine: EngineKind) {
    // An Ethernet frame is filled up to 84 bytes. 90 bytes over PPPoE take two cells of ATM.
    for (name, payload) in [("ethernet", 8), ("pppoe-llcsnap", 22)] {
        let spec = Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() };
        let mut node = Node::build(&spec);
        let config = node.config().engine(engine).capacity(LINE);
        node.start(&config.link(&format!("framing = \"{name}\"")));
        let framing: Framing = name.parse().expect("it is a preset");
        let off = |used: &[f64; 2]| used.iter().map(|part| (part - 1.0).abs()).fold(0.0, f64::max);
        let used = measure_once(|| used(&node, framing, payload), |used| off(used) <= 0.02);
        println!("{name}: {:.3} of the line is used, weir tells {:.3}", used[0], used[1]);
        assert!(off(&used) <= 0.02, "{name}: {used:?}");
        let status = node.weir(&["status"]);
        assert!(status.contains(&format!("framing    {framing}")), "{status}");
        let charged = format!("charged with {framing}");
        let c1 = node.name("C1");
        for told in [node.weir(&["explain", &c1]), node.ran(&["doctor"]).stdout] {
            assert!(told.contains(&charged), "{told}");
        }
        let refused = node.ran(&["export", "tc"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("framing"), "{refused:?}");
        let repairs = node.client().status().expect("the agent answers").repairs;
        assert_eq!(repairs, 0, "the kernel holds the framing as it was written");
    }
}

/// Three containers behind a line that has 0.5 s of datagrams in its queue. The capacity is 99 % of the line. `tc`
/// simulates the line: a TBF that counts Ethernet's header, and what `framed` says.
fn behind_a_line(engine: EngineKind, link: &str, framed: &str) -> Node {
    let queue = Bytes(LINE.bits_per_sec() / 8 / 2);
    let spec = Spec {
        containers: containers(3),
        mode: Mode::Routed,
        wire: Some(Wire::of(LINE, queue)),
        ..Spec::default()
    };
    let mut node = Node::build(&spec);
    for device in ["wn", "ws"] {
        let (rate, limit) = (LINE.bits_per_sec(), queue.0);
        let change =
            format!("qdisc change dev {device} root tbf rate {rate}bit burst 3200 limit {limit} {framed}\n");
        node.topology.wire().tc(&change).expect("the wire frames packets");
    }
    let capacity = BitRate(LINE.bits_per_sec() / 100 * 99);
    node.start(&node.config().engine(engine).capacity(capacity).link(link));
    node
}

/// Beside floods of 64 bytes of IP. PPPoE adds 16 bytes to Ethernet's header, and 26 with LLC over ATM.
fn no_queue_behind_weir_at_99_percent_of_the_line(engine: EngineKind) {
    for (name, own, line) in [
        ("PPPoE", "overhead = 30", "overhead 16"),
        ("ATM", "framing = \"pppoe-llcsnap\"", "overhead 26 linklayer atm"),
    ] {
        let node = behind_a_line(engine, own, line);
        let server = node.topology.server_address(Family::V4);
        let echo = Echo::at(node.topology.srv(), server);
        let flood = |label| {
            let (srv, rate) = (node.topology.srv(), Rate::Of(BitRate::mbit(10)));
            Stream::udp_from(node.netns(label), Origin::default(), srv, server, rate, 36)
        };
        let streams = ["C1", "C2"].map(flood);
        sleep(SETTLES);
        let idle = || echo.ask(node.netns("C3"), 60, Duration::from_millis(20)).percentile(95.0);
        let p95 = measure_once(idle, |p95| *p95 < MOST_MS);
        let goodputs = Stream::goodputs(&streams.each_ref(), MEASURED);
        println!(
            "{engine} {name}: an idle container waits {p95:.1} ms beside {goodputs:.2?} Mbit/s of 36 bytes each"
        );
        assert!(p95 < MOST_MS, "{engine} {name}: an idle container waits {p95:.1} ms");
        assert!(goodputs.iter().sum::<f64>() > 0.5, "{engine} {name}: {goodputs:?}");
    }
}

/// Beside a flood, a class sends a first window of ten packets again and again, as for requests.
fn a_class_that_wakes_leaves_no_queue_behind_weir(engine: EngineKind) {
    const WINDOW: usize = 10;
    let node = behind_a_line(engine, "", "");
    let server = node.topology.server_address(Family::V4);
    let echo = Echo::at(node.topology.srv(), server);
    let (srv, rate) = (node.topology.srv(), Rate::Of(BitRate::mbit(10)));
    let flood = Stream::udp_from(node.netns("C1"), Origin::default(), srv, server, rate, 1400);
    let open =
        || UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect((server, 9)).map(|()| socket));
    let socket = node.netns("C2").within(open).expect("can enter").expect("can open");
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (trips, goodput) = scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // No one listens there. The next packet tells that the one before was refused.
                let went = (0..WINDOW).filter(|_| socket.send(&[0; 1400]).is_ok()).count();
                sent.fetch_add(went, Ordering::Relaxed);
                sleep(Duration::from_millis(500));
            }
        });
        sleep(SETTLES);
        let trips = measure_once(
            || echo.ask(node.netns("C3"), 300, Duration::from_millis(17)),
            |trips| trips.percentile(95.0) < MOST_MS,
        );
        let goodput = flood.goodput(MEASURED);
        stop.store(true, Ordering::Relaxed);
        (trips, goodput)
    });
    let [p50, p95, p99] = [50.0, 95.0, 99.0].map(|p| trips.percentile(p));
    let sent = sent.into_inner();
    println!(
        "{engine}: an idle container waits {p50:.1}, {p95:.1}, {p99:.1} ms beside {sent} packets of a class that wakes and {goodput:.2} Mbit/s"
    );
    assert!(p95 < MOST_MS, "{engine}: an idle container waits {p95:.1} ms");
    // The class wakes at least eight times.
    assert!(sent >= 4 * WINDOW && goodput > 3.0, "{engine}: {sent} packets, {goodput:.2} Mbit/s");
}
