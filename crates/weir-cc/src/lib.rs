//! Congestion control: which connection uses which algorithm, and what came of it.
//!
//! Pure: no clock, no I/O, no randomness.
//!
//! * [`Rules`]: checked rules. [`Rules::find`] says which one is a connection's, [`Rules::explain`]
//!   why, [`Rules::compile`] turns them into the entries of a longest-prefix table.
//! * [`Stats`]: completion times of flows, by destination, size and algorithm, in bounded memory.
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
//! assert_eq!(rules.find(&to("192.0.2.1")).unwrap().action().to_string(), "bbr, cubic after 1MiB");
//! ```

mod algorithm;
mod flow;
mod histogram;
mod rule;
mod rules;
mod stats;

pub use algorithm::{Algorithm, AlgorithmError};
pub use flow::FlowRecord;
pub use histogram::Histogram;
pub use rule::{Action, Change, Direction, MOST_AFTER, Rule, RuleError};
pub use rules::{
    Class, Connection, Considered, Entry, Explained, MOST_RULES, Rules, RulesError, Unavailable,
};
pub use stats::{Completion, MOST_CELLS, PathRow, Stats, StatsRow, StatsView};
