//! The examples of the documents: each is read by the parser that it is for.

use std::{collections::BTreeSet, path::Path};

use clap::error::ErrorKind;
use weir_agree::{Document, Language, Offer};
use weir_testkit::markdown::{Block, files, read, spans, split, typed};

use crate::shell;

/// The link of a fragment that has none.
pub(crate) const LINK: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n";

/// Each block of all documents, with its place.
fn blocks() -> Vec<(String, Block)> {
    let of_file = |file: std::path::PathBuf| {
        let blocks = split(&read(&file)).0;
        blocks.into_iter().map(move |block| (format!("{}:{}", file.display(), block.line), block))
    };
    files().into_iter().flat_map(of_file).collect()
}

/// Reads a block of TOML by the parser that its first line names: a whole configuration, a `fragment` of
/// one, or an `offer`.
fn read_toml(info: &str, text: &str) -> Result<(), String> {
    let configuration = |text: &str| match weir_agent::config::parse(text, Path::new("weir.toml")) {
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    };
    match info {
        "toml" => configuration(text),
        // Tables of a fragment may stand in any order.
        "toml fragment" if text.contains("[link]") => Err("a whole file is no fragment".to_owned()),
        "toml fragment" => configuration(&format!("{LINK}{text}")),
        "toml offer" => Offer::read(text, Language::Toml).map(drop).map_err(|e| e.to_string()),
        _ => Err(format!("unknown kind `{info}`: toml, toml fragment or toml offer")),
    }
}

#[test]
fn every_toml_block_is_read_by_its_parser() {
    let mut count = 0;
    for (place, block) in blocks().into_iter().filter(|(_, block)| block.info.starts_with("toml")) {
        count += 1;
        read_toml(&block.info, &block.text).unwrap_or_else(|why| panic!("{place}: {why}"));
    }
    assert!(count >= 8, "{count} blocks of TOML");
    assert!(read_toml("toml fragment", "[host]\nweigth = 2\n").unwrap_err().contains("weigth"));
}

#[test]
fn every_json_block_is_json() {
    for (place, block) in blocks().into_iter().filter(|(_, block)| block.info == "json") {
        let read: Result<serde_json::Value, _> = serde_json::from_str(&block.text);
        assert!(read.is_ok(), "{place}: {read:?}");
    }
}

/// The commands of all blocks of shell, with their places.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for (place, block) in blocks() {
        let script = match block.info.as_str() {
            "sh" | "bash" | "shell" => block.text,
            "console" => {
                let typed = typed(&block.text);
                assert!(!typed.is_empty(), "{place}: no line begins with `$ `");
                typed
            }
            _ => continue,
        };
        all.extend(shell::commands(&script).into_iter().map(|words| (place.clone(), words)));
    }
    all
}

/// The reason why the command line does not take these words.
fn refusal(words: &[String]) -> Option<String> {
    let said = weir::command().try_get_matches_from(words).err()?;
    let is_help = matches!(said.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!is_help).then(|| said.to_string())
}

#[test]
fn every_weir_command_of_the_documents_parses() {
    let mut count = 0;
    for (place, words) in commands() {
        let program = words[0].rsplit('/').next().unwrap_or_default();
        if program == "weir" {
            count += 1;
            assert_eq!(refusal(&words), None, "{place}: {}", words.join(" "));
        }
    }
    assert!(count >= 40, "{count} commands");
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    assert!(refusal(&words("weir set web wieght=2")).is_some());
    assert!(refusal(&words("weir agree ofer camera.toml")).is_some());
}

/// Docker gives a container a cgroup namespace of its own, in which cgroups of other containers have other names.
/// Without `rslave` mounts that come later, as those of network namespaces, are not seen in the container.
#[test]
fn every_docker_run_of_the_agent_sees_cgroups_and_later_mounts() {
    let is_agent = |words: &[String]| {
        words.starts_with(&["docker".to_owned(), "run".to_owned()])
            && words.last().is_some_and(|word| word.starts_with("weir:"))
    };
    let all: Vec<_> = commands().into_iter().filter(|(_, words)| is_agent(words)).collect();
    assert!(!all.is_empty(), "no document runs the agent's image");
    for (place, words) in all {
        for option in [["--cgroupns", "host"], ["--volume", "/run:/run:rslave"]] {
            assert!(words.windows(2).any(|pair| *pair == option), "{place} lacks {}", option.join(" "));
        }
    }
}

#[test]
fn every_make_verb_of_the_documents_exists() {
    let makefile = read("Makefile");
    let verbs: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY: "))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(verbs.contains("book"), "{verbs:?}");
    let of_blocks = commands().into_iter().filter(|(_, words)| words[0] == "make");
    for (place, words) in of_blocks.chain(quoted("make ")) {
        let named = words[1..].iter().find(|word| !word.starts_with('-') && !word.contains(['=', '.']));
        if let Some(verb) = named {
            assert!(verbs.contains(verb.as_str()), "{place}: there is no `make {verb}`");
        }
    }
}

/// The heads of tables in the documents are those that `weir ps` prints.
#[test]
fn tables_of_classes_have_the_columns_of_weir_ps() {
    let agent = weir_fake_agent::FakeAgent::start();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("--socket")
        .arg(agent.path())
        .arg("ps")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let wanted = columns(printed.lines().next().unwrap());
    assert!(wanted.len() >= 10, "{wanted:?}");
    let mut count = 0;
    for (place, block) in blocks().into_iter().filter(|(_, block)| block.info == "console") {
        for line in block.text.lines().filter(|line| line.starts_with("NAME ") && line.ends_with("STATE")) {
            count += 1;
            assert_eq!(columns(line), wanted, "{place}");
        }
    }
    assert!(count >= 5, "{count} tables");
}

/// The code spans of all documents that begin with `start`, as words.
fn quoted(start: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for file in files() {
        let text = read(&file);
        for (number, line) in split(&text).1 {
            for span in spans(line).0.into_iter().filter(|span| span.starts_with(start)) {
                let words = span.split_whitespace().map(str::to_owned).collect();
                all.push((format!("{}:{number}", file.display()), words));
            }
        }
    }
    all
}

/// A command in a sentence may lack its arguments, as in `weir set`. Its verbs exist.
#[test]
fn every_verb_in_a_sentence_exists() {
    let mut count = 0;
    let mut root = weir::command();
    root.build();
    for (place, words) in quoted("weir ") {
        let mut command = &root;
        for word in &words[1..] {
            if word.starts_with('-') || !command.has_subcommands() {
                break;
            }
            // A row of dots or a word in capitals stands for any verb.
            if word.starts_with("..") || word.chars().all(|c| c.is_ascii_uppercase()) {
                break;
            }
            // A bar stands between verbs of one kind.
            for name in word.split('|') {
                let found = command.find_subcommand(name);
                assert!(found.is_some(), "{place}: there is no `{}`", words.join(" "));
                count += 1;
            }
            let Some(next) = command.find_subcommand(word) else { break };
            command = next;
        }
    }
    assert!(count > 100, "{count} verbs");
}
