//! What reports of all kinds of scenarios have in common.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    Figure, Machine,
    machine::kernel,
    verdict::{of, pass},
};

/// What a report begins with; flat in its JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The scenario's name.
    pub scenario: String,
    /// Whether every figure that has a rule meets it; none if there is none.
    pub pass: Option<bool>,
    /// What was measured, beside what was wanted and what the paper reports.
    pub figures: Vec<Figure>,
    /// Kernel release.
    pub kernel: String,
    /// What it ran on.
    pub machine: Machine,
    /// weir's version.
    pub weir: String,
    /// Seconds since the epoch.
    pub time: u64,
}

impl Head {
    /// Of a run that has ended here and now.
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

/// A report of any kind, as it is shown and written.
pub trait Shown: Serialize {
    /// Its beginning.
    fn head(&self) -> &Head;

    /// All of it in words.
    fn table(&self) -> String;

    /// The plot, as SVG.
    ///
    /// # Errors
    /// If the drawing library refuses.
    fn plot(&self) -> Result<String>;

    /// Why there is no verdict, where there is none.
    fn unjudged(&self) -> &'static str;

    /// The tc scripts that were run, if there are any.
    fn scripts(&self) -> &str {
        ""
    }

    /// Pass, or what falls short and by how much.
    fn verdict(&self) -> String {
        let Head { scenario, pass, figures, .. } = self.head();
        match pass {
            None => format!("{scenario}: {}", self.unjudged()),
            Some(_) => of(scenario, *pass, figures),
        }
    }

    /// Writes `result.json`, `table.txt`, `plot.svg` and, if there are any, the tc scripts into
    /// `dir`, which is made if needed.
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
