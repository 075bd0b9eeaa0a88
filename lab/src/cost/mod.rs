//! The cost of a control: processor time and round trips (qCon's Fig. 12 and Table 1).
//!
//! Scenario files of this kind have `measures = "cpu"` or `measures = "latency"`; the other fields are those
//! of [`Scenario`].

mod clock;
mod cpu;
mod latency;
mod plot;
mod scenario;
mod show;

use anyhow::Result;

use crate::{
    options::{Options, Step},
    report::Head,
};

use self::scenario::{Measures, Report};
pub(crate) use scenario::Scenario;

/// Measures all cases under all controls, and judges weir's.
///
/// # Errors
/// If the topology cannot be built, a control cannot be started or traffic fails; on Ctrl-C.
pub(crate) fn run(scenario: &Scenario, options: &Options, watch: &mut dyn FnMut(Step<'_>)) -> Result<Report> {
    let found = match scenario.measures {
        Measures::Cpu => cpu::run(scenario, options, watch)?,
        Measures::Latency => latency::run(scenario, options, watch)?,
    };
    Ok(Report {
        head: Head::now(&scenario.name, found.figures),
        missing: found.missing,
        missing_cases: found.missing_cases,
        settings: scenario.clone(),
        rows: found.rows,
        noise: found.noise,
    })
}
