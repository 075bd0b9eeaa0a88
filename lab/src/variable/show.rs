//! The report as a table, a plot and a verdict.

use anyhow::Result;

use super::{
    plot::svg,
    report::{Report, table},
};
use crate::report::{Head, Shown};

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
