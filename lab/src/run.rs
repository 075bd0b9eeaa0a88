//! Runs a scenario: a topology for each control, and real traffic in each case.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use weir_netlab::{
    stats::{self, SplitMix},
    topology::Topology,
    traffic::{self, Flow, Measured, Rtts, Timing},
};

use crate::{
    control::{
        self,
        kind::{ControlKind, Missing},
    },
    options::{Options, Step},
    oracle::{self, Share},
    report::{CaseReport, ContainerReport, Measurement, PingMeasurement, PingReport, Report, Settings},
    scenario::{Case, HOST, Scenario, Setting},
};

/// Samples of 100 ms in one block of the bootstrap. The resulting 0.5 s exceeds the memory of a queue of 20
/// to 50 ms.
const BLOCK: usize = 5;
const LEVEL: f64 = 0.95;
const RESAMPLES: usize = 1000;

/// The result of one case under one control.
struct Outcome {
    flows: Vec<Measured>,
    ping: Option<PingMeasurement>,
}

/// The outcomes of each control, by the case's index.
type Outcomes = BTreeMap<ControlKind, Vec<Outcome>>;

/// Pings of the pinging container before the others send.
const IDLE_PINGS: u32 = 50;

/// Runs all cases under all controls of the scenario, and judges weir's.
///
/// `watch` receives each case before it runs.
///
/// # Errors
/// If the topology cannot be built, a control cannot be started or traffic fails; on Ctrl-C.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(Step<'_>)) -> Result<Report> {
    let timing = Timing::seconds(scenario.seconds)?;
    let mut outcomes = Outcomes::new();
    let (mut scripts, mut missing) = (String::new(), Vec::new());
    for &kind in &scenario.controls {
        let topology = Topology::build(&scenario.spec())?;
        let mut control = match control::start(kind, scenario, &topology, options) {
            Ok(control) => control,
            Err(error) => match control::missing(kind, &error) {
                Some(lacks) => {
                    missing.push(lacks);
                    continue;
                }
                None => return Err(error.context(format!("cannot start control {}", kind.name()))),
            },
        };
        for case in &scenario.cases {
            watch(Step { control: kind, case: &case.name });
            let context = || format!("case {} under control {}", case.name, kind.name());
            control.apply(case).with_context(context)?;
            let outcome = run_case(case, scenario, &topology, timing).with_context(context)?;
            outcomes.entry(kind).or_default().push(outcome);
        }
        scripts.extend(control.record());
    }
    Ok(judge(scenario, options, &outcomes, scripts, missing))
}

fn run_case(case: &Case, scenario: &Scenario, topology: &Topology, timing: Timing) -> Result<Outcome> {
    let family = scenario.family;
    let mut flows = Vec::new();
    for (label, setting) in case.settings() {
        let from = match label {
            HOST => topology.node(),
            container => topology.container(container)?.netns(),
        };
        flows.push(Flow { label, from, load: setting.send });
    }
    let Some(ping) = &case.ping else {
        let flows = traffic::run(topology, &flows, &[], family, timing)?.flows;
        return Ok(Outcome { flows, ping: None });
    };
    let from = topology.container(ping)?.netns();
    let idle = traffic::ping(topology, from, family, IDLE_PINGS)?;
    let loaded = traffic::run(topology, &flows, &[from], family, timing)?;
    Ok(Outcome { flows: loaded.flows, ping: Some(round_trips(&idle, &loaded.pings[0])?) })
}

fn round_trips(idle: &Rtts, loaded: &Rtts) -> Result<PingMeasurement> {
    let mean = |rtts: &Rtts| stats::mean(&rtts.ms).context("no ping was answered");
    Ok(PingMeasurement {
        idle_mean: mean(idle)?,
        mean: mean(loaded)?,
        median: stats::median(&loaded.ms).context("no ping was answered")?,
        p99: stats::percentile(&loaded.ms, 99.0).context("no ping was answered")?,
        loss: 1.0 - loaded.received as f64 / loaded.sent.max(1) as f64,
    })
}

fn judge(
    scenario: &Scenario,
    options: &Options,
    outcomes: &Outcomes,
    scripts: String,
    missing: Vec<Missing>,
) -> Report {
    let mut rng = SplitMix::new(options.seed);
    let cases = scenario
        .cases
        .iter()
        .enumerate()
        .map(|(index, case)| {
            let by_control: BTreeMap<ControlKind, &Outcome> =
                outcomes.iter().map(|(kind, cases)| (*kind, &cases[index])).collect();
            case_report(case, scenario, &by_control, &mut rng)
        })
        .collect();
    let settings = Settings::of(scenario, &options.link);
    Report::new(scenario, settings, options.seed, cases, scripts, missing)
}

fn case_report(
    case: &Case,
    scenario: &Scenario,
    outcomes: &BTreeMap<ControlKind, &Outcome>,
    rng: &mut SplitMix,
) -> CaseReport {
    let shares = oracle::shares(case, scenario.capacity, scenario.family);
    let containers: Vec<ContainerReport> = case
        .settings()
        .zip(&shares)
        .map(|((name, setting), share)| container_report(name, setting, share, outcomes, rng))
        .collect();
    let mut link_use = BTreeMap::new();
    let mut jain = BTreeMap::new();
    for (&kind, outcome) in outcomes {
        let total: f64 = outcome.flows.iter().map(|flow| flow.goodput).sum();
        link_use.insert(kind, total / scenario.capacity.as_mbit());
        let fractions: Vec<f64> = containers
            .iter()
            .filter(|c| c.expected > 0.0)
            .filter_map(|c| Some(c.measured.get(&kind)?.goodput / c.expected))
            .collect();
        jain.extend(stats::jain(&fractions).map(|index| (kind, index)));
    }
    let wanted: f64 = shares.iter().map(|share| share.allocation.as_mbit()).sum();
    // The link cannot be full if each container is at its ceiling.
    let want_link_use = scenario.link_use * wanted / scenario.capacity.as_mbit();
    let ping = case.ping.as_ref().map(|container| PingReport {
        container: container.clone(),
        measured: outcomes.iter().filter_map(|(kind, outcome)| Some((*kind, outcome.ping?))).collect(),
    });
    CaseReport { name: case.name.clone(), containers, link_use, want_link_use, jain, ping }
}

fn container_report(
    name: &str,
    setting: &Setting,
    share: &Share,
    outcomes: &BTreeMap<ControlKind, &Outcome>,
    rng: &mut SplitMix,
) -> ContainerReport {
    let measured = outcomes
        .iter()
        .filter_map(|(kind, outcome)| {
            let flow = outcome.flows.iter().find(|flow| flow.label == name)?;
            let blocks = stats::block_means(&flow.series, BLOCK);
            let ci95 = stats::bootstrap_mean(&blocks, LEVEL, RESAMPLES, rng);
            let measurement = Measurement {
                goodput: flow.goodput,
                ci95: ci95.unwrap_or((flow.goodput, flow.goodput)),
                error: stats::relative_error(flow.goodput, share.goodput),
                sent: flow.sent,
                loss: flow.loss,
                retransmits: flow.retransmits,
            };
            Some((*kind, measurement))
        })
        .collect();
    ContainerReport {
        name: name.to_owned(),
        setting: *setting,
        allocation: share.allocation,
        expected: share.goodput,
        measured,
    }
}
