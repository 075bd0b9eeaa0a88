//! The generated parts of the reference: command line, routes, events and error codes.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use clap::Command;
use weir_testkit::assert_generated;

use weir_testkit::markdown::{files, read, root, spans};

/// The width of the help texts.
const COLUMNS: usize = 100;

/// The words of all verbs, depth first, without the verbs that `weir-lab` answers.
fn verbs(command: &Command, path: &[String], all: &mut Vec<Vec<String>>) {
    all.push(path.to_vec());
    let others = ["help", "lab", "simulate", "generate"];
    for verb in command.get_subcommands() {
        if !others.contains(&verb.get_name()) && !verb.is_hide_set() {
            verbs(verb, &[path, &[verb.get_name().to_owned()]].concat(), all);
        }
    }
}

/// The help text of a verb.
fn help(verb: &[String]) -> String {
    let words = verb.iter().map(String::as_str);
    let words: Vec<&str> = ["weir"].into_iter().chain(words).chain(["--help"]).collect();
    let shown = weir::command().term_width(COLUMNS).try_get_matches_from(&words).unwrap_err();
    shown.render().to_string()
}

/// A help text without the options that each verb has.
fn own_part(help: &str) -> String {
    let mut text = String::new();
    let mut lines = help.lines().peekable();
    while let Some(line) = lines.next() {
        let is_global = line == "Global options:";
        let is_common =
            line.trim_start().starts_with("-h, --help") || line.trim_start().starts_with("-V, --version");
        // Lines that are indented below belong to it.
        let goes_on = |next: &&str| match is_global {
            true => next.is_empty() || next.starts_with(' '),
            false => next.starts_with("          ") || next.is_empty(),
        };
        if is_global || is_common {
            while lines.next_if(goes_on).is_some() {}
            text = text.trim_end().to_owned() + "\n\n";
        } else {
            text += line.trim_end();
            text.push('\n');
        }
    }
    let text = text.replace("\nOptions:\n\n", "\n");
    text.trim_end().trim_end_matches("\nOptions:").trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_has_the_help_of_every_verb() {
    let mut command = weir::command();
    command.build();
    let mut all = Vec::new();
    verbs(&command, &[], &mut all);
    assert!(all.len() > 30, "{} verbs", all.len());
    let mut page = String::new();
    for verb in all {
        let help = help(&verb);
        let help = if verb.is_empty() { help } else { own_part(&help) };
        let level = "#".repeat(1 + verb.len().max(1));
        let name = [&["weir".to_owned()], &verb[..]].concat().join(" ");
        let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let _ = writeln!(page, "{level} {name}\n\n```text\n{}\n```\n", help.trim_end());
    }
    assert_generated("docs/book/reference/cli.md", "verbs", &page);
}

#[test]
fn options_of_every_verb_are_left_out_of_its_help() {
    let help = "Do it\n\nOptions:\n  -a         A\n  -h, --help  Print help\n\nGlobal options:\n  --json\n\nExamples:\n  x\n";
    assert_eq!(own_part(help), "Do it\n\nOptions:\n  -a         A\n\nExamples:\n  x\n");
    assert_eq!(
        own_part("Do it\n\nOptions:\n  -h, --help  Print help\n\nGlobal options:\n  --json\n"),
        "Do it\n"
    );
}

/// The tables in the documentation of the crate weir-api, without links.
fn tables_of_routes() -> Vec<String> {
    let source = read("crates/weir-api/src/lib.rs");
    let mut tables = vec![String::new()];
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        let row = line.trim_start();
        if row.starts_with('|') {
            let plain =
                row.replace("`[`[`", "`[").replace("`]`]`", "]`").replace("[`", "`").replace("`]", "`");
            let _ = writeln!(tables.last_mut().unwrap(), "{}", plain.trim_end());
        } else if !tables.last().unwrap().is_empty() {
            tables.push(String::new());
        }
    }
    tables.retain(|table| !table.is_empty());
    tables
}

#[test]
fn the_reference_has_the_routes_of_the_api() {
    let tables = tables_of_routes();
    let [node, agreements] = &tables[..] else { panic!("{} tables", tables.len()) };
    assert_generated("docs/book/reference/api.md", "routes", node);
    assert_generated("docs/book/reference/api.md", "agreements", agreements);
}

