//! Removes secrets from texts.

use std::{collections::BTreeSet, fs};

use weir_agent::config::secrets::{is_address, is_secret, without_secrets};
use weir_units::without_users;

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
            // The same as a text in JSON has it, and a text of TOML in one of JSON.
            let quoted = in_quotes(value);
            for inner in [in_quotes(&quoted), quoted].iter().filter(|inner| *inner != value) {
                text = text.replace(inner, REMOVED);
            }
        }
        without_credentials(&text)
    }
}

/// A text as it stands between the quotes of JSON.
fn in_quotes(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

/// The configuration without the values of secret keys, also where a comment has one.
pub(super) fn without_values(config: &str) -> String {
    config.lines().map(|line| without_secrets(line, REMOVED) + "\n").collect()
}

/// The key and the bare value of a line, also of one in a comment.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim_start_matches(['#', ' ', '\t']).split_once('=')?;
    let key = key.trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.\"'".contains(c));
    let value = value.trim();
    let bare = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => quoted(&value[1..], quote),
        _ => value.split('#').next().unwrap_or_default().trim(),
    };
    is_key.then_some((key, bare))
}

/// The text up to the closing quote. A double quote after a backslash is a part of it.
fn quoted(text: &str, quote: char) -> &str {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && quote == '"' && !is_escaped;
        is_end
    });
    &text[..end.unwrap_or(text.len())]
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
    if let Some(credentials) = credentials_of(&key, value) {
        values.extend(credentials.split(':').map(str::to_owned));
        values.extend(credentials.split_once(':').map(|(_, password)| password.to_owned()));
        values.insert(credentials.to_owned());
    }
    let query = value.split_once('?').filter(|_| is_address(&key)).map(|(_, query)| query.split('&'));
    values.extend(query.into_iter().flatten().filter_map(|part| Some(part.split_once('=')?.1.to_owned())));
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

/// The user and the password of an address. They end at the last `@`, whatever they hold.
fn credentials_of<'v>(key: &str, value: &'v str) -> Option<&'v str> {
    let after = value.split_once("://").map(|(_, rest)| rest);
    let after = after.or_else(|| is_address(key).then_some(value))?;
    after.rsplit_once('@').map(|(credentials, _)| credentials)
}

/// The text without credentials in addresses and in headers of HTTP.
fn without_credentials(text: &str) -> String {
    let mut clean = without_users(text, REMOVED);
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
