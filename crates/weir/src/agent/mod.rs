//! The agent's loop: not here yet.

use std::path::Path;

/// Runs the agent until it is told to stop.
pub(crate) fn run(config: &Path) -> anyhow::Result<()> {
    anyhow::bail!("cannot run the agent with {}: this build has none", config.display())
}

/// Reads the configuration and says what is wrong with it.
pub(crate) fn check(config: &Path) -> anyhow::Result<()> {
    anyhow::bail!("cannot check {}: this build has no agent", config.display())
}
