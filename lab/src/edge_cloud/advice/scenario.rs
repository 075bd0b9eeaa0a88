//! The scenarios about advice.

use serde::{Deserialize, Serialize};
use weir_cc::{AdviceError, AdviceSettings, Rule};
use weir_units::Bytes;

use super::super::scenario::{Link, link_fault};

/// The mark of this kind of scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measures {
    /// The results of advice.
    Advice,
}

/// A link to the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NamedLink {
    /// Unique within the scenario.
    pub(crate) name: String,
    /// The link's properties.
    #[serde(flatten)]
    pub(crate) link: Link,
}

/// An experiment about advice.
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
    /// Flows that begin in a second, at random.
    pub(crate) per_second: f64,
    /// The smallest and the largest volume of a flow; the volume's logarithm is drawn evenly.
    pub(crate) volume: [Bytes; 2],
    /// Number of flows before the trial, and again after it.
    pub(crate) beside: u64,
    /// Number of flows before and after the trial with `--paper`.
    pub(crate) paper_beside: u64,
    /// Largest number of flows of the trial.
    pub(crate) flows: u64,
    /// Largest number of flows of the trial with `--paper`.
    pub(crate) paper_flows: u64,
    /// From `[advice]`: the part of the flows that tries a candidate.
    pub(crate) share: f64,
    /// From `[advice]`: the length of a turn, seconds.
    pub(crate) turn_s: u64,
    /// From `[advice]`: the candidates beside the system's algorithm.
    #[serde(rename = "try")]
    pub(crate) candidates: Vec<Rule>,
    /// The links, measured one at a time.
    #[serde(rename = "link")]
    pub(crate) links: Vec<NamedLink>,
}

impl Scenario {
    /// Selects all flows, as for `--paper`.
    pub(crate) fn make_whole(&mut self) {
        (self.beside, self.flows) = (self.paper_beside, self.paper_flows);
    }

    /// The number of links.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.links.len()
    }

    /// The `[advice]` settings for the flows to a server.
    ///
    /// # Errors
    /// [`AdviceError`].
    pub(super) fn settings(&self, server: std::net::Ipv4Addr) -> Result<AdviceSettings, AdviceError> {
        let settings = AdviceSettings {
            to: vec![std::net::IpAddr::from(server).into()],
            share: self.share,
            candidates: self.candidates.clone(),
            turn_s: self.turn_s,
        };
        settings.check().map(|()| settings)
    }

    /// The scenario's contradiction, in words.
    pub(crate) fn fault(&self) -> Option<String> {
        let [least, most] = self.volume;
        if least.0 == 0 || least > most {
            return Some("a volume is [least, greatest], and the least is more than nothing".to_owned());
        }
        let counts = [self.beside, self.paper_beside, self.flows, self.paper_flows];
        if self.links.is_empty() || counts.contains(&0) || !(0.1..=10_000.0).contains(&self.per_second) {
            return Some(
                "links, flows and beside say what is measured: none may be empty or zero; 0.1 to 10000 flows \
                 begin in a second"
                    .to_owned(),
            );
        }
        if let Err(error) = self.settings(std::net::Ipv4Addr::new(192, 0, 2, 1)) {
            return Some(format!("advice: {error}"));
        }
        self.links.iter().find_map(|named| link_fault(&named.name, named.link))
    }
}
