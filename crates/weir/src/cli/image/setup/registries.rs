//! `registries.conf` of Podman, Buildah and CRI-O. The format has no mirror of all registries, so each registry gets
//! an entry: in the file that names it already, else in a file of weir's.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::{Mirror, Plan, block, files, files::Edit};

const MAIN: &str = "etc/containers/registries.conf";
const DIRECTORY: &str = "etc/containers/registries.conf.d";
/// Weir's own file.
const OWN: &str = "etc/containers/registries.conf.d/50-weir.conf";

/// A file of the format, without weir's blocks.
struct File {
    path: PathBuf,
    text: String,
    /// Its registries, in their order.
    registries: Vec<Table>,
}

/// The files in the order in which they are read. A later one replaces entries of an earlier one.
fn paths(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    match fs::read_dir(root.join(DIRECTORY)) {
        Ok(entries) => found.extend(entries.flatten().map(|entry| entry.path())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => anyhow::bail!("cannot read {}: {e}", root.join(DIRECTORY).display()),
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    found.sort();
    let main = root.join(MAIN);
    Ok(main.exists().then_some(main).into_iter().chain(found).collect())
}

fn parse(text: &str) -> Result<Vec<Table>, String> {
    let table: Table = text.parse().map_err(|e| format!("it is not TOML: {e}"))?;
    if table.get("registries").is_some_and(Value::is_table) {
        let version_1 = "it is of version 1 of the format ([registries.search]), which cannot name mirrors; write it \
                         in version 2 (unqualified-search-registries, [[registry]])";
        return Err(version_1.to_owned());
    }
    match table.get("registry") {
        None => Ok(Vec::new()),
        Some(Value::Array(entries)) => {
            let table =
                |entry: &Value| entry.as_table().cloned().ok_or("a registry is not a table".to_owned());
            entries.iter().map(table).collect()
        }
        Some(_) => Err("its registry is not a list of tables".to_owned()),
    }
}

fn text<'a>(entry: &'a Table, key: &str) -> Option<&'a str> {
    entry.get(key).and_then(Value::as_str)
}

/// The names that an entry is for.
fn prefix(entry: &Table) -> &str {
    let location = text(entry, "location").unwrap_or_default();
    text(entry, "prefix").unwrap_or(location).trim_end_matches('/')
}

/// The locations of an entry's mirrors.
fn mirrors(entry: &Table) -> impl Iterator<Item = &str> {
    let mirrors = entry.get("mirror").and_then(Value::as_array).into_iter().flatten();
    mirrors.filter_map(|mirror| mirror.as_table().and_then(|mirror| text(mirror, "location")))
}

/// The lines of a mirror in an entry.
fn mirror_lines(location: &str) -> String {
    format!("[[registry.mirror]]\nlocation = \"{location}\"\ninsecure = true\n")
}

/// A line that begins a table, without spaces and comment.
fn header(line: &str) -> Option<String> {
    let bare: String = line.split('#').next().unwrap_or_default().split_whitespace().collect();
    bare.starts_with('[').then_some(bare)
}

/// The text with a mirror before the others of its `index`-th registry.
fn insert(text: &str, index: usize, location: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let headers = || lines.iter().enumerate().filter_map(|(n, line)| Some((n, header(line)?)));
    let cannot = || {
        format!(
            "weir cannot tell where its entry for the registry ends; write it as a [[registry]] table, or add these \
             lines to it by hand:\n{}",
            mirror_lines(location)
        )
    };
    let (start, _) =
        headers().filter(|(_, header)| header == "[[registry]]").nth(index).ok_or_else(cannot)?;
    // The entry's own keys end at the next table, and lines of comment before it belong to that table.
    let next = headers().find(|(n, _)| *n > start).map_or(lines.len(), |(n, _)| n);
    let is_key = |n: &usize| !lines[*n].trim().is_empty() && !lines[*n].trim_start().starts_with('#');
    let at = (start..next).rev().find(is_key).map_or(next, |n| n + 1);
    let (head, tail) = (lines[..at].concat(), lines[at..].concat());
    let after = block::append(&head, &mirror_lines(location)) + &tail;
    // The lines were not parsed: the result is.
    let mut wanted = parse(text)?;
    let mut own = Table::new();
    own.insert("location".to_owned(), Value::String(location.to_owned()));
    own.insert("insecure".to_owned(), Value::Boolean(true));
    let mirrors = wanted[index].entry("mirror").or_insert_with(|| Value::Array(Vec::new()));
    mirrors.as_array_mut().ok_or_else(cannot)?.insert(0, Value::Table(own));
    if parse(&after).is_ok_and(|found| found == wanted) { Ok(after) } else { Err(cannot()) }
}

