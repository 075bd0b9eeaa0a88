//! All experiments that `weir lab run` knows: shares, their cost, promises, completion times, the speed of
//! the scheduler in user space, and simulations of image caches.
//!
//! A new kind needs an implementation of [`Experiment`] and a line in `KINDS`. A new file needs a line in
//! `BUILT_IN`.

mod kinds;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::{
    agreements,
    choices::Choices,
    cost, download, edge_cloud, failover, image_cache,
    options::{Options, Step},
    report::Shown,
    scenario::{self, Scenario, ScenarioError},
    user_htb, variable,
};

/// Names and texts of scenario files.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
    };
}

/// The built-in experiments, after those about shares in `scenario`.
const BUILT_IN: &[(&str, &str)] = files![
    "cpu",
    "cpu-even",
    "latency",
    "sla-A",
    "sla-B",
    "sla-C",
    "sla-D",
    "sla-E",
    "sla-sum",
    "sla-vm",
    "ecc-cubic",
    "ecc-bbr",
    "ecc-mix",
    "ecc-weir",
    "ecc-shallow",
    "ecc-loss",
    "ecc-access",
    "ecc-mice",
    "ecc-mice-deep",
    "ecc-real",
    "ecc-sweep",
    "ecc-advice",
    "phtb-1",
    "phtb-2",
    "phtb-3",
    "phtb-4",
    "phtb-5",
    "phtb-6",
    "phtb-1600",
    "phtb-few",
    "phtb-real",
    "pop-hits",
    "pop-macro",
    "pop-policies",
    "pop-micro",
    "pop-real",
    "variable-dsl",
    "variable-starlink",
    "variable-lte",
    "variable-download-dsl",
    "variable-download-starlink",
    "variable-download-lte",
    "variable-download-flows",
    "download",
    "failover",
];

/// Reads a scenario file: its text, then its origin.
type Read = fn(&str, &str) -> Result<Box<dyn Experiment>, ScenarioError>;

/// The kinds of experiments, by the beginning of `measures` in their files.
const KINDS: [(&str, Read); 10] = [
    ("transmission", read::<agreements::Scenario>),
    ("completion", read::<edge_cloud::Scenario>),
    ("advice", read::<edge_cloud::advice::Scenario>),
    ("packets", read::<user_htb::Scenario>),
    ("image-", read::<image_cache::Scenario>),
    ("deployments", read::<image_cache::real::Deployments>),
    ("replay", read::<image_cache::real::Replays>),
    ("variable", read::<variable::Scenario>),
    ("download", read::<download::Scenario>),
    ("failover", read::<failover::Scenario>),
];

/// The description of an experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// The name for `weir lab run`.
    pub(crate) name: &'a str,
    /// A title of one line.
    pub(crate) title: &'a str,
    /// The source of the experiment, such as a paper's figure.
    pub(crate) source: &'a str,
    /// The purpose of the experiment.
    pub(crate) about: &'a str,
}

/// A call of an experiment.
pub(crate) struct Call<'a> {
    /// The options of the command line.
    pub(crate) choices: &'a Choices,
    /// The options for the run.
    pub(crate) options: &'a Options,
    /// Receives each step, in words that follow the experiment's name.
    pub(crate) watch: &'a (dyn Fn(&str) + Sync),
    /// The directory for the results.
    pub(crate) dir: &'a Path,
    /// Whether the text is JSON.
    pub(crate) json: bool,
}

/// The judgement of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Each figure with a rule meets it.
    Pass,
    /// A figure falls short.
    Fail,
    /// The run could not be judged.
    Open,
    /// The experiment promises nothing.
    NotJudged,
}

/// The judgement of a run and the text for the terminal.
pub(crate) type Finished = (Verdict, String);

/// A scenario file of any kind.
pub(crate) trait Experiment {
    /// The description.
    fn about(&self) -> About<'_>;

    /// The contradiction in the settings, if there is one.
    fn fault(&self) -> Option<String>;

    /// The number of cases and the seconds of each; 0 s if the machine decides or there is no such time.
    fn cases(&self) -> (usize, u64);

    /// The number of measurements.
    fn steps(&self) -> usize;

    /// Whether the run needs root. Some back ends of completion times check their rights themselves.
    fn needs_rights(&self) -> bool {
        true
    }

    /// Selects the whole experiment, as the paper has it: for `--paper`.
    fn make_whole(&mut self) {}

    /// Applies the command line, which overrides the file.
    fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            self.make_whole();
        }
    }

    /// Runs the experiment and writes the results.
    fn run(&self, call: &Call<'_>) -> Result<Finished>;
}

impl Call<'_> {
    fn by_control(&self) -> impl FnMut(Step<'_>) {
        |step| (self.watch)(&format!(", {}: {}", step.control.name(), step.case))
    }

    fn by_step(&self) -> impl FnMut(&str) {
        |step| (self.watch)(&format!(", {step}"))
    }

    /// Writes the report. `otherwise` is the verdict of a report without judged figures.
    fn finish(&self, report: impl Shown, otherwise: Verdict) -> Result<Finished> {
        report.write(self.dir)?;
        let text = if self.json {
            serde_json::to_string(&report).context("cannot write a report as JSON")?
        } else {
            let plot = self.dir.join("plot.svg");
            format!("{}\n{}\n{}\n", report.table(), report.verdict(), plot.display())
        };
        let verdict = match report.head().pass {
            Some(true) => Verdict::Pass,
            Some(false) => Verdict::Fail,
            None => otherwise,
        };
        Ok((verdict, text))
    }
}

