//! `setup` and `undo` on temporary root directories.

mod podman;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

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
    weir(&[&["setup", "--listen", "127.0.0.1:5050", "--config", "/none", "--root", root], more].concat())
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
    assert!(!good && said.contains("no runtime is here"), "{said}");
}

/// All files and directories below a root, and what is in them. A link has its target for a text.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let text = if path.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else if path.is_dir() {
                dirs.push(path.clone());
                String::new()
            } else {
                fs::read_to_string(&path).unwrap()
            };
            found.insert(path, text);
        }
    }
    found
}

/// A root with files of all runtimes.
fn full() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("etc/docker/daemon.json", DAEMON),
        ("etc/containerd/config.toml", "version = 2\n"),
        ("etc/containers/registries.conf", REGISTRIES),
        (
            "etc/containers/registries.conf.d/shortnames.conf",
            "[aliases]\n  \"a\" = \"docker.io/library/a\"\n",
        ),
        ("etc/rancher/k3s/registries.yaml", "# ours\nconfigs:\n  a.example: {}"),
        ("etc/rancher/rke2/config.yaml", "token: t\n"),
        ("var/lib/other", ""),
    ] {
        put(root.path(), path, text);
    }
    root
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn get(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

const OWN: &str = "etc/containers/registries.conf.d/50-weir.conf";
const REGISTRIES: &str = "unqualified-search-registries = [\"docker.io\"]

# The mirror of the office.
[[registry]]
location = \"quay.io\" # all of it
[[registry.mirror]]
location = \"office.example/quay\"

[[registry]]
prefix = \"gcr.io\"
location = \"office.example/gcr\"
[[registry]]
prefix = \"ghcr.io\"
blocked = true
[[registry]]
prefix = \"docker.io/acme\"
location = \"docker.io/acme\"";

#[test]
fn each_runtime_is_set_up_and_undo_leaves_no_trace() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    let (good, said) = setup(root, &["--dry-run"]);
    assert!(good && tree(root) == before, "{said}");
    for file in [
        "etc/docker/daemon.json",
        "etc/docker/certs.d/_default/hosts.toml",
        "etc/containerd/certs.d/_default/hosts.toml",
        OWN,
        "etc/rancher/k3s/registries.yaml",
        "etc/rancher/rke2/registries.yaml",
    ] {
        assert!(said.contains(&format!("would write {}:", root.join(file).display())), "{file}: {said}");
    }
    let (good, first) = setup(root, &[]);
    assert!(good, "{first}");
    let after = tree(root);
    let (good, said) = setup(root, &[]);
    assert!(good && said.starts_with("all is in place"), "{said}");
    assert_eq!(tree(root), after);
    let (good, said) = undo(root);
    assert!(good && said.contains("k3s and RKE2 forget"), "{said}");
    assert_eq!(tree(root), before);
}

/// `listen` of the configuration is refused so too.
#[test]
fn address_that_other_machines_reach_is_refused() {
    let root = full();
    let before = tree(root.path());
    let root_text = root.path().to_str().unwrap();
    for listen in ["0.0.0.0:5050", "192.168.1.7:5050", "[::]:5050"] {
        let (good, said) = weir(&["setup", "--listen", listen, "--config", "/none", "--root", root_text]);
        assert!(!good && said.contains("is not a loopback address"), "{said}");
    }
    assert_eq!(tree(root.path()), before);
}

#[test]
fn only_the_named_runtimes_are_set_up() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    assert!(setup(root, &["--only", "cri-o,rke2"]).0);
    let changed: Vec<PathBuf> = tree(root).into_keys().filter(|path| !before.contains_key(path)).collect();
    assert!(
        changed.contains(&root.join(OWN)) && get(root, "etc/docker/daemon.json") == DAEMON,
        "{changed:?}"
    );
    assert!(changed.contains(&root.join("etc/rancher/rke2/registries.yaml")), "{changed:?}");
    assert!(undo(root).0);
    assert_eq!(tree(root), before);
    let (good, said) = setup(root, &["--only", "lxd"]);
    assert!(!good && said.contains("possible values: docker, containerd, podman, buildah, cri-o"), "{said}");
}

