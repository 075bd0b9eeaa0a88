//! The options of `weir lab run` that change an experiment.

use std::path::PathBuf;

use clap::Args;
use weir_netlab::topology::Mode;

use crate::{
    control::kind::ControlKind,
    edge_cloud::{Backend, Generator},
    options::Options,
};

/// The options of the command line that change an experiment; `None` and empty keep what the file says.
#[derive(Debug, Args)]
pub(crate) struct Choices {
    /// Run as long as the paper does: 60 s a case; all packets or deployments of a trace; whole volumes and
    /// sweeps
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) paper: bool,
    /// Seconds a case; its first 2 s are not measured
    #[arg(long, value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub(crate) seconds: Option<u64>,
    /// Controls to compare; the verdict concerns weir [default: weir,tc,none; cpu and latency also cni]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) control: Vec<ControlKind>,
    /// How the containers reach the uplink
    #[arg(long)]
    pub(crate) mode: Option<Mode>,
    /// Segmentation offload in the containers
    #[arg(long)]
    pub(crate) tso: Option<Switch>,
    /// Whether bridged packets pass iptables
    #[arg(long)]
    pub(crate) br_netfilter: Option<Switch>,
    /// Setting for the link section of the agent under test, such as allocator=\"credit\"
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) link: Vec<String>,
    /// Where completion times are measured [default: the first of these that is available]
    #[arg(long)]
    pub(crate) backend: Option<Backend>,
    /// Generator of the flows' bytes; iperf3 runs in real time only
    #[arg(long, default_value = "own")]
    pub(crate) generator: Generator,
    /// Seed of everything random: the resampling of the confidence intervals, made-up traces, volumes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
}

impl Choices {
    /// The options for a run of the program `weir`.
    pub(crate) fn options(&self, weir: PathBuf) -> Options {
        Options { weir, seed: self.seed, link: self.link.join("\n") }
    }

    /// Replaces the controls, if the command line names some.
    pub(crate) fn choose(&self, controls: &mut Vec<ControlKind>) {
        if !self.control.is_empty() {
            controls.clone_from(&self.control);
            controls.sort();
            controls.dedup();
        }
    }
}
