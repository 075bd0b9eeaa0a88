//! Runs a scenario: each control on a topology of its own, each case with real traffic.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result};

use crate::{
    control::{self, Kind},
    oracle::{self, Share},
    report::{CaseReport, ContainerReport, Measurement, Report, Settings},
    scenario::{Case, HOST, Scenario, Setting},
    stats::{self, SplitMix},
    topology::Topology,
    traffic::{self, Flow, Measured, Timing},
};

/// What the caller decides.
#[derive(Debug, Clone)]
pub struct Options {
    /// The weir program that control `weir` starts.
    pub weir: PathBuf,
    /// Seed of what is random here (the resampling of the confidence intervals).
    pub seed: u64,
}

/// A case that is about to run.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Under which control.
    pub control: Kind,
    /// Its name.
    pub case: &'a str,
}

/// Samples of a tenth of a second in one block of the bootstrap: half a second is longer than
/// the memory of a queue of 20 to 50 ms.
const BLOCK: usize = 5;
const LEVEL: f64 = 0.95;
const RESAMPLES: usize = 1000;

/// What each control made of each case: control, case index, flows.
type Outcomes = BTreeMap<Kind, Vec<Vec<Measured>>>;

/// Runs all cases under all controls of the scenario, and judges weir's.
///
/// `watch` is told of every case before it runs.
///
/// # Errors
/// If the topology cannot be built, a control cannot be started or traffic fails; on Ctrl-C.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(Step<'_>)) -> Result<Report> {
    let timing = Timing::seconds(scenario.seconds)?;
    let mut outcomes = Outcomes::new();
    let mut scripts = String::new();
    for &kind in &scenario.controls {
        let topology = Topology::build(&scenario.spec())?;
        let mut control = control::start(kind, scenario, &topology, &options.weir)
            .with_context(|| format!("cannot start control {}", kind.name()))?;
        for case in &scenario.cases {
            watch(Step { control: kind, case: &case.name });
            let context = || format!("case {} under control {}", case.name, kind.name());
            control.apply(case).with_context(context)?;
            let flows = run_case(case, scenario, &topology, timing).with_context(context)?;
            outcomes.entry(kind).or_default().push(flows);
        }
        scripts.extend(control.record());
    }
    Ok(judge(scenario, options.seed, &outcomes, scripts))
}

fn run_case(case: &Case, scenario: &Scenario, topology: &Topology, timing: Timing) -> Result<Vec<Measured>> {
    let mut flows = Vec::new();
    for (label, setting) in case.settings() {
        let from = match label {
            HOST => topology.node(),
            container => topology.container(container)?.netns(),
        };
        flows.push(Flow { label, from, load: setting.send });
    }
    Ok(traffic::run(topology, &flows, &[], scenario.family, timing)?.flows)
}

fn judge(scenario: &Scenario, seed: u64, outcomes: &Outcomes, scripts: String) -> Report {
    let mut rng = SplitMix::new(seed);
    let cases = scenario
        .cases
        .iter()
        .enumerate()
        .map(|(index, case)| {
            let by_control: BTreeMap<Kind, &Vec<Measured>> =
                outcomes.iter().map(|(kind, cases)| (*kind, &cases[index])).collect();
            case_report(case, scenario, &by_control, &mut rng)
        })
        .collect();
    Report::new(scenario, Settings::of(scenario), seed, cases, scripts)
}

fn case_report(
    case: &Case,
    scenario: &Scenario,
    outcomes: &BTreeMap<Kind, &Vec<Measured>>,
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
    for (&kind, flows) in outcomes {
        let total: f64 = flows.iter().map(|flow| flow.goodput).sum();
        link_use.insert(kind, total / scenario.capacity.as_mbit());
        let fractions: Vec<f64> = containers
            .iter()
            .filter(|c| c.expected > 0.0)
            .filter_map(|c| Some(c.measured.get(&kind)?.goodput / c.expected))
            .collect();
        jain.extend(stats::jain(&fractions).map(|index| (kind, index)));
    }
    let wanted: f64 = shares.iter().map(|share| share.allocation.as_mbit()).sum();
    // If everybody is at a ceiling, the link cannot be full.
    let want_link_use = scenario.link_use * wanted / scenario.capacity.as_mbit();
    CaseReport { name: case.name.clone(), containers, link_use, want_link_use, jain }
}

fn container_report(
    name: &str,
    setting: &Setting,
    share: &Share,
    outcomes: &BTreeMap<Kind, &Vec<Measured>>,
    rng: &mut SplitMix,
) -> ContainerReport {
    let measured = outcomes
        .iter()
        .filter_map(|(kind, flows)| {
            let flow = flows.iter().find(|flow| flow.label == name)?;
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
