//! Links between documents, and the book's table of contents.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use weir_testkit::markdown::{files, read, root, spans, split};

const SUMMARY: &str = "docs/book/SUMMARY.md";
/// The most words of a how-to guide.
const MAX_WORDS_OF_GUIDE: usize = 400;

/// The anchor of a heading, as code hosts and mdBook make it.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    // Of a link only its text counts.
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The anchors of a document. A repeated heading has a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (_, line) in split(text).1 {
        let heading = line.trim_start_matches('#');
        if !line.starts_with('#') || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading);
        let count = times.entry(name.clone()).or_default();
        all.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    all
}

/// The targets of a document's links, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (number, line) in split(text).1 {
        let plain = spans(line).1;
        for part in plain.split("](").skip(1) {
            let target = part.split_once(')').map_or(part, |(target, _)| target);
            all.push((number, target.to_owned()));
        }
    }
    all
}

/// A path without `.` and `..`.
fn tidy(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut tidy, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(tidy.pop()),
            part => tidy.push(part),
        }
        tidy
    })
}

/// The file and the anchor of a link in `file`. `None` for another site.
fn destination(file: &Path, target: &str) -> Option<(PathBuf, String)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() { file.to_owned() } else { tidy(&file.parent().unwrap().join(path)) };
    Some((to, anchor.to_owned()))
}

/// The fault of a link, if it has one.
fn fault(file: &Path, target: &str) -> Option<String> {
    let (to, anchor) = destination(file, target)?;
    if !root().join(&to).exists() {
        return Some(format!("there is no {}", to.display()));
    }
    if anchor.is_empty() {
        return None;
    }
    let known = anchors(&read(&to));
    (!known.contains(&anchor)).then(|| format!("{} has no heading #{anchor}: {known:?}", to.display()))
}

#[test]
fn every_link_and_anchor_of_the_documents_resolves() {
    let (mut faults, mut count) = (Vec::new(), 0);
    for file in files() {
        for (line, target) in links(&read(&file)) {
            count += 1;
            faults.extend(fault(&file, &target).map(|why| format!("{}:{line}: {why}", file.display())));
        }
    }
    assert!(count > 300, "{count} links");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_link_to_a_missing_file_or_heading_is_a_fault() {
    let file = Path::new("docs/install.md");
    assert_eq!(fault(file, "https://example.org/nothing"), None);
    assert_eq!(fault(file, "limits.md#any-engine"), None);
    assert_eq!(fault(file, "../README.md"), None);
    assert!(fault(file, "limit.md").unwrap().contains("there is no docs/limit.md"));
    assert!(fault(file, "limits.md#no-engine").unwrap().contains("no heading #no-engine"));
    assert_eq!(anchor(" The `[link]` table, [once](a.md#b)"), "the-link-table-once");
    assert!(anchors("# A\n## A\n```sh\n# no\n```\n").is_superset(&["a".into(), "a-1".into()].into()));
}

/// The pages of the summary, as paths below the root.
fn pages() -> BTreeSet<PathBuf> {
    let summary = Path::new(SUMMARY);
    links(&read(summary)).iter().filter_map(|(_, target)| Some(destination(summary, target)?.0)).collect()
}

/// `scripts/book.sh` adds the decision records itself.
fn is_record(path: &Path) -> bool {
    path.starts_with("docs/adr") && !path.ends_with("README.md")
}

#[test]
fn the_summary_names_each_document() {
    let pages = pages();
    let left_out: Vec<PathBuf> = files()
        .into_iter()
        .filter(|file| file != Path::new(SUMMARY) && !is_record(file) && !pages.contains(file))
        .filter(|file| file.starts_with("docs"))
        .collect();
    assert_eq!(left_out, [] as [PathBuf; 0], "{SUMMARY} does not name these");
    let documents: BTreeSet<PathBuf> = files().into_iter().collect();
    assert!(pages.is_subset(&documents), "{:?}", pages.difference(&documents));
}

/// Otherwise the link is dead in the built book.
#[test]
fn a_document_that_a_page_links_to_is_a_page() {
    let pages = pages();
    for page in &pages {
        for (line, target) in links(&read(page)) {
            let Some((to, _)) = destination(page, &target) else { continue };
            let is_document = to.extension().is_some_and(|extension| extension == "md");
            let is_page = pages.contains(&to) || is_record(&to);
            assert!(!is_document || is_page, "{}:{line}: {} is no page", page.display(), to.display());
        }
    }
}

#[test]
fn a_how_to_guide_has_at_most_400_words() {
    let guides: Vec<PathBuf> = files().into_iter().filter(|f| f.starts_with("docs/book/howto")).collect();
    assert!(guides.len() >= 9, "{guides:?}");
    for guide in guides {
        let words = read(&guide).split_whitespace().count();
        assert!(words <= MAX_WORDS_OF_GUIDE, "{}: {words} words", guide.display());
    }
}
