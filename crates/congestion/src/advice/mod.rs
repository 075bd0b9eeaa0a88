//! Finds the better algorithm with a small part of the flows.

mod advisor;
mod confidence;
mod judge;
mod seen;
mod trial;
mod usual;
mod verdict;

pub use advisor::{
    AdviceError, AdviceSettings, AdviceView, Advisor, ArmView, Assignment, Interval, MOST_SHARE, MOST_TRIALS,
    MOST_TRIED, SizeView, rule_for,
};
pub use confidence::{Effect, Mean, Proportion, TurnMean};
pub use trial::{Arm, BASELINE, Trial, Turn};
pub use verdict::{Decision, Drop, OnTheEdge, Settled};
