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

/// Values at the bounds of a key and beyond them. The first words of a row of the page stand before its bounds.
type Bounds = (&'static str, &'static str, &'static [&'static str], &'static [&'static str], &'static str);

const MILLION: &str = ", 1 to 1,000,000 |";
const BOUNDS: [Bounds; 32] = [
    ("[link]", "capacity", &["\"64kbit\""], &["\"63kbit\""], "at least 64kbit"),
    ("[link]", "queues", &["1", "256"], &["0", "257"], "1 to 256"),
    ("[link]", "delay_ms", &["1", "10000"], &["0", "10001"], "1 to 10,000"),
    ("[link]", "overhead", &["-64", "256"], &["-65", "257"], "-64 to 256"),
    ("[link]", "mpu", &["0", "256"], &["257"], "0 to 256"),
    ("[link]", "reservable", &["0.01", "1"], &["0", "1.01"], "| part |"),
    ("[link]", "engine", &["\"credit-experiment\""], &["\"fq\""], "credit-experiment"),
    ("[agent]", "audit_size", &["\"64KiB\"", "\"1GiB\""], &["\"63KiB\"", "\"1025MiB\""], "64 KiB to 1 GiB"),
    ("[agent]", "audit_files", &["2", "1000"], &["1", "1001"], "2 to 1,000"),
    ("[labels]", "max_weight", &["1", "1000000"], &["0", "1000001"], "| weight |"),
    ("[defaults], [host] and [default]", "weight", &["1", "1000000"], &["0", "1000001"], "| weight |"),
    ("[defaults], [host] and [default]", "min", &["\"8kbit\""], &["\"7kbit\"", "\"0mbit\""], "| rate |"),
    ("[defaults], [host] and [default]", "max", &["\"8kbit\""], &["\"7kbit\"", "\"0mbit\""], "| rate |"),
    ("[[group]]", "weight", &["1", "1000000"], &["0", "1000001"], "| weight |"),
    ("[[class]]", "weight", &["1", "1000000"], &["0", "1000001"], "| weight |"),
    ("match", "dscp", &["0", "63"], &["64"], "0 to 63"),
    ("[[congestion]]", "after", &["\"1TiB\""], &["\"0\"", "\"2TiB\""], "up to 1 TiB"),
    ("[[congestion]]", "window", &["4", "65535"], &["3", "65536"], "4 to 65,535"),
    ("[advice]", "share", &["0", "0.25"], &["-0.1", "0.26"], "0 to 0.25"),
    ("[advice]", "turn_s", &["1", "3600"], &["0", "3601"], "1 to 3,600"),
    ("[agreements]", "oversubscription", &["1.1", "100"], &["1", "101"], "above 1 and up to 100"),
    ("[agreements]", "most", &["1", "1000000"], &["0", "1000001"], MILLION),
    ("[agreements]", "most_of_party", &["1", "1000000"], &["0", "1000001"], MILLION),
    ("[agreements]", "offers_at_once", &["1", "1000000"], &["0", "1000001"], MILLION),
    ("[agreements]", "offers_per_minute", &["1", "1000000"], &["0", "1000001"], MILLION),
    ("[agreements]", "keep_days", &["1", "1000000"], &["0", "1000001"], MILLION),
    ("[images]", "budget", &["\"64MiB\""], &["\"63MiB\""], "at least 64 MiB"),
    ("[images]", "connections", &["1", "65536"], &["0", "65537"], "1 to 65,536"),
    ("[images]", "max_rate", &["\"1mbit\""], &["\"999kbit\""], "at least 1mbit"),
    ("[images]", "scrub_days", &["1", "365"], &["0", "366"], "1 to 365"),
    ("[[images.upstream]]", "requests", &["1"], &["0"], "at least 1"),
    ("[images.runtime]", "budget", &["\"64MiB\""], &["\"63MiB\""], "at least 64 MiB"),
];

#[test]
fn the_reference_has_the_bounds_of_the_program() {
    let page = read(PAGE);
    for (heading, key, good, bad, words) in BOUNDS {
        let table = TABLES.iter().find(|table| table.heading == heading).unwrap();
        let (_, rows) = page.split_once(&format!("## {}\n", spans_of(heading))).unwrap();
        let row = rows.lines().find(|line| line.starts_with(&format!("| `{key}` |"))).unwrap();
        assert!(row.contains(words), "{PAGE}, {heading} {key}: no `{words}` in: {row}");
        let read = |value: &str| {
            let line = format!("{key} = {value}");
            // A rule that changes an algorithm names both.
            let rule: &[&str] = match (heading, key) {
                ("[[congestion]]", "window") => &["start = \"cubic\"", "after = \"1MiB\"", "then = \"bbr\""],
                ("[[congestion]]", _) => &["start = \"cubic\"", "then = \"bbr\""],
                _ => &[],
            };
            read_file(&table.file(&[&table.required_without(key)[..], rule, &[&line]].concat()))
        };
        for value in good {
            assert!(read(value).is_ok(), "{heading} {key} = {value}: {:?}", read(value));
        }
        for value in bad {
            assert!(read(value).is_err(), "{heading} {key} = {value} is accepted");
        }
    }
}

/// A heading as the page writes it.
fn spans_of(heading: &str) -> String {
    match heading {
        "[defaults], [host] and [default]" => "`[defaults]`, `[host]` and `[default]`".to_owned(),
        _ => format!("`{heading}`"),
    }
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
