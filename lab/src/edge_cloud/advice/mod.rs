//! The results and the cost of weir's advice.
//!
//! Small flows go to a server one after the other. Their congestion control is tried out in the agent's way,
//! and the resulting rule is put in force.
//!
//! Each link has up to three phases: with the system's algorithm alone, during the trial, and, if the rule
//! changed, afterwards. The learner is the agent's: [`weir_cc::Advisor`] and weir's BPF programs.

mod learn;
mod report;

use serde::{Deserialize, Serialize};
use weir_cc::{AdviceError, AdviceSettings, Rule};
use weir_units::Bytes;

use super::{Backend, Link, guest, link_fault};
use crate::run::Options;

pub use report::{LinkReport, Phase, Report, Times};

/// The mark of this kind of scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measures {
    /// The results of advice.
    Advice,
}

/// A link to the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Unique within the scenario.
    pub name: String,
    /// The link's properties.
    #[serde(flatten)]
    pub link: Link,
}

/// An experiment about advice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name for `weir lab run`.
    pub name: String,
    /// A title of one line.
    pub title: String,
    /// The source of the experiment, such as a paper's figure.
    pub source: String,
    /// The purpose of the experiment.
    pub about: String,
    /// The mark of this kind of scenario.
    pub measures: Measures,
    /// Flows that begin in a second, at random.
    pub per_second: f64,
    /// The smallest and the largest volume of a flow; the volume's logarithm is drawn evenly.
    pub volume: [Bytes; 2],
    /// Number of flows before the trial, and again after it.
    pub beside: u64,
    /// Number of flows before and after the trial with `--paper`.
    pub paper_beside: u64,
    /// Largest number of flows of the trial.
    pub flows: u64,
    /// Largest number of flows of the trial with `--paper`.
    pub paper_flows: u64,
    /// From `[advice]`: the part of the flows that tries a candidate.
    pub share: f64,
    /// From `[advice]`: the length of a turn, seconds.
    pub turn_s: u64,
    /// From `[advice]`: the candidates beside the system's algorithm.
    #[serde(rename = "try")]
    pub candidates: Vec<Rule>,
    /// The links, measured one at a time.
    #[serde(rename = "link")]
    pub links: Vec<Named>,
}

impl Scenario {
    /// Selects all flows, as for `--paper`.
    pub fn make_whole(&mut self) {
        (self.beside, self.flows) = (self.paper_beside, self.paper_flows);
    }

    /// The number of links.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.links.len()
    }

    /// The `[advice]` settings for the flows to a server.
    ///
    /// # Errors
    /// [`AdviceError`].
    fn settings(&self, server: std::net::Ipv4Addr) -> Result<AdviceSettings, AdviceError> {
        let settings = AdviceSettings {
            to: vec![std::net::IpAddr::from(server).into()],
            share: self.share,
            candidates: self.candidates.clone(),
            turn_s: self.turn_s,
        };
        settings.check().map(|()| settings)
    }

    /// The scenario's contradiction, in words.
    pub(crate) fn fault(&self) -> Option<String> {
        let [least, most] = self.volume;
        if least.0 == 0 || least > most {
            return Some("a volume is [least, greatest], and the least is more than nothing".to_owned());
        }
        let counts = [self.beside, self.paper_beside, self.flows, self.paper_flows];
        if self.links.is_empty() || counts.contains(&0) || !(0.1..=10_000.0).contains(&self.per_second) {
            return Some(
                "links, flows and beside say what is measured: none may be empty or zero; 0.1 to 10000 flows \
                 begin in a second"
                    .to_owned(),
            );
        }
        if let Err(error) = self.settings(std::net::Ipv4Addr::new(192, 0, 2, 1)) {
            return Some(format!("advice: {error}"));
        }
        self.links.iter().find_map(|named| link_fault(&named.name, named.link))
    }
}

/// Runs a scenario in User-Mode Linux, with a guest for each link, or, on request, in this kernel.
///
/// `watch` is called at the end of each link.
///
/// # Errors
/// If there is no such kernel, a flow fails, or on Ctrl-C.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    backend: Option<Backend>,
    watch: &mut (dyn FnMut(&str) + Send),
) -> anyhow::Result<Report> {
    match backend.unwrap_or(Backend::Uml) {
        Backend::Uml => {
            let part = |link: &Named| Scenario { links: vec![link.clone()], ..scenario.clone() };
            let parts: Vec<_> = scenario.links.iter().map(|link| (part(link), options.seed)).collect();
            let mut told = |part: &Scenario, _: &Report| watch(&part.links[0].name);
            let reports = guest::in_virtual_time(&parts, options, &mut told)?;
            let kernel = reports.first().map_or(String::new(), |report| report.head.kernel.clone());
            let links = reports.into_iter().flat_map(|report: Report| report.links).collect();
            let mut report = Report::new(scenario, Backend::Uml, options.seed, links);
            report.head.kernel = kernel;
            Ok(report)
        }
        backend @ Backend::Here => {
            let mut links = Vec::new();
            for named in &scenario.links {
                links.push(learn::measure(scenario, named, options.seed)?);
                watch(&named.name);
            }
            Ok(Report::new(scenario, backend, options.seed, links))
        }
        other => {
            anyhow::bail!("advice is measured in virtual time (uml) or with netem (here), not with {other}")
        }
    }
}
