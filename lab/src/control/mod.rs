//! The controls that shape the uplink: none, a hand-written tc script, the setup of the CNI bandwidth plugin,
//! or weir with one of its engines.

mod agent;
pub(crate) mod cni;
mod tc;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use weir_netlab::topology::Topology;
use weir_units::BitRate;

pub(crate) use agent::TEMP_PREFIX;
pub use agent::{Agent, AgentSetup};
pub use tc::{TcForm, script};

use crate::{
    run::Options,
    scenario::{Case, HOST, Scenario},
};

/// A control.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
pub enum Kind {
    /// A running `weir agent` with the engine that it chooses.
    #[serde(rename = "weir")]
    #[value(name = "weir")]
    Weir,
    /// A `weir agent` with HTB.
    #[serde(rename = "weir:htb")]
    #[value(name = "weir:htb")]
    WeirHtb,
    /// A `weir agent` with the BPF qdisc.
    #[serde(rename = "weir:bpf")]
    #[value(name = "weir:bpf")]
    WeirBpf,
    /// A `weir agent` with the BPF qdisc in qCon's form.
    #[serde(rename = "weir:bpf-credit")]
    #[value(name = "weir:bpf-credit")]
    WeirBpfCredit,
    /// A `weir agent` with departure times and fq.
    #[serde(rename = "weir:edt")]
    #[value(name = "weir:edt")]
    WeirEdt,
    /// A `weir agent` with paced sockets and credits, without a queue of its own.
    #[serde(rename = "weir:pacing")]
    #[value(name = "weir:pacing")]
    WeirPacing,
    /// A `weir agent` with the token bucket tree in its process.
    #[serde(rename = "weir:user")]
    #[value(name = "weir:user")]
    WeirUser,
    /// Weir's credits alone, which drop packets instead of queuing them: an experiment, not an engine.
    #[serde(rename = "credit")]
    #[value(name = "credit")]
    Credit,
    /// Plain tc HTB on the uplink, as written by hand.
    #[serde(rename = "tc")]
    Tc,
    /// The CNI bandwidth plugin's token buckets, one pair a container: ceilings only.
    #[serde(rename = "cni")]
    Cni,
    /// The kernel without changes.
    #[serde(rename = "none")]
    None,
}

impl Kind {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weir => "weir",
            Kind::WeirHtb => "weir:htb",
            Kind::WeirBpf => "weir:bpf",
            Kind::WeirBpfCredit => "weir:bpf-credit",
            Kind::WeirEdt => "weir:edt",
            Kind::WeirPacing => "weir:pacing",
            Kind::WeirUser => "weir:user",
            Kind::Credit => "credit",
            Kind::Tc => "tc",
            Kind::Cni => "cni",
            Kind::None => "none",
        }
    }

    /// Whether this is weir; verdicts concern only weir.
    #[must_use]
    pub fn is_weir(self) -> bool {
        self.has_agent() && self != Kind::Credit
    }

    /// Whether an agent enforces it.
    #[must_use]
    pub fn has_agent(self) -> bool {
        !matches!(self, Kind::Tc | Kind::Cni | Kind::None)
    }

    /// The engine's name in the agent's configuration; `None` leaves the choice to the agent.
    #[must_use]
    pub fn engine(self) -> Option<&'static str> {
        if self == Kind::Credit { Some("credit-experiment") } else { self.name().strip_prefix("weir:") }
    }
}

/// A control that this kernel cannot run, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The control.
    pub control: Kind,
    /// The missing part, in the agent's words.
    pub why: String,
}

/// A control at work on a topology.
pub(crate) trait Control {
    /// Enforces the policies of `case`.
    fn apply(&mut self, case: &Case) -> Result<()>;

    /// A record for the results, such as a script.
    fn record(&self) -> Option<String> {
        None
    }
}

/// Starts a control on a topology without any shaping.
pub(crate) fn start<'t>(
    kind: Kind,
    scenario: &Scenario,
    topology: &'t Topology,
    options: &Options,
) -> Result<Box<dyn Control + 't>> {
    Ok(match kind {
        Kind::None => Box::new(NoControl),
        Kind::Tc => Box::new(tc::Script::new(topology, scenario)),
        Kind::Cni => Box::new(cni::Plugin::new(topology)),
        _ => Box::new(WeirControl {
            agent: start_agent(kind, topology, scenario.capacity, options)?,
            topology,
        }),
    })
}

/// Starts an agent with the control's engine.
pub(crate) fn start_agent(
    kind: Kind,
    topology: &Topology,
    capacity: BitRate,
    options: &Options,
) -> Result<Agent> {
    Agent::start(&AgentSetup::new(&options.weir, topology, capacity).link(&link(kind, options)))
}

/// The lines of the control and of the caller for the `[link]` section.
pub(crate) fn link(kind: Kind, options: &Options) -> String {
    let engine = kind.engine().map_or(String::new(), |engine| format!("engine = \"{engine}\"\n"));
    engine + &options.link
}

/// The reason why a control could not be started, if the kernel is allowed to lack it.
///
/// A kernel may lack some engines, but not the one that the agent chooses.
pub(crate) fn missing(kind: Kind, error: &anyhow::Error) -> Option<Missing> {
    let text = format!("{error:#}");
    let why = text.rsplit("; ").next().unwrap_or(&text).trim().to_owned();
    kind.engine().map(|_| Missing { control: kind, why })
}

struct NoControl;

impl Control for NoControl {
    fn apply(&mut self, _case: &Case) -> Result<()> {
        Ok(())
    }
}

/// One agent for all cases; policies change while it runs.
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

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use weir_datapath::engine::Kind as EngineKind;

    use super::*;

    #[test]
    fn a_control_has_one_name_on_the_command_line_and_in_results() {
        for kind in Kind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn each_engine_is_a_control() {
        let named = Kind::value_variants().iter().filter_map(|kind| kind.engine()).collect::<Vec<_>>();
        for engine in EngineKind::ALL.iter().chain(&EngineKind::EXPERIMENTAL) {
            assert!(named.contains(&engine.name()), "{} is not among {named:?}", engine.name());
        }
    }
}
