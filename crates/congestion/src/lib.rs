//! Congestion control: which connection uses which algorithm, and what came of it.
//!
//! Pure: no clock, no I/O; time and random numbers are arguments.
//!
//! * [`Rules`]: checked rules. [`Rules::find`] says which one is a connection's, [`Rules::explain`]
//!   why, [`Rules::compile`] turns them into the entries of a longest-prefix table.
//! * [`Stats`]: completion times of flows, by destination, size and algorithm, in bounded memory.
//! * [`Trial`]: which of some algorithms is best, found out with a part of the flows; [`Advisor`]: those
//!   of a node's networks.
//!
//! ```
//! use weir_cc::{Connection, Rule, Rules};
//!
//! let edge = Rule {
//!     to: Some("10.0.0.0/8".parse().unwrap()),
//!     start: Some("bbr".parse().unwrap()),
//!     ..Rule::default()
//! };
//! let rules = Rules::new(vec![Rule::default(), edge]).unwrap();
//! let to = |address: &str| Connection::to(address.parse().unwrap());
//! assert_eq!(rules.find(&to("10.1.2.3")).unwrap().action().to_string(), "bbr");
//! // Weir's own rule: small flows are quick, and large ones leave room.
//! let own = rules.find(&to("192.0.2.1")).unwrap().action();
//! assert_eq!(own.to_string(), "bbr within 128 segments, cubic after 1MiB");
//! ```

mod advice;
mod algorithm;
mod flow;
mod histogram;
mod rule;
mod rules;
pub mod size;
mod stats;

pub use advice::{
    AdviceError, AdviceSettings, AdviceView, Advisor, Arm, ArmView, Assignment, BASELINE, Decision, Drop,
    Effect, Interval, MAX_SHARE, MAX_TRIALS, MAX_TRIED, Mean, OnTheEdge, Proportion, Settled, SizeView,
    Trial, Turn, TurnMean, rule_for,
};
pub use algorithm::{Algorithm, AlgorithmError};
pub use flow::FlowRecord;
pub use histogram::Histogram;
pub use rule::{Action, Change, Direction, MAX_AFTER, MIN_WINDOW, Origin, Rule, RuleError};
pub use rules::{
    Connection, Considered, Explained, MAX_RULES, RuleClass, RuleEntry, Rules, RulesError, Unavailable,
};
pub use stats::{Completion, MAX_CELLS, PathRow, Stats, StatsRow, StatsView, TOOK_BITS};
