//! The kinds of experiments: what the command line changes in each, and how each runs.

use anyhow::Result;

use super::{About, Call, Experiment, Finished, Verdict};
use crate::{
    agreements,
    choices::{Choices, Switch},
    cost, download, edge_cloud, failover, image_cache, run,
    scenario::Scenario,
    user_htb, variable,
};

/// Implements the methods that only repeat fields and methods of the scenario type.
macro_rules! delegates {
    ($fault:expr, $steps:expr) => {
        fn about(&self) -> About<'_> {
            let about = self.about.trim();
            About { name: &self.name, title: &self.title, source: &self.source, about }
        }
        fn fault(&self) -> Option<String> {
            $fault(self)
        }
        fn steps(&self) -> usize {
            $steps(self)
        }
    };
}

impl Experiment for Scenario {
    // `Scenario::parse` checks the settings.
    delegates!(|_: &Self| None, |s: &Self| s.cases.len() * s.controls.len());
    fn cases(&self) -> (usize, u64) {
        (self.cases.len(), self.seconds)
    }
    fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            self.seconds = self.paper_seconds;
        }
        self.seconds = choices.seconds.unwrap_or(self.seconds);
        self.mode = choices.mode.unwrap_or(self.mode);
        self.tso = choices.tso.map_or(self.tso, Switch::is_on);
        self.br_netfilter = choices.br_netfilter.map(Switch::is_on).or(self.br_netfilter);
        choices.choose(&mut self.controls);
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(run::run(self, call.options, &mut call.by_control())?, Verdict::Open)
    }
}

impl Experiment for cost::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.steps() / self.controls.len(), self.seconds)
    }
    fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            (self.seconds, self.repetitions) = (self.paper_seconds, self.paper_repetitions);
        }
        self.seconds = choices.seconds.unwrap_or(self.seconds);
        self.mode = choices.mode.unwrap_or(self.mode);
        self.tso = choices.tso.map_or(self.tso, Switch::is_on);
        choices.choose(&mut self.controls);
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(cost::run(self, call.options, &mut call.by_control())?, Verdict::NotJudged)
    }
}

impl Experiment for agreements::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.cases.len(), self.seconds)
    }
    fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            (self.seconds, self.repetitions) = (self.paper_seconds, self.paper_repetitions);
        }
        self.seconds = choices.seconds.unwrap_or(self.seconds);
        self.tso = choices.tso.map_or(self.tso, Switch::is_on);
        choices.choose(&mut self.controls);
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(agreements::run(self, call.options, &mut call.by_control())?, Verdict::Open)
    }
}

impl Experiment for edge_cloud::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.cases.len() * self.points().len(), 0)
    }
    fn needs_rights(&self) -> bool {
        false
    }
    fn make_whole(&mut self) {
        self.make_whole();
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        let Choices { backend, generator, .. } = *call.choices;
        let mut watch = |case: &edge_cloud::Case, algorithm: edge_cloud::Algorithm| {
            (call.watch)(&format!(", {algorithm}: {}", case.name));
        };
        let report = edge_cloud::run(self, call.options, backend, generator, &mut watch)?;
        let is_open = report.rows.is_empty() || report.is_left_open();
        call.finish(report, if is_open { Verdict::Open } else { Verdict::NotJudged })
    }
}

impl Experiment for edge_cloud::advice::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.links.len(), 0)
    }
    fn needs_rights(&self) -> bool {
        false
    }
    fn make_whole(&mut self) {
        self.make_whole();
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        let mut watch = |link: &str| (call.watch)(&format!(": {link}"));
        let report = edge_cloud::advice::run(self, call.options, call.choices.backend, &mut watch)?;
        call.finish(report, Verdict::NotJudged)
    }
}

impl Experiment for user_htb::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (1, 0)
    }
    fn needs_rights(&self) -> bool {
        false
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        let mut watch = |case: user_htb::Case| (call.watch)(&format!(": {case}"));
        let report = user_htb::run(self, call.choices.paper, call.options.seed, &mut watch)?;
        call.finish(report, Verdict::NotJudged)
    }
}

impl Experiment for image_cache::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.zones.len(), 0)
    }
    fn needs_rights(&self) -> bool {
        false
    }
    fn make_whole(&mut self) {
        self.deployments = self.paper_deployments;
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(image_cache::run(self, call.options.seed, &mut call.by_step())?, Verdict::Open)
    }
}

impl Experiment for image_cache::real::Deployments {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.stores.len() * self.images.len(), 0)
    }
    fn make_whole(&mut self) {
        self.repetitions = self.paper_repetitions;
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(image_cache::real::deploy(self, call.options, &mut call.by_step())?, Verdict::Open)
    }
}

impl Experiment for image_cache::real::Replays {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.zones.len(), 0)
    }
    fn make_whole(&mut self) {
        self.deployments = self.paper_deployments;
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(image_cache::real::replay(self, call.options, &mut call.by_step())?, Verdict::Open)
    }
}

impl Experiment for variable::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.seeds as usize, 0)
    }
    fn needs_rights(&self) -> bool {
        false
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(variable::run(self, call.options.seed, &mut call.by_step())?, Verdict::Open)
    }
}

impl Experiment for failover::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (1, self.before + self.after)
    }
    fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            self.after = self.paper_after;
        }
        self.after = choices.seconds.unwrap_or(self.after);
        choices.choose(&mut self.controls);
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(failover::run(self, call.options, &mut call.by_control())?, Verdict::Open)
    }
}

impl Experiment for download::Scenario {
    delegates!(Self::fault, Self::steps);
    fn cases(&self) -> (usize, u64) {
        (self.cases.len() * self.modes.len(), self.seconds)
    }
    fn adapt(&mut self, choices: &Choices) {
        self.adapt(choices);
    }
    fn run(&self, call: &Call<'_>) -> Result<Finished> {
        call.finish(download::run(self, call.options, &mut call.by_step())?, Verdict::Open)
    }
}
