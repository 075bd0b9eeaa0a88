use std::{collections::BTreeMap, fmt::Write as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use weir_netlab::traffic::Load;
use weir_units::BitRate;

use super::shares::{CaseReport, ContainerReport, Measurement, PingMeasurement, Report, Settings};

use crate::control::kind::{ControlKind, Missing};

/// All cases and containers, expected beside measured.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\n\
         payload that arrived, Mbit/s; {} of {} wire, {}, {}, TSO {}, {} s a case\n",
        report.head.scenario,
        report.title,
        report.source,
        settings.capacity,
        settings.wire,
        settings.mode,
        settings.family,
        if settings.tso { "on" } else { "off" },
        settings.seconds,
    );
    let columns = Columns {
        controls: &report.controls,
        paper: report.cases.iter().flat_map(|c| &c.containers).any(|c| c.setting.paper.is_some()),
    };
    let mut table = new_table();
    table.set_header(columns.header());
    for case in &report.cases {
        for (index, container) in case.containers.iter().enumerate() {
            let name = if index == 0 { &case.name } else { "" };
            table.add_row(columns.share(name, container));
        }
        for line in case_lines(case, settings) {
            table.add_row(columns.line(&line));
        }
    }
    for index in (2..columns.header().len()).filter(|index| *index != SENDS) {
        table.column_mut(index).expect("it has a header").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(text, "{table}");
    text + &missing_lines(&report.missing)
}

/// A control's name in a table; `weir` has the engine that it chose in brackets.
pub(crate) fn control_name(kind: ControlKind, engine: Option<&str>) -> String {
    match engine {
        Some(engine) if kind == ControlKind::Weir => format!("weir ({engine})"),
        _ => kind.name().to_owned(),
    }
}

/// Aligns the columns from `first` on to the right, for numbers.
pub(crate) fn align_numbers(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A line for each control that this kernel cannot run.
pub(crate) fn missing_lines(missing: &[Missing]) -> String {
    missing.iter().map(|lacks| format!("\nnot run: {}: {}", lacks.control.name(), lacks.why)).collect()
}

const SENDS: usize = 5;

/// A figure of a whole case, in a line under the case's containers.
struct Line {
    name: String,
    want: String,
    measured: BTreeMap<ControlKind, String>,
}

fn case_lines(case: &CaseReport, settings: &Settings) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(most) = settings.max_loss {
        for container in case.containers.iter().filter(|c| matches!(c.setting.send, Load::Udp(_))) {
            let loss = |m: &Measurement| m.loss.map(|loss| format!("{:.2} %", loss * 100.0));
            lines.push(Line {
                name: format!("{} lost", container.name),
                want: format!("<= {} %", most * 100.0),
                measured: container.measured.iter().filter_map(|(kind, m)| Some((*kind, loss(m)?))).collect(),
            });
        }
    }
    if let Some(ping) = &case.ping {
        let rise = |m: &PingMeasurement| format!("{:.2} ms", m.mean - m.idle_mean);
        lines.push(Line {
            name: format!("{}, ping's rise", ping.container),
            want: format!("<= {} ms", settings.max_ping_rise_ms),
            measured: ping.measured.iter().map(|(kind, m)| (*kind, rise(m))).collect(),
        });
    }
    lines.push(Line {
        name: "link use".to_owned(),
        want: format!(">= {:.3}", case.want_link_use),
        measured: case.link_use.iter().map(|(kind, used)| (*kind, format!("{used:.3}"))).collect(),
    });
    lines
}

/// The columns of the table: weir's comes first, and its error stands beside it.
struct Columns<'a> {
    controls: &'a [ControlKind],
    paper: bool,
}

impl Columns<'_> {
    fn header(&self) -> Vec<&'static str> {
        let mut header = vec!["case", "container", "weight", "min", "max", "sends", "expected"];
        for kind in self.controls {
            header.push(kind.name());
            if kind.is_weir() {
                header.push("error");
            }
        }
        if self.paper {
            header.push("paper");
        }
        header
    }

    fn share(&self, case: &str, container: &ContainerReport) -> Vec<String> {
        let setting = &container.setting;
        let rate = |rate: Option<BitRate>| rate.map_or(String::new(), |r| r.to_string());
        let mut row = vec![
            case.to_owned(),
            container.name.clone(),
            setting.weight.to_string(),
            rate(setting.min),
            rate(setting.max),
            setting.send.to_string(),
            if container.expected > 0.0 { format!("{:.2}", container.expected) } else { String::new() },
        ];
        for kind in self.controls {
            let measured = container.measured.get(kind);
            row.push(measured.map_or(String::new(), |m| format!("{:.2}", m.goodput)));
            if kind.is_weir() {
                row.push(measured.map_or(String::new(), |m| format!("{:.1} %", m.error * 100.0)));
            }
        }
        if self.paper {
            row.push(setting.paper.map_or(String::new(), |p| p.to_string()));
        }
        row
    }

    fn line(&self, line: &Line) -> Vec<String> {
        let mut row = vec![String::new(), line.name.clone()];
        row.resize(SENDS + 1, String::new());
        row.push(line.want.clone());
        for kind in self.controls {
            row.push(line.measured.get(kind).cloned().unwrap_or_default());
            if kind.is_weir() {
                row.push(String::new());
            }
        }
        row
    }
}

/// An empty table in the style of all tables of the lab.
pub(crate) fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table
}

#[cfg(test)]
mod tests {
    use super::super::{head::Shown as _, shares::tests::sample};
    use super::*;

    #[test]
    fn the_table_shows_expected_measured_and_the_papers_figure() {
        let text = table(&sample("weights-3", 1.01));
        let line = text.lines().find(|l| l.contains("C3") && l.contains("43")).unwrap();
        assert!(line.contains("45.43") && line.contains("45.88") && line.contains("1.0 %"), "{line}");
        let widths: Vec<usize> = text.lines().skip(2).map(|l| l.chars().count()).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn the_verdict_names_what_falls_short_and_by_how_much() {
        let text = sample("weights-3", 1.05).verdict();
        assert!(text.contains("falls short in 10 of 13"), "{text}");
        assert!(text.contains("1:2:3: C3: 47.701 Mbit/s, wanted 45.43 +- 3.0 %"), "{text}");
        assert!(sample("weights-3", 1.0).verdict().contains("pass"));
    }
}
