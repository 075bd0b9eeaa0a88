//! The names of the controls, as scenario files and the command line write them.

use std::sync::LazyLock;

use clap::{ValueEnum, builder::PossibleValue};
use serde::{Deserialize, Serialize};
use weir_datapath::engine::EngineKind;

/// A control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ControlKind {
    /// A running `weir agent` with the engine that it chooses.
    Weir,
    /// A `weir agent` with this engine. `credit` is the one that drops instead of queuing: an experiment.
    Engine(EngineKind),
    /// Plain tc HTB on the uplink, as written by hand.
    Tc,
    /// The CNI bandwidth plugin's token buckets, one pair a container: ceilings only.
    Cni,
    /// The kernel without changes.
    None,
}

impl ControlKind {
    /// Weir's credits alone.
    pub(crate) const CREDIT: ControlKind = ControlKind::Engine(EngineKind::CreditExperiment);

    /// qCon's scheduler as the paper has it.
    pub(crate) const PAPER: ControlKind = ControlKind::Engine(EngineKind::PaperCredit);

    /// The name on the command line and in results.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        let index = ALL.iter().position(|control| *control == self).expect("each engine is a control");
        &NAMES[index]
    }

    /// Whether this is weir; verdicts concern only weir.
    #[must_use]
    pub(crate) fn is_weir(self) -> bool {
        self.has_agent() && self != ControlKind::CREDIT && self != ControlKind::PAPER
    }

    /// Whether an agent enforces it.
    #[must_use]
    pub(crate) fn has_agent(self) -> bool {
        !matches!(self, ControlKind::Tc | ControlKind::Cni | ControlKind::None)
    }

    /// The engine; `None` leaves the choice to the agent.
    #[must_use]
    pub(crate) fn engine(self) -> Option<EngineKind> {
        match self {
            ControlKind::Engine(engine) => Some(engine),
            _ => None,
        }
    }
}

static ALL: LazyLock<Vec<ControlKind>> = LazyLock::new(|| {
    let mut engines = [EngineKind::ALL.as_slice(), &EngineKind::EXPERIMENTAL].concat();
    engines.sort_unstable();
    engines.extend([EngineKind::PaperCredit, EngineKind::CreditExperiment]);
    let engines = engines.into_iter().map(ControlKind::Engine);
    let others = [ControlKind::Tc, ControlKind::Cni, ControlKind::None];
    std::iter::once(ControlKind::Weir).chain(engines).chain(others).collect()
});

static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let name = |control: &ControlKind| match *control {
        ControlKind::Weir => "weir".to_owned(),
        ControlKind::CREDIT => "credit".to_owned(),
        ControlKind::Engine(engine) => format!("weir:{engine}"),
        ControlKind::Tc => "tc".to_owned(),
        ControlKind::Cni => "cni".to_owned(),
        ControlKind::None => "none".to_owned(),
    };
    ALL.iter().map(name).collect()
});

impl From<ControlKind> for String {
    fn from(control: ControlKind) -> String {
        control.name().to_owned()
    }
}

impl TryFrom<String> for ControlKind {
    type Error = String;

    fn try_from(name: String) -> Result<ControlKind, String> {
        ALL.iter()
            .find(|control| control.name() == name)
            .copied()
            .ok_or_else(|| format!("there is no control `{name}`: {}", NAMES.join(", ")))
    }
}

impl ValueEnum for ControlKind {
    fn value_variants<'a>() -> &'a [ControlKind] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match *self {
            ControlKind::Weir => "A `weir agent` with the engine that it chooses",
            ControlKind::CREDIT => "Credits alone, which drop packets instead of queuing them: an experiment",
            ControlKind::PAPER => "qCon's scheduler as the paper has it, with its loss",
            ControlKind::Engine(_) => "A `weir agent` with this engine",
            ControlKind::Tc => "Plain tc HTB on the uplink, as written by hand",
            ControlKind::Cni => "The CNI bandwidth plugin's token buckets: ceilings only",
            ControlKind::None => "The kernel without changes",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

/// A control that this kernel cannot run, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The control.
    pub(crate) control: ControlKind,
    /// The missing part, in the agent's words.
    pub(crate) why: String,
}

/// The way in which the script expresses weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcForm {
    /// By rates.
    #[default]
    Rates,
    /// By quanta of one frame times the weight, with equal tiny rates below a root class: HTB divides
    /// everything by quantum then. This is not DRR, which has no rates.
    Quantum,
    /// By quanta of one frame times the weight in the kernel's DRR, without a rate.
    Drr,
}
