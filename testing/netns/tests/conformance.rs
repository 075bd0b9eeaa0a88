//! One suite for all engines: weights, minima and maxima of qCon's Fig. 7 to 11, read from the
//! lab's scenario files, each share against the oracle.
//!
//! `WEIR_ENGINES=bpf,edt` tests those, and fails where one cannot run.

use std::{thread::sleep, time::Duration};

use weir_lab::scenario::{self, Case};
use weir_netlab::{
    topology::{Family, Mode, Spec, Uplink},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, FLOOD, Node, Senders, Share, Slack, can_have, containers,
    for_each_engine, judge, measure_once, party,
};

for_each_engine!(
    shares_of_whole_super_packets_are_those_of_the_oracle,
    shares_of_single_segments_are_those_of_the_oracle,
    shares_on_tun_are_those_of_the_oracle,
    shares_on_ppp_are_those_of_the_oracle,
    shares_on_wireguard_are_those_of_the_oracle
);

/// The traffic of the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Tcp,
    Udp,
    Mixed,
}

impl Traffic {
    fn of(self, container: usize) -> Load {
        match self {
            Traffic::Udp => FLOOD,
            Traffic::Mixed if container.is_multiple_of(2) => FLOOD,
            _ => Load::Tcp,
        }
    }
}

/// Cases of the figures, with a name. Shares depend on the uplink by a packet's charge alone, so that other
/// uplinks than Ethernet have each figure's last case. Weights alone (Fig. 7 and 8) are those of single segments,
/// as the first case of each other figure has weights alone too.
fn cases(tso: bool, uplink: Uplink) -> Vec<(String, Case)> {
    let figures = ["minimum", "maximum", "combined", "weights-3", "weights-grow"];
    figures[..if tso { 3 } else { 5 }]
        .iter()
        .flat_map(|name| {
            let cases = scenario::find(name).expect("it comes with weir").cases;
            let skipped = if uplink.has_ethernet() { 0 } else { cases.len() - 1 };
            cases.into_iter().skip(skipped).map(move |case| (format!("{name} {}", case.name), case))
        })
        .collect()
}

fn division(case: &Case, kind: Traffic) -> Division {
    let one = |(i, (label, setting)): (usize, (&str, &scenario::Setting))| {
        let load = if setting.send == Load::Nothing { Load::Nothing } else { kind.of(i) };
        party(label).weight(setting.weight.get()).between(setting.min, setting.max).sends(load)
    };
    Division::of(case.settings().enumerate().map(one))
}

/// No measurement is shorter.
const SHORTEST: Duration = Duration::from_millis(1500);
/// A super-packet, bits.
const SUPER_PACKET: f64 = 65536.0 * 8.0;

/// So long that two super-packets are no more of the smallest share than the tolerance. An interval holds one
/// more or one less than its share, and the other half is left for an error of the engine.
fn long_enough(expected: &[Share], engine: EngineKind) -> Duration {
    let smallest =
        expected.iter().map(|s| s.goodput * 1e6).filter(|rate| *rate > 0.0).fold(f64::INFINITY, f64::min);
    SHORTEST.max(Duration::from_secs_f64(2.0 * SUPER_PACKET / (engine.tolerance(true) * smallest)))
}

fn figures(engine: EngineKind, tso: bool, kinds: &[Traffic], uplink: Uplink) {
    if !can_have(uplink) {
        return;
    }
    if engine == EngineKind::User && !uplink.has_ethernet() {
        println!("not run: engine {engine} takes no uplink of {uplink}");
        return;
    }
    let mode = if uplink.has_ethernet() { Mode::Bridged } else { Mode::Routed };
    let mut node = Node::build(&Spec { containers: containers(5), tso, mode, uplink, ..Spec::default() });
    let config = node.config().engine(engine);
    node.start(&config);
    let senders = Senders::of(&node, engine);
    let tolerance = engine.tolerance(tso);
    let (mut worst, mut short, mut failed) = (0.0f64, 1.0f64, Vec::new());
    for (i, (name, case)) in cases(tso, uplink).into_iter().enumerate() {
        let kind = kinds[i % kinds.len()];
        let division = division(&case, kind);
        let expected = division.expected_on(uplink, CAPACITY, Family::V4);
        let what = format!("{engine} {uplink} {kind:?} {name}");
        node.client().set(&division.to_changes(&node)).expect("it fits");
        senders.follow(&division, &expected);
        // Before the first one TCP has just connected.
        sleep(engine.settles() + Duration::from_millis(if i == 0 { 1500 } else { 200 }));
        let time = if tso { long_enough(&expected, engine) } else { SHORTEST };
        let measure =
            || judge(&what, &division, &senders.goodputs(time), &expected, (time, tolerance, Slack::None));
        let judged = measure_once(measure, |judged| judged.holds(engine));
        (worst, short) = (worst.max(judged.worst), short.min(judged.total));
        if !judged.holds(engine) {
            // Later cases would hide what was the matter.
            node.dump();
            failed.push((what, judged));
        }
    }
    println!("{engine}, {uplink}, tso {tso}: worst error {:.2} %, least total {short:.3}", worst * 100.0);
    assert!(failed.is_empty(), "{} of the cases fail: {failed:#?}", failed.len());
}

fn shares_of_whole_super_packets_are_those_of_the_oracle(engine: EngineKind) {
    figures(engine, true, &[Traffic::Tcp, Traffic::Mixed], Uplink::Ethernet);
}

fn shares_of_single_segments_are_those_of_the_oracle(engine: EngineKind) {
    figures(engine, false, &[Traffic::Tcp, Traffic::Udp, Traffic::Mixed], Uplink::Ethernet);
}

fn shares_on_tun_are_those_of_the_oracle(engine: EngineKind) {
    figures(engine, true, &[Traffic::Tcp, Traffic::Mixed], Uplink::Tunnel);
}

fn shares_on_ppp_are_those_of_the_oracle(engine: EngineKind) {
    figures(engine, true, &[Traffic::Tcp, Traffic::Mixed], Uplink::Ppp);
}

fn shares_on_wireguard_are_those_of_the_oracle(engine: EngineKind) {
    figures(engine, true, &[Traffic::Tcp, Traffic::Mixed], Uplink::WireGuard);
}
