//! The results of the simulations: a table, figures with verdicts, JSON.

use std::fmt::Write as _;

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use weir_cache::{
    PolicyKind,
    simulate::{Bin, Outcome, Sharing},
};
use weir_netlab::stats;
use weir_units::Bytes;

use super::scenario::{Measures, Scenario, Times, ZoneCase};

use crate::report::{Figure, Head, Rule, table::new_table};

/// One simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Of which zone.
    pub(crate) zone: String,
    /// Who leaves.
    pub(crate) policy: PolicyKind,
    /// The owner of a cache.
    pub(crate) sharing: Sharing,
    /// The size of each cache.
    pub(crate) budget: Bytes,
    /// The same as a part of the working set, if it was given so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<f64>,
    /// Whether the nodes deployed in parallel, on one uplink.
    pub(crate) at_once: bool,
    /// The times of it.
    #[serde(default)]
    pub(crate) times: Times,
    /// The size of all that was deployed.
    pub(crate) working_set: Bytes,
    /// The results.
    pub(crate) outcome: Outcome,
}

impl Row {
    /// The second half of the run.
    pub(super) fn stable(&self) -> Bin {
        self.outcome.stable(self.outcome.bins.len() / 2)
    }
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The beginning of every report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Of the first trace of each zone.
    pub(crate) seed: u64,
    /// How it was run: the scenario.
    pub(crate) settings: Scenario,
    /// All of it.
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, seed: u64, rows: Vec<Row>) -> Report {
        let figures: Vec<Figure> =
            scenario.zones.iter().flat_map(|case| zone_figures(scenario, case, &rows)).collect();
        Report { head: Head::now(&scenario.name, figures), seed, settings: scenario.clone(), rows }
    }
}

/// How far hit ratios may be from the paper's, to either side: a trace that finds more images flatters sharing.
const LIKE_THE_PAPER: f64 = 0.1;

fn zone_figures(scenario: &Scenario, case: &ZoneCase, rows: &[Row]) -> Vec<Figure> {
    let own: Vec<&Row> = rows.iter().filter(|row| row.zone == case.name).collect();
    match scenario.measures {
        Measures::Hits => hit_figures(scenario, case, &own),
        Measures::Sites => site_figures(scenario, case, &own),
        Measures::Policies => policy_figures(scenario, case, &own),
    }
}

fn hit_figures(scenario: &Scenario, case: &ZoneCase, rows: &[&Row]) -> Vec<Figure> {
    let wanted = |bounds: &std::collections::BTreeMap<String, f64>, budget: Bytes| {
        bounds.iter().find(|(size, _)| size.parse() == Ok(budget)).map(|(_, want)| want * 100.0)
    };
    let judged = rows.iter().filter(|row| row.policy == scenario.policies[0]);
    let figures = |row: &&Row| {
        let value = row.outcome.image_hit_ratio() * 100.0;
        let name = format!("{}: images found in {}", case.name, row.budget);
        let [least, most] = [&case.at_least, &case.at_most].map(|bounds| wanted(bounds, row.budget));
        let judged = |name: &str, want, rule| Figure::judged(name.to_owned(), value, "%", want, rule);
        match (least, most) {
            (None, None) => vec![Figure::shown(name, value, "%")],
            (Some(least), None) => vec![judged(&name, least, Rule::AtLeast)],
            (None, Some(most)) => vec![judged(&name, most, Rule::AtMost)],
            (Some(least), Some(most)) => {
                let both = [(least, Rule::AtLeast, "at least"), (most, Rule::AtMost, "at most")];
                both.map(|(want, rule, words)| judged(&format!("{name}, {words}"), want, rule)).into()
            }
        }
    };
    judged.flat_map(figures).collect()
}

