//! A run in a virtual machine: the guest of weir's own tests, with the consumers inside.
//!
//! Other load on the machine does not affect the guest's virtual time. Consumers outside would live in
//! another time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use weir_netlab::topology::{Proc, command, last_words};

use super::{report::Report, scenario::Scenario};

use crate::{control::kind::Missing, options::Options};

/// Environment variable with the path of the test harness, if it is neither beside weir nor on `PATH`.
const VARIABLE: &str = "WEIR_VM_PROGRAM";
const PROGRAM: &str = "weir-vm";
/// The path of the scenario in the guest.
const FILE: &str = "/scenario.toml";
/// Time limit of the guest. One of its seconds takes several real ones, more on a busy machine.
const GUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// Runs the scenario in a guest. Without the harness, qemu or a kernel, nothing is measured and the report
/// gives the reason.
///
/// # Errors
/// If the guest's report cannot be read; on Ctrl-C.
pub(super) fn run(scenario: &Scenario, options: &Options) -> Result<Report> {
    let skipped = |why: String| {
        let lacks = |&control| Missing { control, why: why.clone() };
        Report::new(scenario, Vec::new(), scenario.controls.iter().map(lacks).collect(), String::new())
    };
    let Some(program) = harness(&options.weir) else {
        let why = format!("no {PROGRAM} here (cargo build -p weir-vm; or its path in {VARIABLE})");
        return Ok(skipped(why));
    };
    let inner = Scenario { guest: false, ..scenario.clone() };
    let dir = tempfile::tempdir().context("cannot create a directory for the guest's scenario")?;
    let file = dir.path().join("scenario.toml");
    let text = toml::to_string(&inner).context("cannot write the guest's scenario")?;
    fs::write(&file, text).context("cannot write the guest's scenario")?;
    let mut harness = command(&program.to_string_lossy());
    harness.args(["exec", "--timeout", &GUEST_TIMEOUT.as_secs().to_string(), "--file"]);
    harness.arg(format!("{}:{FILE}", file.display()));
    harness.args(["--", "weir", "lab", "run", FILE, "--json", "--out", "/tmp/results"]);
    if std::env::var_os("WEIR_BIN").is_none() {
        harness.env("WEIR_BIN", &options.weir);
    }
    let mut harness = Proc::start(harness)?;
    let ended = harness.finish(Instant::now() + GUEST_TIMEOUT);
    weir_netlab::interrupt::check()?;
    let output = harness.output()?;
    match (report(&output.stdout), ended) {
        (Some(report), _) => report.context("cannot read the guest's report"),
        (None, ended) => {
            let words = last_words(&output);
            Ok(skipped(format!(
                "{PROGRAM} gave no report: {}",
                ended.err().map_or(words, |e| format!("{e:#}"))
            )))
        }
    }
}

/// The guest's printed report, if it got that far. A failed figure is no failure here.
fn report(said: &str) -> Option<serde_json::Result<Report>> {
    let line = said.lines().find(|line| line.starts_with("{\"scenario\""))?;
    Some(serde_json::from_str(line))
}

/// The harness's program: named by the variable, beside weir, in the debug build beside, or on `PATH`.
pub(crate) fn harness(weir: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(named.into());
    }
    let beside =
        weir.parent().into_iter().flat_map(|dir| [dir.join(PROGRAM), dir.join("../debug").join(PROGRAM)]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.chain(std::env::split_paths(&path).map(|dir| dir.join(PROGRAM))).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_report_is_found_among_what_the_kernel_says() {
        let sample = super::super::report::tests::sample(1.0, 1.0);
        let json = serde_json::to_string(&sample).unwrap();
        let said = format!("[    0.1] a notice\nweir-vm: ready\n{json}\nweir-vm: job ended with 0, 9 s\n");
        assert!(report(&said).unwrap().unwrap() == sample);
        assert!(report("weir-vm: ready\n").is_none());
    }

    #[test]
    fn the_guest_reads_the_scenario_that_it_is_given() {
        let text = include_str!("../../scenarios/sla-vm.toml");
        let scenario: Scenario = toml::from_str(text).unwrap();
        assert!(scenario.guest);
        let inner = Scenario { guest: false, ..scenario };
        let written = toml::to_string(&inner).unwrap();
        assert!(!written.contains("guest = true"), "{written}");
        assert_eq!(toml::from_str::<Scenario>(&written).unwrap(), inner);
    }

    #[test]
    fn without_the_harness_nothing_is_judged_and_the_report_says_why() {
        let scenario: Scenario = toml::from_str(include_str!("../../scenarios/sla-vm.toml")).unwrap();
        assert_eq!(harness(Path::new("/nonexistent/bin/weir")).filter(|file| !file.is_file()), None);
        let lacks = Missing { control: scenario.controls[0], why: "no harness".to_owned() };
        let report = Report::new(&scenario, Vec::new(), vec![lacks], String::new());
        assert_eq!(report.head.pass, None);
        assert!(super::super::report::table(&report).contains("not run: weir: no harness"));
        assert!(super::super::plot::svg(&report).unwrap().starts_with("<svg"));
    }
}
