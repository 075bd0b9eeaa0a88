use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

use comfy_table::CellAlignment;
use weir_units::BitRate;

use crate::report::table::new_table;

/// Mbit/s in one character of a bar.
const STEP: f64 = 2.0;
/// Characters of the longest bar, which is a full link.
const LONGEST: usize = 48;

/// A row of the table: one container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) weight: u32,
    pub(super) min: Option<BitRate>,
    pub(super) max: Option<BitRate>,
    /// Mbit/s of payload.
    pub(super) expected: f64,
    /// Mbit/s of payload.
    pub(super) measured: f64,
}

/// The live table: redrawn in place on a terminal, else one line a second.
pub(super) struct Screen {
    live: bool,
    seconds: usize,
    started: Instant,
    /// Number of lines to move up before the next table.
    lines: usize,
}

impl Screen {
    pub(super) fn new(seconds: usize) -> Screen {
        Screen { live: std::io::stdout().is_terminal(), seconds, started: Instant::now(), lines: 0 }
    }

    /// Shows one second; the last second of a phase stays on the screen.
    pub(super) fn show(&mut self, second: usize, phase: &str, rows: &[Row], last: bool) {
        let mut out = std::io::stdout().lock();
        let text = if self.live || last {
            let head = format!("{phase}   {second} of {} s", self.seconds);
            let up = if self.lines > 0 { format!("\x1b[{}A\x1b[J", self.lines) } else { String::new() };
            format!("{up}{head}\n{}\n", table(rows))
        } else {
            format!("{}\n", line(self.started.elapsed().as_secs(), rows))
        };
        self.lines = if self.live && !last { text.lines().count() } else { 0 };
        // A closed pipe is ignored.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = new_table();
    table.set_header(["name", "weight", "min", "max", "expected", "measured", ""]);
    let rate = |rate: Option<BitRate>| format!("{:>7}", rate.map_or("-".to_owned(), |r| r.to_string()));
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.weight.to_string(),
            rate(row.min),
            rate(row.max),
            format!("{:.1}", row.expected),
            format!("{:.1}", row.measured),
            bar(row.expected, row.measured),
        ]);
    }
    let total = |part: fn(&Row) -> f64| format!("{:.1}", rows.iter().map(part).sum::<f64>());
    table.add_row([
        "link".to_owned(),
        String::new(),
        String::new(),
        String::new(),
        total(|r| r.expected),
        total(|r| r.measured),
        " ".repeat(LONGEST),
    ]);
    for index in 1..6 {
        table.column_mut(index).expect("seven columns").set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A bar of fixed width: blocks for the measured rate, and a line at the expected rate.
fn bar(expected: f64, measured: f64) -> String {
    let cells = |mbit: f64| ((mbit / STEP).round() as usize).min(LONGEST - 1);
    let (filled, mark) = (cells(measured), cells(expected));
    (0..LONGEST)
        .map(|cell| match cell {
            _ if cell == mark => '|',
            _ if cell < filled => '█',
            _ => ' ',
        })
        .collect()
}

fn line(second: u64, rows: &[Row]) -> String {
    let shares: Vec<String> =
        rows.iter().map(|row| format!("{} {:5.1} of {:5.1}", row.name, row.measured, row.expected)).collect();
    format!("{second:>4} s  {}", shares.join("   "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_measured_as_blocks_and_expected_as_a_line() {
        assert_eq!(bar(20.0, 10.0).trim_end(), "█████     |");
        assert_eq!(bar(10.0, 20.0).trim_end(), "█████|████");
        assert!(
            [(0.0, 0.0), (90.0, 5.0), (1e9, 1e9)].iter().all(|(e, m)| bar(*e, *m).chars().count() == LONGEST)
        );
    }

    #[test]
    fn the_table_keeps_its_size_while_numbers_change() {
        let row = |measured| Row {
            name: "C1".into(),
            weight: 1,
            min: Some(BitRate::mbit(30)),
            max: None,
            expected: 28.7,
            measured,
        };
        let (low, high) = (table(&[row(0.0)]), table(&[row(90.0)]));
        let size = |text: &str| (text.lines().count(), text.lines().map(|l| l.chars().count()).max());
        assert_eq!(size(&low), size(&high));
        assert!(low.contains("30mbit"), "{low}");
    }
}
