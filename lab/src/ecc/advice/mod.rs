//! What weir's advice finds, and what finding it costs: small flows come to a server one after the other
//! without end, their congestion control is tried out as the agent does it, and the rule that comes of it is
//! put in force.
//!
//! Three times on each link: with the system's algorithm alone, while it is learned, and, if the rule was
//! changed, afterwards. What learns is the agent's: [`weir_cc::Advisor`] and weir's BPF programs.

mod learn;
mod report;

use serde::{Deserialize, Serialize};
use weir_cc::{AdviceError, AdviceSettings, Rule};
use weir_units::Bytes;

use super::{Backend, Link, guest, link_fault};
use crate::run::Options;

pub use report::{LinkReport, Phase, Report, Times};

/// Tells these scenarios from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measures {
    /// What advice finds.
    Advice,
}

/// A link to the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Unique within the scenario.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub link: Link,
}

/// An experiment about advice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What `weir lab run` calls it.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// What it shows.
    pub about: String,
    /// That it is one of these.
    pub measures: Measures,
    /// Flows that begin in a second, at random.
    pub per_second: f64,
    /// The least and the greatest volume of a flow; drawn by its logarithm.
    pub volume: [Bytes; 2],
    /// Flows before the trial, and after it.
    pub beside: u64,
    /// The same with `--paper`.
    pub paper_beside: u64,
    /// Flows of the trial, if it does not end by itself.
    pub flows: u64,
    /// The same with `--paper`.
    pub paper_flows: u64,
    /// Of `[advice]`: the part of the flows that tries something.
    pub share: f64,
    /// Of `[advice]`: how long a turn is, seconds.
    pub turn_s: u64,
    /// Of `[advice]`: what is tried beside the system's algorithm.
    #[serde(rename = "try")]
    pub candidates: Vec<Rule>,
    /// The links, each by itself.
    #[serde(rename = "link")]
    pub links: Vec<Named>,
}

impl Scenario {
    /// With all flows, as for `--paper`.
    pub fn make_whole(&mut self) {
        (self.beside, self.flows) = (self.paper_beside, self.paper_flows);
    }

    /// Links.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.links.len()
    }

    /// `[advice]` about the flows to a server.
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

    /// What makes no sense, in words.
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

/// Runs a scenario: in User-Mode Linux, a guest for each link, or, if asked, in this kernel. `watch` is told
/// of each link that is done.
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
