//! The report on the shares of containers.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_netlab::topology::{Family, Mode};
use weir_units::BitRate;

use super::{
    figure::{Figure, Rule},
    head::Head,
};
use crate::{
    control::kind::{ControlKind, Missing, TcForm},
    scenario::{Scenario, Setting},
};

/// One run of one scenario. As JSON: `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The common part of all reports.
    #[serde(flatten)]
    pub head: Head,
    /// The scenario's title.
    pub(crate) title: String,
    /// The source of the experiment, such as a paper's figure.
    pub(crate) source: String,
    /// Seed of the confidence intervals.
    pub(crate) seed: u64,
    /// The controls of the run.
    pub(crate) controls: Vec<ControlKind>,
    /// The settings of the run.
    pub(crate) settings: Settings,
    /// The results of the cases.
    pub cases: Vec<CaseReport>,
    /// Requested controls that this kernel cannot run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<Missing>,
    /// The tc scripts of control `tc`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scripts: String,
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The rate that the engine divides, bit/s.
    pub(crate) capacity: BitRate,
    /// The rate of the line behind the uplink, bit/s.
    pub(crate) wire: BitRate,
    /// The way to the uplink.
    pub(crate) mode: Mode,
    /// IP version.
    pub(crate) family: Family,
    /// Segmentation offload in the containers.
    pub(crate) tso: bool,
    /// Whether bridged packets pass iptables.
    pub(crate) br_netfilter: Option<bool>,
    /// Length of a case in seconds; its first 2 s are not measured.
    pub(crate) seconds: u64,
    /// Largest error of a share, as a fraction.
    pub(crate) tolerance: f64,
    /// Largest fraction of datagrams lost; `None` is not judged.
    #[serde(default)]
    pub(crate) max_loss: Option<f64>,
    /// Largest rise of a mean round trip, ms.
    #[serde(default)]
    pub(crate) max_ping_rise_ms: f64,
    /// More lines of the agent's `[link]` section.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) link: String,
    /// The form of the tc script.
    pub(crate) tc: TcForm,
}

/// One case under all controls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// The case's name.
    pub(crate) name: String,
    /// One report a container, the host last.
    pub containers: Vec<ContainerReport>,
    /// Payload that arrived, as a fraction of the capacity.
    pub link_use: BTreeMap<ControlKind, f64>,
    /// The smallest link use that weir must reach.
    pub(crate) want_link_use: f64,
    /// Jain's index of measured over expected.
    pub(crate) jain: BTreeMap<ControlKind, f64>,
    /// Round trips of the container that pings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping: Option<PingReport>,
}

/// Round trips of an otherwise idle container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PingReport {
    /// The container's name.
    pub(crate) container: String,
    /// The round trips under each control.
    pub measured: BTreeMap<ControlKind, PingMeasurement>,
}

/// Round trips, ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PingMeasurement {
    /// Mean while no one else sends.
    pub(crate) idle_mean: f64,
    /// Mean while the others send.
    pub mean: f64,
    /// Median while the others send.
    pub(crate) median: f64,
    /// 99th percentile while the others send.
    pub(crate) p99: f64,
    /// Fraction of unanswered probes.
    pub(crate) loss: f64,
}

/// One container in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerReport {
    /// The container's name.
    pub(crate) name: String,
    /// Policy, load, and the paper's figure.
    #[serde(flatten)]
    pub(crate) setting: Setting,
    /// The rate that it may send at, layer 2, bit/s.
    pub(crate) allocation: BitRate,
    /// The part of the allocation that arrives as payload, Mbit/s.
    pub(crate) expected: f64,
    /// The result of each control; empty for a container that sent nothing.
    pub measured: BTreeMap<ControlKind, Measurement>,
}

/// The steady state of one flow; rates are payload in Mbit/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The payload that arrived.
    pub goodput: f64,
    /// 95 % confidence interval of its mean, by block bootstrap.
    pub(crate) ci95: (f64, f64),
    /// Distance from the expected goodput, as a fraction of it.
    pub(crate) error: f64,
    /// The payload that the sender sent.
    pub(crate) sent: f64,
    /// Fraction of datagrams lost; UDP only.
    pub loss: Option<f64>,
    /// Retransmitted segments; TCP only.
    pub(crate) retransmits: Option<u64>,
}

