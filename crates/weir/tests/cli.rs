//! The program itself, from outside: exit codes, streams, environment.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

fn weir() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_remove("WEIR_SOCKET")
        .env_remove("WEIR_LOG")
        .env_remove("WEIR_LOG_FORMAT")
        .env_remove("NO_COLOR");
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn run(args: &[&str]) -> Output {
    weir().args(args).output().unwrap()
}

#[test]
fn exit_codes_tell_done_failed_and_misused_apart() {
    assert_eq!(run(&["--version"]).status.code(), Some(0));
    assert_eq!(run(&["--socket", "/nowhere/s", "ps"]).status.code(), Some(1));
    assert_eq!(run(&["set", "web", "weight=0"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn errors_go_to_standard_error_under_the_programs_name() {
    for args in [&["--socket", "/nowhere/s", "ps"][..], &["set", "web", "max=-1mbit"], &["frobnicate"]] {
        let output = run(args);
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).starts_with("weir: "), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn without_a_verb_the_help_is_shown() {
    let output = run(&[]);
    assert_eq!(text(&output.stdout), "");
    assert!(
        text(&output.stderr).starts_with("Quality of service") && text(&output.stderr).contains("Examples:")
    );
}

#[test]
fn the_socket_comes_from_the_environment_and_the_option_is_stronger() {
    let output = weir().env("WEIR_SOCKET", "/from/env").arg("status").output().unwrap();
    assert!(text(&output.stderr).contains("/from/env"));
    let output =
        weir().env("WEIR_SOCKET", "/from/env").args(["status", "--socket", "/from/option"]).output().unwrap();
    assert!(text(&output.stderr).contains("/from/option"));
}

#[test]
fn a_pipe_that_closes_early_is_no_error() {
    let mut child =
        weir().args(["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("#compdef weir"));
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!((child.wait().unwrap().code(), told.as_str()), (Some(0), ""));
}

#[test]
fn an_agent_without_a_good_file_says_which_and_why() {
    for args in [
        &["agent", "--config", "/nowhere/weir.toml"][..],
        &["agent", "--config", "/nowhere/weir.toml", "--check"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.contains("/nowhere/weir.toml") && said.contains("--print-config"), "{args:?}: {said}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn a_log_level_that_makes_no_sense_is_refused() {
    let output =
        weir().env("WEIR_LOG", "weir=loud").args(["agent", "--config", "/nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`weir=loud` in WEIR_LOG"), "{}", text(&output.stderr));
}

#[test]
fn a_log_format_that_makes_no_sense_is_refused() {
    let output = run(&["agent", "--config", "/nowhere", "--log-format", "xml"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("xml") && said.contains("journal"), "{said}");
    let output = weir().env("WEIR_LOG_FORMAT", "xml").args(["image", "serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`xml` in WEIR_LOG_FORMAT"), "{}", text(&output.stderr));
}
