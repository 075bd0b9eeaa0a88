//! What shapes the uplink: nothing, a hand-written tc script, or weir.

mod agent;
mod tc;

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub(crate) use agent::TEMP_PREFIX;
pub use agent::{Agent, AgentSetup};
pub use tc::{TcForm, script};

use crate::{
    run::Options,
    scenario::{Case, HOST, Scenario},
    topology::Topology,
};

/// Which control.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A running `weir agent`.
    Weir,
    /// Plain tc HTB on the uplink, as a person would write it.
    Tc,
    /// The kernel as it is.
    None,
}

impl Kind {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weir => "weir",
            Kind::Tc => "tc",
            Kind::None => "none",
        }
    }
}

/// A control at work on a topology.
pub(crate) trait Control {
    /// Puts the policies of `case` in force.
    fn apply(&mut self, case: &Case) -> Result<()>;

    /// What was done, for the results: a script, say.
    fn record(&self) -> Option<String> {
        None
    }
}

/// Starts a control on a topology that nobody shapes yet.
pub(crate) fn start<'t>(
    kind: Kind,
    scenario: &Scenario,
    topology: &'t Topology,
    options: &Options,
) -> Result<Box<dyn Control + 't>> {
    Ok(match kind {
        Kind::None => Box::new(NoControl),
        Kind::Tc => Box::new(tc::Script::new(topology, scenario)),
        Kind::Weir => {
            let setup = AgentSetup::new(&options.weir, topology, scenario.capacity).link(&options.link);
            Box::new(WeirControl { agent: Agent::start(&setup)?, topology })
        }
    })
}

struct NoControl;

impl Control for NoControl {
    fn apply(&mut self, _case: &Case) -> Result<()> {
        Ok(())
    }
}

/// One agent for all cases: policies change while it runs.
struct WeirControl<'t> {
    agent: Agent,
    topology: &'t Topology,
}

impl Control for WeirControl<'_> {
    fn apply(&mut self, case: &Case) -> Result<()> {
        let mut policies = Vec::new();
        for (label, setting) in case.settings() {
            let name = match label {
                HOST => HOST.to_owned(),
                container => self.topology.container_name(container),
            };
            policies.push((name, setting.policy()?));
        }
        self.agent.set(&policies)
    }
}
