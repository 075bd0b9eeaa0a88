//! The scenarios about promised bandwidth, and the ideal transmission time.

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::control::kind::ControlKind;

/// The first consumer's port at the service; the other consumers have the next ports.
pub(crate) const FIRST_PORT: u16 = 8001;
/// The picture's bytes in the paper: S of its S / bw.
pub(crate) const PAPER_BYTES: f64 = 419.0 * 1024.0;

/// The measured quantity, which marks scenarios of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measures {
    /// Transmission times of answers.
    Transmission,
}

/// An experiment about promised bandwidth.
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
    /// The mark of this kind of scenario.
    pub(crate) measures: Measures,
    /// Whether the whole experiment runs in a virtual machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) guest: bool,
    /// The rate of the whole line, layer 2: the paper's B_eth.
    #[serde(default = "line")]
    pub(crate) line: BitRate,
    /// The part of the line that weir divides, layer 2; by default the whole line.
    #[serde(default)]
    pub(crate) capacity: Option<BitRate>,
    /// Segmentation offload of the node's interface; with it HTB sends super-packets.
    #[serde(default)]
    pub(crate) tso: bool,
    /// Length of a measurement in seconds; requests in its first half second are not counted.
    pub(crate) seconds: u64,
    /// Number of repetitions.
    #[serde(default = "once")]
    pub(crate) repetitions: usize,
    /// Length of a measurement with `--paper`, seconds.
    pub(crate) paper_seconds: u64,
    /// Number of repetitions with `--paper`.
    pub(crate) paper_repetitions: usize,
    /// The controls to compare.
    pub(crate) controls: Vec<ControlKind>,
    /// The cases to measure.
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Case>,
    /// The bounds that the figures must meet.
    #[serde(default)]
    pub(crate) want: Want,
}

/// A set of consumers and their agreements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Unique within the scenario.
    pub(crate) name: String,
    /// Number of consumers, if there are no agreements.
    #[serde(default)]
    pub(crate) consumers: usize,
    /// The promised rate of each consumer, which is also its ceiling.
    #[serde(default)]
    pub(crate) agreements: Vec<BitRate>,
    /// The ceiling of all other traffic; without it no class limits that traffic.
    #[serde(default)]
    pub(crate) other: Option<BitRate>,
    /// Whether the UDP task runs.
    #[serde(default)]
    pub(crate) overloaded: bool,
    /// The paper's figures, ms.
    #[serde(default)]
    pub(crate) paper: Option<Paper>,
}

impl Case {
    /// The number of consumers.
    #[must_use]
    pub(crate) fn consumers(&self) -> usize {
        self.agreements.len().max(self.consumers)
    }

    /// The consumers' ports and the rates promised there.
    #[must_use]
    pub(crate) fn promised(&self) -> Vec<(u16, BitRate)> {
        (FIRST_PORT..).zip(self.agreements.iter().copied()).collect()
    }
}

/// A line of the paper's Table 2, ms, beside a control.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paper {
    /// The shortest transmission.
    #[serde(default)]
    pub(crate) min: Option<f64>,
    /// The mean.
    pub(crate) avg: f64,
    /// The longest transmission.
    #[serde(default)]
    pub(crate) max: Option<f64>,
    /// Standard deviation.
    pub(crate) std: f64,
}

/// The bounds that a scenario must meet; a missing bound is not judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Want {
    /// The largest distance of a consumer's mean from S / bw, as a fraction.
    #[serde(default)]
    pub(crate) error: Option<f64>,
    /// The paper's error, as a fraction.
    #[serde(default)]
    pub(crate) paper_error: Option<f64>,
    /// The smallest reduction of the standard deviation against no control, as a fraction; in cases with the
    /// UDP task.
    #[serde(default)]
    pub(crate) flatter: Option<f64>,
    /// The largest effect of the UDP task on the mean, as a fraction. It compares each case with the task to
    /// the case with the same agreements without it.
    #[serde(default)]
    pub(crate) moved: Option<f64>,
    /// Experiment B: how much the UDP task makes the mean longer at least, as a fraction. It compares as `moved`
    /// does, without agreements.
    #[serde(default)]
    pub(crate) longer: Option<f64>,
    /// Experiment D: the smallest excess of the mean under plain tc over S / bw, as a fraction. The
    /// experiment shows that tc breaks the promise there.
    #[serde(default)]
    pub(crate) tc_longer: Option<f64>,
    /// Experiments A and B: the smallest ratio of the standard deviation to the mean.
    #[serde(default)]
    pub(crate) variable: Option<f64>,
}

