//! The table of a report, and its files.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::CellAlignment;

use super::{
    plot::svg,
    scenario::{BOTH, Report, link},
};
use crate::report::{Head, Shown, table::new_table};

/// Packets a second of Mbit/s by bytes, as the paper's column has them.
const READ_AS_BYTES: f64 = 8.0;

/// The paper's table, a line a form, and the paper's own.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\n{} of {} users, {} link, {} packets of {:.0} bytes; median of {}, in memory\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.active,
        settings.users,
        link(settings),
        report.played,
        report.mean_len,
        settings.repetitions,
    );
    let mut table = new_table();
    table.set_header([
        "form",
        "load",
        "Mpps",
        "least",
        "most",
        "as the paper's column",
        "Mbit/s",
        "enqueue ns",
        "dequeue ns",
        "link",
        "had",
        "round trip ns",
    ]);
    let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let time = |ns: f64| if ns > 0.0 { number(ns) } else { String::new() };
    for row in &report.rows {
        table.add_row([
            row.case.form.name().to_owned(),
            match settings.beside {
                Some(_) => format!("{}, {} active", row.case.load.name(), row.case.active),
                None => row.case.load.name().to_owned(),
            },
            number(row.mpps),
            number(row.range.0),
            number(row.range.1),
            number(row.mpps * READ_AS_BYTES),
            number(row.mbps),
            time(row.enqueue_ns),
            time(row.dequeue_ns),
            format!("{:.4}", row.link_use),
            format!("{:.0} %", row.had * 100.0),
            row.round_trip_ns.map_or(String::new(), |(a, b)| format!("{a:.0}, {b:.0}")),
        ]);
    }
    if let Some(paper) = &settings.paper {
        let cells = [
            "the paper".to_owned(),
            String::new(),
            number(paper.mpps / READ_AS_BYTES),
            String::new(),
            String::new(),
            number(paper.mpps),
            number(paper.mbps),
            number(paper.enqueue_us * 1e3),
            number(paper.dequeue_us * 1e3),
        ];
        table.add_row(cells);
    }
    for index in 2..12 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = write!(text, "{table}\nload {}", report.head.machine.load);
    for row in &report.rows {
        if let Some(cpu) = row.mpps_cpu {
            let _ = write!(text, "; {}: {cpu:.2} Mpps of processor time", row.case);
        }
    }
    for (row, lost) in report.rows.iter().filter_map(|row| row.lost_ms.map(|lost| (row, lost))) {
        let _ = write!(text, "; {}: {lost:.1} ms missed and not made up for", row.case);
    }
    let short: Vec<_> = report.rows.iter().filter(|row| row.had < BOTH).collect();
    if !short.is_empty() {
        let names: Vec<_> = short.iter().map(|row| row.case.to_string()).collect();
        let _ = write!(
            text,
            "\nnot judged, as others had the processors too (column had): {}; run it on a quiet machine with as \
             many processors as a form has threads, or ahead of others: chrt -f 1 weir lab run {}",
            names.join("; "),
            report.head.scenario
        );
    }
    let mut wanted = Vec::new();
    for figure in report.head.figures.iter().filter(|figure| figure.unit == "Mpps") {
        let want = figure.want.map_or(String::new(), |want| format!(" ({want:.0} wanted)"));
        wanted.push(format!("{} {:.1}{want}", figure.name, figure.value));
    }
    if !wanted.is_empty() {
        let _ = write!(text, "\nMpps, not judged, as machines differ: {}", wanted.join("; "));
    }
    for note in &report.notes {
        let _ = write!(text, "\nnote: {note}");
    }
    text
}

impl Shown for Report {
    fn head(&self) -> &Head {
        &self.head
    }
    fn table(&self) -> String {
        table(self)
    }
    fn plot(&self) -> Result<String> {
        svg(self)
    }
    fn unjudged(&self) -> &'static str {
        "nothing is judged"
    }
}
