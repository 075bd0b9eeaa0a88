//! The report as a table, a plot and a verdict.

use std::fmt::Write as _;

use super::{
    plot::svg,
    report::{Estimate, Report},
    scenario::Outcome,
    table::table,
};
use crate::report::{Head, Shown};

impl Shown for Report {
    fn head(&self) -> &Head {
        &self.head
    }
    fn table(&self) -> String {
        table(self)
    }
    fn plot(&self) -> anyhow::Result<String> {
        svg(self)
    }
    fn unjudged(&self) -> &'static str {
        "nothing is expected of it"
    }

    /// The findings' outcomes, and the unexpected ones.
    fn verdict(&self) -> String {
        let count = |outcome| self.findings.iter().filter(|verdict| verdict.outcome == outcome).count();
        let mut text = format!("{}: ", self.head.scenario);
        if self.findings.is_empty() {
            text += self.unjudged();
        } else {
            let _ = write!(
                text,
                "{} findings confirmed, {} refuted, {} open",
                count(Outcome::Confirmed),
                count(Outcome::Refuted),
                count(Outcome::Open)
            );
            text += match self.head.pass {
                Some(true) => "; pass: as expected",
                Some(false) => "; falls short: not as expected",
                None if self.is_left_open() => {
                    "; no verdict: intervals reach over what is expected (--paper has more seeds)"
                }
                None => "",
            };
        }
        for verdict in &self.findings {
            let Some(expected) = verdict.finding.expect.filter(|expected| *expected != verdict.outcome)
            else {
                continue;
            };
            let Estimate { value, low, high } = verdict.ratio;
            let _ = write!(
                text,
                "\n  {}: {:?} by a ratio of {value:.2} ({low:.2} to {high:.2}), expected {expected:?}",
                verdict.finding.says, verdict.outcome
            );
        }
        for missing in &self.missing {
            let _ = write!(text, "\n  not measured: {}: {}", missing.algorithm, missing.why);
        }
        text
    }
}