impl Settings {
    pub(crate) fn of(scenario: &Scenario, link: &str) -> Settings {
        Settings {
            max_loss: scenario.max_loss,
            max_ping_rise_ms: scenario.max_ping_rise_ms,
            link: link.to_owned(),
            capacity: scenario.capacity,
            wire: scenario.wire,
            mode: scenario.mode,
            family: scenario.family,
            tso: scenario.tso,
            br_netfilter: scenario.br_netfilter,
            seconds: scenario.seconds,
            tolerance: scenario.tolerance,
            tc: scenario.tc,
        }
    }
}

impl Report {
    pub(crate) fn new(
        scenario: &Scenario,
        settings: Settings,
        seed: u64,
        cases: Vec<CaseReport>,
        scripts: String,
        missing: Vec<Missing>,
    ) -> Report {
        let ran = |kind: &ControlKind| missing.iter().all(|lacks| lacks.control != *kind);
        let controls: Vec<ControlKind> = scenario.controls.iter().copied().filter(ran).collect();
        let figures = figures(&cases, &controls, &settings);
        Report {
            head: Head::now(&scenario.name, figures),
            title: scenario.title.clone(),
            source: scenario.source.clone(),
            seed,
            controls,
            missing,
            settings,
            cases,
            scripts,
        }
    }

    /// Reads a `result.json`.
    ///
    /// # Errors
    /// If it cannot be read, or is no result.
    pub fn read(path: &Path) -> Result<Report> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read result {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a result of weir lab", path.display()))
    }
}

/// weir's figures with their rules, then the other controls' errors.
pub(super) fn figures(cases: &[CaseReport], controls: &[ControlKind], settings: &Settings) -> Vec<Figure> {
    let mut figures = Vec::new();
    for &kind in controls.iter().filter(|kind| kind.is_weir()) {
        figures.extend(cases.iter().flat_map(|case| case.figures(kind, settings)));
    }
    for &kind in controls {
        let worst = cases.iter().filter_map(|case| case.largest_error(kind)).reduce(f64::max);
        let Some(worst) = worst else { continue };
        let name = format!("largest error of a share, {}", kind.name());
        figures.push(if kind.is_weir() {
            Figure::judged(name, worst * 100.0, "%", settings.tolerance * 100.0, Rule::AtMost)
        } else {
            Figure::shown(name, worst * 100.0, "%")
        });
    }
    figures
}

impl CaseReport {
    /// The largest error of a share under a control; `None` if the control was not run.
    #[must_use]
    pub fn largest_error(&self, kind: ControlKind) -> Option<f64> {
        self.containers.iter().filter_map(|c| Some(c.measured.get(&kind)?.error)).reduce(f64::max)
    }

