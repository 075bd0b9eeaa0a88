//! The reference of the configuration has the keys and the defaults of the program.

use std::{collections::BTreeMap, path::Path};

use weir_agent::config::{Config, parse};
use weir_testkit::markdown::{read, spans, split};

use crate::blocks::LINK;

const PAGE: &str = "docs/book/reference/configuration.md";
/// A key that no table has. The refusal names the keys that a table does have.
const UNKNOWN: &str = "no_such_key";

/// A table of the configuration.
struct Table {
    /// Its heading in the reference.
    heading: &'static str,
    /// The file up to the table's keys.
    before: &'static str,
    /// The lines of keys that the table must have.
    required: &'static [(&'static str, &'static str)],
}

const NAME: &[(&str, &str)] = &[("name", "name = \"a\"")];
const BUDGET: &[(&str, &str)] = &[("budget", "budget = \"1GiB\"")];

/// Each table. `[link]` stands before the others.
const TABLES: [Table; 21] = [
    Table {
        heading: "[link]",
        before: "[link]\n",
        required: &[("device", "device = \"eth0\""), ("capacity", "capacity = \"100mbit\"")],
    },
    Table { heading: "[agent]", before: "[agent]\n", required: &[] },
    Table { heading: "[discover]", before: "[discover]\n", required: &[] },
    Table { heading: "[kubernetes]", before: "[kubernetes]\n", required: &[] },
    Table { heading: "[labels]", before: "[labels]\n", required: &[] },
    Table { heading: "[defaults], [host] and [default]", before: "[host]\n", required: &[] },
    Table { heading: "down", before: "[host.down]\n", required: &[] },
    Table { heading: "[[group]]", before: "[[group]]\n", required: NAME },
    Table { heading: "[[class]]", before: "[[class]]\n", required: NAME },
    Table { heading: "match", before: "[[class]]\nname = \"a\"\n[class.match]\n", required: &[] },
    Table { heading: "[[congestion]]", before: "[[congestion]]\n", required: &[] },
    Table { heading: "[advice]", before: "[advice]\n", required: &[("to", "to = [\"192.0.2.0/24\"]")] },
    Table { heading: "[agreements]", before: "[agreements]\n", required: &[] },
    Table {
        heading: "[[agreements.template]]",
        before: "[agreements]\n[[agreements.template]]\n",
        required: &[
            ("id", "id = \"video\""),
            ("responder", "responder = \"node-1\""),
            ("service", "service = { term = \"server_parameters\", name = \"camera\" }"),
            ("terms", "terms = { min = \"10mbit\", max = \"20mbit\" }"),
        ],
    },
    Table { heading: "[images]", before: "[images]\n", required: BUDGET },
    Table {
        heading: "[[images.upstream]]",
        before: "[images]\nbudget = \"1GiB\"\n[[images.upstream]]\n",
        required: &[("registry", "registry = \"registry.example\"")],
    },
    Table {
        heading: "[images.pop]",
        before: "[images]\nbudget = \"1GiB\"\n[images.pop]\n",
        required: &[("redis", "redis = \"redis://10.0.0.5\""), ("store", "store = \"shared-dir\"")],
    },
    Table {
        heading: "[images.runtime]",
        before: "[images]\nbudget = \"1GiB\"\n[images.runtime]\n",
        required: BUDGET,
    },
    Table { heading: "[api]", before: "[api]\n", required: &[] },
    Table { heading: "[access]", before: "[access]\n", required: &[] },
    // The keys of a file are its tables.
    Table { heading: "The file", before: "", required: &[] },
];

impl Table {
    /// A file with these lines in the table.
    fn file(&self, lines: &[&str]) -> String {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        match self.heading {
            "[link]" => format!("{}{lines}", self.before),
            "The file" => format!("{lines}{LINK}"),
            _ => format!("{LINK}{}{lines}", self.before),
        }
    }

