//! Image caches of a site, simulated: the experiments of Ahmed and Pierre, "Docker Image Sharing in
//! Distributed Fog Infrastructures" (2019), Fig. 3 and 7, and what eviction policies are worth.
//!
//! Nothing of it touches the network or needs rights, but for [`real`].

mod measure;
mod plot;
pub mod real;
mod report;
mod scenario;
mod show;

pub use measure::run;
pub use plot::{Line, Panel, chart, gib, svg};
pub use report::{Report, Row, table};
pub use scenario::{Measures, Scenario, ZoneCase};
