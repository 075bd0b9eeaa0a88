//! Runs the controls, and samples what arrives around the move.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_netlab::{
    interrupt,
    topology::{Topology, UPLINK},
    traffic::{Direction, Ends, Flows, Load, UDP_PAYLOAD},
};

use super::{
    network::{self, FAR, SECOND},
    report::{Report, Run, Sample},
    scenario::Scenario,
};
use crate::{
    control::{
        self, Agent, AgentSetup,
        kind::{ControlKind, TcForm},
        script,
    },
    options::{Options, Step},
};

/// The time between two samples.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// Bytes of a datagram's frame beside its payload.
const HEADERS: u32 = 42;
/// The time from the begin of the load to the first sample.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// Runs each control on a network of its own.
///
/// # Errors
/// If the network cannot be built, a control cannot be started or traffic fails; on Ctrl-C.
pub(crate) fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(Step<'_>)) -> Result<Report> {
    let (mut runs, mut missing) = (Vec::new(), Vec::new());
    let mut scripts = String::new();
    for &kind in &scenario.controls {
        watch(Step { control: kind, case: "the default route moves" });
        let topology = network::build(scenario)?;
        let context = || format!("cannot start control {}", kind.name());
        let _agent = match start(kind, scenario, &topology, options, &mut scripts) {
            Ok(agent) => agent,
            Err(error) => match control::missing(kind, &error) {
                Some(lacks) => {
                    missing.push(lacks);
                    continue;
                }
                None => return Err(error).with_context(context),
            },
        };
        runs.push(
            around_the_move(kind, scenario, &topology).with_context(|| format!("under {}", kind.name()))?,
        );
    }
    Ok(Report::new(scenario, runs, missing, scripts))
}

fn start(
    kind: ControlKind,
    scenario: &Scenario,
    topology: &Topology,
    options: &Options,
    scripts: &mut String,
) -> Result<Option<Agent>> {
    let policies = scenario.containers.iter().map(|(label, setting)| Ok((label, setting.policy()?)));
    let policies: Vec<_> = policies.collect::<Result<_>>()?;
    match kind {
        ControlKind::None => Ok(None),
        ControlKind::Tc => {
            let address = |label: &str| topology.container(label).map(|c| c.address(Default::default()));
            let classes: Vec<_> = policies
                .iter()
                .map(|(label, policy)| Ok((Some(address(label)?), *policy)))
                .collect::<Result<_>>()?;
            let text = script(TcForm::Rates, scenario.first.capacity, &classes);
            topology.node().tc(&text)?;
            scripts.push_str(&text);
            Ok(None)
        }
        _ => {
            let setup = AgentSetup::new(&options.weir, topology, scenario.first.capacity)
                .link(&control::link(kind, options))
                .beside(SECOND, scenario.second.capacity);
            let agent = Agent::start(&setup)?;
            let named = |(label, policy): &(&String, _)| (topology.container_name(label), *policy);
            agent.set(&policies.iter().map(named).collect::<Vec<_>>())?;
            Ok(Some(agent))
        }
    }
}

fn around_the_move(kind: ControlKind, scenario: &Scenario, topology: &Topology) -> Result<Run> {
    let mut flows = Vec::new();
    for (label, setting) in &scenario.containers {
        let client = topology.container(label)?.netns();
        let ends = Ends { client, server: topology.srv(), address: FAR, direction: Direction::Up };
        let Load::Udp(rate) = setting.send else { unreachable!("checked when it was read") };
        flows.push(Flows::udp(ends, rate)?);
    }
    interrupt::sleep(WARM_UP)?;
    let begin = Instant::now();
    let mut samples = vec![sample(&flows, begin)];
    take(&mut samples, &flows, begin, Duration::from_secs(scenario.before))?;
    network::move_route(topology)?;
    let moved = begin.elapsed().as_secs_f64();
    take(&mut samples, &flows, begin, Duration::from_secs(scenario.before + scenario.after))?;
    let waiting =
        network::waiting(topology).with_context(|| format!("cannot see what waits for {UPLINK}"))?;
    Ok(Run { control: kind, moved, samples, waiting })
}

/// Takes a sample each 100 ms until a time after the begin.
fn take(samples: &mut Vec<Sample>, flows: &[Flows], begin: Instant, until: Duration) -> Result<()> {
    while begin.elapsed() < until {
        interrupt::sleep(SAMPLE)?;
        samples.push(sample(flows, begin));
    }
    Ok(())
}

fn sample(flows: &[Flows], begin: Instant) -> Sample {
    let frame = f64::from(UDP_PAYLOAD + HEADERS) / f64::from(UDP_PAYLOAD);
    let mbit = |flows: &Flows| flows.received() as f64 * frame * 8e-6;
    Sample { s: begin.elapsed().as_secs_f64(), arrived: flows.iter().map(mbit).collect() }
}
