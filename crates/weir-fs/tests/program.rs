//! The program itself, from outside.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-fs"));
    command.env_remove("WEIR_SOCKET").args(args).output().unwrap()
}

fn said(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn program_without_an_agent_says_so_and_mounts_nothing() {
    let output = run(&["--socket", "/nowhere/weir.sock", "/tmp"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(
        said(&output).starts_with("weir: cannot reach the agent at /nowhere/weir.sock"),
        "{}",
        said(&output)
    );
}

#[test]
fn place_that_is_no_directory_is_refused_before_the_agent_is_asked() {
    for (place, why) in [("/nowhere", "No such file"), ("/proc/version", "it is not a directory")] {
        let output = run(&["--socket", "/nowhere/weir.sock", place]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).starts_with(&format!("weir: cannot use {place}: {why}")), "{}", said(&output));
    }
}

#[test]
fn wrong_command_line_has_exit_code_2() {
    assert_eq!(run(&[]).status.code(), Some(2));
    assert_eq!(run(&["--json"]).status.code(), Some(2));
}
