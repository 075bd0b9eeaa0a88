//! The output of a run: figures with verdicts, JSON, a table, a plot.

mod compare;
mod figure;
mod head;
mod machine;
mod plot;
mod shares;
pub(crate) mod sheet;
mod show;
pub(crate) mod table;
pub(crate) mod verdict;

pub(crate) use compare::{Summary, compare};
pub(crate) use figure::{Figure, Rule};
pub(crate) use head::Head;
pub use head::Shown;
pub(crate) use plot::color;
pub use shares::Report;
pub(crate) use shares::{CaseReport, ContainerReport, Measurement, PingMeasurement, PingReport, Settings};
