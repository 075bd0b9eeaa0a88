//! Scenario files: an experiment in a form that people can read.
//!
//! ```toml
//! name = "weights-3"
//! title = "Three containers, three sets of weights"
//! source = "qCon, Fig. 7"
//! about = "What it shows."
//!
//! [[case]]
//! name = "1:2:3"
//! [case.containers]
//! C1 = { weight = 1, paper = 16 }        # paper: Mbit/s that the paper's text gives
//! C2 = { weight = 2, min = "20mbit", max = "50mbit", send = "udp 60mbit" }
//! C3 = { weight = 3, send = "nothing" }  # send: tcp unless said otherwise
//! ```
//!
//! Each case names all containers. The other keys have the defaults of the fields of [`Scenario`].

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};
use weir_netlab::{
    topology::{Family, Mode, Spec, Uplink, Wire},
    traffic::Load,
};
use weir_share::{Policy, PolicyError, Weight};
use weir_units::{BitRate, Bytes};

use crate::control::kind::{ControlKind, TcForm};

/// The built-in scenarios: the paper's in the order of its figures, then weir's own.
pub(crate) const BUILT_IN: [(&str, &str); 11] = [
    ("drr-without-root", include_str!("../scenarios/drr-without-root.toml")),
    ("weights-3", include_str!("../scenarios/weights-3.toml")),
    ("weights-grow", include_str!("../scenarios/weights-grow.toml")),
    ("minimum", include_str!("../scenarios/minimum.toml")),
    ("maximum", include_str!("../scenarios/maximum.toml")),
    ("combined", include_str!("../scenarios/combined.toml")),
    ("mixed", include_str!("../scenarios/mixed.toml")),
    ("flood", include_str!("../scenarios/flood.toml")),
    ("quanta", include_str!("../scenarios/quanta.toml")),
    ("credit", include_str!("../scenarios/credit.toml")),
    ("cc-mix", include_str!("../scenarios/cc-mix.toml")),
];

/// The label of a case's `host` entry in reports; the agent uses the same name.
pub const HOST: &str = "host";

/// An experiment: one topology, several cases on it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name for `weir lab run`.
    pub name: String,
    /// A title of one line.
    pub title: String,
    /// The source of the experiment, such as a paper's figure.
    pub source: String,
    /// The purpose of the experiment.
    pub about: String,
    /// The rate that the engine divides, layer 2.
    #[serde(default = "defaults::capacity")]
    pub capacity: BitRate,
    /// The rate of the line behind the uplink, layer 2.
    #[serde(default = "defaults::wire")]
    pub wire: BitRate,
    /// How the containers reach the uplink.
    #[serde(default)]
    pub mode: Mode,
    /// IP version of the traffic.
    #[serde(default)]
    pub family: Family,
    /// Segmentation offload in the containers.
    #[serde(default = "defaults::tso")]
    pub tso: bool,
    /// Whether bridged packets pass iptables; `None` keeps the kernel's default.
    #[serde(default)]
    pub br_netfilter: Option<bool>,
    /// Length of a case in seconds; its first 2 s are not measured.
    #[serde(default = "defaults::seconds")]
    pub seconds: u64,
    /// Length of a case in the paper, seconds.
    #[serde(default = "defaults::paper_seconds")]
    pub paper_seconds: u64,
    /// The largest allowed distance of a share from its allocation, as a fraction of the allocation.
    #[serde(default = "defaults::tolerance")]
    pub tolerance: f64,
    /// The smallest fraction of the capacity that arrives as payload while senders want it.
    #[serde(default = "defaults::link_use")]
    pub link_use: f64,
    /// The largest fraction of a container's datagrams that may be lost; `None` is not judged.
    #[serde(default)]
    pub max_loss: Option<f64>,
    /// The largest rise of a pinging container's mean round trip under load, ms.
    #[serde(default = "defaults::max_ping_rise_ms")]
    pub max_ping_rise_ms: f64,
    /// The controls to compare; the verdict concerns weir.
    #[serde(default = "defaults::controls")]
    pub controls: Vec<ControlKind>,
    /// The form of the hand-written tc script.
    #[serde(default)]
    pub tc: TcForm,
    /// The cases, run one after the other on one topology and one agent.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// One set of policies and loads.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// A short name for tables and plots.
    pub name: String,
    /// All containers, by name.
    pub containers: BTreeMap<String, Setting>,
    /// A container that sends only pings, before the others send and while they send.
    #[serde(default)]
    pub ping: Option<String>,
    /// The host's own traffic, if it sends any.
    #[serde(default)]
    pub host: Option<Setting>,
}

/// A container's policy and load in one case.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setting {
    /// Weight.
    pub weight: Weight,
    /// Floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<BitRate>,
    /// Ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<BitRate>,
    /// The load that it sends.
    pub send: Load,
    /// The figure in the paper's text, Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
}

