//! Runs the simulations of a scenario.

use anyhow::Result;
use weir_cache::{
    PolicyKind,
    generate::{Zone, generate},
    simulate::{Outcome, Replay, Setup, Sharing, TimeModel, simulate_closed},
    trace::Trace,
};
use weir_netlab::interrupt;
use weir_units::Bytes;

use super::{
    report::{Report, Row},
    scenario::{Measures, Scenario, Times, ZoneCase},
};

/// Deployments in a point of the plot of a run, as in the paper's Fig. 7.
const BIN: usize = 50;
/// Deployments between two looks at whether Ctrl-C was pressed.
const INTERRUPT_CHECK_INTERVAL: usize = 5_000;

/// Simulates all of it; `watch` is told of every simulation before it begins, in words.
///
/// # Errors
/// On Ctrl-C.
pub(crate) fn run(scenario: &Scenario, seed: u64, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut rows = Vec::new();
    for case in &scenario.zones {
        let zone = case.zone().expect("checked when it was read");
        for nth in 0..scenario.seeds as u64 {
            interrupt::check()?;
            let deployments = scenario.deployments.min(zone.deployments as usize);
            let trace = generate(zone, deployments, seed.wrapping_add(nth));
            Runner { scenario, case, zone, trace: &trace, watch: &mut *watch, rows: &mut rows }.zone()?;
        }
    }
    Ok(Report::new(scenario, seed, rows))
}

/// One trace.
struct Runner<'a> {
    scenario: &'a Scenario,
    case: &'a ZoneCase,
    zone: &'a Zone,
    trace: &'a Trace,
    watch: &'a mut dyn FnMut(&str),
    rows: &'a mut Vec<Row>,
}

impl Runner<'_> {
    fn zone(&mut self) -> Result<()> {
        let scenario = self.scenario;
        for &policy in &scenario.policies {
            match scenario.measures {
                Measures::Hits => {
                    for &budget in &scenario.budgets {
                        self.open(policy, budget, None)?;
                    }
                }
                Measures::Policies => {
                    let all = self.trace.working_set().0 as f64;
                    for &part in &scenario.parts {
                        self.open(policy, Bytes((all * part) as u64), Some(part))?;
                    }
                }
                Measures::Sites => {
                    self.site(policy, Times::Paper, TimeModel::PAPER)?;
                    if let Some(measured) = scenario.measured.filter(|_| policy == scenario.policies[0]) {
                        self.site(policy, Times::Measured, measured.model())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A site without and with a shared cache: in turn, and at once.
    fn site(&mut self, policy: PolicyKind, times: Times, time: TimeModel) -> Result<()> {
        let (zone, nodes) = (&self.case.name, self.scenario.nodes);
        for (sharing, &budget) in [Sharing::PerNode, Sharing::Shared].into_iter().zip(&self.scenario.budgets)
        {
            let setup = Setup { nodes, sharing, budget, policy, time };
            self.replay(setup, times, BIN, None)?;
            interrupt::check()?;
            (self.watch)(&format!("{zone}, {policy}, {}, at once", sharing.name()));
            let outcome = simulate_closed(self.trace, setup, BIN, || {});
            self.push(setup, times, true, None, outcome);
        }
        Ok(())
    }

    /// One cache, in the paper's times.
    fn open(&mut self, policy: PolicyKind, budget: Bytes, part: Option<f64>) -> Result<()> {
        let setup = Setup { nodes: 1, sharing: Sharing::Shared, budget, policy, time: TimeModel::PAPER };
        self.replay(setup, Times::Paper, 0, part)
    }

    /// One after the other, at the trace's times.
    fn replay(&mut self, setup: Setup, times: Times, bin: usize, part: Option<f64>) -> Result<()> {
        let Setup { policy, sharing, budget, .. } = setup;
        (self.watch)(&format!("{}, {policy}, {}, {budget}", self.case.name, sharing.name()));
        let mut replay = Replay::new(self.trace, setup, bin);
        while replay.advance(INTERRUPT_CHECK_INTERVAL) {
            interrupt::check()?;
        }
        self.push(setup, times, false, part, replay.outcome());
        Ok(())
    }

    fn push(&mut self, setup: Setup, times: Times, at_once: bool, part: Option<f64>, outcome: Outcome) {
        self.rows.push(Row {
            times,
            zone: self.zone.name.to_owned(),
            policy: setup.policy,
            sharing: setup.sharing,
            budget: setup.budget,
            part,
            at_once,
            working_set: self.trace.working_set(),
            outcome,
        });
    }
}
