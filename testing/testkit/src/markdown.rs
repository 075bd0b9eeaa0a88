//! The project's documents as far as tests read them: files, fenced blocks, and the text between them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
///
/// # Panics
/// Without one.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The text of a file below the root.
///
/// # Panics
/// If it cannot be read.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All Markdown files of the repository, as paths below its root.
///
/// # Panics
/// If they cannot be listed.
#[must_use]
pub fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let mut below: Vec<PathBuf> =
        found.iter().map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect();
    below.sort();
    assert!(below.len() > 80, "{} Markdown files", below.len());
    below
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_others = name.starts_with('.') || ["target", "node_modules"].contains(&&*name);
        if path.is_dir() && !path.is_symlink() && !is_others {
            walk(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its first fence.
    pub line: usize,
    /// The words behind the first fence, such as `toml fragment`.
    pub info: String,
    /// The lines between the fences.
    pub text: String,
}

/// Splits a document into its fenced blocks and its other lines, each with its number.
///
/// # Panics
/// If a block has no end.
#[must_use]
pub fn split(text: &str) -> (Vec<Block>, Vec<(usize, &str)>) {
    let (mut blocks, mut lines) = (Vec::new(), Vec::new());
    let (mut open, mut indent): (Option<Block>, usize) = (None, 0);
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => {
                indent = line.len() - line.trim_start().len();
                open = Some(Block { line: number, info: info.trim().to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                // A block of a list is indented as its fences are.
                block.text += line.get(indent..).unwrap_or_else(|| line.trim_start());
                block.text.push('\n');
            }
            (None, None) => lines.push((number, line)),
        }
    }
    assert_eq!(open, None, "a block has no end");
    (blocks, lines)
}

/// The code spans of a line, and the line without them.
#[must_use]
pub fn spans(line: &str) -> (Vec<&str>, String) {
    let (mut code, mut plain) = (Vec::new(), String::new());
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 1 {
            code.push(part);
        } else {
            plain += part;
        }
    }
    (code, plain)
}

/// The lines of a transcript that a person types: those behind `$` or `#`.
#[must_use]
pub fn typed(transcript: &str) -> String {
    let mut text = String::new();
    let mut goes_on = false;
    for line in transcript.lines() {
        let typed = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).or(goes_on.then_some(line));
        goes_on = typed.is_some_and(|typed| typed.ends_with('\\'));
        text.extend(typed.map(|typed| format!("{typed}\n")));
    }
    text
}

#[test]
fn a_document_is_split_into_blocks_and_lines() {
    let (blocks, lines) = split("a\n  ```toml fragment\n  b = 1\n\n  ```\n`c` [d](e)\n");
    assert_eq!(blocks, [Block { line: 2, info: "toml fragment".into(), text: "b = 1\n\n".into() }]);
    assert_eq!(lines, [(1, "a"), (6, "`c` [d](e)")]);
    assert_eq!(spans(lines[1].1), (vec!["c"], " [d](e)".to_owned()));
    assert_eq!(typed("$ weir ps\nNAME\n$ a \\\n  b\nc\n"), "weir ps\na \\\n  b\n");
}
