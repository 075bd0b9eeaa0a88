//! The controls that shape the uplink: none, a hand-written tc script, the setup of the CNI bandwidth plugin,
//! or weir with one of its engines.

mod agent;
pub(crate) mod cni;
mod interface;
pub mod kind;
mod tc;

use anyhow::Result;
use weir_netlab::topology::Topology;
use weir_units::BitRate;

pub(crate) use agent::{Agent, AgentSetup, TEMP_PREFIX};
pub(crate) use tc::script;

use self::{
    interface::Control,
    kind::{ControlKind, Missing},
};
use crate::{
    options::Options,
    scenario::{Case, HOST, Scenario},
};

/// Starts a control on a topology without any shaping.
pub(crate) fn start<'t>(
    kind: ControlKind,
    scenario: &Scenario,
    topology: &'t Topology,
    options: &Options,
) -> Result<Box<dyn Control + 't>> {
    Ok(match kind {
        ControlKind::None => Box::new(NoControl),
        ControlKind::Tc => Box::new(tc::Script::new(topology, scenario)?),
        ControlKind::Cni => Box::new(cni::Plugin::new(topology)),
        _ => Box::new(WeirControl {
            agent: start_agent(kind, topology, scenario.capacity, options)?,
            topology,
        }),
    })
}

/// Starts an agent with the control's engine.
pub(crate) fn start_agent(
    kind: ControlKind,
    topology: &Topology,
    capacity: BitRate,
    options: &Options,
) -> Result<Agent> {
    Agent::start(&AgentSetup::new(&options.weir, topology, capacity).link(&link(kind, options)))
}

/// The lines of the control and of the caller for the `[link]` section.
pub(crate) fn link(kind: ControlKind, options: &Options) -> String {
    let engine = kind.engine().map_or(String::new(), |engine| engine.to_toml() + "\n");
    engine + &options.link
}

/// The reason why a control could not be started, if the kernel is allowed to lack it.
///
/// A kernel may lack some engines and DRR, but not the engine that the agent chooses.
pub(crate) fn missing(kind: ControlKind, error: &anyhow::Error) -> Option<Missing> {
    if let Some(lacks) = error.downcast_ref::<tc::NoDrr>() {
        return Some(Missing { control: kind, why: lacks.to_string() });
    }
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

    use super::*;

    #[test]
    fn kernel_may_lack_drr_and_its_words_are_kept() {
        let error = anyhow::Error::new(tc::NoDrr { why: "Specified qdisc kind is unknown.".to_owned() });
        let lacks = missing(ControlKind::Tc, &error).unwrap();
        assert!(
            lacks.why.contains("CONFIG_NET_SCH_DRR") && lacks.why.contains("kind is unknown"),
            "{lacks:?}"
        );
        assert_eq!(missing(ControlKind::Tc, &anyhow::anyhow!("no rights")), None);
    }

    #[test]
    fn a_control_has_one_name_on_the_command_line_and_in_results() {
        for kind in ControlKind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
