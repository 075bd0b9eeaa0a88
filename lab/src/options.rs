//! The caller's choices for a run, and the steps that the caller watches.

use std::path::PathBuf;

use crate::control::kind::ControlKind;

/// The caller's choices.
#[derive(Debug, Clone)]
pub struct Options {
    /// The weir program that the control `weir` starts.
    pub weir: PathBuf,
    /// Seed for the resampling of the confidence intervals.
    pub seed: u64,
    /// More lines for the `[link]` section of the agent's configuration.
    pub link: String,
}

/// A case that is about to run.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The control in force.
    pub control: ControlKind,
    /// The case's name.
    pub case: &'a str,
}
