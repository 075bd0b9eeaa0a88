//! The results: a table, figures with verdicts, JSON.

use std::fmt::Write as _;

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use weir_netlab::topology::Mode;

use super::{
    peer::Peer,
    scenario::{Case, Scenario},
};
use crate::report::{Figure, Head, Rule, table::new_table};

/// One case under one setup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// How the containers reach the uplink.
    pub(crate) mode: Mode,
    /// The setup.
    pub(crate) peer: Peer,
    /// The case's name.
    pub(crate) case: String,
    /// The payload that arrived at each container, Mbit/s, in the order of the names.
    pub(crate) goodput: Vec<f64>,
    /// The 95th percentile of the idle container's round trips while no one receives, ms.
    pub(crate) alone_p95: f64,
    /// The median under load, ms; `None` if no ping was answered.
    pub(crate) p50: Option<f64>,
    /// The 95th percentile under load, ms; `None` if no ping was answered.
    pub(crate) p95: Option<f64>,
    /// The part of the pings that was not answered.
    pub(crate) lost: f64,
}

impl Row {
    /// The rise of the 95th percentile, ms.
    pub(super) fn rise(&self) -> Option<f64> {
        self.p95.map(|p95| p95 - self.alone_p95)
    }
}

/// A setup that this kernel cannot run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lacks {
    /// The setup.
    pub(crate) peer: Peer,
    /// How the containers reach the uplink.
    pub(crate) mode: Mode,
    /// The missing part.
    pub(crate) why: String,
}

/// The results of the measurement.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) rows: Vec<Row>,
    pub(super) missing: Vec<Lacks>,
    pub(super) no_delay_because: Option<String>,
    pub(super) scripts: String,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The first fields of each report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The scenario.
    pub(crate) settings: Scenario,
    /// All measurements.
    pub(crate) rows: Vec<Row>,
    /// The setups that were not run.
    pub(crate) missing: Vec<Lacks>,
    /// The reason why the path had no delay, if it had none.
    pub(crate) no_delay_because: Option<String>,
    /// The tc scripts of the run.
    pub(crate) scripts: String,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, found: Found) -> Report {
        let head = Head::now(&scenario.name, figures(scenario, &found.rows));
        let Found { rows, missing, no_delay_because, scripts } = found;
        Report { head, settings: scenario.clone(), rows, missing, no_delay_because, scripts }
    }
}

/// Shares are judged beside all TCP, and round trips beside CUBIC. A flood leaves others what it leaves.
fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let due = scenario.due();
    let mut figures = Vec::new();
    for row in rows {
        let Some(case) = scenario.cases.iter().find(|case| case.name == row.case) else { continue };
        let name = |what: &str| format!("{}, {}, {}: {what}", row.mode, row.case, row.peer.name());
        let is_weir = row.peer == Peer::Weir && case.flood.is_none();
        for ((label, rate), due) in scenario.weights.keys().zip(&row.goodput).zip(&due) {
            let within = Rule::Within(scenario.tolerance);
            figures.push(match is_weir {
                true => Figure::judged(name(label), *rate, "Mbit/s", *due, within),
                false => Figure::shown(name(label), *rate, "Mbit/s"),
            });
        }
        let is_judged = is_weir && case.algorithm == "cubic";
        figures.push(match row.rise() {
            Some(rise) if is_judged => {
                Figure::judged(name("rise of the idle p95"), rise, "ms", scenario.most_rise_ms, Rule::AtMost)
            }
            Some(rise) => Figure::shown(name("rise of the idle p95"), rise, "ms"),
            // An idle container that gets no answer has no rise: its loss is judged.
            None if is_judged => {
                Figure::judged(name("pings that were lost"), row.lost * 100.0, "%", 0.0, Rule::AtMost)
            }
            None => Figure::shown(name("pings that were lost"), row.lost * 100.0, "%"),
        });
    }
    figures
}

fn load(case: &Case, first: &str) -> String {
    let flows = format!("{} {} each", case.flows, case.algorithm);
    case.flood.map_or(flows.clone(), |rate| format!("{rate} of UDP to {first}, {flows}"))
}

