use std::fmt;

use serde::{Deserialize, Serialize};

use super::confidence::Effect;
use crate::{Action, size};

/// Why an algorithm is tried no more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Drop {
    /// The 99th percentile of its flows of this size is more than a tenth longer.
    Tail {
        /// Which size.
        size: usize,
        /// At least this part takes more than 1.1 times the usual 99th percentile.
        far: f64,
    },
    /// The same of flows beside its own.
    NeighboursTail {
        /// Which size.
        size: usize,
        /// At least this part takes more than 1.1 times the usual 99th percentile.
        far: f64,
    },
    /// Its flows of this size take longer by more than 12 %.
    Slower {
        /// Which size.
        size: usize,
        /// By how much.
        effect: Effect,
    },
    /// It is not faster by 3 % or more.
    NoBetter {
        /// By how much.
        effect: Effect,
    },
    /// Too many flows are late with it, so that too few can try it.
    TooDear,
    /// If all used it, the 99th percentile of this size would be more than a tenth longer.
    TailOfAll {
        /// Which size.
        size: usize,
        /// This part would take more than 1.1 times the usual 99th percentile.
        far: f64,
    },
    /// If all used it, flows of this size would take longer by more than 12 %.
    SlowerForAll {
        /// Which size.
        size: usize,
        /// By how much.
        effect: Effect,
    },
    /// If all used it, nothing would be gained.
    NoBetterForAll {
        /// By how much.
        effect: Effect,
    },
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drop::Tail { size, far } => write!(
                f,
                "its tail is worse: of its flows {} at least {:.2} % take a tenth more than the 99th percentile",
                size::label(*size),
                far * 100.0
            ),
            Drop::NeighboursTail { size, far } => write!(
                f,
                "its neighbours' tail is worse: of their flows {} at least {:.2} % take a tenth more than the 99th percentile",
                size::label(*size),
                far * 100.0
            ),
            Drop::Slower { size, effect } => {
                write!(f, "its flows {} take longer: {effect}", size::label(*size))
            }
            Drop::NoBetter { effect } => write!(f, "it is not faster by 3 %: {effect}"),
            Drop::TooDear => f.write_str("too many are late with it for enough of them to try it"),
            Drop::TailOfAll { size, far } => write!(
                f,
                "if all used it, of flows {} {:.2} % would take a tenth more than the 99th percentile",
                size::label(*size),
                far * 100.0
            ),
            Drop::SlowerForAll { size, effect } => {
                write!(f, "if all used it, flows {} would take longer: {effect}", size::label(*size))
            }
            Drop::NoBetterForAll { effect } => {
                write!(f, "what its flows gain the others lose: {effect} if all used it")
            }
        }
    }
}

/// Too many flows of a size take about a tenth more than the 99th percentile. A few more could move
/// it, so that nothing can be tried without that risk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OnTheEdge {
    /// Which size.
    pub size: usize,
    /// The part of the flows without the trial that may be late.
    pub most_late: f64,
}

impl fmt::Display for OnTheEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "nothing can be tried without harm: of flows {} up to {:.2} % may be late already, where 1 % may \
             be, so that a few more could make the 99th percentile a time-out longer",
            size::label(self.size),
            self.most_late * 100.0
        )
    }
}

/// Why nothing more is tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Settled {
    /// Nothing that was tried is better.
    Best,
    /// Nothing could be tried.
    OnTheEdge(OnTheEdge),
    /// The rule was changed, and flows are faster by this since.
    Changed {
        /// To what.
        to: Action,
        /// By how much.
        effect: Effect,
    },
    /// The rule was changed and changed back.
    TakenBack {
        /// Why.
        why: String,
    },
}

/// The results of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// An algorithm is tried no more.
    Dropped {
        /// Which.
        action: Action,
        /// Why.
        why: String,
    },
    /// It is best for those who use it: more and more do, to see what it does to all.
    Raising {
        /// Which.
        action: Action,
        /// Why.
        why: String,
    },
    /// It becomes the rule.
    Change {
        /// What.
        action: Action,
        /// Why.
        why: String,
    },
    /// The rule before comes back.
    TakeBack {
        /// The rule before.
        action: Action,
        /// Why.
        why: String,
    },
    /// Nothing changes.
    Keep {
        /// What stays.
        action: Action,
        /// Why.
        why: String,
    },
}