fn site_figures(scenario: &Scenario, case: &ZoneCase, rows: &[&Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let working_sets: Vec<f64> = rows.iter().map(|row| row.working_set.0 as f64 / 1e9).collect();
    let size = Figure::shown(
        format!("{}: working set", case.name),
        stats::mean(&working_sets).unwrap_or(f64::NAN),
        "GB",
    );
    figures.push(Figure { paper: case.working_set_gb, ..size });
    for &policy in &scenario.policies {
        let judged = policy == scenario.policies[0];
        for at_once in [true, false] {
            let mode = if at_once { "at once" } else { "in turn" };
            // The mean over all seeds.
            let mean = |times: Times, sharing: Sharing, of: &dyn Fn(&Row) -> f64| {
                let wanted = (policy, sharing, at_once, times);
                let rows = rows.iter().filter(|r| (r.policy, r.sharing, r.at_once, r.times) == wanted);
                stats::mean(&rows.map(|row| of(row)).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            let in_times = |times, of: &dyn Fn(&Row) -> f64| {
                (mean(times, Sharing::PerNode, of), mean(times, Sharing::Shared, of))
            };
            let both = |of: &dyn Fn(&Row) -> f64| in_times(Times::Paper, of);
            let (alone, shared) = both(&|row| row.stable().hit_ratio * 100.0);
            let name = |what: &str| format!("{}, {policy}, {mode}: {what}", case.name);
            for (what, value, paper) in [
                ("images found, shared", shared, case.hits),
                ("images found, per node", alone, case.hits_per_node),
            ] {
                let paper = paper.map(|part| part * 100.0);
                let found = match paper.filter(|_| judged && at_once) {
                    Some(want) => Figure::judged(name(what), value, "%", want, Rule::Within(LIKE_THE_PAPER)),
                    None => Figure::shown(name(what), value, "%"),
                };
                figures.push(Figure { paper, ..found });
            }
            let (alone, shared) = both(&|row| row.stable().mean_s);
            let shorter = (1.0 - shared / alone) * 100.0;
            let figure = match case.reduction.filter(|_| judged && at_once) {
                Some(want) => {
                    Figure::judged(name("deployments shorter by"), shorter, "%", want * 100.0, Rule::AtLeast)
                }
                None => Figure::shown(name("deployments shorter by"), shorter, "%"),
            };
            figures.push(Figure { paper: case.reduction.map(|part| part * 100.0), ..figure });
            let (alone, shared) = both(&|row| row.outcome.mean_s);
            let all = (1.0 - shared / alone) * 100.0;
            figures.push(Figure::shown(name("shorter by, from the first one on"), all, "%"));
            if scenario.measured.is_some() && judged {
                let (alone, shared) = in_times(Times::Measured, &|row| row.stable().mean_s);
                let shorter = (1.0 - shared / alone) * 100.0;
                figures.push(Figure::shown(name("deployments shorter by, weir's times"), shorter, "%"));
            }
        }
    }
    figures
}

/// Where a policy stands beside LRU with the same budget.
pub(super) fn over_lru(rows: &[Row], row: &Row) -> Option<f64> {
    let lru = rows.iter().find(|other| {
        other.policy == PolicyKind::Lru && (&other.zone, other.budget) == (&row.zone, row.budget)
    });
    lru.filter(|lru| lru.outcome.fetch_s > 0.0).map(|lru| row.outcome.fetch_s / lru.outcome.fetch_s)
}

fn policy_figures(scenario: &Scenario, case: &ZoneCase, rows: &[&Row]) -> Vec<Figure> {
    let all: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
    let mut figures = Vec::new();
    let mut worst: Option<f64> = None;
    for row in &all {
        let (Some(over), Some(part)) = (over_lru(&all, row), row.part) else { continue };
        let name = format!("{}: {} beside LRU at {} %", case.name, row.policy, part * 100.0);
        let judged = case.below_lru.filter(|_| row.policy == PolicyKind::Auto && part == 0.05);
        figures.extend(match judged {
            Some(below) => {
                let want = (1.0 - below) * 100.0;
                Some(Figure::judged(name, over * 100.0, "%", want, Rule::AtMost))
            }
            None if row.policy != PolicyKind::Lru => Some(Figure::shown(name, over * 100.0, "%")),
            None => None,
        });
        if row.policy == PolicyKind::Auto {
            worst = Some(worst.map_or(over, |worst| worst.max(over)));
        }
    }
    if let (Some(worst), Some(most)) = (worst, scenario.most_over_lru) {
        let name = format!("{}: auto beside LRU at its worst", case.name);
        figures.push(Figure::judged(name, worst * 100.0, "%", (1.0 + most) * 100.0, Rule::AtMost));
    }
    figures
}

/// A line a simulation.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\nsimulated; traces made from seed {}, at most {} deployments each\n",
        report.head.scenario, settings.title, settings.source, report.seed, settings.deployments
    );
    let mut table = new_table();
    let header = [
        "zone",
        "GB",
        "policy",
        "cache",
        "budget",
        "images",
        "blobs",
        "bytes",
        "fetch",
        "deployment",
        "std.dev",
    ];
    table.set_header(header);
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    for row in &report.rows {
        let outcome = &row.outcome;
        let fetch = match over_lru(&report.rows, row) {
            Some(over) => format!("{:.0} %", over * 100.0),
            None => format!("{:.2} s", outcome.fetch_s / outcome.deployments.max(1) as f64),
        };
        let policy = match outcome.chosen {
            Some(chosen) => format!("{} ({chosen})", row.policy),
            None => row.policy.to_string(),
        };
        let sharing = match (row.sharing, row.at_once) {
            (sharing, true) => format!("{}, at once", sharing.name()),
            (sharing, false) => sharing.name().to_owned(),
        };
        let sharing = match row.times {
            Times::Paper => sharing,
            Times::Measured => format!("{sharing}, weir's times"),
        };
        table.add_row([
            row.zone.clone(),
            format!("{:.0}", row.working_set.0 as f64 / 1e9),
            policy,
            sharing,
            row.part.map_or(row.budget.to_string(), |part| format!("{} %", part * 100.0)),
            percent(outcome.image_hit_ratio()),
            percent(outcome.blob_hit_ratio()),
            percent(outcome.byte_hit_ratio()),
            fetch,
            format!("{:.2} s", outcome.mean_s),
            format!("{:.2} s", outcome.std_s),
        ]);
    }
    for index in [1, 4, 5, 6, 7, 8, 9, 10] {
        table.column_mut(index).expect("eleven columns").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(
        text,
        "{table}\nGB: working set; images, blobs, bytes: found; fetch: time of what was missing, a deployment, or beside LRU"
    );
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::measure::run;
    use super::*;
    use crate::report::Shown as _;

    pub(in crate::image_cache) fn report(text: &str, deployments: usize, zones: usize) -> Report {
        let mut scenario: Scenario = toml::from_str(text).unwrap();
        scenario.deployments = deployments;
        scenario.seeds = scenario.seeds.min(2);
        scenario.zones.truncate(zones);
        let mut steps = 0;
        let report = run(&scenario, 1, &mut |_| steps += 1).unwrap();
        assert_eq!(steps, scenario.steps());
        assert_eq!(report.rows.len(), steps);
        report
    }

    pub(in crate::image_cache) const HITS: &str = include_str!("../../scenarios/pop-hits.toml");
    pub(in crate::image_cache) const SITES: &str = include_str!("../../scenarios/pop-macro.toml");
    pub(in crate::image_cache) const POLICIES: &str = include_str!("../../scenarios/pop-policies.toml");

    fn figure<'a>(report: &'a Report, name: &str) -> &'a Figure {
        let found = report.head.figures.iter().find(|figure| figure.name == name);
        found.unwrap_or_else(|| panic!("{name} among {:#?}", report.head.figures))
    }

    #[test]
    fn more_room_finds_more_images_and_what_is_wanted_of_them_is_judged() {
        let report = report(HITS, 3000, 1);
        let found: Vec<f64> = report.rows.iter().map(|row| row.outcome.image_hit_ratio()).collect();
        assert!(found.is_sorted() && found[0] < found[9] - 0.2, "{found:?}");
        let judged = figure(&report, "fra: images found in 32GiB, at least");
        assert_eq!((judged.want, judged.rule, judged.pass), (Some(31.0), Some(Rule::AtLeast), Some(true)));
        let judged = figure(&report, "fra: images found in 32GiB, at most");
        assert_eq!((judged.want, judged.rule), (Some(89.0), Some(Rule::AtMost)));
        assert_eq!(judged.pass, Some(judged.value <= 89.0));
        assert_eq!(figure(&report, "fra: images found in 4GiB").pass, None);
    }

    #[test]
    fn sharing_finds_more_in_less_time_beside_the_papers_figures() {
        let report = report(SITES, 1500, 1);
        let shared = figure(&report, "fra, image-lru, at once: images found, shared");
        assert_eq!((shared.want, shared.paper), (Some(82.0), Some(82.0)));
        let alone = figure(&report, "fra, image-lru, at once: images found, per node");
        assert_eq!((alone.want, alone.paper), (Some(52.0), Some(52.0)));
        assert_eq!((shared.rule, alone.rule), (Some(Rule::Within(0.1)), Some(Rule::Within(0.1))));
        assert!(shared.value > alone.value + 20.0, "{} {}", shared.value, alone.value);
        let shorter =
            |mode| figure(&report, &format!("fra, image-lru, {mode}: deployments shorter by")).value;
        assert!(shorter("at once") > shorter("in turn") && shorter("in turn") > 30.0);
        let measured = figure(&report, "fra, image-lru, at once: deployments shorter by, weir's times");
        assert!(measured.pass.is_none() && measured.value < shorter("at once"), "{measured:?}");
        let text = table(&report);
        for words in ["shared, at once", "per-node", "shared, at once, weir's times"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn policies_stand_beside_lru_and_auto_is_judged() {
        let report = report(POLICIES, 4000, 1);
        let five = figure(&report, "fra: auto beside LRU at 5 %");
        assert_eq!((five.want, five.rule), (Some(85.0), Some(Rule::AtMost)));
        assert!(five.value < 100.0);
        assert_eq!(figure(&report, "fra: auto beside LRU at its worst").want, Some(102.0));
        assert!(report.head.figures.iter().all(|figure| !figure.name.contains(": lru beside")));
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = report(SITES, 200, 1);
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let json = std::fs::read_to_string(dir.path().join("result.json")).unwrap();
        assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
        assert!(std::fs::read_to_string(dir.path().join("table.txt")).unwrap().contains("falls short"));
    }
}
