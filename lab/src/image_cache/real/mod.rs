//! Image caches of a site with real daemons and real traffic: Ahmed and Pierre's Table III and Fig. 6, and Fig. 7
//! beside what the simulator says of the same deployments.

mod deploy;
mod gluster;
mod replay;
mod report;
mod scenario;
mod site;
mod traffic;
mod upstream;

pub(crate) use deploy::run as deploy;
pub(crate) use replay::run as replay;
pub(crate) use scenario::{Deployments, Replays};
