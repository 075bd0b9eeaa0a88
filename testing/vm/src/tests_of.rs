//! Test executables of the workspace, built by cargo.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    arch::{self, Arch},
    initramfs::Initramfs,
    process,
};

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

/// Builds all tests of the workspace, with one set of features: for another architecture only these
/// ones, static. Returns these tests, in their order.
pub(crate) fn build(arch: Arch, tests: &[TestOf]) -> Result<Vec<PathBuf>> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo;
    if Some(arch) == Arch::own() {
        cargo = Command::new(program);
        cargo.args(["test", "--workspace"]);
    } else {
        cargo = Command::new("scripts/cross.sh");
        cargo.arg(arch.name()).arg(program).arg("test");
        let packages: BTreeSet<&str> = tests.iter().map(|test| test.package.as_str()).collect();
        cargo.args(packages.iter().flat_map(|package| ["-p", package]));
        for target in tests.iter().map(|test| test.target.as_str()).collect::<BTreeSet<_>>() {
            match target {
                "lib" => cargo.arg("--lib"),
                target => cargo.args(["--test", target]),
            };
        }
    }
    cargo.args(["--locked", "--no-run", "--message-format=json"]);
    cargo.current_dir(arch::workspace()).stderr(Stdio::inherit());
    let messages = process::output(&mut cargo)?;
    tests
        .iter()
        .map(|test| {
            executable(&messages, test)
                .with_context(|| format!("cargo built no test {} of {}", test.target, test.package))
        })
        .collect()
}

/// The executable of a test, by cargo's messages.
fn executable(messages: &str, test: &TestOf) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == Value::Bool(true))
        .filter(|message| message["package_id"].as_str().is_some_and(|id| is_of(id, &test.package)))
        .filter(|message| match test.target.as_str() {
            "lib" => message["target"]["kind"][0] == "lib",
            name => message["target"]["kind"][0] == "test" && message["target"]["name"] == name,
        })
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
}

/// Whether an identifier of cargo is this package's: `path+file:///DIRECTORY#NAME@VERSION`, or
/// `path+file:///NAME#VERSION`.
fn is_of(id: &str, package: &str) -> bool {
    let Some((directory, name)) = id.split_once('#') else { return false };
    match name.split_once('@') {
        Some((name, _)) => name == package,
        None => directory.rsplit('/').next() == Some(package),
    }
}

/// Puts a test into the guest, without its tables for debuggers, which are most of its size. Two guests may be
/// built at once, so each copy has a directory of its own.
pub(crate) fn add(arch: Arch, root: &mut Initramfs, test: &Path, to: &str) -> Result<()> {
    let stripped =
        tempfile::Builder::new().prefix("stripped").tempdir_in(test.parent().context("a test is a file")?);
    let stripped = stripped.context("cannot make a directory beside the test")?;
    let copy = stripped.path().join("test");
    let strip =
        if Some(arch) == Arch::own() { "strip".to_owned() } else { format!("{}-strip", arch.triplet()) };
    process::run(Command::new(strip).arg("--strip-debug").arg("-o").arg(&copy).arg(test))?;
    root.add_program(&copy, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about an executable.
    fn message(package_id: &str, kind: &str, name: &str, is_test: bool, executable: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": package_id,
            "target": { "kind": [kind], "name": name },
            "profile": { "test": is_test },
            "executable": executable,
        })
        .to_string()
    }

    #[test]
    fn executable_is_the_tests_and_not_the_programs_beside_it() {
        let netns = "path+file:///src/testing/netns#weir-netns-tests@0.1.0";
        let vm = "path+file:///src/weir-vm#0.1.0";
        let messages = [
            message(netns, "bin", "weir", false, "/t/weir"),
            message("path+file:///src/bpf#weir-bpf@0.1.0", "test", "shares", true, "/t/other"),
            message(netns, "test", "shares", true, "/t/shares-1"),
            message(netns, "lib", "weir_netns_tests", true, "/t/netns-1"),
            message(vm, "lib", "weir_vm", true, "/t/vm-1"),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ]
        .join("\n");
        let found = |test: &str| executable(&messages, &test.parse().unwrap());
        assert_eq!(found("weir-netns-tests:shares"), Some(PathBuf::from("/t/shares-1")));
        assert_eq!(found("weir-netns-tests:lib"), Some(PathBuf::from("/t/netns-1")));
        assert_eq!(found("weir-vm:lib"), Some(PathBuf::from("/t/vm-1")));
        assert_eq!(found("weir-netns-tests:weir"), None);
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

    #[test]
    fn two_guests_may_take_the_same_test_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let test = dir.path().join("test");
        std::fs::copy("/bin/true", &test).unwrap();
        let own = Arch::own().expect("guests of this architecture");
        let add_often = || (0..20).try_for_each(|_| add(own, &mut Initramfs::default(), &test, "test"));
        std::thread::scope(|scope| {
            for guest in [0; 2].map(|_| scope.spawn(add_often)) {
                guest.join().unwrap().unwrap();
            }
        });
        let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["test"]);
    }
}
