//! The manifests grant what the agent asks for and no more, and the chart renders the plain manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use super::requests;

const PLAIN: &str = include_str!("../../../../packaging/kubernetes/weir.yaml");
const TEMPLATE: &str = include_str!("../../../../packaging/kubernetes/chart/templates/weir.yaml");
const VALUES: &str = include_str!("../../../../packaging/kubernetes/chart/values.yaml");

/// The values of the chart by path: `cni.install`.
fn values() -> BTreeMap<String, String> {
    let mut section = String::new();
    let mut values = BTreeMap::new();
    for line in VALUES.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let (key, value) = line.split_once(':').expect("KEY: VALUE");
        let path = if key.starts_with(' ') { format!("{section}.{}", key.trim()) } else { key.to_owned() };
        if value.trim().is_empty() {
            section = path;
        } else {
            values.insert(path, value.trim().to_owned());
        }
    }
    values
}

/// Renders the part of the template language that the chart uses: values, and conditions on one of them.
fn render(values: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut is_shown = true;
    for line in TEMPLATE.lines() {
        if let Some(condition) = line.strip_prefix("{{- if .Values.") {
            is_shown = values[condition.trim_end_matches(" }}")] == "true";
        } else if line == "{{- end }}" {
            is_shown = true;
        } else if is_shown {
            let mut line = line.replace("{{ .Release.Namespace }}", "weir");
            for (path, value) in values {
                line = line.replace(&format!("{{{{ .Values.{path} }}}}"), value);
            }
            assert!(!line.contains("{{"), "an unknown value: {line}");
            out += &format!("{line}\n");
        }
    }
    out
}

/// Each document of a manifest without comments.
fn documents(text: &str) -> Vec<String> {
    let lines = |document: &str| {
        let lines = document.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    text.split("---\n").map(lines).collect()
}

fn list(line: &str, key: &str) -> Option<Vec<String>> {
    let text = line.trim().trim_start_matches("- ").strip_prefix(key)?;
    Some(serde_json::from_str(text).unwrap_or_else(|e| panic!("{line}: {e}")))
}

/// The rights that a manifest's role grants: resource and verb.
fn granted(text: &str) -> BTreeSet<(String, String)> {
    let documents = documents(text);
    let role = documents.iter().find(|document| document.contains("kind: ClusterRole\n")).expect("a role");
    let mut rights = BTreeSet::new();
    let mut resources = Vec::new();
    for line in role.lines() {
        if let Some(groups) = list(line, "apiGroups: ") {
            assert_eq!(groups, [""], "the core API alone");
        }
        resources = list(line, "resources: ").unwrap_or(resources);
        for verb in list(line, "verbs: ").into_iter().flatten() {
            rights.extend(resources.iter().map(|resource| (resource.clone(), verb.clone())));
        }
    }
    rights
}

fn asked(without: &[&str]) -> BTreeSet<(String, String)> {
    let rights = requests::tests::all().iter().map(requests::Ask::right).collect::<Vec<_>>();
    let rights = rights.into_iter().filter(|(resource, _)| !without.contains(resource));
    rights.map(|(resource, verb)| (resource.to_owned(), verb.to_owned())).collect()
}

#[test]
fn the_manifests_grant_the_rights_of_the_requests_and_no_more() {
    assert_eq!(granted(PLAIN), asked(&[]));
    for (key, resources) in [
        ("namespaceGroups", &["namespaces"][..]),
        ("publish", &["nodes", "nodes/status"]),
        ("events", &["events"]),
    ] {
        let mut values = values();
        values.insert(key.to_owned(), "false".to_owned());
        assert_eq!(granted(&render(&values)), asked(resources), "without {key}");
    }
}

#[test]
fn the_chart_renders_the_plain_manifests() {
    let plain = documents(PLAIN);
    assert!(plain[0].contains("kind: Namespace\n"));
    // Helm makes the namespace itself.
    assert_eq!(documents(&render(&values())), plain[1..]);
    assert!(with_plugin().contains("path: /opt/cni/bin\n"));
}

/// The chart with the plugin.
fn with_plugin() -> String {
    let mut values = values();
    values.insert("cni.install".to_owned(), "true".to_owned());
    render(&values)
}

/// A file that runs cannot be written over, and a runtime may run half a file.
#[test]
fn the_plugin_is_replaced_while_a_runtime_runs_it() {
    let dir = tempfile::tempdir().unwrap();
    let installed = dir.path().join("weir");
    std::fs::copy("/bin/sleep", &installed).unwrap();
    let mut plugin = Command::new(&installed).arg("10").spawn().unwrap();
    let rendered = with_plugin();
    let command = rendered.lines().find_map(|line| list(line, "command: ")).unwrap();
    let place = |text: &String| {
        let text = text.replace("/usr/local/bin/weir", "/bin/true");
        text.replace("/host/cni/bin", dir.path().to_str().unwrap())
    };
    let command: Vec<String> = command.iter().map(place).collect();
    let status = Command::new(&command[0]).args(&command[1..]).status().unwrap();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    assert!(status.success(), "{command:?}");
    assert_eq!(std::fs::read(&installed).unwrap(), std::fs::read("/bin/true").unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");
}

#[test]
fn the_manifests_configuration_is_one_that_the_agent_takes() {
    let (_, text) = PLAIN.split_once("weir.toml: |\n").expect("a configuration");
    let (text, _) = text.split_once("---\n").expect("an end");
    let text: String = text.lines().map(|line| format!("{}\n", line.trim_start())).collect();
    let config = crate::config::parse(&text, std::path::Path::new("weir.toml")).unwrap();
    assert!(config.kubernetes.is_some_and(|kubernetes| kubernetes.namespace_groups));
}
