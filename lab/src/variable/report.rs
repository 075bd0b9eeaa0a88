//! The results: a table of medians and spreads, figures with verdicts, JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use weir_linksim::{Moment, Scheme};
use weir_netlab::stats;

use super::scenario::Scenario;
use crate::report::{Figure, Head, Rule, table::new_table};

/// One simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Seed of the trace.
    pub(crate) seed: u64,
    /// The scheme that set the capacity.
    pub(crate) scheme: Scheme,
    /// The part of the link's bytes that was used.
    pub(crate) used: f64,
    /// The wait in the modem's queue that 50 of 100 packets do not exceed.
    pub(crate) p50_ms: f64,
    /// The same, of 95 of 100 packets.
    pub(crate) p95_ms: f64,
    /// The same, of 99 of 100 packets.
    pub(crate) p99_ms: f64,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The first fields of each report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Seed of the first trace.
    pub(crate) seed: u64,
    /// The scenario.
    pub(crate) settings: Scenario,
    /// All simulations.
    pub(crate) rows: Vec<Row>,
    /// The first trace over time, by scheme.
    pub(crate) first: BTreeMap<Scheme, Vec<Moment>>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        seed: u64,
        rows: Vec<Row>,
        first: BTreeMap<Scheme, Vec<Moment>>,
    ) -> Report {
        let head = Head::now(&scenario.name, figures(scenario, &rows));
        Report { head, seed, settings: scenario.clone(), rows, first }
    }
}

/// Median, lowest and highest of a figure of a scheme.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let fold = |start, pick: fn(f64, f64) -> f64| values.iter().copied().fold(start, pick);
        Spread {
            median: stats::median(values).unwrap_or(f64::NAN),
            lowest: fold(f64::INFINITY, f64::min),
            highest: fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn shown(self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.lowest, self.highest)
    }
}

/// The values of one scheme, in the order of the seeds.
fn values(rows: &[Row], scheme: Scheme, of: fn(&Row) -> f64) -> Vec<f64> {
    rows.iter().filter(|row| row.scheme == scheme).map(of).collect()
}

/// Judges the median of the seeds, and the worst one.
fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let used = |row: &Row| row.used * 100.0;
    let wait = |row: &Row| row.p95_ms;
    let mut figures = Vec::new();
    let mut judge = |what: &str, spread: Spread, unit: &str, want: f64, rule: Rule| {
        let (which, worst) = match rule {
            Rule::AtLeast => ("lowest", spread.lowest),
            _ => ("highest", spread.highest),
        };
        for (of, value) in [("median", spread.median), (which, worst)] {
            let name = format!("weir: {what}, {of} of {} seeds", scenario.seeds);
            figures.push(Figure::judged(name, value, unit, want, rule));
        }
    };
    let weir = Spread::of(&values(rows, Scheme::Weir, used));
    judge("used of the link", weir, "%", scenario.least_used * 100.0, Rule::AtLeast);
    let waits = values(rows, Scheme::Weir, wait);
    if let Some(most) = scenario.most_ms {
        judge("wait of 95 of 100 packets", Spread::of(&waits), "ms", most, Rule::AtMost);
    }
    if let Some(most) = scenario.most_over_oracle {
        // The oracle's wait is at least the simulation's step of 1 ms.
        let oracle = values(rows, Scheme::Oracle, wait);
        let ratios: Vec<f64> =
            waits.iter().zip(&oracle).map(|(wait, oracle)| wait / oracle.max(1.0)).collect();
        judge("that wait beside the oracle's", Spread::of(&ratios), "times", most, Rule::AtMost);
    }
    for scheme in Scheme::ALL {
        let shown = |what: &str, of: fn(&Row) -> f64, unit| {
            let spread = Spread::of(&values(rows, scheme, of));
            Figure::shown(format!("{}: {what}, median", scheme.name()), spread.median, unit)
        };
        if scheme != Scheme::Weir {
            figures.push(shown("used of the link", used, "%"));
        }
        if scheme != Scheme::Weir || scenario.most_ms.is_none() {
            figures.push(shown("wait of 95 of 100 packets", wait, "ms"));
        }
    }
    figures
}

