//! The table of a report, and its files.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::CellAlignment;

use super::{BOTH, Report, link, svg};
use crate::report::{table::new_table, verdict};

/// Packets a second of Mbit/s by bytes, as the paper's column has them.
const READ_AS_BYTES: f64 = 8.0;

/// The paper's table, a line a form, and the paper's own.
#[must_use]
pub fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\n{} of {} users, {} link, {} packets of {:.0} bytes; median of {}, in memory, virtual time\n",
        report.scenario,
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
    for row in &report.rows {
        table.add_row([
            row.form.name().to_owned(),
            number(row.mpps),
            number(row.range.0),
            number(row.range.1),
            number(row.mpps * READ_AS_BYTES),
            number(row.mbps),
            number(row.enqueue_ns),
            number(row.dequeue_ns),
            format!("{:.4}", row.link_use),
            format!("{:.0} %", row.had * 100.0),
            row.round_trip_ns.map_or(String::new(), |(a, b)| format!("{a:.0}, {b:.0}")),
        ]);
    }
    if let Some(paper) = &settings.paper {
        let cells = [
            "the paper".to_owned(),
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
    for index in 1..11 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = write!(text, "{table}\nload {}", report.machine.load);
    for row in &report.rows {
        if let Some(cpu) = row.mpps_cpu {
            let _ = write!(text, "; {}: {cpu:.2} Mpps of processor time", row.form.name());
        }
    }
    let short: Vec<_> = report.rows.iter().filter(|row| row.had < BOTH).collect();
    if !short.is_empty() {
        let names: Vec<_> = short.iter().map(|row| row.form.name()).collect();
        let _ = write!(
            text,
            "\nnot judged, as others had the processors too (column had): {}; run it on a quiet machine with as \
             many processors as a form has threads",
            names.join(", ")
        );
    }
    for note in &report.notes {
        let _ = write!(text, "\nnote: {note}");
    }
    text
}

impl Report {
    /// Pass, or what falls short and by how much.
    #[must_use]
    pub fn verdict(&self) -> String {
        match self.pass {
            None => format!("{}: nothing is judged", self.scenario),
            Some(_) => verdict::of(&self.scenario, self.pass, &self.figures),
        }
    }

    /// Writes `result.json`, `table.txt` and `plot.svg` into `dir`, which is made if needed.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self).context("cannot write a report as JSON")?;
        for (name, text) in [
            ("result.json", json + "\n"),
            ("table.txt", format!("{}\n{}\n", table(self), self.verdict())),
            ("plot.svg", svg(self)?),
        ] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
