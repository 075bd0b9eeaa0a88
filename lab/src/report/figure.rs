//! A measured number and its judgement.

use serde::{Deserialize, Serialize};

/// A number and its judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Unique within the report.
    pub(crate) name: String,
    /// The measured value.
    pub(crate) value: f64,
    /// Unit of all numbers here.
    pub(crate) unit: String,
    /// The expected value or the bound; `None` if nothing is required.
    pub(crate) want: Option<f64>,
    /// The paper's value.
    pub(crate) paper: Option<f64>,
    /// The rule that judges `value` by `want`.
    pub(crate) rule: Option<Rule>,
    /// The judgement.
    pub(crate) pass: Option<bool>,
}

/// The rule that judges a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    /// At most this fraction of `want` away from it.
    Within(f64),
    /// At least `want`.
    AtLeast,
    /// At most `want`.
    AtMost,
}

impl Rule {
    /// Whether `value` fulfils the rule.
    #[must_use]
    pub(crate) fn holds(self, value: f64, want: f64) -> bool {
        match self {
            Rule::Within(fraction) => (value - want).abs() <= fraction * want.abs(),
            Rule::AtLeast => value >= want,
            Rule::AtMost => value <= want,
        }
    }
}

impl Figure {
    pub(crate) fn judged(name: String, value: f64, unit: &str, want: f64, rule: Rule) -> Figure {
        let pass = Some(rule.holds(value, want));
        Figure { name, value, unit: unit.to_owned(), want: Some(want), paper: None, rule: Some(rule), pass }
    }

    pub(crate) fn shown(name: String, value: f64, unit: &str) -> Figure {
        Figure { name, value, unit: unit.to_owned(), want: None, paper: None, rule: None, pass: None }
    }
}