    /// weir's figures for this case, with the rules. The name of an explicitly chosen engine is part of the
    /// figures' names.
    fn figures(&self, kind: ControlKind, settings: &Settings) -> Vec<Figure> {
        let mut figures = Vec::new();
        let engine = kind.engine().map_or(String::new(), |_| format!(", {}", kind.name()));
        let name = |what: &str| format!("{}: {what}{engine}", self.name);
        for container in &self.containers {
            let Some(measured) = container.measured.get(&kind) else { continue };
            let rule = Rule::Within(settings.tolerance);
            let share =
                Figure::judged(name(&container.name), measured.goodput, "Mbit/s", container.expected, rule);
            figures.push(Figure { paper: container.setting.paper, ..share });
            if let Some((loss, most)) = measured.loss.zip(settings.max_loss) {
                let name = name(&format!("{} datagrams lost", container.name));
                figures.push(Figure::judged(name, loss * 100.0, "%", most * 100.0, Rule::AtMost));
            }
        }
        if let Some(&used) = self.link_use.get(&kind) {
            let want = self.want_link_use;
            figures.push(Figure::judged(name("link use"), used, "payload/capacity", want, Rule::AtLeast));
        }
        if let Some((ping, rtt)) = self.ping.as_ref().and_then(|p| Some((p, p.measured.get(&kind)?))) {
            let rise = rtt.mean - rtt.idle_mean;
            let most = settings.max_ping_rise_ms;
            let rise_name = name(&format!("{} ping's rise", ping.container));
            figures.push(Figure::judged(rise_name, rise, "ms", most, Rule::AtMost));
            figures.push(Figure::shown(name(&format!("{} ping, p99", ping.container)), rtt.p99, "ms"));
        }
        figures
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{oracle, scenario};

    /// A report of `name`, as if each control had measured the expected value times `factor`.
    pub(crate) fn sample(name: &str, factor: f64) -> Report {
        let scenario = scenario::find(name).unwrap();
        let cases = scenario
            .cases
            .iter()
            .map(|case| {
                let shares = oracle::shares(case, scenario.capacity, scenario.family);
                let containers: Vec<ContainerReport> = case
                    .settings()
                    .zip(shares)
                    .map(|((name, setting), share)| {
                        let goodput = share.goodput * factor;
                        let measurement = Measurement {
                            goodput,
                            ci95: (goodput * 0.99, goodput * 1.01),
                            error: (factor - 1.0).abs(),
                            sent: goodput,
                            loss: None,
                            retransmits: Some(3),
                        };
                        let sends = share.goodput > 0.0;
                        ContainerReport {
                            name: name.to_owned(),
                            setting: *setting,
                            allocation: share.allocation,
                            expected: share.goodput,
                            measured: scenario
                                .controls
                                .iter()
                                .filter(|_| sends)
                                .map(|kind| (*kind, measurement))
                                .collect(),
                        }
                    })
                    .collect();
                let total: f64 = containers.iter().map(|c| c.expected * factor).sum();
                let link_use = total / scenario.capacity.as_mbit();
                CaseReport {
                    name: case.name.clone(),
                    link_use: scenario.controls.iter().map(|kind| (*kind, link_use)).collect(),
                    want_link_use: scenario.link_use,
                    jain: BTreeMap::new(),
                    ping: None,
                    containers,
                }
            })
            .collect();
        Report::new(&scenario, Settings::of(&scenario, ""), 1, cases, String::new(), Vec::new())
    }

    #[test]
    fn the_json_has_the_fields_that_were_promised() {
        let json = serde_json::to_value(sample("weights-3", 1.0)).unwrap();
        assert_eq!(json["scenario"], "weights-3");
        assert_eq!(json["pass"], true);
        let third = &json["figures"][6];
        assert_eq!(third["name"], "1:2:3: C3");
        assert_eq!(third["unit"], "Mbit/s");
        assert_eq!(third["paper"], 43.0);
        assert!((third["want"].as_f64().unwrap() - 47.5 * 1448.0 / 1514.0).abs() < 1e-5, "{third}");
        assert_eq!(third["value"], third["want"]);
        for field in ["kernel", "machine", "seed", "controls", "cases"] {
            assert!(!json[field].is_null(), "{field}");
        }
        assert_eq!(json["cases"][1]["containers"][2]["measured"]["weir"]["error"], 0.0);
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let report = sample("minimum", 0.99);
        let json = serde_json::to_string(&report).unwrap();
        assert!(serde_json::from_str::<Report>(&json).unwrap() == report, "{json}");
    }

    #[test]
    fn one_share_too_far_off_fails_the_scenario_and_others_controls_do_not() {
        assert_eq!(sample("weights-3", 1.029).head.pass, Some(true));
        assert_eq!(sample("weights-3", 1.031).head.pass, Some(false));
        let mut report = sample("weights-3", 1.0);
        for case in &mut report.cases {
            for container in &mut case.containers {
                container.measured.get_mut(&ControlKind::Tc).unwrap().error = 0.5;
            }
        }
        let figures = figures(&report.cases, &report.controls, &report.settings);
        assert!(figures.iter().all(|f| f.pass != Some(false)));
        assert!(figures.iter().any(|f| f.name == "largest error of a share, tc" && f.value == 50.0));
    }

    #[test]
    fn an_empty_link_fails_even_if_the_ratios_are_right() {
        let report = sample("weights-3", 0.971);
        assert_eq!(report.head.pass, Some(false), "0.956 * 0.971 = 0.928 of the capacity");
        let failed: Vec<&str> =
            report.head.figures.iter().filter(|f| f.pass == Some(false)).map(|f| f.name.as_str()).collect();
        assert_eq!(failed, ["1:1:1: link use", "1:2:3: link use", "1:3:5: link use"]);
    }

    #[test]
    fn without_weir_there_is_no_verdict() {
        let mut scenario = scenario::find("weights-3").unwrap();
        scenario.controls = vec![ControlKind::None];
        let report =
            Report::new(&scenario, Settings::of(&scenario, ""), 1, Vec::new(), String::new(), Vec::new());
        assert_eq!(report.head.pass, None);
    }
}
