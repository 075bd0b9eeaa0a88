//! Containers that download over a link: shares, an idle container's round trips, and a flood, under weir, the
//! usual setups by hand, and no control.

mod measure;
mod peer;
mod plot;
mod report;
mod scenario;
mod show;

pub(crate) use measure::run;
pub(crate) use scenario::Scenario;
