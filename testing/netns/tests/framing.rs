//! The framing of the line behind the link is charged: small packets fill the line, and no more.

use std::{thread::sleep, time::Duration};

use weir_netlab::topology::{Family, Mode, Spec};
use weir_netns_tests::{Need, Node, Origin, Rate, Stream, can_run, containers, measure_once};
use weir_units::{BitRate, Framing};

/// The line's rate.
const LINE: BitRate = BitRate::mbit(4);
const SETTLES: Duration = Duration::from_millis(1500);
const MEASURED: Duration = Duration::from_secs(1);
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
    let told = node.client().status().expect("the agent answers").rate.as_mbit();
    [packets * line / 1e6 / LINE.as_mbit(), told / LINE.as_mbit()]
}

#[test]
fn small_packets_fill_a_line_of_cells_or_long_frames_exactly() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    // An Ethernet frame is filled up to 84 bytes. 90 bytes over PPPoE take two cells of ATM.
    for (name, payload) in [("ethernet", 8), ("pppoe-llcsnap", 22)] {
        let spec = Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() };
        let mut node = Node::build(&spec);
        node.start(&node.config().capacity(LINE).link(&format!("framing = \"{name}\"")));
        let framing: Framing = name.parse().expect("it is a preset");
        let off = |used: &[f64; 2]| used.iter().map(|part| (part - 1.0).abs()).fold(0.0, f64::max);
        let used = measure_once(|| used(&node, framing, payload), |used| off(used) <= 0.02);
        println!("{name}: {:.3} of the line is used, weir tells {:.3}", used[0], used[1]);
        assert!(off(&used) <= 0.02, "{name}: {used:?}");
        let status = node.weir(&["status"]);
        assert!(status.contains(&format!("framing    {framing}")), "{status}");
        let refused = node.ran(&["export", "tc"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("framing"), "{refused:?}");
        let repairs = node.client().status().expect("the agent answers").repairs;
        assert_eq!(repairs, 0, "the kernel holds the framing as it was written");
    }
}
