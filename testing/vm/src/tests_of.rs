//! Test executables of the workspace, built by cargo.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{initramfs::Initramfs, process};

/// A test target of a package, perhaps only some of its tests: `weir-netns-tests:shares:nat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestOf {
    package: String,
    /// A file in the package's `tests`, or `lib`.
    target: String,
    /// Only tests whose name contains this.
    pub(crate) filter: Option<String>,
}

impl FromStr for TestOf {
    type Err = String;

    fn from_str(text: &str) -> Result<TestOf, String> {
        let mut parts = text.splitn(3, ':').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(package), Some(target), filter) if !package.is_empty() && !target.is_empty() => {
                Ok(TestOf { package, target, filter })
            }
            _ => Err("a test is named as PACKAGE:TEST, for example weir-netns-tests:shares".to_owned()),
        }
    }
}

/// Builds these tests; their executables, in the same order.
pub(crate) fn build(tests: &[TestOf]) -> Result<Vec<PathBuf>> {
    tests.iter().map(build_one).collect()
}

fn build_one(test: &TestOf) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--locked", "--no-run", "--message-format=json", "-p", &test.package]);
    match test.target.as_str() {
        "lib" => cargo.arg("--lib"),
        name => cargo.args(["--test", name]),
    };
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).stderr(Stdio::inherit());
    let said = process::output(&mut cargo)?;
    executable(&said).with_context(|| format!("cargo built no test {} of {}", test.target, test.package))
}

/// The test executable in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == Value::Bool(true))
        .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .next_back()
}

/// Puts a test into the guest, without its tables for debuggers, which are most of its size.
pub(crate) fn add(root: &mut Initramfs, test: &Path, to: &str) -> Result<()> {
    let stripped = test.with_extension("stripped");
    process::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(test))?;
    let added = root.add_program(&stripped, to);
    let removed = std::fs::remove_file(&stripped);
    ensure!(removed.is_ok(), "cannot remove {}", stripped.display());
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_the_tests_and_not_the_programs_beside_it() {
        let said = "{\"reason\":\"compiler-artifact\",\"profile\":{\"test\":false},\"executable\":\"/t/weir\"}\n\
            {\"reason\":\"compiler-artifact\",\"profile\":{\"test\":true},\"executable\":\"/t/shares-1\"}\n\
            {\"reason\":\"compiler-artifact\",\"profile\":{\"test\":false},\"executable\":null}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(said), Some(PathBuf::from("/t/shares-1")));
        assert_eq!(executable("{}\n"), None);
    }

    #[test]
    fn a_test_is_named_by_its_package_and_file() {
        let shares = |filter: Option<&str>| TestOf {
            package: "weir-netns-tests".to_owned(),
            target: "shares".to_owned(),
            filter: filter.map(str::to_owned),
        };
        assert_eq!("weir-netns-tests:shares".parse(), Ok(shares(None)));
        assert_eq!("weir-netns-tests:shares:nat".parse(), Ok(shares(Some("nat"))));
        assert!("shares".parse::<TestOf>().is_err());
        assert!(":shares".parse::<TestOf>().is_err());
    }
}
