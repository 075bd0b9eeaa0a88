//! `setup` and `undo` on temporary root directories.

use std::{fs, path::Path};

use crate::cli::{Look, run};

fn weir(args: &[&str]) -> (bool, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let line = ["weir", "image"].iter().chain(args).map(Into::into);
    let code = run(line, Look::PLAIN, &mut out, &mut err);
    let text = String::from_utf8([out, err].concat()).unwrap();
    (format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS), text)
}

fn setup(root: &Path, more: &[&str]) -> (bool, String) {
    let root = root.to_str().unwrap();
    weir(&[&["setup", "--listen", "127.0.0.1:5050", "--root", root], more].concat())
}

fn undo(root: &Path) -> (bool, String) {
    weir(&["undo", "--root", root.to_str().unwrap()])
}

const DAEMON: &str = "{\n  \"live-restore\": true,\n\t\"registry-mirrors\": [\"https://other.example\"]}";
const HOSTS: &str =
    "server = \"https://x.example\"\n[host.\"https://other.example\"]\n  capabilities = [\"pull\"]";

#[test]
fn setup_adds_to_what_is_there_and_undo_puts_it_back_to_the_byte() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let (daemon, hosts) =
        (root.join("etc/docker/daemon.json"), root.join("etc/containerd/certs.d/_default/hosts.toml"));
    fs::create_dir_all(daemon.parent().unwrap()).unwrap();
    fs::create_dir_all(hosts.parent().unwrap()).unwrap();
    fs::write(&daemon, DAEMON).unwrap();
    fs::write(&hosts, HOSTS).unwrap();
    let (good, said) = setup(root, &["--dry-run"]);
    assert!(good && said.contains("would write"), "{said}");
    assert_eq!(fs::read_to_string(&daemon).unwrap(), DAEMON);
    for time in ["first", "again"] {
        let (good, said) = setup(root, &[]);
        assert!(good, "{time}: {said}");
        let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&daemon).unwrap()).unwrap();
        assert_eq!(
            json["registry-mirrors"],
            serde_json::json!(["http://127.0.0.1:5050", "https://other.example"])
        );
        assert_eq!(json["live-restore"], true);
        let table: toml::Table = fs::read_to_string(&hosts).unwrap().parse().unwrap();
        assert_eq!(table["server"].as_str(), Some("https://x.example"));
        assert_eq!(table["host"].as_table().unwrap().len(), 2, "{time}");
    }
    assert!(root.join("etc/docker/certs.d/_default/hosts.toml").exists());
    let (good, said) = undo(root);
    assert!(good, "{said}");
    assert_eq!(fs::read_to_string(&daemon).unwrap(), DAEMON);
    assert_eq!(fs::read_to_string(&hosts).unwrap(), HOSTS);
    assert!(!root.join("etc/docker/certs.d").exists(), "what was made is gone");
    let (good, said) = undo(root);
    assert!(!good && said.contains("there is no set-up to undo"), "{said}");
}

#[test]
fn what_somebody_changed_since_is_kept_and_only_weirs_part_goes() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let (daemon, hosts) =
        (root.join("etc/docker/daemon.json"), root.join("etc/containerd/certs.d/_default/hosts.toml"));
    assert!(setup(root, &["--only", "docker"]).0);
    assert!(setup(root, &["--only", "containerd"]).0);
    let changed = fs::read_to_string(&daemon).unwrap().replacen('{', "{ \"debug\": true,", 1);
    fs::write(&daemon, changed).unwrap();
    fs::write(&hosts, fs::read_to_string(&hosts).unwrap() + "[host.\"https://late.example\"]\n").unwrap();
    let (good, said) = undo(root);
    assert!(good && said.contains("has been changed since"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&daemon).unwrap()).unwrap();
    assert_eq!(json, serde_json::json!({ "debug": true }));
    assert_eq!(fs::read_to_string(&hosts).unwrap(), "[host.\"https://late.example\"]\n");
}

#[test]
fn files_that_cannot_be_read_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let hosts = root.join("etc/containerd/certs.d/_default/hosts.toml");
    fs::create_dir_all(root.join("etc/docker")).unwrap();
    fs::create_dir_all(hosts.parent().unwrap()).unwrap();
    fs::write(&hosts, "[[[").unwrap();
    let (good, said) = setup(root, &[]);
    assert!(!good && said.contains("it is not TOML") && said.contains("nothing was written"), "{said}");
    assert!(!root.join("etc/docker/daemon.json").exists());
    let (good, said) = setup(&root.join("none"), &[]);
    assert!(!good && said.contains("neither Docker nor containerd is here"), "{said}");
}

#[test]
fn socket_of_the_unit_is_asked_if_it_is_there_and_no_other_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (unit, usual) = (dir.path().join("weir.sock"), std::path::Path::new(weir_api::DEFAULT_SOCKET));
    assert_eq!(super::socket_to_ask(usual, &unit), usual);
    std::fs::write(&unit, "").unwrap();
    assert_eq!(super::socket_to_ask(usual, &unit), unit);
    let named = std::path::Path::new("/run/other.sock");
    assert_eq!(super::socket_to_ask(named, &unit), named);
}

/// The unit runs parsers on the answers of possibly hostile registries.
#[test]
fn unit_of_the_cache_is_exposed_by_two_points_at_most() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/weir-images.service");
    let asked =
        std::process::Command::new("systemd-analyze").args(["security", "--offline=yes", unit]).output();
    let Ok(told) = asked else {
        println!("SKIPPED: there is no systemd-analyze");
        return;
    };
    let text = String::from_utf8(told.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("Overall exposure level"));
    let exposure = line.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
    assert!(
        exposure.is_some_and(|exposure| exposure <= 2.0),
        "{line:?} {}",
        String::from_utf8_lossy(&told.stderr)
    );
}
