//! The common part of reports of all kinds of scenarios.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    figure::Figure,
    machine::{Machine, kernel},
    verdict::{of, pass},
};

/// The first fields of each report; flat in its JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The scenario's name.
    pub(crate) scenario: String,
    /// Whether each figure with a rule meets it; `None` if no figure has a rule.
    pub pass: Option<bool>,
    /// The measured figures, with the expected values and the paper's.
    pub(crate) figures: Vec<Figure>,
    /// Kernel release.
    pub(crate) kernel: String,
    /// The machine of the run.
    pub(crate) machine: Machine,
    /// weir's version.
    pub(crate) weir: String,
    /// Seconds since the epoch.
    pub(crate) time: u64,
}

impl Head {
    /// The head for a run that has just ended on this machine.
    pub(crate) fn now(scenario: &str, figures: Vec<Figure>) -> Head {
        Head {
            scenario: scenario.to_owned(),
            pass: pass(&figures),
            figures,
            kernel: kernel(),
            machine: Machine::here(),
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            time: std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
        }
    }
}

/// A report of any kind, which can be shown and written.
pub trait Shown: Serialize {
    /// The common part of the report.
    fn head(&self) -> &Head;

    /// The full report in words.
    fn table(&self) -> String;

    /// The plot, as SVG.
    ///
    /// # Errors
    /// If the drawing library refuses.
    fn plot(&self) -> Result<String>;

    /// The reason why the verdict is missing, if it is.
    fn unjudged(&self) -> &'static str;

    /// The tc scripts of the run, if there are any.
    fn scripts(&self) -> &str {
        ""
    }

    /// The verdict: pass, or the figures that fall short and by how much.
    fn verdict(&self) -> String {
        let Head { scenario, pass, figures, .. } = self.head();
        match pass {
            None => format!("{scenario}: {}", self.unjudged()),
            Some(_) => of(scenario, *pass, figures),
        }
    }

    /// Writes `result.json`, `table.txt`, `plot.svg` and the tc scripts, if any, into `dir`. Creates `dir` if
    /// needed.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self).context("cannot write a report as JSON")?;
        let mut files = vec![
            ("result.json", json + "\n"),
            ("table.txt", format!("{}\n{}\n", self.table(), self.verdict())),
            ("plot.svg", self.plot()?),
        ];
        if !self.scripts().is_empty() {
            files.push(("tc.txt", self.scripts().to_owned()));
        }
        for (name, text) in files {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
