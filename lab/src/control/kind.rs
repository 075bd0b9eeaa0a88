//! The names of the controls, as scenario files and the command line write them.

use serde::{Deserialize, Serialize};

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
    pub(crate) fn name(self) -> &'static str {
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
    pub(crate) fn is_weir(self) -> bool {
        self.has_agent() && self != Kind::Credit
    }

    /// Whether an agent enforces it.
    #[must_use]
    pub(crate) fn has_agent(self) -> bool {
        !matches!(self, Kind::Tc | Kind::Cni | Kind::None)
    }

    /// The engine's name in the agent's configuration; `None` leaves the choice to the agent.
    #[must_use]
    pub(crate) fn engine(self) -> Option<&'static str> {
        if self == Kind::Credit { Some("credit-experiment") } else { self.name().strip_prefix("weir:") }
    }
}

/// A control that this kernel cannot run, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The control.
    pub(crate) control: Kind,
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
    /// By quanta of one frame times the weight, with equal tiny rates. This is deficit round-robin on a
    /// kernel without DRR.
    Quantum,
}
