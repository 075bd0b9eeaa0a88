//! Image caches of a site, simulated: the experiments of Ahmed and Pierre, "Docker Image Sharing in
//! Distributed Fog Infrastructures" (2019), Fig. 3 and 7, and what eviction policies are worth.
//!
//! Nothing of it touches the network or needs rights, but for [`real`].

mod measure;
mod plot;
pub(crate) mod real;
mod report;
mod scenario;
mod show;

pub(crate) use measure::run;
pub(crate) use plot::{Panel, chart, gib};
pub(crate) use scenario::Scenario;