/// A line for each case and setup.
pub(super) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let labels: Vec<&str> = settings.weights.keys().map(String::as_str).collect();
    let due: Vec<String> =
        labels.iter().zip(settings.due()).map(|(label, due)| format!("{label} {due:.2}")).collect();
    let mut text = format!(
        "{}: {} ({})\n{} of a line of {} with {} ms of queue; due, Mbit/s of payload: {}; {} s a case after {} s\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.capacity,
        settings.line,
        settings.line_queue_ms,
        due.join(", "),
        settings.seconds,
        settings.settles
    );
    let mut table = new_table();
    let mut header = vec!["", "case", ""];
    header.extend(&labels);
    header.extend(["idle p50, ms", "p95, ms", "rise, ms", "lost"]);
    table.set_header(header);
    // No negative zero.
    let tenths = |ms: f64| (ms * 10.0).round() / 10.0 + 0.0;
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{:.1}", tenths(ms)));
    for row in &report.rows {
        let case = settings.cases.iter().find(|case| case.name == row.case);
        let load = case.map_or(String::new(), |case| load(case, labels[0]));
        let mut cells = vec![row.mode.to_string(), load, row.peer.name().to_owned()];
        cells.extend(row.goodput.iter().map(|rate| format!("{rate:.2}")));
        cells.extend([ms(row.p50), ms(row.p95), ms(row.rise()), format!("{:.0} %", row.lost * 100.0)]);
        table.add_row(cells);
    }
    for index in 3..7 + labels.len() {
        table.column_mut(index).expect("a column a header").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(
        text,
        "{table}\nMbit/s of payload by container; an idle container pings; rise: of its 95th percentile over that alone"
    );
    let _ = match &report.no_delay_because {
        None => write!(text, "\nround trip of the path: {} ms", settings.rtt_ms),
        Some(why) => write!(text, "\nthe path has no delay instead of {} ms: {why}", settings.rtt_ms),
    };
    for Lacks { peer, mode, why } in &report.missing {
        let _ = write!(text, "\nnot run, {mode}: {}: {why}", peer.name());
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{experiment::tests::settings, report::Shown as _};

    pub(in crate::download) fn row(peer: Peer, case: &str, goodput: [f64; 2], p95: Option<f64>) -> Row {
        let lost = if p95.is_some() { 0.0 } else { 1.0 };
        let case = case.to_owned();
        Row { mode: Mode::Nat, peer, case, goodput: goodput.into(), alone_p95: 0.2, p50: p95, p95, lost }
    }

    pub(in crate::download) fn report(rows: Vec<Row>) -> Report {
        let why = "no CAKE in this kernel".to_owned();
        let missing = vec![Lacks { peer: Peer::Cake, mode: Mode::Nat, why }];
        let no_delay_because = Some("no netem in this kernel".to_owned());
        Report::new(&settings("download"), Found { rows, missing, no_delay_because, ..Found::default() })
    }

    #[test]
    fn shares_of_weir_are_judged_and_the_idle_rise_beside_cubic_alone() {
        let good = report(vec![
            row(Peer::Weir, "cubic 2 x 4", [6.06, 12.11], Some(4.0)),
            row(Peer::Weir, "bbr 2 x 4", [6.06, 12.11], Some(90.0)),
            row(Peer::None, "cubic 2 x 4", [17.0, 2.0], Some(250.0)),
        ]);
        assert_eq!(good.head.pass, Some(true), "{}", good.verdict());
        let judged = good.head.figures.iter().filter(|figure| figure.pass.is_some()).count();
        assert_eq!(judged, 5, "{:#?}", good.head.figures);
        for (goodput, p95, words) in [
            ([6.4, 12.11], Some(4.0), "weir: C1"),
            ([6.06, 12.11], Some(6.3), "rise of the idle p95"),
            ([6.06, 12.11], None, "pings that were lost"),
        ] {
            let bad = report(vec![row(Peer::Weir, "cubic 2 x 4", goodput, p95)]);
            assert!(bad.verdict().contains(words), "{words}: {}", bad.verdict());
        }
    }

    #[test]
    fn flood_is_shown_and_not_judged() {
        let flooded = report(vec![row(Peer::Weir, "flood", [17.0, 1.0], None)]);
        assert_eq!(flooded.head.pass, None);
        let text = flooded.table();
        assert!(text.contains("60mbit of UDP to C1") && text.contains("100 %"), "{text}");
        assert!(text.contains("no delay instead of 20 ms: no netem in this kernel"), "{text}");
        assert!(text.contains("not run, nat: ifb + cake: no CAKE in this kernel"), "{text}");
    }
}
