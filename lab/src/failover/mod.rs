//! The default route moves from one link to another under load: weir, a tc script on the first link, and no
//! control.

mod measure;
mod network;
mod plot;
mod report;
mod scenario;
mod show;

pub(crate) use measure::run;
pub(crate) use scenario::Scenario;
