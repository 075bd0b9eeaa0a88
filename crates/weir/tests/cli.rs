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

/// Programs of engine `pacing` and rules of congestion control show no device.
#[test]
fn removal_of_the_package_puts_the_node_back_without_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let (called, bin) = (dir.path().join("called"), dir.path().join("bin"));
    std::fs::create_dir(&bin).unwrap();
    for name in ["systemctl", "weir"] {
        let stub =
            format!("#!/bin/sh\necho {name} \"$@\" >>{}\necho everything is put back\n", called.display());
        std::fs::write(bin.join(name), stub).unwrap();
        std::fs::set_permissions(bin.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let script =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/scripts/preremove"));
    let script = script.unwrap().replace("/run/systemd/system", bin.to_str().unwrap());
    let removed = |why: &str| {
        let _ = std::fs::remove_file(&called);
        let mut sh = Command::new("sh");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let output = sh.args(["-c", &script, "preremove", why]).env("PATH", path).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        std::fs::read_to_string(&called).unwrap_or_default()
    };
    let stopped = "systemctl disable --now weir.service weir-images.service\nweir agent --restore\n";
    // The package managers of Debian and of rpm say it in their ways.
    assert_eq!((removed("remove"), removed("0")), (stopped.to_owned(), stopped.to_owned()));
    assert_eq!((removed("upgrade"), removed("1")), (String::new(), String::new()));
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
