//! A whole scenario, as `weir lab run` does it, without the agent: needs root, iperf3.

use std::{
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
};

use weir_lab::{
    cli,
    control::kind::ControlKind,
    options::Options,
    report::{Report, Shown as _},
    run,
    scenario::Scenario,
};
use weir_netlab::topology::check_rights;

const SMALL: &str = r#"
name = "small"
title = "Two containers, 1:3"
source = "test"
about = "What plain tc can do and what it cannot."
seconds = 4
tso = false
controls = ["tc", "none"]

[[case]]
name = "1:3"
ping = "C3"
[case.containers]
C1 = { weight = 1 }
C2 = { weight = 3, send = "udp 80mbit" }
C3 = { weight = 1, send = "nothing" }

[[case]]
name = "max 20"
[case.containers]
C1 = { weight = 1 }
C2 = { weight = 3, max = "20mbit", send = "udp 80mbit" }
C3 = { weight = 1, send = "nothing" }
"#;

/// One test at a time: what they measure is the machine's. None without the rights.
fn may_run() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    match check_rights() {
        Ok(()) => Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

#[test]
fn a_scenario_runs_its_cases_under_its_controls_and_writes_what_it_found() {
    let Some(_turn) = may_run() else { return };
    let scenario = Scenario::parse(SMALL, "small").unwrap();
    let options = Options { weir: "/nonexistent".into(), seed: 1, link: String::new() };
    let mut steps = Vec::new();
    let report = run::run(&scenario, &options, &mut |step| {
        steps.push((step.control, step.case.to_owned()));
    })
    .unwrap();

    let step = |kind, case: &str| (kind, case.to_owned());
    let order = [
        step(ControlKind::Tc, "1:3"),
        step(ControlKind::Tc, "max 20"),
        step(ControlKind::None, "1:3"),
        step(ControlKind::None, "max 20"),
    ];
    assert_eq!(steps, order);
    assert_eq!(report.head.pass, None, "weir was not among the controls");
    let error = |case: usize| report.cases[case].largest_error(ControlKind::Tc).unwrap();
    assert!(error(0) > 0.10, "tc lends the idle container's part by quantum, not by weight: {}", error(0));
    let held = report.cases[1].containers[1].measured[&ControlKind::Tc].goodput;
    assert!((10.0..20.2).contains(&held), "tc's ceiling of 20 Mbit/s holds: {held}");
    for case in &report.cases {
        assert!(case.link_use[&ControlKind::None] > 0.97, "without control the line is the limit: {case:?}");
    }
    let flood = &report.cases[0].containers[1];
    assert!(flood.measured[&ControlKind::Tc].loss.unwrap() > 0.05, "what tc cannot send is lost: {flood:?}");
    let ping = &report.cases[0].ping.as_ref().unwrap().measured;
    assert!(
        ping[&ControlKind::None].mean > ping[&ControlKind::Tc].mean + 5.0,
        "20 ms of queue in front of the line: {ping:?}"
    );
    assert!(report.scripts.contains("# max 20\nqdisc add dev up0 root handle 1: htb"), "{}", report.scripts);

    let dir = tempfile::tempdir().unwrap();
    report.write(dir.path()).unwrap();
    assert!(Report::read(&dir.path().join("result.json")).unwrap() == report);
    for file in ["table.txt", "plot.svg", "tc.txt"] {
        assert!(dir.path().join(file).metadata().unwrap().len() > 100, "{file}");
    }
}

#[test]
fn agent_that_cannot_start_is_an_error_and_leaves_nothing() {
    let Some(_turn) = may_run() else { return };
    let mut scenario = Scenario::parse(SMALL, "small").unwrap();
    scenario.controls = vec![ControlKind::Weir];
    let run = |weir: &str| {
        let options = Options { weir: weir.into(), seed: 1, link: String::new() };
        format!("{:#}", run::run(&scenario, &options, &mut |_| {}).unwrap_err())
    };
    let missing = run("/nonexistent/weir");
    assert!(missing.contains("cannot run `/nonexistent/weir agent"), "{missing}");
    let wrong = run("/bin/false");
    assert!(wrong.contains("/bin/false agent") && wrong.contains("exit status: 1"), "{wrong}");
    let ours = format!("weirlab-{}-", std::process::id());
    let left: Vec<_> = std::fs::read_dir("/run/netns")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| name.starts_with(&ours) && name.ends_with("-node"))
        .collect();
    assert!(left.len() <= 1, "at most the other test's: {left:?}");
}

