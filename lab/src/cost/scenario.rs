//! The scenarios about costs, their results, and a control on their topology.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_netlab::topology::{Family, Mode, Spec, Topology, UPLINK, Uplink, Wire};
use weir_share::Policy;
use weir_units::{BitRate, Bytes};

use crate::{
    control::{
        self, Agent, cni,
        kind::{ControlKind, Missing, TcForm},
        script,
    },
    options::Options,
    report::{Figure, Head},
};

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measures {
    /// Processor time a gigabyte.
    Cpu,
    /// Round trips.
    Latency,
}

/// An experiment about the cost of controls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The name for `weir lab run`.
    pub(crate) name: String,
    /// A title of one line.
    pub(crate) title: String,
    /// The source of the experiment, such as a paper's figure.
    pub(crate) source: String,
    /// The purpose of the experiment.
    pub(crate) about: String,
    /// The measured quantity.
    pub(crate) measures: Measures,
    /// The rate that weir divides, layer 2.
    #[serde(default = "capacity")]
    pub(crate) capacity: BitRate,
    /// The rate of the line behind the uplink, layer 2.
    #[serde(default = "wire")]
    pub(crate) wire: BitRate,
    /// How the containers reach the uplink.
    #[serde(default)]
    pub(crate) mode: Mode,
    /// Segmentation offload in the containers.
    #[serde(default = "yes")]
    pub(crate) tso: bool,
    /// Segments in each super-packet; by default TCP chooses by round-trip time and rate.
    #[serde(default)]
    pub(crate) segments: Option<u32>,
    /// Numbers of sending containers, one measurement each; a repeated number is measured again.
    pub(crate) busy: Vec<usize>,
    /// cpu: the number of busy containers that is judged.
    #[serde(default)]
    pub(crate) judged: Option<usize>,
    /// cpu: the largest ratio of weir's time a gigabyte to that without control.
    #[serde(default)]
    pub(crate) most_over_native: Option<f64>,
    /// latency: round-trip times that the line adds, ms.
    #[serde(default)]
    pub(crate) rtt_ms: Vec<u32>,
    /// latency: the largest distance of an idle container's 99th percentile from the median while no one
    /// sends, ms.
    #[serde(default)]
    pub(crate) most_rise_beside_ms: Option<f64>,
    /// latency: the same distance for a container that sends as much as it can, ms.
    #[serde(default)]
    pub(crate) most_rise_inside_ms: Option<f64>,
    /// Length of a measurement, seconds.
    pub(crate) seconds: u64,
    /// Length of a measurement with `--paper`, seconds.
    pub(crate) paper_seconds: u64,
    /// Number of repetitions; each alternates between the controls.
    #[serde(default = "once")]
    pub(crate) repetitions: usize,
    /// Number of repetitions with `--paper`.
    #[serde(default = "once")]
    pub(crate) paper_repetitions: usize,
    /// The controls to compare.
    #[serde(default = "controls")]
    pub(crate) controls: Vec<ControlKind>,
    /// The paper's round trip of a container while no one sends, ms.
    #[serde(default)]
    pub(crate) paper: BTreeMap<ControlKind, f64>,
}

fn capacity() -> BitRate {
    BitRate::mbit(95)
}
fn wire() -> BitRate {
    BitRate::mbit(100)
}
fn yes() -> bool {
    true
}
fn once() -> usize {
    1
}
fn controls() -> Vec<ControlKind> {
    vec![ControlKind::Weir, ControlKind::Tc, ControlKind::Cni, ControlKind::None]
}

/// One case under one control: medians over the repetitions, and their range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The case's name.
    pub(crate) case: String,
    /// The control.
    pub(crate) control: ControlKind,
    /// The engine in force, if the control is weir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
    /// The plotted value: processor seconds a gigabyte, or the 99th percentile in ms.
    pub(crate) value: f64,
    /// The smallest and largest value of the repetitions (cpu), or the median and the longest round trip
    /// (latency).
    pub(crate) range: (f64, f64),
    /// cpu: payload that arrived, Mbit/s; latency: the fraction of lost probes.
    pub(crate) beside: f64,
    /// cpu: packets a gigabyte of payload, counted where they leave the containers; a super-packet counts
    /// once.
    #[serde(default)]
    pub(crate) packets: f64,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The common part of all reports.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Requested controls that this kernel cannot run.
    pub(crate) missing: Vec<Missing>,
    /// Cases that this kernel cannot run, and the reason.
    pub(crate) missing_cases: Vec<(String, String)>,
    /// The settings of the run: the scenario.
    pub(crate) settings: Scenario,
    /// The results, by case and control.
    pub(crate) rows: Vec<Row>,
    /// The noise of the machine, in words; empty without repetitions.
    pub(crate) noise: String,
}

