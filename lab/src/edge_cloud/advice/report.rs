//! The findings of a run, their cost and their benefit: text, picture, JSON.

use std::fmt::Write as _;

use anyhow::Result;
use plotters::style::Color;
use serde::{Deserialize, Serialize};
use weir_cc::size;
use weir_netlab::stats;

use super::scenario::Scenario;

use crate::{
    edge_cloud::{guest::Backend, plot},
    report::{
        Figure, Head, Rule, Shown,
        sheet::{self, Sheet},
        table::new_table,
    },
};

/// The largest ratio of a size's 99th percentile during the trial to that before it.
const MAX_SLOWDOWN: f64 = 1.1;
/// The smallest number of flows whose 99th percentile is judged; a hundred flows are beyond it.
const MIN_JUDGED_FLOWS: u64 = 10_000;

/// An ended flow: its bytes, and its duration in seconds.
pub(super) type FlowEnd = (u64, f64);

/// The phase in which a flow began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// With the system's algorithm alone.
    Before,
    /// In the trial.
    Learning,
    /// With the resulting rule.
    After,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Before => "before",
            Phase::Learning => "learning",
            Phase::After => "after",
        }
    }
}

/// The times of the flows of a size, seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The phase.
    pub(crate) phase: Phase,
    /// The size in words; `None` for all sizes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<String>,
    /// The number of flows.
    pub(crate) flows: u64,
    /// The mean time.
    pub(crate) mean: f64,
    /// The percentiles of the times, from 0 to 100.
    pub(crate) percentiles: Vec<f64>,
}

impl Times {
    /// The times of each size, and of all.
    pub(super) fn all(phase: Phase, ended: &[FlowEnd]) -> Vec<Times> {
        let sizes = (0..size::COUNT).map(Some).chain([None]);
        let of = |wanted: Option<usize>| -> Option<Times> {
            let is_its = |bytes: u64| wanted.is_none_or(|size| size::of(bytes) == size);
            let mut times: Vec<f64> =
                ended.iter().filter(|(b, _)| is_its(*b)).map(|(_, took)| *took).collect();
            times.sort_by(f64::total_cmp);
            Some(Times {
                phase,
                size: wanted.map(size::label),
                flows: times.len() as u64,
                mean: stats::mean(&times)?,
                percentiles: (0..=100).filter_map(|p| stats::percentile(&times, f64::from(p))).collect(),
            })
        };
        sizes.filter_map(of).collect()
    }

    fn p99(&self) -> f64 {
        self.percentiles.get(99).copied().unwrap_or(f64::NAN)
    }
}

/// An event of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialEvent {
    /// The number of flows that had begun before.
    pub(crate) flows: u64,
    /// The seconds since the start.
    pub(crate) seconds: f64,
    /// The event in words.
    pub(crate) what: String,
}

/// The results of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkReport {
    /// The link's name.
    pub(crate) name: String,
    /// The stage of the trial: `baseline`, `trying`, `raising`, `watching` or `settled`.
    pub(crate) stage: String,
    /// The advice, in words.
    pub(crate) verdict: String,
    /// The flows' algorithm without the advice.
    pub(crate) before: String,
    /// The flows' algorithm in the end.
    pub(crate) after: String,
    /// The length of the trial, seconds.
    pub(crate) seconds: f64,
    /// The events of the trial.
    pub(crate) happened: Vec<TrialEvent>,
    /// The times of the flows.
    pub(crate) times: Vec<Times>,
}

impl LinkReport {
    fn of(&self, phase: Phase, size: Option<&str>) -> Option<&Times> {
        self.times.iter().find(|times| times.phase == phase && times.size.as_deref() == size)
    }

    /// Draws the distribution of all flows' times in each phase, up to the 99th percentile.
    fn draw(&self, sheet: &Sheet<'_>, left: i32) -> sheet::Drawn {
        let all = || self.times.iter().filter(|times| times.size.is_none());
        let longest = all().map(Times::p99).fold(0.01, f64::max);
        plot::axes(sheet, left, longest, &format!("{}: flow completion time, s", self.name))?;
        for times in all() {
            let parts = times.percentiles.iter().take(100).zip(0..);
            let at = |(time, percent): (&f64, i32)| {
                (plot::x(left, longest, time.min(longest)), plot::y(f64::from(percent) / 100.0))
            };
            sheet.line(parts.map(at).collect(), plot::colour(times.phase as usize).stroke_width(2))?;
        }
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for times in &self.times {
            let Some(before) = self.of(Phase::Before, times.size.as_deref()) else { continue };
            let (name, size) = (&self.name, times.size.as_deref().unwrap_or("all"));
            match (times.phase, &times.size) {
                (Phase::Learning, Some(_)) => {
                    let what = format!("{name}: p99 while learning over that before, {size}");
                    let ratio = times.p99() / before.p99();
                    let judged = Figure::judged(what, ratio, "ratio", MAX_SLOWDOWN, Rule::AtMost);
                    let is_known = before.flows.min(times.flows) >= MIN_JUDGED_FLOWS;
                    figures.push(Figure { pass: judged.pass.filter(|_| is_known), ..judged });
                }
                (Phase::After, _) => {
                    for (what, ratio) in
                        [("mean", times.mean / before.mean), ("p99", times.p99() / before.p99())]
                    {
                        let what = format!("{name}: {what} with the rule over that before, {size}");
                        figures.push(Figure::shown(what, ratio, "ratio"));
                    }
                }
                _ => {}
            }
        }
        figures
    }
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The common part of all reports. It passes if the trial lengthened no size's 99th percentile by more
    /// than allowed. Sizes with too few flows are not judged.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The kernel of the run.
    pub(crate) backend: String,
    /// The seed of flows and lots.
    pub(crate) seed: u64,
    /// The settings of the run.
    pub(crate) settings: Scenario,
    /// The results of the links.
    pub(crate) links: Vec<LinkReport>,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, backend: Backend, seed: u64, links: Vec<LinkReport>) -> Report {
        let figures = links.iter().flat_map(LinkReport::figures).collect();
        let (head, settings) = (Head::now(&scenario.name, figures), scenario.clone());
        Report { head, backend: backend.to_string(), seed, settings, links }
    }
}

