//! Finds the better algorithm with a small part of the flows.

mod advisor;
mod baseline;
mod confidence;
mod flight;
mod judge;
mod samples;
mod trial;
mod verdict;

pub use advisor::{
    AdviceError, AdviceSettings, AdviceView, Advisor, ArmView, Assignment, Interval, MAX_SHARE, MAX_TRIALS,
    MAX_TRIED, SizeView, rule_for,
};
pub use confidence::{Effect, Mean, Proportion, TurnMean};
pub use trial::{Arm, BASELINE, Trial, Turn};
pub use verdict::{Decision, Drop, OnTheEdge, Settled};
