//! The results and the cost of weir's advice.
//!
//! Small flows go to a server one after the other. Their congestion control is tried out in the agent's way,
//! and the resulting rule is put in force.
//!
//! Each link has up to three phases: with the system's algorithm alone, during the trial, and, if the rule
//! changed, afterwards. The learner is the agent's: [`weir_cc::Advisor`] and weir's BPF programs.

mod learn;
mod report;
mod scenario;

use self::{report::Report, scenario::NamedLink};
use super::guest::{self, Backend};
use crate::options::Options;

pub(crate) use scenario::Scenario;

/// Runs a scenario in User-Mode Linux, with a guest for each link, or, on request, in this kernel.
///
/// `watch` is called at the end of each link.
///
/// # Errors
/// If there is no such kernel, a flow fails, or on Ctrl-C.
pub(crate) fn run(
    scenario: &Scenario,
    options: &Options,
    backend: Option<Backend>,
    watch: &mut (dyn FnMut(&str) + Send),
) -> anyhow::Result<Report> {
    match backend.unwrap_or(Backend::Uml) {
        Backend::Uml => {
            let part = |link: &NamedLink| Scenario { links: vec![link.clone()], ..scenario.clone() };
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