/// Methods and paths in the first cells of the tables.
fn documented_routes() -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    for row in tables_of_routes().iter().flat_map(|table| table.lines()) {
        let (mut method, mut last) = (String::new(), String::new());
        for span in spans(row.split('|').nth(1).unwrap()).0 {
            let path = match span.split_once(' ') {
                Some((verb, path)) => {
                    method = verb.to_owned();
                    path.to_owned()
                }
                None => match span.strip_prefix("...") {
                    Some(end) => last.rsplit_once('/').unwrap().0.to_owned() + end,
                    None => span.to_owned(),
                },
            };
            last = path.split('?').next().unwrap().to_owned();
            routes.insert(format!("{method} {last}"));
        }
    }
    routes
}

/// Methods and paths of the server's routers.
fn served_routes() -> BTreeSet<String> {
    let directory = root().join("crates/weir-agent/src/server");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let others = ["tests.rs", "tcp_tests.rs", "agree_tests.rs", "access.rs"];
    let texts = files
        .filter(|path| path.is_file() && !others.iter().any(|name| path.ends_with(name)))
        .map(|path| fs::read_to_string(path).unwrap());
    let mut routes = BTreeSet::new();
    for text in texts.chain([read("crates/weir-agent/src/server.rs")]) {
        for route in text.split(".route(\"").skip(1) {
            let (path, rest) = route.split_once('"').unwrap();
            let mut depth = 1;
            let end = rest.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            let handlers = &rest[..end.unwrap()];
            for method in ["get", "put", "post", "patch", "delete"] {
                if handlers.contains(&format!(" {method}(")) || handlers.contains(&format!(".{method}(")) {
                    routes.insert(format!("{} {path}", method.to_uppercase()));
                }
            }
        }
    }
    routes
}

#[test]
fn the_documented_routes_are_those_of_the_server() {
    let (documented, served) = (documented_routes(), served_routes());
    assert!(served.len() > 45, "{served:?}");
    let differs: Vec<&String> = documented.symmetric_difference(&served).collect();
    assert_eq!(differs, [] as [&String; 0], "in one of the two only");
}

/// The words of an enumeration in a source file, each with its variant and its description.
fn words(path: &str, name: &str) -> Vec<(String, String, String)> {
    words_after(&read(path), &format!("    {name} {{\n"))
}

/// The words of the enumeration that begins behind `start`.
fn words_after(source: &str, start: &str) -> Vec<(String, String, String)> {
    let (_, body) = source.split_once(start).unwrap();
    let (mut all, mut about) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            about += text;
        } else if let Some((variant, word)) = line.split_once(" = ") {
            let word = word.trim_matches([',', '"']).to_owned();
            all.push((variant.to_owned(), word, std::mem::take(&mut about).trim().to_owned()));
        }
    }
    all
}

