//! The keys of a configuration file as they are written, for the audit.

use std::collections::BTreeMap;

use weir_units::without_user;

use super::secrets::{is_address, is_secret, without_secrets};

/// The most bytes of a value that are kept. The audit keeps 512 characters, and so the digest behind them.
const MAX_VALUE: usize = 400;
/// The text in place of a secret.
const HIDDEN: &str = "(hidden)";

/// The keys of a file as they are written. Two files that mean the same are equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys(pub(crate) BTreeMap<String, String>);

impl PartialEq for Keys {
    fn eq(&self, _: &Keys) -> bool {
        true
    }
}

/// The keys of a configuration file by their full names, as `link.capacity` or `class.web.weight`, with their values.
/// Secrets are left out.
pub(super) fn keys_of(text: &str) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        flatten(&mut keys, "", &toml::Value::Table(table));
    }
    keys
}

fn flatten(keys: &mut BTreeMap<String, String>, path: &str, value: &toml::Value) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                flatten(keys, &below(key), value);
            }
        }
        toml::Value::Array(values) if values.iter().any(toml::Value::is_table) => {
            for (index, value) in values.iter().enumerate() {
                let name = value.get("name").and_then(toml::Value::as_str);
                flatten(keys, &below(&name.map_or_else(|| index.to_string(), str::to_owned)), value);
            }
        }
        value => {
            let last = path.rsplit('.').next().unwrap_or(path);
            let text = if is_secret(last) { HIDDEN.to_owned() } else { shown(last, value).to_string() };
            let text = cut(text);
            keys.insert(path.to_owned(), text);
        }
    }
}

/// A value that is not too long for a record. The digest tells two long ones apart.
fn cut(text: String) -> String {
    if text.len() <= MAX_VALUE {
        return text;
    }
    let end = (0..=MAX_VALUE).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let digest: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}... ({} bytes, {digest})", &text[..end], text.len())
}

/// The value of a key as an earlier version has recorded it, with its secrets hidden.
pub(crate) fn hidden(path: &str, text: &str) -> String {
    let last = path.rsplit('.').next().unwrap_or(path);
    if is_secret(last) {
        return HIDDEN.to_owned();
    }
    if !text.contains(['@', '?']) {
        return text.to_owned();
    }
    let key = "value";
    match format!("{key} = {text}").parse::<toml::Table>() {
        Ok(mut table) => table.remove(key).map_or_else(String::new, |value| shown(last, &value).to_string()),
        // It was cut.
        Err(_) => {
            let line = without_secrets(&format!("{last} = {text}"), HIDDEN);
            line.split_once('=').map_or(String::new(), |(_, value)| value.trim_start().to_owned())
        }
    }
}

/// A value with the user and the password of each address hidden.
fn shown(key: &str, value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) if is_address(key) || text.contains("://") => {
            without_user(text, HIDDEN).into()
        }
        toml::Value::Array(values) => {
            toml::Value::Array(values.iter().map(|value| shown(key, value)).collect())
        }
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_full_names_and_no_secrets() {
        let text = "[link]\ncapacity = \"95mbit\"\n[[class]]\nname = \"web\"\nweight = 3\n[[congestion]]\nport = 443\n\
                    [images.redis]\nurl = \"redis://weir:s3cret@10.0.0.1:6379/0\"\npassword = \"s3cret\"\n\
                    upstreams = [\"https://a.example/x@y\", \"http://u:s3cret@b.example\"]\n\
                    [images]\nproxy = \"http://acme:a/s3cret#s3cret@b.example\"\nusername = \"acme\"\n";
        let keys = keys_of(text);
        let value = |key: &str| keys.get(key).map(String::as_str);
        assert_eq!(value("link.capacity"), Some("\"95mbit\""));
        assert_eq!(value("class.web.weight"), Some("3"));
        assert_eq!(value("congestion.0.port"), Some("443"));
        assert_eq!(value("images.redis.url"), Some("\"redis://(hidden)@10.0.0.1:6379/0\""));
        assert_eq!(value("images.redis.password"), Some("(hidden)"));
        let all = format!("{keys:?}");
        assert!(!all.contains("s3cret") && !all.contains("acme"), "{all}");
        assert_eq!(value("images.proxy"), Some("\"http://(hidden)@b.example\""));
        assert!(all.contains("https://(hidden)@y") && all.contains("http://(hidden)@b.example"), "{all}");
    }

    /// Versions before 2026-11-30 recorded parts of credentials.
    #[test]
    fn recorded_value_is_what_the_same_file_has_now() {
        for (key, recorded, now) in [
            ("images.proxy", "\"http://u:a/b@h:3128\"", "\"http://(hidden)@h:3128\""),
            ("images.pop.redis", "\"u:p@10.0.0.5\"", "\"(hidden)@10.0.0.5\""),
            ("images.upstream.x.username", "\"acme\"", "(hidden)"),
            ("images.redis.url", "\"redis://(hidden)@10.0.0.5\"", "\"redis://(hidden)@10.0.0.5\""),
            ("images.list", "[\"http://u:p@h\", \"b\"]", "[\"http://(hidden)@h\", \"b\"]"),
            ("link.capacity", "\"95mbit\"", "\"95mbit\""),
            ("class.web.name", "\"a@b?\"", "\"a@b?\""),
            ("images.proxy", "\"http://u:p@h/long...", "\"http://(hidden)@h/long..."),
        ] {
            assert_eq!(hidden(key, recorded), now, "{key}");
        }
    }

    #[test]
    fn long_value_is_cut_and_differs_from_another_one() {
        let of = |end: char| keys_of(&format!("note = \"{}{end}\"", "é".repeat(100_000)))["note"].clone();
        let (a, b) = (of('a'), of('b'));
        assert!(a != b && a.len() < MAX_VALUE + 64, "{}", a.len());
        assert!(a.contains("... (200003 bytes, "), "{}", &a[MAX_VALUE - 4..]);
    }
}