/// A kill between two files leaves the record, staged texts, and files as they were.
#[test]
fn interrupted_setup_is_undone_and_is_finished_by_another() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    assert!(setup(root, &[]).0);
    let whole = tree(root);
    let interrupt = |done: usize| {
        let record = root.join("var/lib/weir/image-setup.json");
        let files: Vec<&PathBuf> = whole
            .keys()
            .filter(|path| path.is_file() && **path != record && before.get(*path) != whole.get(*path))
            .collect();
        for path in &files[done..] {
            fs::write(format!("{}.weir-new", path.display()), "half").unwrap();
            match before.get(*path) {
                Some(text) => fs::write(path, text).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        files.len()
    };
    let many = interrupt(0);
    let (good, said) = undo(root);
    assert!(many >= 6 && good && said.matches("is as it was").count() == many, "{said}");
    assert_eq!(tree(root), before);
    for done in 1..many {
        assert!(setup(root, &[]).0);
        interrupt(done);
        let (good, said) = undo(root);
        assert!(good && tree(root) == before, "{done}: {said}");
        assert!(setup(root, &[]).0);
        interrupt(done);
        assert!(setup(root, &[]).0, "{done}");
        assert_eq!(tree(root).keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
        assert!(undo(root).0);
        assert_eq!(tree(root), before, "{done}");
    }
}

#[test]
fn later_edits_of_the_operator_outside_of_weirs_part_stay() {
    let root = full();
    let root = root.path();
    assert!(setup(root, &[]).0);
    let files = [OWN, "etc/containers/registries.conf", "etc/rancher/k3s/registries.yaml"];
    for file in files {
        put(root, file, &format!("# first\n{}# last\n", get(root, file)));
    }
    let (good, said) = undo(root);
    assert!(good && said.matches("only weir's part is gone").count() == files.len(), "{said}");
    assert_eq!(get(root, OWN), "# first\n# last\n");
    assert_eq!(get(root, files[1]), format!("# first\n{REGISTRIES}# last\n"));
    assert_eq!(get(root, files[2]), "# first\n# ours\nconfigs:\n  a.example: {}\n# last\n");
}

#[test]
fn part_of_weir_that_was_altered_is_refused_before_any_change() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    assert!(setup(root, &[]).0);
    let after = tree(root);
    let altered = get(root, OWN).replace("127.0.0.1:5050/docker.io", "127.0.0.1:5050/hub");
    put(root, OWN, &altered);
    let (good, said) = undo(root);
    for part in
        ["cannot take weir's part out of", OWN, "127.0.0.1:5050/hub", "undo again; nothing was changed"]
    {
        assert!(!good && said.contains(part), "{part}: {said}");
    }
    put(root, OWN, &after[&root.join(OWN)]);
    assert_eq!(tree(root), after);
    // The way out: the operator removes the part.
    fs::remove_file(root.join(OWN)).unwrap();
    let (good, said) = undo(root);
    assert!(good, "{said}");
    assert_eq!(tree(root), before);
}

#[test]
fn symbolic_links_stay_and_one_that_leads_nowhere_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    put(root, "srv/daemon.json", DAEMON);
    fs::create_dir_all(root.join("etc/docker")).unwrap();
    symlink("../../srv/daemon.json", root.join("etc/docker/daemon.json")).unwrap();
    let before = tree(root);
    assert!(setup(root, &[]).0);
    assert!(root.join("etc/docker/daemon.json").is_symlink());
    assert!(get(root, "srv/daemon.json").contains("127.0.0.1:5050"));
    assert!(undo(root).0);
    assert_eq!(tree(root), before);
    fs::remove_file(root.join("srv/daemon.json")).unwrap();
    let before = tree(root);
    let (good, said) = setup(root, &[]);
    assert!(!good && said.contains("cannot follow the symbolic link"), "{said}");
    assert_eq!(tree(root), before);
}

/// A mount that is read-only also stops root.
#[test]
fn file_that_cannot_be_written_leaves_all_others_as_they_were() {
    let root = full();
    let root = root.path();
    // A directory in place of the staged text fails as a read-only file system does.
    fs::create_dir_all(root.join("etc/rancher/rke2/registries.yaml.weir-new/x")).unwrap();
    let before = tree(root);
    let (good, said) = setup(root, &[]);
    assert!(!good && said.contains("nothing was set up") && said.contains("cannot write"), "{said}");
    assert_eq!(tree(root), before);
    let (good, said) = undo(root);
    assert!(!good && said.contains("there is no set-up to undo"), "{said}");
}

#[test]
fn setup_after_a_change_of_registries_renews_weirs_part() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    assert!(setup(root, &["--registry", "a.example"]).0);
    assert!(get(root, OWN).contains("a.example"));
    put(root, OWN, &(get(root, OWN) + "# mine\n"));
    assert!(setup(root, &["--registry", "b.example"]).0);
    let own = get(root, OWN);
    assert!(own.contains("b.example") && !own.contains("a.example") && own.starts_with("# mine\n"), "{own}");
    assert!(undo(root).0);
    assert_eq!(get(root, OWN), "# mine\n");
    fs::remove_file(root.join(OWN)).unwrap();
    assert_eq!(tree(root), before);
}

#[test]
fn containerds_own_directory_gets_the_host_and_what_is_missing_is_said() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let section = "[plugins.\"io.containerd.cri.v1.images\".registry]";
    put(root, "etc/containerd/config.toml", "version = 3\n");
    let (good, said) = setup(root, &[]);
    assert!(
        good && said.contains(&format!("write `{section}` with `config_path = \"/etc/containerd/certs.d\"`")),
        "{said}"
    );
    assert!(said.contains("--hosts-dir /etc/containerd/certs.d"), "{said}");
    assert!(undo(root).0);
    put(
        root,
        "etc/containerd/config.toml",
        &format!("version = 3\n{section}\nconfig_path = \"/srv/certs\"\n"),
    );
    let (good, said) = setup(root, &[]);
    assert!(good && !said.contains("restart containerd"), "{said}");
    assert!(get(root, "srv/certs/_default/hosts.toml").contains("[host.\"http://127.0.0.1:5050\"]"));
    assert!(undo(root).0 && !root.join("srv").exists());
}
