//! The results: a table of medians and spreads, figures with verdicts, JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use weir_linksim::{Moment, Scheme};
use weir_netlab::stats;

use super::scenario::{Download, Scenario};
use crate::report::{Figure, Head, Rule, table::new_table};

/// The figures of a download beside those of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    /// The part of the link's bytes that it carried and the scheduler dropped.
    pub(crate) dropped: f64,
    /// The largest distance of a class's share from its weight's, as a fraction of the latter.
    pub(crate) share_error: f64,
}

/// One simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Seed of the trace.
    pub(crate) seed: u64,
    /// The scheme that set the capacity.
    pub(crate) scheme: Scheme,
    /// The part of the link's bytes that was used. Those of a download have reached their class.
    pub(crate) used: f64,
    /// The wait in the modem's queue, or the provider's, that 50 of 100 packets do not exceed.
    pub(crate) p50_ms: f64,
    /// The same, of 95 of 100 packets.
    pub(crate) p95_ms: f64,
    /// The same, of 99 of 100 packets.
    pub(crate) p99_ms: f64,
    /// The rest of a download's figures.
    #[serde(default)]
    pub(crate) arrival: Option<Arrival>,
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

/// The error of the shares of a download, per cent.
fn share_error(row: &Row) -> f64 {
    row.arrival.map_or(0.0, |arrival| arrival.share_error * 100.0)
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
    if let Some(download) = &scenario.download {
        let errors = Spread::of(&values(rows, Scheme::Weir, share_error));
        judge("error of shares", errors, "%", download.most_share_error * 100.0, Rule::AtMost);
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
        if scheme != Scheme::Weir && scenario.download.is_some() {
            figures.push(shown("error of shares", share_error, "%"));
        }
    }
    figures
}

/// A figure of the table: its name, its value and the digits after the point.
type Column = (&'static str, fn(&Row) -> f64, usize);

const COLUMNS: [Column; 4] = [
    ("used, %", |row| row.used * 100.0, 1),
    ("wait p50, ms", |row| row.p50_ms, 0),
    ("p95, ms", |row| row.p95_ms, 0),
    ("p99, ms", |row| row.p99_ms, 0),
];
/// Those of a download alone.
const ARRIVAL: [Column; 2] = [
    ("dropped, %", |row| row.arrival.map_or(0.0, |arrival| arrival.dropped * 100.0), 1),
    ("error of shares, %", share_error, 1),
];

/// The traffic of a download, and what its figures mean.
fn words(download: &Download) -> [String; 2] {
    let weights: Vec<String> = download.weights.iter().map(u32::to_string).collect();
    let lasts = download.lasts_ms.map_or("never end".to_owned(), |ms| format!("end after {ms} ms each"));
    [
        format!(
            "{} times the rates of the traces; classes of weight {}; flows {lasts}; judged after {} s\n",
            download.times,
            weights.join(" and "),
            download.settles
        ),
        "; dropped: carried by the link, and then not by the scheduler".to_owned(),
    ]
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
    let [traffic, meaning] = settings.download.as_ref().map(words).unwrap_or_default();
    text += &traffic;
    let more = if settings.download.is_some() { &ARRIVAL[..] } else { &[] };
    let columns: Vec<&Column> = COLUMNS.iter().chain(more).collect();
    let mut table = new_table();
    table.set_header(std::iter::once("").chain(columns.iter().map(|(name, ..)| *name)));
    for scheme in Scheme::ALL {
        let spread = |of, digits| Spread::of(&values(&report.rows, scheme, of)).shown(digits);
        let figures = columns.iter().map(|(_, of, digits)| spread(*of, *digits));
        table.add_row(std::iter::once(scheme.name().to_owned()).chain(figures));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let owner = settings.owner();
    let _ = write!(
        text,
        "{table}\nmedian of the seeds (lowest to highest); used: of the link's bytes; wait: of packets in the {owner}'s \
         queue{meaning}"
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

    fn median(report: &Report, scheme: Scheme, of: fn(&Row) -> f64) -> f64 {
        Spread::of(&values(&report.rows, scheme, of)).median
    }

    #[test]
    fn weir_uses_links_of_satellites_with_short_queues_beside_the_peers() {
        let report = report("variable-starlink", 2);
        assert_eq!(report.head.pass, Some(true), "{}", report.verdict());
        let used = |scheme| median(&report, scheme, |row| row.used);
        let wait = |scheme| median(&report, scheme, |row| row.p95_ms);
        for peer in [Scheme::CakeAutorate, Scheme::Mean, Scheme::None] {
            assert!(wait(peer) > 5.0 * wait(Scheme::Weir), "{}", report.table());
        }
        assert!(used(Scheme::Minimum) < 0.7 && used(Scheme::Weir) > used(Scheme::CakeAutorate));
        for words in ["cake-autorate's rules", "no control", "median of the seeds"] {
            assert!(report.table().contains(words), "{words}: {}", report.table());
        }
        assert!(!report.table().contains("shares"), "{}", report.table());
    }

    #[test]
    fn weir_divides_downloads_of_satellites_with_short_queues_beside_peers() {
        let report = report("variable-download-starlink", 2);
        assert_eq!(report.head.pass, Some(true), "{}", report.verdict());
        assert_eq!(report.head.figures.iter().filter(|figure| figure.pass.is_some()).count(), 6);
        let used = |scheme| median(&report, scheme, |row| row.used);
        let wait = |scheme| median(&report, scheme, |row| row.p95_ms);
        for peer in [Scheme::CakeAutorate, Scheme::Mean, Scheme::None] {
            assert!(wait(peer) > 5.0 * wait(Scheme::Weir), "{}", report.table());
            assert!(median(&report, peer, share_error) > 5.0, "{}", report.table());
        }
        assert!(used(Scheme::Minimum) < 0.7 && used(Scheme::Weir) > used(Scheme::CakeAutorate));
        let dropped = |scheme| median(&report, scheme, |row| row.arrival.unwrap().dropped);
        assert!(dropped(Scheme::None) == 0.0 && dropped(Scheme::Weir) > 0.0, "{}", report.table());
        for words in ["classes of weight 1 and 2", "the provider's queue", "error of shares, %"] {
            assert!(report.table().contains(words), "{words}: {}", report.table());
        }
    }

    #[test]
    fn flows_of_a_download_end_after_their_time() {
        let report = report("variable-download-flows", 1);
        assert!(report.table().contains("flows end after 4000 ms each"), "{}", report.table());
        // New flows begin fast: they overfill what even the oracle lets through.
        let oracle = values(&report.rows, Scheme::Oracle, |row| row.p95_ms)[0];
        assert!(oracle > 100.0, "{}", report.table());
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
        let row = |seed, used, p95_ms| Row {
            seed,
            scheme: Scheme::Weir,
            used,
            p50_ms: 1.0,
            p95_ms,
            p99_ms: 50.0,
            arrival: None,
        };
        let rows = vec![row(1, 0.95, 10.0), row(2, 0.80, 12.0), row(3, 0.97, 31.0)];
        let figures = figures(&scenario, &rows);
        let judged: Vec<(f64, bool)> =
            figures.iter().filter_map(|figure| Some((figure.value, figure.pass?))).collect();
        assert_eq!(judged, [(95.0, true), (80.0, false), (12.0, true), (31.0, false)]);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        for name in ["variable-dsl", "variable-download-dsl"] {
            let report = report(name, 1);
            let dir = tempfile::tempdir().unwrap();
            report.write(dir.path()).unwrap();
            let json = std::fs::read_to_string(dir.path().join("result.json")).unwrap();
            assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
        }
    }
}