/// The file is not a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// No built-in scenario has this name.
    #[error("no scenario `{name}`: there are {}, or give the path of a .toml file", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The built-in names.
        known: Vec<String>,
    },
    /// The file cannot be read.
    #[error("cannot read scenario file {path}")]
    Read {
        /// The file's path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not TOML, or has other fields.
    #[error("cannot read scenario {origin}: {source}")]
    Syntax {
        /// The scenario's file or name.
        origin: String,
        /// The position and the cause.
        source: Box<toml::de::Error>,
    },
    /// A policy that every agent refuses.
    #[error("scenario {scenario}, case {case}, {container}")]
    Policy {
        /// The scenario.
        scenario: String,
        /// The case.
        case: String,
        /// The container.
        container: String,
        /// The cause.
        source: PolicyError,
    },
    /// Cases that contradict each other.
    #[error("scenario {scenario}: {what}")]
    Shape {
        /// The scenario.
        scenario: String,
        /// The contradiction.
        what: String,
    },
}

mod defaults {
    use weir_units::BitRate;

    use crate::control::kind::ControlKind;

    pub(super) fn capacity() -> BitRate {
        BitRate::mbit(95)
    }
    pub(super) fn wire() -> BitRate {
        BitRate::mbit(100)
    }
    pub(super) fn tso() -> bool {
        true
    }
    pub(super) fn seconds() -> u64 {
        5
    }
    pub(super) fn paper_seconds() -> u64 {
        60
    }
    pub(super) fn tolerance() -> f64 {
        0.03
    }
    pub(super) fn link_use() -> f64 {
        0.93
    }
    pub(super) fn max_ping_rise_ms() -> f64 {
        3.0
    }
    pub(super) fn controls() -> Vec<ControlKind> {
        vec![ControlKind::Weir, ControlKind::Tc, ControlKind::None]
    }
}

/// All built-in scenarios.
///
/// # Panics
/// If one of them does not parse; a test excludes it.
#[must_use]
pub fn built_in() -> Vec<Scenario> {
    BUILT_IN
        .iter()
        .map(|(name, text)| Scenario::parse(text, name).unwrap_or_else(|e| panic!("built-in scenario: {e}")))
        .collect()
}

/// Finds a built-in scenario by name, or reads one from the path of a `.toml` file.
///
/// # Errors
/// [`ScenarioError`].
pub fn find(name: &str) -> Result<Scenario, ScenarioError> {
    if Path::new(name).extension().is_some_and(|e| e == "toml") {
        let text = fs::read_to_string(name)
            .map_err(|source| ScenarioError::Read { path: name.to_owned(), source })?;
        return Scenario::parse(&text, name);
    }
    match BUILT_IN.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => Scenario::parse(text, name),
        None => Err(ScenarioError::Unknown {
            name: name.to_owned(),
            known: BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect(),
        }),
    }
}

impl Scenario {
    /// Reads and checks a scenario; `origin` names it in errors.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first problem.
    pub fn parse(text: &str, origin: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text).map_err(|source| ScenarioError::Syntax {
            origin: origin.to_owned(),
            source: Box::new(source),
        })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The topology of the scenario.
    #[must_use]
    pub fn spec(&self) -> Spec {
        Spec {
            containers: self.cases[0].containers.keys().cloned().collect(),
            uplink: Uplink::default(),
            mode: self.mode,
            tso: self.tso,
            br_netfilter: self.br_netfilter,
            // The line's queue holds 20 ms, as in many routers.
            wire: Some(Wire::of(self.wire, Bytes((self.wire.bits_per_sec() / 8 / 50).max(30_000)))),
        }
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let shape = |what: String| Err(ScenarioError::Shape { scenario: self.name.clone(), what });
        let Some(first) = self.cases.first() else { return shape("it has no cases".into()) };
        if first.containers.is_empty() {
            return shape("its first case has no containers".into());
        }
        if self.controls.is_empty() {
            return shape("it has no controls".into());
        }
        if self.wire < self.capacity {
            return shape(format!(
                "the wire's {} are less than the capacity of {}, so the wire would decide",
                self.wire, self.capacity
            ));
        }
        let tolerance = self.tolerance > 0.0 && self.tolerance < 1.0;
        if !tolerance || !(0.0..=1.0).contains(&self.link_use) {
            return shape("tolerance and link_use are fractions".into());
        }
        for case in &self.cases {
            if !case.containers.keys().eq(first.containers.keys()) {
                return shape(format!("case {} names other containers than the first one", case.name));
            }
            if !case.settings().any(|(_, s)| s.send != Load::Nothing) {
                return shape(format!("in case {} no one sends", case.name));
            }
            if let Some(ping) = &case.ping
                && case.containers.get(ping).is_none_or(|s| s.send != Load::Nothing)
            {
                return shape(format!(
                    "in case {}, {ping} pings: it must be a container that sends nothing",
                    case.name
                ));
            }
            for (container, setting) in case.settings() {
                let good = !container.is_empty()
                    && container.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
                if !good {
                    return shape(format!(
                        "`{container}` is no container's name: use letters, digits, - and _"
                    ));
                }
                setting.policy().map_err(|source| ScenarioError::Policy {
                    scenario: self.name.clone(),
                    case: case.name.clone(),
                    container: container.to_owned(),
                    source,
                })?;
            }
            let floors = case.settings().map(|(_, s)| s.min.unwrap_or_default().0).sum::<u64>();
            if floors > self.capacity.0 {
                return shape(format!(
                    "the minima of case {} are {} together, more than the capacity of {}",
                    case.name,
                    BitRate(floors),
                    self.capacity
                ));
            }
        }
        Ok(())
    }
}

