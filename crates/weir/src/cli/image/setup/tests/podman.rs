//! `setup` and `undo` of the files of Podman, Buildah and CRI-O.

use std::fs;

use super::{OWN, REGISTRIES, full, get, put, setup, tree, undo, weir};

#[test]
fn entries_of_podmans_files_get_the_mirror_and_each_other_case_a_note() {
    let root = full();
    let root = root.path();
    let (good, said) =
        setup(root, &["--only", "podman", "--registry", "a.example:5000", "--registry", "[::1]:5000"]);
    assert!(good, "{said}");
    let own = get(root, OWN);
    let entry = |name: &str, component: &str| {
        format!(
            "[[registry]]\nprefix = \"{name}\"\nlocation = \"{name}\"\n[[registry.mirror]]\n\
             location = \"127.0.0.1:5050/{component}\"\ninsecure = true\n"
        )
    };
    assert!(own.contains(&entry("docker.io", "docker.io")), "{own}");
    assert!(own.contains(&entry("a.example:5000", "a.example_5000")), "{own}");
    for absent in ["quay.io", "\"gcr.io", "ghcr.io", "::1"] {
        assert!(!own.contains(absent), "{absent}: {own}");
    }
    // The mirror of the operator stays behind weir's.
    let mirror = "[[registry.mirror]]\nlocation = \"127.0.0.1:5050/quay.io\"\ninsecure = true\n";
    let want = REGISTRIES.replacen(
        "[[registry.mirror]]",
        &format!("# weir image setup: begin\n{mirror}# weir image setup: end\n[[registry.mirror]]"),
        1,
    );
    assert_eq!(get(root, "etc/containers/registries.conf"), want);
    for note in [
        "has an entry for docker.io/acme, which goes past the cache",
        "gcr.io is left as",
        "its images come from office.example/gcr there",
        "ghcr.io is left as",
        "it is blocked there",
        "pull from [::1]:5000 past the cache",
    ] {
        assert!(said.contains(note), "{note}: {said}");
    }
}

#[test]
fn later_file_of_podman_that_names_a_registry_gets_the_mirror() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let entry = "[[registry]]\nlocation = \"docker.io\"\n";
    put(root, "etc/containers/registries.conf", entry);
    put(root, "etc/containers/registries.conf.d/90-own.conf", entry);
    put(root, "etc/containers/registries.conf.d/99-off.conf.rpmsave", entry);
    let before = tree(root);
    assert!(setup(root, &[]).0);
    let last = get(root, "etc/containers/registries.conf.d/90-own.conf");
    assert!(last.contains("127.0.0.1:5050/docker.io") && last.starts_with(entry), "{last}");
    assert_eq!(get(root, "etc/containers/registries.conf"), entry);
    assert!(!get(root, OWN).contains("docker.io"));
    assert!(undo(root).0);
    assert_eq!(tree(root), before);
}

#[test]
fn files_of_podman_that_weir_cannot_edit_are_refused_with_the_way_out() {
    for (text, why) in [
        ("[[[", "it is not TOML"),
        ("[registries.search]\nregistries = []\n", "version 1"),
        ("registry = 1", "not a list of tables"),
        ("registry = [1]", "a registry is not a table"),
        ("registry = [{ location = \"docker.io\" }]\n", "location = \"127.0.0.1:5050/docker.io\""),
        ("[[registry]]\nlocation = \"docker.io\"\nmirror = [{ location = \"m\" }]\n", "by hand"),
        (
            "[[registry]]\nlocation = \"\"\"\n[[registry]]\n\"\"\"\n[[registry]]\nlocation = \"docker.io\"",
            "by hand",
        ),
        ("# weir image setup: end\n", "`# weir image setup: begin` is missing"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("etc/docker")).unwrap();
        put(root, "etc/containers/registries.conf", text);
        let before = tree(root);
        let (good, said) = setup(root, &[]);
        assert!(!good && said.contains(why) && said.contains("nothing was written"), "{text}: {said}");
        assert_eq!(tree(root), before, "{text}");
    }
}

#[test]
fn registries_of_podman_are_those_that_the_cache_may_ask() {
    let upstream = "[[images.upstream]]\nregistry = \"site.example\"\nurl = \"http://10.0.0.1\"\n";
    for (any, want) in [(true, 10), (false, 1)] {
        let root = tempfile::tempdir().unwrap();
        let config = root.path().join("weir.toml");
        let text = format!(
            "[images]\nbudget = \"64MiB\"\nlisten = \"127.0.0.2:81\"\nany_registry = {any}\n{upstream}"
        );
        fs::write(&config, text).unwrap();
        let (root, config) = (root.path().to_str().unwrap(), config.to_str().unwrap());
        let (good, said) = weir(&["setup", "--only", "podman", "--config", config, "--root", root]);
        assert!(good && !said.contains("note: "), "{said}");
        let own = get(root.as_ref(), OWN);
        assert!(own.contains("location = \"127.0.0.2:81/site.example\""), "{own}");
        assert_eq!(own.matches("[[registry]]").count(), want, "{own}");
    }
}

/// The record is lost: the lines of weir are not the operator's.
#[test]
fn setup_without_its_record_takes_its_own_lines_for_its_own() {
    let root = full();
    let root = root.path();
    let before = tree(root);
    assert!(setup(root, &["--only", "podman"]).0);
    fs::remove_dir_all(root.join("var/lib/weir")).unwrap();
    assert!(setup(root, &["--only", "podman", "--registry", "a.example"]).0);
    assert!(undo(root).0);
    assert_eq!(tree(root), before);
}
