//! The program from outside.

use std::process::{Command, Output};

fn vm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-vm")).args(args).output().unwrap()
}

#[test]
fn help_names_each_verb() {
    let help = vm(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for verb in ["fetch", "exec", "run", "boot"] {
        assert!(text.contains(verb), "{text}");
    }
}

#[test]
fn wrong_name_of_a_test_is_refused_before_anything_is_built() {
    let refused = vm(&["run", "--test", "shares"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("a test is named as PACKAGE:TEST"), "{said}");
}
