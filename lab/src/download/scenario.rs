//! The scenarios of downloads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_netlab::topology::Mode;
use weir_share::Weight;
use weir_units::BitRate;

use super::peer::Peer;
use crate::choices::Choices;

/// The kind of the scenario: tells these from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measures {
    /// Shares and round trips of what arrives.
    #[serde(rename = "download")]
    Download,
}

/// Containers that download through one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The name for `weir lab run`.
    pub(crate) name: String,
    /// A title of one line.
    pub(crate) title: String,
    /// The source of the experiment.
    pub(crate) source: String,
    /// The purpose of the experiment.
    pub(crate) about: String,
    /// Always [`Measures::Download`].
    pub(crate) measures: Measures,
    /// The rate of the line, layer 2.
    pub(crate) line: BitRate,
    /// The time that the line's queue lasts.
    pub(crate) line_queue_ms: u64,
    /// The round trip of the path, where the kernel has netem.
    pub(crate) rtt_ms: u64,
    /// The rate that is divided, layer 2.
    pub(crate) capacity: BitRate,
    /// How the containers reach the uplink.
    pub(crate) modes: Vec<Mode>,
    /// Weights of the containers that download. Another one pings.
    pub(crate) weights: BTreeMap<String, Weight>,
    /// Seconds of load before a case is measured: the time in which the line's queue of TCP's start empties.
    pub(crate) settles: u64,
    /// Seconds of a case that are measured.
    pub(crate) seconds: u64,
    /// The same with `--paper`.
    pub(crate) paper_seconds: u64,
    /// The largest allowed distance of a share, as a fraction of it.
    pub(crate) tolerance: f64,
    /// The largest rise of the 95th percentile of an idle container's round trips beside CUBIC, ms.
    pub(crate) most_rise_ms: f64,
    /// The compared setups.
    pub(crate) peers: Vec<Peer>,
    /// The cases.
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Case>,
}

/// The load of each container that downloads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// A short name for tables and plots.
    pub(crate) name: String,
    /// Congestion control of TCP.
    pub(crate) algorithm: String,
    /// TCP flows of each container.
    pub(crate) flows: usize,
    /// Datagrams that arrive for the first container instead of its flows.
    #[serde(default)]
    pub(crate) flood: Option<BitRate>,
}

/// The label of the idle container that pings.
pub(super) const IDLE: &str = "idle";

impl Scenario {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        if self.weights.len() < 2 || self.peers.is_empty() || self.cases.is_empty() || self.modes.is_empty() {
            return Some("it needs two weights, and peers, modes and cases".into());
        }
        if self.seconds == 0 || self.paper_seconds == 0 {
            return Some("seconds say how long a case is measured: they may not be zero".into());
        }
        if self.weights.contains_key(IDLE) {
            return Some(format!("`{IDLE}` is the container that pings: give the others another name"));
        }
        if self.line < self.capacity {
            return Some(format!(
                "the line's {} are less than the capacity of {}, so the line would decide",
                self.line, self.capacity
            ));
        }
        let idle = self.cases.iter().find(|case| case.flows == 0);
        idle.map(|case| format!("case {} has no flows", case.name))
    }

    /// The command line overrides the file.
    pub(crate) fn adapt(&mut self, choices: &Choices) {
        if choices.paper {
            self.seconds = self.paper_seconds;
        }
        self.seconds = choices.seconds.unwrap_or(self.seconds);
        if let Some(mode) = choices.mode {
            self.modes = vec![mode];
        }
        if !choices.control.is_empty() {
            self.peers.retain(|peer| choices.control.contains(&peer.control()));
        }
    }

    /// The payload that is due to each container, Mbit/s, in the order of the names.
    #[must_use]
    pub(super) fn due(&self) -> Vec<f64> {
        let sum: f64 = self.weights.values().map(|weight| f64::from(weight.get())).sum();
        let payload = self.capacity.as_mbit() * 1448.0 / 1514.0;
        self.weights.values().map(|weight| payload * f64::from(weight.get()) / sum).collect()
    }

    /// Measurements in all.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.modes.len() * self.peers.len() * self.cases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn the_built_in_file_has_the_wanted_figures_and_shares() {
        let scenario: Scenario = settings("download");
        assert_eq!((scenario.tolerance, scenario.most_rise_ms), (0.03, 6.0));
        assert_eq!(scenario.capacity.0 * 100, scenario.line.0 * 95);
        let due = scenario.due();
        assert!((due[1] / due[0] - 2.0).abs() < 1e-9 && (due[0] + due[1] - 18.172).abs() < 1e-3, "{due:?}");
    }

    #[test]
    fn a_scenario_that_does_not_fit_together_is_refused() {
        let good: Scenario = settings("download");
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.fault().unwrap()
        };
        assert!(fault(|s| s.peers.clear()).contains("needs two weights"));
        assert!(fault(|s| s.seconds = 0).contains("may not be zero"));
        assert!(fault(|s| s.line = BitRate::mbit(10)).contains("the line would decide"));
        assert!(fault(|s| s.cases[0].flows = 0).contains("has no flows"));
        let named = |s: &mut Scenario| {
            s.weights.insert(IDLE.into(), Weight::default());
        };
        assert!(fault(named).contains("pings"));
    }
}
