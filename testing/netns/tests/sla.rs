//! The paper's experiment C, as anybody runs it: `weir lab run sla-C`.

use std::time::Duration;

use serde_json::Value;
use weir_netns_tests::{Need, can_run, measure_unless_still, run_scenario};

/// The report of a scenario in its short form.
fn run(scenario: &str) -> Value {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (report, passes) = run_scenario(scenario, &[], dir.path());
    assert_eq!(passes, report["pass"] == true, "the exit status is the verdict");
    for file in ["result.json", "table.txt", "plot.svg", "tc.txt"] {
        assert!(dir.path().join(scenario).join(file).is_file(), "{file}");
    }
    report
}

/// The figure whose name ends so.
fn figure(report: &Value, name: &str) -> f64 {
    let figures = report["figures"].as_array().expect("figures");
    let of = |figure: &&Value| figure["name"].as_str().is_some_and(|own| own.ends_with(name));
    let figure = figures.iter().find(of).unwrap_or_else(|| panic!("no figure {name}"));
    figure["value"].as_f64().expect("a number")
}

/// The median transmission time under weir of the case that has the UDP task, or not.
fn median(report: &Value, overloaded: bool) -> f64 {
    let rows = report["rows"].as_array().expect("rows");
    let of = |row: &&Value| row["control"] == "weir" && row["udp"].is_number() == overloaded;
    let row = rows.iter().find(of).expect("a case with the UDP task, and one without");
    let times = row["times"].as_array().expect("times, in order of length");
    times[times.len() / 2].as_f64().expect("ms")
}

/// One answer of 47 that is late by this makes the standard deviation 2.2 ms. The paper's reduction allows 2.6.
const STALL: Duration = Duration::from_millis(15);

#[test]
fn five_consumers_get_their_promised_19_mbit() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let error = |report: &Value| figure(report, "overloaded: largest error, weir");
    let flatter = |report: &Value| figure(report, "overloaded: std.dev below that without control, weir");
    // The lab judges the mean; a machine that is away for a moment moves that of few answers by more.
    let moved = |report: &Value| (median(report, true) / median(report, false) - 1.0).abs() * 100.0;
    let report = measure_unless_still(
        STALL,
        || run("sla-C"),
        |report| error(report) <= 3.0 && flatter(report) >= 95.0 && moved(report) <= 1.0,
    );
    assert!(error(&report) <= 3.0, "a consumer's mean is {:.2} % from S / bw", error(&report));
    assert!(flatter(&report) >= 95.0, "the paper's reduction: {:.1} %", flatter(&report));
    assert!(moved(&report) <= 1.0, "the UDP task moves the median by {:.2} %", moved(&report));
}