/// Why an entry of the operator stays without the cache.
fn stays(entry: &Table, name: &str, mirror: &Mirror) -> Option<String> {
    if entry.get("blocked").and_then(Value::as_bool) == Some(true) {
        return Some("it is blocked there".to_owned());
    }
    let location = text(entry, "location").unwrap_or(name).trim_end_matches('/');
    if location != name {
        return Some(format!("its images come from {location} there, and the cache asks {name} itself"));
    }
    let own = format!("{}/", mirror.listen);
    mirrors(entry).any(|at| at.starts_with(&own)).then(|| "it names the cache there already".to_owned())
}

/// The registries that have the cache for a mirror.
pub(in super::super) fn served(root: &Path, listen: SocketAddr) -> anyhow::Result<Vec<String>> {
    let own = format!("{listen}/");
    let mut named = BTreeMap::new();
    for path in paths(root)? {
        let whole = files::read(&path)?.unwrap_or_default();
        let entries =
            parse(&whole).map_err(|why| anyhow::anyhow!("cannot read {}: {why}", path.display()))?;
        // A later entry replaces an earlier one of its name.
        named.extend(
            entries
                .iter()
                .map(|entry| (prefix(entry).to_owned(), mirrors(entry).any(|at| at.starts_with(&own)))),
        );
    }
    Ok(named.into_iter().filter_map(|(name, is_served)| is_served.then_some(name)).collect())
}

/// Adds an entry for each registry.
pub(super) fn plan(root: &Path, mirror: &Mirror, plan: &mut Plan) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in paths(root)? {
        let refuse = |why| files::refuse(&path, why);
        let whole = files::read(&path)?.unwrap_or_default();
        let (text, _) = block::split(&whole).map_err(refuse)?;
        let registries = parse(&text).map_err(refuse)?;
        found.push(File { path, text, registries });
    }
    let mut own = String::new();
    for registry in &mirror.registries {
        let name = registry.as_str();
        let Some(component) = registry.as_component() else {
            plan.notes.push(format!("Podman and CRI-O pull from {name} past the cache: no path can name it"));
            continue;
        };
        let location = format!("{}/{component}", mirror.listen);
        for file in &found {
            let below =
                |entry: &&Table| prefix(entry).strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
            for entry in file.registries.iter().filter(below) {
                let at = file.path.display();
                plan.notes
                    .push(format!("{at} has an entry for {}, which goes past the cache", prefix(entry)));
            }
        }
        let is_it = |entry: &Table| prefix(entry) == name;
        match found.iter_mut().rev().find(|file| file.registries.iter().any(is_it)) {
            None => {
                own += &format!("[[registry]]\nprefix = \"{name}\"\nlocation = \"{name}\"\n");
                own += &mirror_lines(&location);
            }
            Some(file) => {
                let index = file.registries.iter().rposition(is_it).unwrap_or_default();
                if let Some(why) = stays(&file.registries[index], name, mirror) {
                    plan.notes.push(format!("{name} is left as {} says: {why}", file.path.display()));
                    continue;
                }
                // Blocks that are in the text now are comments and tables to `insert`.
                file.text = insert(&file.text, index, &location)
                    .map_err(|why| files::refuse(&file.path, format!("it names {name}, and {why}")))?;
                file.registries = parse(&file.text).map_err(|why| files::refuse(&file.path, why))?;
            }
        }
    }
    let mine = root.join(OWN);
    let then = "nothing: Podman and Buildah read it at each pull; `systemctl reload crio` has CRI-O read it, and \
                `systemctl restart podman` a running API service";
    if !own.is_empty() {
        match found.iter_mut().find(|file| file.path == mine) {
            Some(file) => file.text = block::append(&file.text, &own),
            None => found.push(File { path: mine, text: block::append("", &own), registries: Vec::new() }),
        }
    }
    for file in found {
        parse(&file.text).map_err(|why| files::refuse(&file.path, why))?;
        plan.edits.push(Edit { path: file.path, after: file.text, then: then.to_owned() });
    }
    Ok(())
}