fn line() -> BitRate {
    BitRate::mbit(100)
}
fn once() -> usize {
    1
}

impl Scenario {
    /// The rate that weir divides.
    #[must_use]
    pub(crate) fn divided(&self) -> BitRate {
        self.capacity.unwrap_or(self.line)
    }

    /// The number of calls of `run`'s `watch`.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.cases.len() * self.controls.len() * self.repetitions
    }

    /// The scenario's contradiction, in words.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.cases.is_empty() || self.controls.is_empty() || self.seconds == 0 || self.repetitions == 0 {
            return Some(
                "case, controls, seconds and repetitions say what is measured: none may be empty or zero"
                    .to_owned(),
            );
        }
        self.cases.iter().find_map(|case| {
            let name = &case.name;
            let promised: u64 = case.agreements.iter().map(|rate| rate.bits_per_sec()).sum();
            let all = BitRate(promised + case.other.map_or(0, BitRate::bits_per_sec));
            if case.consumers() == 0 {
                Some(format!("case {name} has no consumers: say `agreements = [..]` or `consumers = 5`"))
            } else if case.consumers() > 64 || case.consumers > case.agreements.len() && promised > 0 {
                Some(format!("case {name} has {} consumers: at most 64, and an agreement for all or none", case.consumers()))
            } else if all > self.divided().min(self.line) || case.agreements.contains(&BitRate::ZERO) {
                Some(format!("case {name} promises {all} of a line of {}: each agreement more than nothing, all together no more than the line", self.line))
            } else {
                None
            }
        })
    }
}

/// The time S / bw of an answer of `bytes` after its `first` bytes, ms; see the module's text.
#[must_use]
pub(crate) fn ideal_ms(bytes: usize, first: usize, rate: BitRate) -> f64 {
    (charged(bytes) - charged(first)) * 8e3 / rate.bits_per_sec() as f64
}

/// The size of `bytes` of an answer on the wire, layer 2.
pub(super) fn charged(bytes: usize) -> f64 {
    /// The payload of a segment with timestamps over IPv4, and all headers that tc counts.
    const SEGMENT: (usize, usize) = (1448, 66);
    (bytes + bytes.div_ceil(SEGMENT.0) * SEGMENT.1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_time_is_of_what_the_wire_carries_after_the_first_frame() {
        // 10 segments: 9 full ones and one of 100 bytes.
        let bytes = 9 * 1448 + 100;
        let ideal = ideal_ms(bytes, 1448, BitRate::mbit(1));
        assert!((ideal - (8.0 * 1514.0 + 166.0) * 8e-3).abs() < 1e-9, "{ideal}");
        // The paper's answer at the paper's rate.
        let ideal = ideal_ms(655 * 655 + 15 + 130, 1448, BitRate::mbit(19));
        assert!((ideal - 188.3).abs() < 0.2, "{ideal}");
    }

    #[test]
    fn line_bounds_promises_and_others_ask_all_the_same() {
        let mut scenario: Scenario = toml::from_str(include_str!("../../scenarios/sla-C.toml")).unwrap();
        assert_eq!(scenario.fault(), None);
        scenario.cases[0].agreements[0] = BitRate::mbit(20);
        let fault = scenario.fault().unwrap();
        assert!(fault.contains("promises 101mbit of a line of 100mbit"), "{fault}");
        scenario.cases[0] = Case { agreements: Vec::new(), consumers: 5, ..scenario.cases[0].clone() };
        assert_eq!((scenario.fault(), scenario.cases[0].consumers()), (None, 5));
    }
}
