//! The result of the test, for people and programs.

use std::io::{self, Write};

use serde::Serialize;
use weir_units::BitRate;

use super::{
    super::format::{self, Look, Table, Tone},
    judge::{Bound, Line, Unit, Verdict},
};

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) device: String,
    pub(super) engine: String,
    pub(super) capacity: BitRate,
    /// Seconds of each phase's measurement.
    pub(super) seconds: u64,
    pub(super) lines: Vec<Line>,
    /// The most that the node's other classes sent in a phase.
    pub(super) others: BitRate,
    /// The parts that were left out, with reasons.
    pub(super) remarks: Vec<String>,
    /// Differences of the node before and after the test.
    pub(super) faults: Vec<String>,
    /// Whether no line misses, and nothing is left.
    pub(super) holds: bool,
}

impl Outcome {
    pub(super) fn judged(self) -> Outcome {
        let misses = self.lines.iter().any(|line| line.verdict == Verdict::Misses);
        Outcome { holds: !misses && self.faults.is_empty(), ..self }
    }
}

pub(super) fn show(out: &mut dyn Write, look: Look, outcome: &Outcome) -> io::Result<()> {
    let Outcome { device, engine, capacity, .. } = outcome;
    writeln!(out, "{device}, engine {engine}, {capacity}, {} s a phase\n", outcome.seconds)?;
    let mut table = Table::new(look, &["PHASE", "CLASS", ">WANTED", ">MEASURED", "VERDICT"]);
    for line in &outcome.lines {
        table.row(cells(line));
    }
    writeln!(out, "{table}")?;
    writeln!(out, "the node's other traffic: {} at most", format::rate(outcome.others))?;
    for remark in &outcome.remarks {
        writeln!(out, "{remark}")?;
    }
    for fault in &outcome.faults {
        writeln!(out, "! not rolled back: {fault}")?;
    }
    if outcome.faults.is_empty() {
        writeln!(out, "rolled back: devices, qdiscs, filters and programs are as before")?;
    }
    writeln!(out, "{}", conclusion(outcome))
}

fn conclusion(outcome: &Outcome) -> String {
    let is_shown = outcome.lines.iter().all(|line| line.verdict != Verdict::NotShown);
    let is_low = |line: &&Line| {
        line.class == outcome.device && line.verdict == Verdict::Misses && line.measured < line.wanted
    };
    match (outcome.holds, is_shown, outcome.lines.iter().find(is_low)) {
        (true, true, _) => "the link is divided as configured".to_owned(),
        (true, false, _) => "nothing misses, but the senders were too weak to show all of it".to_owned(),
        (false, _, None) => {
            "the link is not divided as configured (`weir doctor` tells what this node can do)".to_owned()
        }
        (false, _, Some(line)) => format!(
            "the link is not divided as configured: {} carries {} of {}; if it cannot carry more, set `[link] capacity` \
             to 95 % of that",
            outcome.device,
            value(line.unit, line.measured),
            value(line.unit, line.wanted)
        ),
    }
}

fn cells(line: &Line) -> [(String, Tone); 5] {
    let plain = |text: String| (text, Tone::Plain);
    let bound = match line.bound {
        Bound::About => "",
        Bound::AtMost => "<= ",
        Bound::AtLeast => ">= ",
    };
    let (word, tone) = match line.verdict {
        Verdict::Holds => ("holds", Tone::Good),
        Verdict::Misses => ("MISSES", Tone::Bad),
        Verdict::NotShown => ("not shown", Tone::Warn),
    };
    let word = line.why.as_ref().map_or_else(|| word.to_owned(), |why| format!("{word}: {why}"));
    [
        plain(line.phase.to_owned()),
        plain(line.class.clone()),
        plain(format!("{bound}{}", value(line.unit, line.wanted))),
        plain(value(line.unit, line.measured)),
        (word, tone),
    ]
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ratio => format!("{value:.2}:1"),
        Unit::Rate => format::rate(BitRate(value.max(0.0) as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, faults: &[&str]) -> Outcome {
        let line = Line {
            phase: "maximum",
            class: "weir-test-a".to_owned(),
            bound: Bound::AtMost,
            wanted: 5e6,
            measured: 4.97e6,
            unit: Unit::Rate,
            verdict,
            why: (verdict == Verdict::NotShown).then(|| "the senders made 1mbit of 30mbit".to_owned()),
        };
        Outcome {
            device: "eth0".to_owned(),
            engine: "htb".to_owned(),
            capacity: BitRate::mbit(20),
            seconds: 4,
            lines: vec![line],
            others: BitRate::kbit(12),
            remarks: Vec::new(),
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            holds: false,
        }
        .judged()
    }

    fn shown(outcome: &Outcome) -> String {
        let mut out = Vec::new();
        show(&mut out, Look::PLAIN, outcome).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn result_is_an_aligned_table_with_a_conclusion() {
        assert_eq!(
            shown(&outcome(Verdict::Holds, &[])),
            "eth0, engine htb, 20mbit, 4 s a phase\n\n\
             PHASE    CLASS          WANTED  MEASURED  VERDICT\n\
             maximum  weir-test-a  <= 5mbit     5mbit  holds\n\n\
             the node's other traffic: 12kbit at most\n\
             rolled back: devices, qdiscs, filters and programs are as before\n\
             the link is divided as configured\n"
        );
    }

    #[test]
    fn line_that_misses_and_thing_that_is_left_make_the_test_fail() {
        let misses = outcome(Verdict::Misses, &[]);
        assert!(!misses.holds && shown(&misses).contains("  MISSES\n"), "{}", shown(&misses));
        let left = outcome(Verdict::Holds, &["the device weir0 is left"]);
        assert!(!left.holds, "{left:?}");
        assert!(shown(&left).contains("! not rolled back: the device weir0 is left\n"), "{}", shown(&left));
        assert!(!shown(&left).contains("are as before"), "{}", shown(&left));
    }

    #[test]
    fn device_that_carries_less_than_the_capacity_is_told_with_the_way_out() {
        let mut slow = outcome(Verdict::Misses, &[]);
        slow.lines[0] = Line { class: "eth0".to_owned(), bound: Bound::About, ..slow.lines[0].clone() };
        let text = shown(&slow);
        assert!(
            text.contains(": eth0 carries 5mbit of 5mbit; if it cannot carry more, set `[link]"),
            "{text}"
        );
        slow.lines[0].measured = 6e6;
        assert!(shown(&slow).contains("(`weir doctor` tells"), "{}", shown(&slow));
    }

    #[test]
    fn weak_senders_do_not_fail_the_test_and_are_told() {
        let weak = outcome(Verdict::NotShown, &[]);
        assert!(weak.holds);
        assert!(shown(&weak).contains("not shown: the senders made 1mbit of 30mbit\n"), "{}", shown(&weak));
        assert!(shown(&weak).ends_with("too weak to show all of it\n"), "{}", shown(&weak));
    }
}
