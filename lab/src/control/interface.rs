//! The interface of a control at work.

use anyhow::Result;

use crate::scenario::Case;

/// A control at work on a topology.
pub(crate) trait Control {
    /// Enforces the policies of `case`.
    fn apply(&mut self, case: &Case) -> Result<()>;

    /// A record for the results, such as a script.
    fn record(&self) -> Option<String> {
        None
    }
}
