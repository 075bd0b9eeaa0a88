//! Runs the cases under each setup, bridged and behind NAT.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_netlab::{
    interrupt, stats,
    topology::{Family, Mode, Netns, Spec, Topology, Wire},
    traffic::{self, Direction, Ends, Flows},
};
use weir_units::Bytes;

use super::{
    peer::{self, Peer},
    report::{Found, Lacks, Report, Row},
    scenario::{Case, IDLE, Scenario},
};
use crate::options::Options;

/// Probes while no one else receives.
const ALONE: u32 = 50;
/// Probes a second.
const A_SECOND: u64 = 50;

/// Measures all. `watch` receives each step before it begins.
///
/// # Errors
/// If the network cannot be built, the agent cannot be started or traffic fails; on Ctrl-C.
pub(crate) fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut found = Found::default();
    for &mode in &scenario.modes {
        for &peer in &scenario.peers {
            let topology = Topology::build(&spec(scenario, mode))?;
            if let Err(why) = delay(topology.srv(), scenario.rtt_ms) {
                found.no_delay_because = Some(why);
            }
            let _agent = match peer.start(scenario.capacity, &scenario.weights, &topology, options) {
                Ok(agent) => agent,
                Err(error) => match peer.lacks(&error) {
                    Some(why) => {
                        found.missing.push(Lacks { peer, mode, why });
                        continue;
                    }
                    None => return Err(error.context(format!("cannot start {}", peer.name()))),
                },
            };
            if let Some(script) =
                peer.script(scenario.capacity).filter(|script| !found.scripts.contains(script))
            {
                found.scripts += &format!("# {}\n{script}", peer.name());
            }
            let from = topology.container(IDLE)?.netns();
            let alone = traffic::ping(&topology, from, Family::V4, ALONE)?;
            let alone_p95 = stats::percentile(&alone.ms, 95.0).context("no ping was answered")?;
            for case in &scenario.cases {
                watch(&format!("{mode}, {}: {}", peer.name(), case.name));
                let measured = one(scenario, &topology, case)
                    .with_context(|| format!("case {} under {}, {mode}", case.name, peer.name()))?;
                found.rows.push(Row { mode, peer, case: case.name.clone(), alone_p95, ..measured });
            }
        }
    }
    Ok(Report::new(scenario, found))
}

/// Delays the server's packets.
///
/// # Errors
/// The reason, in words, of a kernel without netem.
fn delay(server: &Netns, rtt_ms: u64) -> Result<(), String> {
    let set = server.tc(&format!("qdisc add dev eth0 root netem delay {rtt_ms}ms limit 100000\n"));
    set.map_err(|error| {
        let why = peer::words(&error);
        format!("no netem in this kernel (CONFIG_NET_SCH_NETEM): {why}")
    })
}

fn spec(scenario: &Scenario, mode: Mode) -> Spec {
    let queue = scenario.line.bytes_per_sec() * scenario.line_queue_ms / 1_000;
    let labels = scenario.weights.keys().map(String::as_str).chain([IDLE]);
    Spec {
        containers: labels.map(str::to_owned).collect(),
        mode,
        wire: Some(Wire::of(scenario.line, Bytes(queue))),
        ..Spec::default()
    }
}

/// One case. The fields that name it are the caller's.
fn one(scenario: &Scenario, topology: &Topology, case: &Case) -> Result<Row> {
    let ends = |client| Ends {
        client,
        server: topology.srv(),
        address: topology.server_address(Family::V4),
        direction: Direction::Down,
    };
    let clients: Vec<&Netns> =
        scenario.weights.keys().map(|label| Ok(topology.container(label)?.netns())).collect::<Result<_>>()?;
    // Connections are made before a flood.
    let tcp = clients.iter().skip(usize::from(case.flood.is_some()));
    let mut flows: Vec<Flows> =
        tcp.map(|client| Flows::tcp(ends(client), &case.algorithm, case.flows)).collect::<Result<_>>()?;
    if let Some(rate) = case.flood {
        flows.insert(0, Flows::udp(ends(clients[0]), rate)?);
    }
    interrupt::sleep(Duration::from_secs(scenario.settles))?;
    let received = |flows: &[Flows]| -> Vec<u64> { flows.iter().map(Flows::received).collect() };
    let (begin, before) = (Instant::now(), received(&flows));
    let idle = topology.container(IDLE)?.netns();
    let count = u32::try_from(scenario.seconds * A_SECOND)?;
    // The pings take the measured time.
    let rtts = traffic::ping(topology, idle, Family::V4, count)?;
    interrupt::sleep_until(begin + Duration::from_secs(scenario.seconds))?;
    let (took, after) = (begin.elapsed().as_secs_f64(), received(&flows));
    let mbit = |(before, after): (&u64, &u64)| (after - before) as f64 * 8e-6 / took;
    let percentile = |p| stats::percentile(&rtts.ms, p);
    Ok(Row {
        mode: topology.spec().mode,
        peer: Peer::None,
        case: String::new(),
        goodput: before.iter().zip(&after).map(mbit).collect(),
        alone_p95: 0.0,
        p50: percentile(50.0),
        p95: percentile(95.0),
        lost: 1.0 - rtts.received as f64 / rtts.sent.max(1) as f64,
    })
}