impl Case {
    /// The containers' settings, then the host's.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &Setting)> {
        let containers = self.containers.iter().map(|(name, setting)| (name.as_str(), setting));
        containers.chain(self.host.iter().map(|setting| (HOST, setting)))
    }
}

impl Setting {
    /// Weight, floor and ceiling as one policy.
    ///
    /// # Errors
    /// [`PolicyError`] if they contradict each other.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        Policy::new(self.weight, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        title = "t"
        source = "s"
        about = "a"
        [[case]]
        name = "one"
        [case.containers]
        C1 = { weight = 2, min = "20mbit", send = "udp 60mbit", paper = 16 }
        C2 = {}
    "#;

    fn refused(from: &str, to: &str) -> String {
        assert!(SMALL.contains(from), "{from}");
        let error = Scenario::parse(&SMALL.replace(from, to), "small").unwrap_err();
        let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
        error.to_string() + &cause
    }

    #[test]
    fn all_built_in_scenarios_are_read_under_their_own_name() {
        let names: Vec<String> = built_in().into_iter().map(|s| s.name).collect();
        assert_eq!(names, BUILT_IN.map(|(name, _)| name));
        for scenario in built_in() {
            assert!(scenario.cases.len() as u64 * scenario.seconds <= 30, "{} is long", scenario.name);
            assert!((scenario.tolerance, scenario.link_use) == (0.03, 0.93), "{}", scenario.name);
        }
    }

    #[test]
    fn what_is_left_out_has_defaults() {
        let scenario = Scenario::parse(SMALL, "small").unwrap();
        assert_eq!(scenario.controls, [ControlKind::Weir, ControlKind::Tc, ControlKind::None]);
        assert_eq!((scenario.capacity, scenario.wire), (BitRate::mbit(95), BitRate::mbit(100)));
        let case = &scenario.cases[0];
        assert_eq!(case.containers["C1"].send, Load::Udp(BitRate::mbit(60)));
        assert_eq!(case.containers["C2"], Setting::default());
        assert_eq!(case.containers["C2"].send, Load::Tcp);
        assert_eq!(scenario.spec().wire.unwrap().queue, Bytes(250_000));
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_place_and_reason() {
        assert!(refused("weight = 2", "wieght = 2").contains("wieght"));
        assert!(refused("weight = 2", "weight = 0").contains("weight"));
        assert!(refused("udp 60mbit", "udp much").contains("udp 60mbit"));
        assert!(refused("min = \"20mbit\"", "min = \"20mbit\", max = \"10mbit\"").contains("above maximum"));
        assert!(refused("20mbit", "200mbit").contains("200mbit together, more than the capacity of 95mbit"));
        assert!(refused("C2 = {}", "\"C 2\" = {}").contains("no container's name"));
        assert!(
            refused("name = \"small\"", "name = \"small\"\nwire = \"50mbit\"")
                .contains("the wire would decide")
        );
    }

    #[test]
    fn cases_name_the_same_containers_and_somebody_sends() {
        let second = "\n[[case]]\nname = \"two\"\n[case.containers]\nC1 = {}\n";
        let error = Scenario::parse(&format!("{SMALL}{second}"), "small").unwrap_err().to_string();
        assert!(error.contains("case two names other containers"), "{error}");
        let idle = SMALL.replace("udp 60mbit", "nothing").replace("C2 = {}", "C2 = { send = \"nothing\" }");
        assert!(Scenario::parse(&idle, "small").unwrap_err().to_string().contains("no one sends"));
        assert!(refused("name = \"one\"", "name = \"one\"\nping = \"C2\"").contains("sends nothing"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = find("wieghts-3").unwrap_err().to_string();
        assert!(error.contains("weights-3, weights-grow"), "{error}");
        assert!(matches!(find("nowhere.toml"), Err(ScenarioError::Read { .. })));
    }
}
