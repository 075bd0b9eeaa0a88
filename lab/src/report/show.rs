//! The report on shares as a table, a plot and a verdict.

use anyhow::Result;

use super::{
    head::{Head, Shown},
    plot::svg,
    shares::Report,
    table::table,
};

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
        "no verdict, since weir was not among the controls"
    }
    fn scripts(&self) -> &str {
        &self.scripts
    }
}