/// A line for each scheme: medians, with the lowest and the highest of all seeds.
pub(super) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\nsimulated; {} traces of 120 s from seed {}, {} CUBIC flows, weir between {} and {}\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.seeds,
        report.seed,
        settings.flows,
        settings.min,
        settings.max
    );
    let mut table = new_table();
    table.set_header(["", "used, %", "wait p50, ms", "p95, ms", "p99, ms"]);
    for scheme in Scheme::ALL {
        let spread = |of, digits| Spread::of(&values(&report.rows, scheme, of)).shown(digits);
        table.add_row([
            scheme.name().to_owned(),
            spread(|row| row.used * 100.0, 1),
            spread(|row| row.p50_ms, 0),
            spread(|row| row.p95_ms, 0),
            spread(|row| row.p99_ms, 0),
        ]);
    }
    for index in 1..5 {
        table.column_mut(index).expect("five columns").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(
        text,
        "{table}\nmedian of the seeds (lowest to highest); used: of the link's bytes; wait: of packets in the modem's queue"
    );
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::measure::run, *};
    use crate::{experiment::tests::settings, report::Shown as _};

    /// The report of the first seeds of a built-in scenario.
    pub(in crate::variable) fn report(name: &str, seeds: u64) -> Report {
        let scenario = Scenario { seeds, ..settings(name) };
        let mut steps = 0;
        let report = run(&scenario, 1, &mut |_| steps += 1).unwrap();
        assert_eq!((steps, report.rows.len()), (scenario.steps(), scenario.steps()));
        report
    }

    fn figure<'a>(report: &'a Report, name: &str) -> &'a Figure {
        let found = report.head.figures.iter().find(|figure| figure.name == name);
        found.unwrap_or_else(|| panic!("{name} among {:#?}", report.head.figures))
    }

    #[test]
    fn weir_uses_links_of_satellites_with_short_queues_beside_the_peers() {
        let report = report("variable-starlink", 2);
        assert_eq!(report.head.pass, Some(true), "{}", report.verdict());
        let median =
            |scheme: Scheme, of: fn(&Row) -> f64| Spread::of(&values(&report.rows, scheme, of)).median;
        let used = |scheme| median(scheme, |row| row.used);
        let wait = |scheme| median(scheme, |row| row.p95_ms);
        for peer in [Scheme::CakeAutorate, Scheme::Mean, Scheme::None] {
            assert!(wait(peer) > 5.0 * wait(Scheme::Weir), "{}", report.table());
        }
        assert!(used(Scheme::Minimum) < 0.7 && used(Scheme::Weir) > used(Scheme::CakeAutorate));
        for words in ["cake-autorate's rules", "no control", "median of the seeds"] {
            assert!(report.table().contains(words), "{words}: {}", report.table());
        }
    }

    #[test]
    fn figure_that_is_missed_is_named_with_its_value() {
        let report = report("variable-lte", 1);
        let over = figure(&report, "weir: that wait beside the oracle's, median of 1 seeds");
        assert_eq!(
            (over.want, over.rule, over.pass),
            (Some(1.5), Some(Rule::AtMost), Some(over.value <= 1.5))
        );
        let own = values(&report.rows, Scheme::Weir, |row| row.p95_ms)[0];
        let oracle = values(&report.rows, Scheme::Oracle, |row| row.p95_ms)[0];
        assert!((over.value - own / oracle).abs() < 1e-9);
        assert!(report.verdict().contains("that wait beside the oracle's"), "{}", report.verdict());
    }

    #[test]
    fn spread_is_of_all_seeds_and_the_worst_one_is_judged() {
        let scenario: Scenario = settings("variable-dsl");
        let row =
            |seed, used, p95_ms| Row { seed, scheme: Scheme::Weir, used, p50_ms: 1.0, p95_ms, p99_ms: 50.0 };
        let rows = vec![row(1, 0.95, 10.0), row(2, 0.80, 12.0), row(3, 0.97, 31.0)];
        let figures = figures(&scenario, &rows);
        let judged: Vec<(f64, bool)> =
            figures.iter().filter_map(|figure| Some((figure.value, figure.pass?))).collect();
        assert_eq!(judged, [(95.0, true), (80.0, false), (12.0, true), (31.0, false)]);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = report("variable-dsl", 1);
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let json = std::fs::read_to_string(dir.path().join("result.json")).unwrap();
        assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
    }
}
