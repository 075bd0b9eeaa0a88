//! Runs a scenario: a topology for each control, and real requests in each case.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use weir_netlab::{
    interrupt,
    topology::{Family, Mode, Spec, Topology, UPLINK, Uplink, Wire},
    traffic::Eager,
};
use weir_units::Bytes;

use super::{
    consumer::{Answer, consume},
    guest, promise,
    report::{Report, Row, Sample, row},
    scenario::{Case, FIRST_PORT, Scenario},
    service::Service,
    tree::script,
};

use crate::{
    control::{
        self,
        kind::{ControlKind, Missing},
    },
    options::{Options, Step},
};

/// Requests that begin before this are left out: addresses are looked up and queues fill.
const WARM_UP: Duration = Duration::from_millis(500);
/// Frames in the queue in front of the line: Linux's default for a network interface.
const QUEUE: u64 = 1000;
/// Bytes of a frame without its check sum.
const FRAME: u64 = 1514;
/// The name of the service's container.
const SERVICE: &str = "service";

/// Measures all cases under all controls, and judges weir's.
///
/// `watch` receives each case before it runs. Cases and controls alternate, so that other load on the machine
/// affects all of them.
///
/// # Errors
/// If the topology cannot be built, a control cannot be started or the service does not answer; on Ctrl-C.
pub(crate) fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(Step<'_>)) -> Result<Report> {
    if scenario.guest {
        for (case, &control) in
            scenario.cases.iter().flat_map(|c| scenario.controls.iter().map(move |k| (c, k)))
        {
            watch(Step { control, case: &case.name });
        }
        return guest::run(scenario, options);
    }
    let mut samples: BTreeMap<(usize, usize), Sample> = BTreeMap::new();
    let (mut scripts, mut missing) = (String::new(), Vec::<Missing>::new());
    for round in 0..scenario.repetitions {
        for (c, case) in scenario.cases.iter().enumerate() {
            for (k, &kind) in scenario.controls.iter().enumerate() {
                if missing.iter().any(|lacks| lacks.control == kind) {
                    continue;
                }
                watch(Step { control: kind, case: &case.name });
                let context = || format!("case {} under control {}", case.name, kind.name());
                match measure(scenario, case, kind, options).with_context(context) {
                    Ok((sample, script)) => {
                        if round == 0 && !script.is_empty() {
                            scripts += &format!("# {}\n{script}\n", case.name);
                        }
                        samples.entry((c, k)).or_default().add(sample);
                    }
                    Err(error) => match control::missing(kind, &error) {
                        Some(lacks) => missing.push(lacks),
                        None => return Err(error),
                    },
                }
            }
        }
    }
    let rows: Vec<Row> = samples
        .into_iter()
        .map(|((c, k), sample)| row(&scenario.cases[c], scenario.controls[k], sample))
        .collect::<Result<_>>()?;
    Ok(Report::new(scenario, rows, missing, scripts))
}

/// Measures one case under one control, once. Returns the sample and the script of the shaping.
fn measure(
    scenario: &Scenario,
    case: &Case,
    kind: ControlKind,
    options: &Options,
) -> Result<(Sample, String)> {
    let topology = topology(scenario)?;
    let node = topology.node();
    let mut script = String::new();
    if kind == ControlKind::Tc && !case.agreements.is_empty() {
        script = shape(&topology, scenario, case)?;
    }
    let agent =
        kind.has_agent().then(|| promise::agree(&topology, scenario, case, kind, options)).transpose()?;
    let engine =
        agent.as_ref().map(|agent| agent.client().status().map(|status| status.engine)).transpose()?;
    let container = topology.container(SERVICE)?;
    let address = container.address(Family::V4);
    let ports: Vec<u16> = (FIRST_PORT..).take(case.consumers()).collect();
    let service = Service::start(container.netns(), address, &ports)?;
    let eager = if case.overloaded {
        Some(Eager::start(node, topology.srv(), topology.server_address(Family::V4))?)
    } else {
        None
    };
    let before = eager.as_ref().map_or(0, Eager::arrived);
    let begin = Instant::now();
    let end = begin + WARM_UP + Duration::from_secs(scenario.seconds);
    let answers = consumers(&topology, &ports, address, end)?;
    let elapsed = begin.elapsed().as_secs_f64();
    let udp = eager.as_ref().map(|eager| (eager.arrived() - before) as f64 * 8e-6 / elapsed);
    drop(eager);
    drop(service);
    interrupt::check()?;
    let answers = answers
        .into_iter()
        .map(|of| of.into_iter().filter(|answer| answer.begun >= begin + WARM_UP).collect())
        .collect();
    Ok((Sample { answers, udp: udp.into_iter().collect(), engine }, script))
}

/// The service in a container of a routing node, the line, and the consumers' machine.
///
/// A route separates a packet from its sender's socket. TCP then fills the queue in front of the line as far
/// as its window allows, as on the paper's kernel.
///
/// Without the route, TCP small queues (since Linux 3.6) limit TCP. The UDP task runs on the node itself, and
/// only its socket's buffer limits it. It would then take three quarters of the line.
fn topology(scenario: &Scenario) -> Result<Topology> {
    let topology = Topology::build(&Spec {
        containers: vec![SERVICE.to_owned()],
        uplink: Uplink::default(),
        mode: Mode::Routed,
        tso: scenario.tso,
        br_netfilter: None,
        wire: Some(Wire::of(scenario.line, Bytes(QUEUE * FRAME))),
    })?;
    if !scenario.tso {
        topology.node().exec(&["ethtool", "-K", UPLINK, "tso", "off", "gso", "off"])?;
    }
    Ok(topology)
}

/// Sets up the paper's tree.
fn shape(topology: &Topology, scenario: &Scenario, case: &Case) -> Result<String> {
    let with = |sfq| script(scenario.line, &case.promised(), case.other, sfq);
    // Some kernels lack SFQ. A class holds one consumer, for which a plain queue is equivalent.
    if topology.node().tc(&with(true)).is_ok() {
        return Ok(with(true));
    }
    let _ = topology.node().tc(&format!("qdisc del dev {UPLINK} root\n"));
    topology.node().tc(&with(false))?;
    Ok(with(false))
}

/// Runs all consumers at once and returns the answers of each.
fn consumers(
    topology: &Topology,
    ports: &[u16],
    address: std::net::IpAddr,
    end: Instant,
) -> Result<Vec<Vec<Answer>>> {
    std::thread::scope(|scope| {
        let consumers: Vec<_> = ports
            .iter()
            .map(|&port| {
                let target = SocketAddr::new(address, port);
                scope.spawn(move || topology.srv().within(|| consume(target, end))?)
            })
            .collect();
        consumers
            .into_iter()
            .map(|consumer| consumer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