impl Shown for Report {
    fn head(&self) -> &Head {
        &self.head
    }

    fn table(&self) -> String {
        let Scenario { title, source, .. } = &self.settings;
        let mut text = format!(
            "{}: {title}\n{source}; {}, kernel {}; seed {}\n",
            self.head.scenario, self.backend, self.head.kernel, self.seed
        );
        for link in &self.links {
            let _ = writeln!(text, "{}: {}", link.name, link.verdict);
            for TrialEvent { flows, seconds, what } in &link.happened {
                let _ = writeln!(text, "  after {flows} flows, {seconds:.0} s: {what}");
            }
        }
        let mut table = new_table();
        table.set_header([
            "link",
            "flows of",
            "when",
            "by",
            "flows",
            "mean, s",
            "median, s",
            "p99, s",
            "over before",
        ]);
        for link in &self.links {
            for times in &link.times {
                let by = match times.phase {
                    Phase::Before => &link.before,
                    Phase::Learning => "by lot",
                    Phase::After => &link.after,
                };
                let before = self.links.iter().find(|one| one.name == link.name);
                let before = before.and_then(|link| link.of(Phase::Before, times.size.as_deref()));
                table.add_row([
                    link.name.clone(),
                    times.size.clone().unwrap_or_else(|| "all sizes".to_owned()),
                    times.phase.name().to_owned(),
                    by.to_owned(),
                    times.flows.to_string(),
                    format!("{:.3}", times.mean),
                    format!("{:.3}", times.percentiles.get(50).copied().unwrap_or(f64::NAN)),
                    format!("{:.3}", times.p99()),
                    before.map_or_else(String::new, |before| format!("{:.2}", times.p99() / before.p99())),
                ]);
            }
        }
        text + &table.to_string()
    }

    fn plot(&self) -> Result<String> {
        let panels = i32::try_from(self.links.len())?;
        let size = (plot::sheet_width(panels), plot::TOP + plot::HEIGHT + 70 + 3 * plot::LINE);
        sheet::svg(&self.head.scenario, size, |sheet| {
            let under = format!("{}; {}, kernel {}", self.settings.source, self.backend, self.head.kernel);
            sheet.head(plot::LEFT, &self.settings.title, &under)?;
            for (nth, link) in (0..).zip(&self.links) {
                link.draw(sheet, plot::left_of(nth))?;
            }
            for (nth, phase) in [Phase::Before, Phase::Learning, Phase::After].into_iter().enumerate() {
                plot::legend(sheet, nth, phase.name())?;
            }
            Ok(())
        })
    }

    fn unjudged(&self) -> &'static str {
        "too few flows to judge what learning costs (--paper has more)"
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn scenario() -> Scenario {
        crate::experiment::tests::settings("ecc-advice")
    }

    /// A report of `flows` flows of 50 kB. Of 50 flows, one takes `longer` seconds in the trial, instead of 1
    /// s before.
    fn report(longer: f64, flows: u64) -> Report {
        let ended = |late: f64| -> Vec<FlowEnd> {
            (0..flows).map(|nth| (50_000, if nth % 50 == 0 { late } else { 0.2 })).collect()
        };
        let times = [(Phase::Before, 1.0), (Phase::Learning, longer), (Phase::After, 0.5)];
        let times = times.iter().flat_map(|(phase, late)| Times::all(*phase, &ended(*late))).collect();
        let link = LinkReport {
            name: "lossy".to_owned(),
            stage: "settled".to_owned(),
            verdict: "changed to bbr".to_owned(),
            before: "cubic".to_owned(),
            after: "bbr".to_owned(),
            seconds: 100.0,
            happened: vec![TrialEvent { flows: 4000, seconds: 50.0, what: "trying".to_owned() }],
            times,
        };
        Report::new(&scenario(), Backend::Uml, 1, vec![link])
    }

    #[test]
    fn cost_of_learning_is_judged_by_the_99th_percentile_of_a_size() {
        assert_eq!(report(1.05, 2 * MIN_JUDGED_FLOWS).head.pass, Some(true));
        let slow = report(1.2, 2 * MIN_JUDGED_FLOWS);
        assert_eq!(slow.head.pass, Some(false));
        assert!(
            slow.verdict().contains("10 kB to 100 kB: 1.200 ratio, wanted at most 1.1"),
            "{}",
            slow.verdict()
        );
        let few = report(1.2, MIN_JUDGED_FLOWS / 2);
        assert_eq!((few.head.pass, few.verdict().contains("too few flows")), (None, true));
    }

    #[test]
    fn a_report_says_what_came_of_each_link_and_draws_all_phases() {
        let report = report(1.0, 1000);
        let text = report.table();
        for part in ["lossy: changed to bbr", "after 4000 flows, 50 s: trying", "all sizes", "0.50"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let figures = &report.head.figures;
        let gain = figures.iter().find(|figure| figure.name.contains("p99 with the rule")).unwrap();
        assert!((gain.value - 0.5).abs() < 1e-9, "{gain:?}");
        let drawn = report.plot().unwrap();
        assert!(drawn.contains("learning") && drawn.contains("lossy"), "{drawn}");
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again, report);
    }
}
