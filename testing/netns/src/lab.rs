//! `weir lab run`, as anybody calls it.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::binary;

/// Runs a scenario, writes its files below `out`, and prints its table. The report, and whether it passes by the exit
/// status.
///
/// # Panics
/// If there is no report.
#[must_use]
#[track_caller]
pub fn run_scenario(scenario: &str, arguments: &[&str], out: &Path) -> (Value, bool) {
    let mut lab = Command::new(binary());
    lab.args(["lab", "run", scenario, "--json"]).args(arguments).arg("--out").arg(out);
    let output = lab.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(text.trim()).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    let table = out.join(scenario).join("table.txt");
    println!("{}", std::fs::read_to_string(table).expect("it is written"));
    (report, output.status.success())
}