fn table(head: &str, rows: impl IntoIterator<Item = String>) -> String {
    let line = "|---".repeat(head.matches('|').count() - 1) + "|";
    [head.to_owned(), line].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

const WORDS: &str = "crates/weir-api/src/words.rs";

#[test]
fn the_reference_has_each_kind_of_event() {
    let kinds = words(WORDS, "EventKind");
    assert!(kinds.len() > 35, "{kinds:?}");
    // A kind is the word that programs read.
    assert!(kinds.iter().all(|(_, word, _)| !matches!(word.as_str().into(), weir_api::EventKind::Other(_))));
    let help = help(&["events".to_owned()]);
    let (_, named) = help.split_once("Kinds: ").unwrap();
    let named: BTreeSet<&str> = named.split([',', ';', ' ', '\n']).collect();
    let unnamed = kinds.iter().find(|(_, word, _)| !named.contains(word.as_str()));
    assert_eq!(unnamed, None, "`weir events --help` does not name it");
    let rows = kinds.iter().map(|(_, word, about)| format!("| `{word}` | {about} |"));
    assert_generated("docs/book/reference/events.md", "kinds", &table("| kind | when |", rows));
}

#[test]
fn the_reference_has_each_reason_of_no_enforcement() {
    let reasons = words(WORDS, "NotEnforced");
    assert!(reasons.len() >= 9, "{reasons:?}");
    let rows = reasons.iter().map(|(_, word, about)| format!("| `{word}` | {about} |"));
    assert_generated("docs/book/reference/events.md", "reasons", &table("| reason | meaning |", rows));
}

/// The number of an HTTP status by its name in the crate `http`.
fn number(status: &str) -> u16 {
    match status {
        "BAD_REQUEST" => 400,
        "UNAUTHORIZED" => 401,
        "FORBIDDEN" => 403,
        "NOT_FOUND" => 404,
        "METHOD_NOT_ALLOWED" => 405,
        "CONFLICT" => 409,
        "PAYLOAD_TOO_LARGE" => 413,
        "UNSUPPORTED_MEDIA_TYPE" => 415,
        "UNPROCESSABLE_ENTITY" => 422,
        "TOO_MANY_REQUESTS" => 429,
        "INTERNAL_SERVER_ERROR" => 500,
        "SERVICE_UNAVAILABLE" => 503,
        other => panic!("{other} has no number here"),
    }
}

/// The HTTP status of each variant, as the `match` of the server's `status` says.
fn status_of(variant: &str) -> u16 {
    let source = read("crates/weir-agent/src/server.rs");
    let (_, body) = source.split_once("match &self.0.code {").unwrap();
    let (arms, _) = body.split_once("\n        }").unwrap();
    for arm in arms.split(",\n") {
        let (patterns, status) = arm.split_once("=>").unwrap();
        let is_it = patterns
            .split('|')
            .any(|p| [format!("ErrorCode::{variant}"), "_".into()].contains(&p.trim().into()));
        if is_it {
            return number(status.trim().trim_end_matches(',').trim_start_matches("StatusCode::"));
        }
    }
    panic!("{variant} has no status")
}

#[test]
fn the_reference_has_each_error_code_with_its_status() {
    let codes = words(WORDS, "ErrorCode");
    assert!(codes.len() >= 14, "{codes:?}");
    let rows =
        codes.iter().map(|(variant, word, about)| format!("| `{word}` | {} | {about} |", status_of(variant)));
    assert_generated("docs/book/reference/errors.md", "codes", &table("| code | status | meaning |", rows));
}

/// The arms of the server's `match` over faults: status and variants.
fn arms_of_faults() -> Vec<(String, Vec<String>)> {
    let source = read("crates/weir-agent/src/server/language.rs");
    let (_, body) = source.split_once("    match code {\n").unwrap();
    let (arms, _) = body.split_once("\n    }").unwrap();
    let arm = |arm: &str| {
        let (patterns, status) = arm.split_once("=>").unwrap();
        let variants = patterns.split('|').map(|pattern| pattern.trim().to_owned()).collect();
        (status.trim().trim_end_matches(',').trim_start_matches("StatusCode::").to_owned(), variants)
    };
    arms.split(",\n").map(arm).collect()
}

#[test]
fn the_reference_has_each_fault_of_agreements() {
    let source = "crates/agreements/src/fault.rs";
    let codes = words_after(&read(source), "codes! {\n");
    let mut rows = Vec::new();
    let mut count = 0;
    for (status, variants) in arms_of_faults() {
        let word = |variant: &String| {
            let found = codes.iter().find(|(name, ..)| name == variant);
            format!("`{}`", found.unwrap_or_else(|| panic!("{source} has no {variant}")).1)
        };
        count += variants.len();
        let words: Vec<String> = variants.iter().map(word).collect();
        rows.push(format!("| {} | {} |", number(&status), words.join(", ")));
    }
    assert_eq!(count, codes.len(), "each code has a status");
    rows.sort();
    assert_generated("docs/book/reference/errors.md", "faults", &table("| status | codes |", rows));
}

#[test]
fn the_metrics_of_the_guides_are_those_of_the_reference() {
    let known = read("docs/book/reference/metrics.md");
    let mut count = 0;
    for guide in files().into_iter().filter(|file| file.starts_with("docs/book/howto")) {
        let text = read(&guide);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for name in text.split(|c| !is_name(c)).filter(|word| word.starts_with("weir_")) {
            count += 1;
            // A query names a part of a histogram.
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(&format!("| `{family}` |")), "{}: there is no {name}", guide.display());
        }
    }
    assert!(count >= 8, "{count} metrics");
}
