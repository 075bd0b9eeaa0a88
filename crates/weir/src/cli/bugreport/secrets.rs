//! Removes secrets from texts.

use std::{collections::BTreeSet, fs};

const REMOVED: &str = "[removed]";
/// Shorter values are removed only where their key stands, as they occur everywhere.
const MIN_SECRET: usize = 5;

/// The secrets of a node, as far as its configuration names them.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Longest first, so that no secret hides a part of another.
    values: Vec<String>,
}

impl Secrets {
    /// The secrets in a configuration and in the files that it names. A text that is no TOML has those of
    /// its lines.
    pub(super) fn of(config: &str) -> Secrets {
        let mut values = BTreeSet::new();
        if let Ok(table) = config.parse::<toml::Table>() {
            collect(&toml::Value::Table(table), "", &mut values);
        }
        for line in config.lines() {
            if let Some((key, value)) = setting(line) {
                note(key, value, &mut values);
            }
        }
        let mut values: Vec<String> = values.into_iter().filter(|value| value.len() >= MIN_SECRET).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Secrets { values }
    }

    /// The text without these secrets and without credentials that show by themselves.
    pub(super) fn remove(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            text = text.replace(value.as_str(), REMOVED);
            // The same as a text in JSON has it.
            let quoted = serde_json::to_string(value).unwrap_or_default();
            if let Some(inner) = quoted.get(1..quoted.len().saturating_sub(1)).filter(|inner| inner != value)
            {
                text = text.replace(inner, REMOVED);
            }
        }
        without_credentials(&text)
    }
}

/// The configuration without the values of secret keys, also where a comment has one.
pub(super) fn without_values(config: &str) -> String {
    let line = |line: &str| match setting(line) {
        Some((key, value)) if is_secret(key) && !value.is_empty() => line.replacen(value, REMOVED, 1),
        _ => line.to_owned(),
    };
    config.lines().map(|text| line(text) + "\n").collect()
}

/// Whether the value of a key is a secret. A key that ends in `_file` names a file.
fn is_secret(key: &str) -> bool {
    let key = key.trim_matches(['"', '\'']).to_lowercase();
    let words = ["password", "passphrase", "secret", "token", "credential", "username", "auth"];
    !key.ends_with("_file") && words.iter().any(|word| key.contains(word))
}

/// The key and the bare value of a line, also of one in a comment.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim_start_matches(['#', ' ', '\t']).split_once('=')?;
    let key = key.trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.\"'".contains(c));
    let value = value.trim();
    let bare = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].split(quote).next().unwrap_or_default(),
        _ => value.split('#').next().unwrap_or_default().trim(),
    };
    is_key.then_some((key, bare))
}

/// Notes a secret value, and the content of a file that holds one.
fn note(key: &str, value: &str, values: &mut BTreeSet<String>) {
    if is_secret(key) {
        values.insert(value.to_owned());
    }
    let key = key.to_lowercase();
    if key.ends_with("_file") || key == "docker_config" {
        let content = fs::read_to_string(value).unwrap_or_default();
        match serde_json::from_slice::<serde_json::Value>(content.as_bytes()) {
            Ok(json @ serde_json::Value::Object(_)) => collect_json(&json, values),
            _ => values.extend(content.lines().map(|line| line.trim().to_owned()).filter(|l| !l.is_empty())),
        }
    }
    for credentials in credentials_of(value) {
        values.extend(credentials.split(':').map(str::to_owned));
        values.insert(credentials.to_owned());
    }
}

fn collect(value: &toml::Value, key: &str, values: &mut BTreeSet<String>) {
    match value {
        toml::Value::String(text) => note(key, text, values),
        toml::Value::Array(all) => all.iter().for_each(|one| collect(one, key, values)),
        toml::Value::Table(table) => table.iter().for_each(|(key, one)| collect(one, key, values)),
        _ => {}
    }
}

/// All texts of a file of credentials. Keys, such as names of registries, stay.
fn collect_json(value: &serde_json::Value, values: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::String(text) => drop(values.insert(text.clone())),
        serde_json::Value::Array(all) => all.iter().for_each(|one| collect_json(one, values)),
        serde_json::Value::Object(all) => all.values().for_each(|one| collect_json(one, values)),
        _ => {}
    }
}

/// The parts between `://` and `@` of the addresses in a text.
fn credentials_of(text: &str) -> Vec<&str> {
    let authority = |rest: &'_ str| rest.find(|c: char| "/?# \"'\n".contains(c)).unwrap_or(rest.len());
    let after = text.match_indices("://").map(|(at, mark)| &text[at + mark.len()..]);
    after
        .filter_map(|rest| rest[..authority(rest)].rsplit_once('@').map(|(credentials, _)| credentials))
        .collect()
}

/// The text without credentials in addresses and in headers of HTTP.
fn without_credentials(text: &str) -> String {
    let mut clean = text.to_owned();
    let found: BTreeSet<String> = credentials_of(text).into_iter().map(str::to_owned).collect();
    for credentials in found {
        clean = clean.replace(&format!("://{credentials}@"), &format!("://{REMOVED}@"));
    }
    for scheme in ["Bearer ", "Basic ", "bearer ", "basic "] {
        let mut rest = clean.as_str();
        let mut made = String::new();
        while let Some((before, after)) = rest.split_once(scheme) {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
            let end = after.find(|c: char| !is_part(c)).unwrap_or(after.len());
            made += before;
            made += scheme;
            // A short word is a word of prose.
            made += if end >= 12 { REMOVED } else { &after[..end] };
            rest = &after[end..];
        }
        made += rest;
        clean = made;
    }
    clean
}
