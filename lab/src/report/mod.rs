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

pub use compare::{Summary, compare};
pub use figure::{Figure, Rule};
pub use head::{Head, Shown};
pub use machine::Machine;
pub(crate) use plot::color;
pub use plot::svg;
pub use shares::{CaseReport, ContainerReport, Measurement, PingMeasurement, PingReport, Report, Settings};
pub use table::table;