/// The results of a measurement.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) rows: Vec<Row>,
    pub(super) figures: Vec<Figure>,
    pub(super) missing: Vec<Missing>,
    pub(super) missing_cases: Vec<(String, String)>,
    pub(super) noise: String,
}

impl Scenario {
    /// The contradiction in the settings, if there is one.
    pub(crate) fn fault(&self) -> Option<String> {
        let measures_nothing =
            self.busy.is_empty() || self.busy.contains(&0) || self.controls.is_empty() || self.seconds == 0;
        measures_nothing
            .then(|| "busy, controls and seconds say what is measured: none may be empty or zero".to_owned())
    }

    /// The number of calls of `run`'s `watch`.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        let cases = match self.measures {
            Measures::Cpu => self.busy.len() * self.repetitions,
            Measures::Latency => self.rtt_ms.len(),
        };
        cases * self.controls.len()
    }

    pub(super) fn topology(&self, containers: usize) -> Result<Topology> {
        let topology = Topology::build(&Spec {
            containers: (1..=containers).map(|i| format!("C{i}")).collect(),
            uplink: Uplink::default(),
            mode: self.mode,
            tso: self.tso,
            br_netfilter: None,
            wire: Some(Wire::of(self.wire, Bytes(self.wire.bits_per_sec() / 8 / 50))),
        })?;
        if let Some(segments) = self.segments {
            for container in topology.containers() {
                let netns = container.netns();
                netns.sysctl("net.ipv4.tcp_min_tso_segs", &segments.to_string())?;
                netns.ip(&format!("link set dev eth0 gso_max_segs {segments}\n"))?;
            }
        }
        Ok(topology)
    }
}

/// A control on a topology, in force until it is dropped.
pub(super) struct Shaper<'t> {
    pub(super) kind: ControlKind,
    pub(super) topology: &'t Topology,
    pub(super) capacity: BitRate,
    pub(super) agent: Option<Agent>,
    /// The number of containers with the plugin's limit.
    pub(super) limited: usize,
}

impl<'t> Shaper<'t> {
    /// Starts the control; only weir shapes already.
    pub(super) fn start(
        kind: ControlKind,
        scenario: &Scenario,
        topology: &'t Topology,
        options: &Options,
    ) -> Result<Result<Shaper<'t>, Missing>> {
        let agent = if kind.has_agent() {
            match control::start_agent(kind, topology, scenario.capacity, options) {
                Ok(agent) => Some(agent),
                Err(error) => match control::missing(kind, &error) {
                    Some(missing) => return Ok(Err(missing)),
                    None => return Err(error).context("cannot start control weir"),
                },
            }
        } else {
            None
        };
        Ok(Ok(Shaper { kind, topology, capacity: scenario.capacity, agent, limited: 0 }))
    }

    /// The engine, if the control is weir.
    pub(super) fn engine(&self) -> Result<Option<String>> {
        self.agent.as_ref().map(|agent| Ok(agent.client().status()?.engine)).transpose()
    }

    /// Gives equal parts of the capacity to the first `among` containers.
    pub(super) fn divide(&mut self, among: usize) -> Result<()> {
        let containers = self.topology.containers();
        let node = self.topology.node();
        match self.kind {
            ControlKind::Tc => {
                if self.limited > 0 {
                    node.tc(&format!("qdisc del dev {UPLINK} root\n"))?;
                }
                let one = |i: usize| (Some(containers[i].address(Family::V4)), Policy::default());
                let classes: Vec<_> = (0..among).map(one).collect();
                node.tc(&script(TcForm::Rates, self.capacity, &classes))?;
            }
            ControlKind::Cni => {
                for container in &containers[..self.limited] {
                    cni::unlimit(self.topology, container.label())?;
                }
                let part = BitRate(self.capacity.bits_per_sec() / among as u64);
                for container in &containers[..among] {
                    cni::limit(self.topology, container.label(), part)?;
                }
            }
            _ => {}
        }
        self.limited = among;
        Ok(())
    }
}