/// All built-in files: names and texts.
fn files() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    scenario::BUILT_IN.iter().chain(BUILT_IN)
}

/// All built-in experiments.
///
/// # Panics
/// If one of them does not parse; a test excludes it.
pub(crate) fn built_in() -> Vec<Box<dyn Experiment>> {
    files()
        .map(|(name, text)| parse(text, name).unwrap_or_else(|e| panic!("built-in scenario: {e}")))
        .collect()
}

/// Finds a built-in experiment by name, or reads one from the path of a `.toml` file.
///
/// # Errors
/// [`ScenarioError`].
pub(crate) fn find(name: &str) -> Result<Box<dyn Experiment>, ScenarioError> {
    if Path::new(name).extension().is_some_and(|e| e == "toml") {
        let text = fs::read_to_string(name)
            .map_err(|source| ScenarioError::Read { path: name.to_owned(), source })?;
        return parse(&text, name);
    }
    match files().find(|(known, _)| *known == name) {
        Some((name, text)) => parse(text, name),
        None => Err(ScenarioError::Unknown {
            name: name.to_owned(),
            known: files().map(|(name, _)| (*name).to_owned()).collect(),
        }),
    }
}

fn syntax(origin: &str) -> impl Fn(toml::de::Error) -> ScenarioError {
    move |source| ScenarioError::Syntax { origin: origin.to_owned(), source: Box::new(source) }
}

fn parse(text: &str, origin: &str) -> Result<Box<dyn Experiment>, ScenarioError> {
    let table: toml::Table = toml::from_str(text).map_err(syntax(origin))?;
    let Some(measures) = table.get("measures") else {
        return Ok(Box::new(Scenario::parse(text, origin)?));
    };
    let kind = KINDS.iter().find(|(kind, _)| measures.as_str().is_some_and(|what| what.starts_with(kind)));
    kind.map_or(read::<cost::Scenario> as Read, |(_, read)| *read)(text, origin)
}

fn read<T: Experiment + DeserializeOwned + 'static>(
    text: &str,
    origin: &str,
) -> Result<Box<dyn Experiment>, ScenarioError> {
    let scenario: T = toml::from_str(text).map_err(syntax(origin))?;
    match scenario.fault() {
        Some(what) => Err(ScenarioError::Shape { scenario: scenario.about().name.to_owned(), what }),
        None => Ok(Box::new(scenario)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use weir_netlab::topology::Mode;

    use super::*;
    use crate::control::kind::ControlKind;

    /// The text of a built-in file.
    fn text(name: &str) -> &'static str {
        files().find(|(known, _)| *known == name).unwrap().1
    }

    /// The settings of a built-in file.
    pub(crate) fn settings<T: DeserializeOwned>(name: &str) -> T {
        toml::from_str(text(name)).unwrap()
    }

    fn error(text: &str) -> String {
        parse(text, "changed").err().unwrap().to_string()
    }

    #[test]
    fn the_built_in_experiments_are_found_under_their_names() {
        for ((name, _), experiment) in files().zip(built_in()) {
            assert_eq!(experiment.about().name, *name);
            assert_eq!(find(name).unwrap().about().title, experiment.about().title);
        }
        let error = find("lattency").err().unwrap().to_string();
        assert!(error.contains("weights-3") && error.contains("cpu, cpu-even, latency, sla-A"), "{error}");
    }

    #[test]
    fn an_experiment_about_nothing_is_refused() {
        for (name, from, to, reason) in [
            ("cpu", "\nseconds = 1", "\nseconds = 0", "none may be empty or zero"),
            ("cpu", "judged =", "jugded =", "jugded"),
            ("cpu", "measures = \"cpu\"", "measures = \"gpu\"", "gpu"),
            ("sla-C", "\"19mbit\",", "\"79mbit\",", "promises 160"),
            ("sla-C", "\"19mbit\",", "\"79mbit\",", "a line of 100"),
            ("ecc-cubic", "up = 0.5", "up = 0.9", "of the volume"),
            ("ecc-advice", "share = 0.25", "share = 0.9", "share = 0.9 is not between"),
            ("pop-hits", "name = \"fra\"", "name = \"par\"", "no zone par"),
            ("variable-lte", "max = \"40mbit\"", "max = \"500kbit\"", "500kbit"),
        ] {
            let error = error(&text(name).replacen(from, to, 1));
            assert!(error.contains(reason), "{name}: {error}");
        }
    }

    #[test]
    fn options_override_what_the_file_says() {
        let choices = |words: &[&str]| {
            let command = Choices::augment_args(clap::Command::new("run"));
            let words = [&["run"], words].concat();
            Choices::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
        };
        let mut scenario: Scenario = settings("minimum");
        scenario.adapt(&choices(&["--control", "none,weir", "--mode", "nat", "--tso", "off"]));
        assert_eq!(scenario.controls, [ControlKind::Weir, ControlKind::None]);
        assert_eq!((scenario.mode, scenario.tso, scenario.seconds), (Mode::Nat, false, 5));
        scenario.adapt(&choices(&["--paper"]));
        assert_eq!(scenario.seconds, 60);
    }
}