    /// The lines of the required keys without this one.
    fn required_without(&self, key: &str) -> Vec<&'static str> {
        self.required.iter().filter(|(name, _)| *name != key).map(|(_, line)| *line).collect()
    }

    /// The keys that the program knows here.
    fn keys(&self) -> Vec<String> {
        let unknown = format!("{UNKNOWN} = 1");
        let lines = [&self.required_without("")[..], &[&unknown]].concat();
        let why = read_file(&self.file(&lines)).unwrap_err();
        let (_, names) = why
            .split_once(&format!("unknown field `{UNKNOWN}`, expected "))
            .unwrap_or_else(|| panic!("{}: {why}", self.heading));
        let mut keys: Vec<String> = spans(names).0.into_iter().map(str::to_owned).collect();
        keys.sort();
        keys
    }
}

fn read_file(text: &str) -> Result<Config, String> {
    parse(text, Path::new("weir.toml")).map_err(|e| e.to_string())
}

/// The tables of the page by heading: key and default of each row.
fn reference() -> BTreeMap<String, Vec<(String, String)>> {
    let page = read(PAGE);
    let mut tables: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut heading = String::new();
    for (_, line) in split(&page).1 {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text.replace('`', "");
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let Some(key) = spans(cells[0]).0.first().copied().filter(|_| line.starts_with("| `")) else {
            continue;
        };
        let default = cells.get(2).copied().unwrap_or_default();
        tables.entry(heading.clone()).or_default().push((key.to_owned(), default.to_owned()));
    }
    tables
}

#[test]
fn the_reference_has_the_keys_that_the_program_knows() {
    let reference = reference();
    for table in &TABLES {
        let mut named: Vec<String> =
            reference.get(table.heading).into_iter().flatten().map(|(key, _)| key.clone()).collect();
        named.sort();
        assert_eq!(named, table.keys(), "{PAGE}, {} (page, program)", table.heading);
    }
    let known: Vec<&str> = TABLES.iter().map(|table| table.heading).collect();
    let other = reference.keys().find(|heading| !known.contains(&heading.as_str()));
    assert_eq!(other, None, "{PAGE} has a table of an unknown heading");
}

/// A default of the page is written into a file, and the file then means the same as without it.
#[test]
fn the_reference_has_the_defaults_of_the_program() {
    let mut compared = 0;
    for table in TABLES.iter().filter(|table| table.heading != "The file") {
        // A table of conditions means nothing without one. It has no defaults.
        let usual = read_file(&table.file(&table.required_without("")));
        for (key, default) in &reference()[table.heading] {
            let place = format!("{PAGE}, {} {key}", table.heading);
            if let Some(value) = spans(default).0.first() {
                compared += 1;
                let line = format!("{key} = {value}");
                let with = [&table.required_without(key)[..], &[&line]].concat();
                let read = read_file(&table.file(&with)).unwrap_or_else(|why| panic!("{place}: {why}"));
                assert_eq!(Ok(read), usual, "{place}: {value} is not the default");
            } else if default == "required" {
                let without = read_file(&table.file(&table.required_without(key)));
                assert!(without.is_err(), "{place} is not required");
            } else {
                assert_eq!(default, "none", "{place}: a default is a value in TOML, `required` or `none`");
                let is_required = table.required.iter().any(|(name, _)| name == key);
                assert!(!is_required, "{place} is required");
            }
        }
    }
    assert!(compared > 35, "{compared} defaults");
}

/// The sample calls itself a list of all keys.
#[test]
fn the_sample_names_each_key_of_the_reference() {
    let sample = read("docs/weir.toml");
    let is_named = |key: &str| {
        let is_start = |at: usize| !sample[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        sample.match_indices(key).any(|(at, _)| {
            let rest = sample[at + key.len()..].trim_start();
            is_start(at) && (rest.starts_with('=') || rest.starts_with(']'))
        })
    };
    for (heading, rows) in reference() {
        for (key, _) in rows {
            assert!(is_named(&key), "docs/weir.toml does not show {heading} {key}");
        }
    }
    assert!(!is_named("capaci") && !is_named("any_registr"));
}