/// The table of a scenario that `weir lab run` has read from a file.
fn run_file(text: &str, control: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("small.toml"), dir.path().join("out"));
    std::fs::write(&file, text).unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    // No control needs the program.
    let weir = path(&std::env::current_exe().unwrap());
    let words =
        ["weir-lab", "run", &path(&file), "--control", control, "--out", &path(&out), "--weir", &weir];
    let (mut printed, mut errors) = (Vec::new(), Vec::new());
    let code = cli::run(words.map(Into::into), &mut printed, &mut errors);
    let errors = String::from_utf8(errors).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)), "no verdict without weir: {errors}");
    let read = |name: &str| std::fs::read_to_string(out.join("small").join(name)).unwrap();
    assert!(read("plot.svg").contains("</svg>") && read("result.json").contains("\"figures\""));
    read("table.txt")
}

/// The cells of a table's line that has these words.
fn cells(table: &str, words: &[&str]) -> Vec<f64> {
    let found = table.lines().find(|line| words.iter().all(|word| line.contains(word)));
    let line = found.unwrap_or_else(|| panic!("{words:?} in {table}"));
    line.split_whitespace().filter_map(|cell| cell.parse().ok()).collect()
}

#[test]
fn route_that_moves_takes_no_share_along_under_a_script_on_one_link() {
    let Some(_turn) = may_run() else { return };
    let text = include_str!("../scenarios/failover.toml")
        .replace("name = \"failover\"", "name = \"small\"")
        .replace("\nafter = 5", "\nafter = 3");
    let table = run_file(&text, "tc");
    println!("{table}");
    // Due and measured, before and after.
    let [c1, c2] = [cells(&table, &["tc", "C1"]), cells(&table, &["C2"])];
    assert!((c1[1] - 30.0).abs() < 1.5 && (c2[1] - 10.0).abs() < 1.0, "the script holds: {table}");
    // A link that is divided carries its capacity, 10 Mbit/s. The parts of the senders of a full line are chance.
    assert!(
        (c1[3] + c2[3] - 10.5).abs() < 0.25,
        "the second line is the limit, so no one divides it: {table}"
    );
    assert_eq!(c1.last(), Some(&0.0), "nothing waits for a link that no route takes: {table}");
}

#[test]
fn downloads_without_control_wait_in_the_lines_queue() {
    let Some(_turn) = may_run() else { return };
    let text = include_str!("../scenarios/download.toml");
    // Its second case alone, behind NAT.
    let (head, cases) = text.split_once("[[case]]").unwrap();
    let case = cases.split("[[case]]").nth(1).unwrap();
    let text = format!("{head}[[case]]{case}")
        .replace("name = \"download\"", "name = \"small\"")
        .replace("\"bridged\", ", "")
        .replace("\nsettles = 8\nseconds = 4", "\nsettles = 2\nseconds = 2");
    let table = run_file(&text, "none");
    println!("{table}");
    let row = cells(&table, &["nat", "no control"]);
    // C1, C2, median, 95th percentile.
    let row = &row[row.len() - 6..];
    assert!((17.0..19.8).contains(&(row[0] + row[1])), "20 Mbit/s carry 19.1 of payload: {table}");
    assert!(row[3] > 40.0, "an idle container's ping waits: {table}");
}
