//! The table of a report, and its files.

use std::fmt::Write as _;

use anyhow::Result;

use super::{
    plot::svg,
    scenario::{Measures, Report},
};
use crate::{
    control::kind::ControlKind,
    report::{
        Head, Shown,
        table::{align_numbers, control_name, missing_lines, new_table},
    },
};

/// All cases and controls, with the judged figures.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let (measure, columns): (_, &[&str]) = match settings.measures {
        Measures::Cpu => (
            "processor seconds a gigabyte of payload, microseconds a packet as the containers send them",
            &["s/GB", "least", "most", "over none", "Mbit/s", "packets/GB", "us each"],
        ),
        Measures::Latency => ("round trips, ms", &["p99", "p50", "most", "paper", "lost"]),
    };
    let mut text = format!(
        "{}: {} ({})\n{measure}; {} of {} wire, {}, TSO {}{}, {} s a measurement\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.capacity,
        settings.wire,
        settings.mode,
        if settings.tso { "on" } else { "off" },
        settings.segments.map_or(String::new(), |n| format!(" with {n} segments")),
        settings.seconds,
    );
    let mut table = new_table();
    table.set_header([&["case", "control"], columns].concat());
    let mut last = "";
    for row in &report.rows {
        let case = if row.case == last { "" } else { &row.case };
        last = &row.case;
        let control = control_name(row.control, row.engine.as_deref());
        let number = |value: f64| format!("{value:.2}");
        let (third, fourth) = match settings.measures {
            Measures::Cpu => {
                let native =
                    report.rows.iter().find(|r| r.case == row.case && r.control == ControlKind::None);
                (native.map_or(String::new(), |native| number(row.value / native.value)), number(row.beside))
            }
            Measures::Latency => {
                let paper = settings.paper.get(&row.control).filter(|_| row.case == "RTT 0 ms, alone");
                (paper.map_or(String::new(), f64::to_string), format!("{:.0} %", row.beside * 100.0))
            }
        };
        let mut numbers = vec![number(row.value), number(row.range.0), number(row.range.1), third, fourth];
        if settings.measures == Measures::Cpu {
            let each = if row.packets > 0.0 { number(row.value * 1e6 / row.packets) } else { String::new() };
            numbers.extend([format!("{:.0}", row.packets), each]);
        }
        table.add_row([vec![case.to_owned(), control], numbers].concat());
    }
    align_numbers(&mut table, 2);
    let _ = write!(text, "{table}");
    if !report.noise.is_empty() {
        let _ = write!(text, "\n{}; load {}", report.noise, report.head.machine.load);
    }
    text += &missing_lines(&report.missing);
    for (case, why) in &report.missing_cases {
        let _ = write!(text, "\nnot run: {case}: {why}");
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
        "nothing is judged: no control here promises anything"
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::scenario::{Row, Scenario};
    use super::*;
    use crate::control::kind::Missing;

    /// A report of two cases under two controls.
    pub(in crate::cost) fn sample() -> Report {
        let settings: Scenario = toml::from_str(include_str!("../../scenarios/cpu.toml")).unwrap();
        let row = |case: &str, control, value| Row {
            case: case.to_owned(),
            control,
            engine: (control == ControlKind::Weir).then(|| "htb".to_owned()),
            value,
            range: (value * 0.9, value * 1.2),
            beside: 90.5,
            packets: 20_000.0,
        };
        Report {
            head: Head::now(&settings.name, Vec::new()),
            missing: vec![Missing {
                control: ControlKind::Engine(weir_datapath::engine::EngineKind::Bpf),
                why: "no struct_ops".to_owned(),
            }],
            missing_cases: Vec::new(),
            settings,
            rows: vec![
                row("1 busy", ControlKind::Weir, 3.0),
                row("1 busy", ControlKind::None, 2.0),
                row("5 busy", ControlKind::Weir, 3.3),
                row("5 busy", ControlKind::None, 3.0),
            ],
            noise: "noise: little".to_owned(),
        }
    }

    #[test]
    fn the_table_has_a_line_a_control_and_what_is_missing() {
        let text = table(&sample());
        let line = text.lines().find(|line| line.contains("5 busy")).unwrap();
        assert!(line.contains("weir (htb)") && line.contains("3.30") && line.contains("1.10"), "{text}");
        // 3.30 s for 20,000 packets.
        assert!(line.contains("20000") && line.contains("165.00"), "{text}");
        assert!(text.contains("not run: weir:bpf: no struct_ops"), "{text}");
        assert!(sample().verdict().contains("nothing is judged"));
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = sample();
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let json = fs::read_to_string(dir.path().join("result.json")).unwrap();
        assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
    }
}
