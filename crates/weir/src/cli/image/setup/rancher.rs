//! `registries.yaml` of k3s and RKE2. Weir reads it by lines, and refuses all but a mapping of plain keys.

use super::{Mirror, block};

/// The names of top-level keys.
fn keys(text: &str) -> Result<Vec<&str>, String> {
    let (mut keys, mut begun) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let refuse = |what: &str| Err(format!("line {} {what}, which weir does not read", number + 1));
        if line.starts_with('\t') {
            return refuse("begins with a tab");
        }
        if line.trim().is_empty() || line.starts_with([' ', '#']) {
            continue;
        }
        if line.trim_end() == "---" && !begun {
            begun = true;
            continue;
        }
        begun = true;
        let key = line.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with([' ', '\t']));
        let is_plain = |key: &str| {
            !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        match key {
            Some((key, _)) if is_plain(key) => keys.push(key),
            _ => return refuse("is not a plain key with a colon"),
        }
    }
    Ok(keys)
}

/// The text with the cache as a mirror of all registries.
///
/// The usual registries are named too. Some releases of k3s (1.31.6, 1.32.2) do not fall back to a registry that only
/// `*` matches.
pub(super) fn add(text: &str, mirror: &Mirror) -> Result<String, String> {
    let entry = |name: &str| format!("  \"{name}\":\n    endpoint:\n      - \"{}\"\n", mirror.url());
    let entries: String = mirror.registries.iter().map(|registry| entry(registry.as_str())).collect();
    let entries = entry("*") + &entries;
    if keys(text)?.contains(&"mirrors") {
        return Err(format!(
            "it has `mirrors` already, which weir does not edit; add these lines to it by hand, each endpoint \
             before the others of its registry:\n{entries}"
        ));
    }
    Ok(block::append(text, &format!("mirrors:\n{entries}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror() -> Mirror {
        let registries = vec!["docker.io".parse().unwrap(), "a.example:5000".parse().unwrap()];
        Mirror { listen: "127.0.0.1:5050".parse().unwrap(), registries }
    }

    #[test]
    fn mirrors_are_added_behind_other_keys_and_comments() {
        let before = "---\n# ours\nconfigs:\n  a.example:\n    auth: { username: u }\n";
        let want = "# weir image setup: begin\nmirrors:\n  \"*\":\n    endpoint:\n      - \"http://127.0.0.1:5050\"\n  \
                    \"docker.io\":\n    endpoint:\n      - \"http://127.0.0.1:5050\"\n  \"a.example:5000\":\n    \
                    endpoint:\n      - \"http://127.0.0.1:5050\"\n# weir image setup: end\n";
        assert_eq!(add(before, &mirror()).unwrap(), format!("{before}{want}"));
        assert_eq!(add("", &mirror()).unwrap(), want);
    }

    #[test]
    fn mirrors_of_the_operator_are_refused_with_the_lines_to_add() {
        for before in ["mirrors:\n  docker.io:\n", "configs: {}\nmirrors: {}", "mirrors:"] {
            let why = add(before, &mirror()).unwrap_err();
            assert!(why.starts_with("it has `mirrors` already"), "{why}");
            assert!(why.contains("  \"*\":\n    endpoint:\n      - \"http://127.0.0.1:5050\"\n"), "{why}");
        }
    }

    #[test]
    fn yaml_in_another_form_is_refused_with_its_line() {
        for (before, line) in [
            ("{mirrors: {}}", 1),
            ("configs:\n\tmirrors:\n", 2),
            ("\"mirrors\":\n", 1),
            ("configs: {\n}\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
            ("a: 1\n...\n", 2),
            ("? mirrors\n: 1\n", 1),
            ("- mirrors\n", 1),
            ("mirrors:x\n", 1),
            ("%YAML 1.2\n---\n", 1),
            ("&a mirrors:\n", 1),
        ] {
            let why = add(before, &mirror()).unwrap_err();
            assert!(why.starts_with(&format!("line {line} ")), "{before:?}: {why}");
        }
    }
}
