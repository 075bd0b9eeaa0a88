use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    figure::Figure,
    machine::Machine,
    table::{align_numbers, new_table},
};

/// The common part of the results of all scenarios.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The scenario's name.
    pub(crate) scenario: String,
    /// The measured figures.
    pub(crate) figures: Vec<Figure>,
    /// Kernel release.
    pub(crate) kernel: String,
    /// The machine of the run.
    pub(crate) machine: Machine,
    /// The settings of the run.
    pub(crate) settings: serde_json::Value,
}

impl Summary {
    /// Reads a `result.json` of any scenario.
    ///
    /// # Errors
    /// If it cannot be read, or is no result.
    pub(crate) fn read(path: &Path) -> Result<Summary> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read result {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a result of weir lab", path.display()))
    }
}

/// The figures of two results side by side. A figure that only one result has is marked as missing in the
/// other.
#[must_use]
pub(crate) fn compare(a: &Summary, b: &Summary) -> String {
    let mut text = format!(
        "A: {} on {} ({}, {} cores, load {})\nB: {} on {} ({}, {} cores, load {})\n",
        a.scenario,
        a.kernel,
        a.machine.cpu,
        a.machine.cores,
        a.machine.load,
        b.scenario,
        b.kernel,
        b.machine.cpu,
        b.machine.cores,
        b.machine.load,
    );
    if a.settings != b.settings {
        text += &format!("settings differ:\n  A: {}\n  B: {}\n", a.settings, b.settings);
    }
    let mut table = new_table();
    table.set_header(["figure", "unit", "wanted", "A", "B", "B - A", "change"]);
    let names =
        a.figures.iter().chain(b.figures.iter().filter(|f| a.figures.iter().all(|own| own.name != f.name)));
    for figure in names {
        let value = |report: &Summary| report.figures.iter().find(|f| f.name == figure.name).map(|f| f.value);
        let (from, to) = (value(a), value(b));
        let number = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.3}"));
        let difference = from.zip(to).map(|(from, to)| to - from);
        let change = difference
            .zip(from)
            .filter(|(_, from)| *from != 0.0)
            .map_or("-".to_owned(), |(difference, from)| format!("{:+.1} %", difference / from * 100.0));
        table.add_row([
            figure.name.clone(),
            figure.unit.clone(),
            number(figure.want),
            number(from),
            number(to),
            difference.map_or("-".to_owned(), |d| format!("{d:+.3}")),
            change,
        ]);
    }
    align_numbers(&mut table, 2);
    text + &table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, factor: f64) -> Summary {
        let report = serde_json::to_value(super::super::shares::tests::sample(name, factor)).unwrap();
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn two_results_are_compared_figure_by_figure() {
        let text = compare(&sample("weights-3", 1.0), &sample("weights-3", 1.02));
        let line = text.lines().find(|l| l.contains("1:2:3: C3")).unwrap();
        assert!(line.contains("+2.0 %") && line.contains("45.429") && line.contains("46.338"), "{line}");
        assert!(!text.contains("settings differ"));
    }

    #[test]
    fn a_figure_that_only_one_has_is_shown_as_missing() {
        let text = compare(&sample("weights-3", 1.0), &sample("combined", 1.0));
        let line = text.lines().find(|l| l.contains("+ C3 max 15: C3")).unwrap();
        assert!(line.contains(" - "), "{line}");
    }
}
