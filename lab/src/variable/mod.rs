//! Uploads and downloads over links whose rate changes, simulated: weir's follower beside fixed capacities, the
//! published rules of cake-autorate, no control, and an oracle.
//!
//! It touches no network and needs no rights.

mod measure;
mod plot;
mod report;
mod scenario;
mod show;

pub(crate) use measure::run;
pub(crate) use scenario::Scenario;
