//! From a network namespace that no source knows to the container whose process made it.
//!
//! A container with the right to make network namespaces may move its interface into a new one. The processes there
//! descend from the container's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{NetnsRef, NsId};

/// The most processes of a namespace whose ancestors are looked at.
const MAX_WITNESSES: u32 = 8;
/// The most ancestors of a process that are looked at.
const MAX_ANCESTORS: usize = 64;

/// A namespace that a container's process has made or entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nested {
    /// The namespace, by one of its processes.
    pub netns: NetnsRef,
    /// The container's namespace.
    pub owner: NsId,
}

/// The namespaces with processes that descend from a process in one of `owners`. `own` is the node's.
#[must_use]
pub fn nested(owners: &BTreeSet<NsId>, own: NsId) -> Vec<Nested> {
    descended(Path::new("/proc"), owners, own)
}

fn descended(proc: &Path, owners: &BTreeSet<NsId>, own: NsId) -> Vec<Nested> {
    let mut nested = BTreeMap::new();
    let mut witnesses: BTreeMap<NsId, u32> = BTreeMap::new();
    for pid in processes(proc) {
        let Some(id) = netns_of(proc, pid) else { continue };
        if id == own || owners.contains(&id) || nested.contains_key(&id) {
            continue;
        }
        let count = witnesses.entry(id).or_default();
        *count += 1;
        if *count <= MAX_WITNESSES
            && let Some(owner) = owner_above(proc, pid, owners, own)
        {
            nested.insert(id, Nested { netns: NetnsRef { path: netns_path(proc, pid), id }, owner });
        }
    }
    nested.into_values().collect()
}

/// The namespace of the nearest ancestor of a process that is in one of `owners`. A process of the node ends the search.
fn owner_above(proc: &Path, mut pid: u32, owners: &BTreeSet<NsId>, own: NsId) -> Option<NsId> {
    for _ in 0..MAX_ANCESTORS {
        pid = parent(proc, pid)?;
        let id = netns_of(proc, pid)?;
        if owners.contains(&id) {
            return Some(id);
        }
        if id == own {
            return None;
        }
    }
    None
}

fn processes(proc: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn netns_path(proc: &Path, pid: u32) -> PathBuf {
    proc.join(format!("{pid}/ns/net"))
}

fn netns_of(proc: &Path, pid: u32) -> Option<NsId> {
    fs::metadata(netns_path(proc, pid)).ok().map(|meta| NsId { dev: meta.dev(), ino: meta.ino() })
}

/// The parent of a process. None for the first one of this process namespace.
fn parent(proc: &Path, pid: u32) -> Option<u32> {
    let status = fs::read_to_string(proc.join(format!("{pid}/status"))).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a process in a namespace, which a file stands for.
    fn run(root: &Path, pid: u32, parent: u32, namespace: &str) -> NsId {
        let file = root.join(namespace);
        if !file.exists() {
            fs::write(&file, "").unwrap();
        }
        fs::create_dir_all(root.join(format!("{pid}/ns"))).unwrap();
        fs::write(root.join(format!("{pid}/status")), format!("Name:\tx\nPid:\t{pid}\nPPid:\t{parent}\n"))
            .unwrap();
        fs::hard_link(&file, netns_path(root, pid)).unwrap();
        netns_of(root, pid).unwrap()
    }

    #[test]
    fn a_namespace_belongs_to_the_nearest_container_above_its_processes() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let own = run(root, 1, 0, "node");
        run(root, 10, 1, "node");
        let web = run(root, 20, 10, "web");
        let inner = run(root, 21, 20, "inner");
        // Its parent is in a namespace that no source knows.
        let innermost = run(root, 22, 21, "innermost");
        // A shim of the node has started it.
        run(root, 30, 10, "unknown");
        // A process of the node that has come from the container leads to no container.
        run(root, 40, 20, "node");
        run(root, 41, 40, "left");
        let found = descended(root, &BTreeSet::from([web]), own);
        let mut owners: Vec<(NsId, NsId)> = found.iter().map(|n| (n.netns.id, n.owner)).collect();
        owners.sort();
        let mut due = vec![(inner, web), (innermost, web)];
        due.sort();
        assert_eq!(owners, due);
        assert!(found.iter().any(|n| n.netns.path == root.join("21/ns/net")));
    }

    #[test]
    fn a_namespace_of_many_processes_costs_few_looks() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let own = run(root, 1, 0, "node");
        let web = run(root, 2, 1, "web");
        for pid in 100..200 {
            run(root, pid, 1, "unknown");
        }
        assert_eq!(descended(root, &BTreeSet::from([web]), own), []);
        // A loop of parents ends.
        run(root, 50, 51, "loop");
        run(root, 51, 50, "loop");
        assert_eq!(descended(root, &BTreeSet::from([web]), own), []);
    }
}
