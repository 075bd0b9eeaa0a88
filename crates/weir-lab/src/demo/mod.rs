//! demo
use anyhow::Result;
use std::{path::PathBuf, process::ExitCode};
/// k
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Docker's.
    Docker,
    /// Network namespaces.
    Netns,
}
/// o
#[derive(Debug)]
pub struct Options {
    /// w
    pub weir: PathBuf,
    /// c
    pub containers: Option<Kind>,
    /// s
    pub seconds: u64,
}
/// r
pub fn run(_o: &Options) -> Result<ExitCode> {
    anyhow::bail!("x")
}
