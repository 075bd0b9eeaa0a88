//! Bandwidth that is promised: the experiments of Anastasi et al., "QoS Guarantees for Network
//! Bandwidth in Private Clouds" (2016), Table 1 and 2, Fig. 4 to 6.
//!
//! A service in the node rotates pictures for five consumers behind the line, each at a port of
//! its own and with a rate of its own; beside it a task sends as much UDP as the line holds.
//! Measured is the time of an answer's transmission, from its first byte to its last, as
//! ApacheBench's `dtime - wait`.
//!
//! How S is counted: an agreement's rate is what the answer takes on the wire, layer 2, as tc and
//! weir count it. So the ideal time S / bw has S = the answer with its HTTP head and the headers
//! of its segments, less what had arrived when the clock started (a frame, or some if the
//! consumer was not looking). The paper takes
//! the picture alone, 419 KiB, of which headers are 4.6 % more; its kernel (2.6.28) did not yet
//! charge HTB for the headers of super-packets' segments. The error against the picture alone is
//! shown beside, and not judged.

mod consumer;
mod guest;
mod measure;
mod plot;
mod promise;
mod report;
mod service;
mod tree;

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

pub use consumer::{Answer, consume};
pub(crate) use guest::harness;
pub use measure::run;
pub use plot::svg;
pub use promise::offer;
pub use report::{ConsumerRow, Report, Row, table};
pub use service::{Service, encode, picture, rotate};
pub use tree::script;

use crate::control::Kind;

/// The first consumer's port at the service; the others follow.
pub const FIRST_PORT: u16 = 8001;
/// The picture's bytes in the paper: S of its S / bw.
pub const PAPER_BYTES: f64 = 419.0 * 1024.0;

/// What is measured: tells these scenarios from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measures {
    /// Transmission times of answers.
    Transmission,
}

/// An experiment about promised bandwidth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What `weir lab run` calls it.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// What it shows.
    pub about: String,
    /// That it is one of these.
    pub measures: Measures,
    /// Whether all of it runs in a virtual machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guest: bool,
    /// The line, layer 2, all of which is divided: the paper's B_eth.
    #[serde(default = "line")]
    pub line: BitRate,
    /// What weir divides of it, layer 2; all of it unless said.
    #[serde(default)]
    pub capacity: Option<BitRate>,
    /// Segmentation offload of the node's interface: with it HTB sends super-packets.
    #[serde(default)]
    pub tso: bool,
    /// Length of a measurement; what begins in its first half second is left out.
    pub seconds: u64,
    /// How often all of it is repeated.
    #[serde(default = "once")]
    pub repetitions: usize,
    /// Length of a measurement with `--paper`.
    pub paper_seconds: u64,
    /// The same with `--paper`.
    pub paper_repetitions: usize,
    /// What is compared.
    pub controls: Vec<Kind>,
    /// What is measured.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// What is judged.
    #[serde(default)]
    pub want: Want,
}

/// One set of consumers and what is promised to them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique within the scenario.
    pub name: String,
    /// Consumers, if nothing is promised to them.
    #[serde(default)]
    pub consumers: usize,
    /// What is promised to each consumer, and is the most that it gets.
    #[serde(default)]
    pub agreements: Vec<BitRate>,
    /// What all other traffic gets at the most; none: it is nobody's business.
    #[serde(default)]
    pub other: Option<BitRate>,
    /// Whether the UDP task runs.
    #[serde(default)]
    pub overloaded: bool,
    /// The paper's figures, ms.
    #[serde(default)]
    pub paper: Option<Paper>,
}

impl Case {
    /// How many consumers ask.
    #[must_use]
    pub fn consumers(&self) -> usize {
        self.agreements.len().max(self.consumers)
    }

    /// The ports at which they ask, and what is promised there.
    #[must_use]
    pub fn promised(&self) -> Vec<(u16, BitRate)> {
        (FIRST_PORT..).zip(self.agreements.iter().copied()).collect()
    }
}

/// A line of the paper's Table 2, ms, beside a control.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The shortest transmission.
    #[serde(default)]
    pub min: Option<f64>,
    /// The mean.
    pub avg: f64,
    /// The longest.
    #[serde(default)]
    pub max: Option<f64>,
    /// Standard deviation.
    pub std: f64,
}

/// What a scenario must show; what is none is not judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Want {
    /// The most that a consumer's mean may be from S / bw, as a fraction.
    #[serde(default)]
    pub error: Option<f64>,
    /// The paper's error, as a fraction.
    #[serde(default)]
    pub paper_error: Option<f64>,
    /// The least by which the standard deviation is below that without control, as a fraction;
    /// in cases with the UDP task.
    #[serde(default)]
    pub flatter: Option<f64>,
    /// The most by which the UDP task moves the mean: between each case with it and the one of
    /// the same agreements without, as a fraction.
    #[serde(default)]
    pub moved: Option<f64>,
    /// Experiment D: the least by which the mean under plain tc is above S / bw, as a fraction:
    /// the promise is not kept there, and that is what it shows.
    #[serde(default)]
    pub tc_longer: Option<f64>,
    /// Experiment A and B: the least standard deviation over the mean.
    #[serde(default)]
    pub variable: Option<f64>,
}

fn line() -> BitRate {
    BitRate::mbit(100)
}
fn once() -> usize {
    1
}

impl Scenario {
    /// What weir divides.
    #[must_use]
    pub fn divided(&self) -> BitRate {
        self.capacity.unwrap_or(self.line)
    }

    /// How many times [`run`]'s `watch` is called.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.cases.len() * self.controls.len() * self.repetitions
    }

    /// What makes no sense, in words.
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
                Some(format!("case {name} has {} consumers: at the most 64, and an agreement for all or none", case.consumers()))
            } else if all > self.divided().min(self.line) || case.agreements.contains(&BitRate::ZERO) {
                Some(format!("case {name} promises {all} of a line of {}: each agreement more than nothing, all together no more than the line", self.line))
            } else {
                None
            }
        })
    }
}

/// The time S / bw of an answer of so many bytes after its first ones, ms: see the module's text.
#[must_use]
pub fn ideal_ms(bytes: usize, first: usize, rate: BitRate) -> f64 {
    (charged(bytes) - charged(first)) * 8e3 / rate.bits_per_sec() as f64
}

/// What so many bytes of an answer take on the wire, layer 2.
fn charged(bytes: usize) -> f64 {
    /// Payload of a segment with timestamps over IPv4, and all headers that tc counts.
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
    fn more_than_the_line_is_not_promised_and_who_is_promised_nothing_asks_all_the_same() {
        let mut scenario: Scenario = toml::from_str(include_str!("../../scenarios/sla-C.toml")).unwrap();
        assert_eq!(scenario.fault(), None);
        scenario.cases[0].agreements[0] = BitRate::mbit(20);
        let fault = scenario.fault().unwrap();
        assert!(fault.contains("promises 101mbit of a line of 100mbit"), "{fault}");
        scenario.cases[0] = Case { agreements: Vec::new(), consumers: 5, ..scenario.cases[0].clone() };
        assert_eq!((scenario.fault(), scenario.cases[0].consumers()), (None, 5));
    }
}
