//! Memory that hostile registries take: measured of this process, so one test at a time.

mod support;

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use support::{
    digest,
    fill::{BUDGET, add, du, fat, open, stored},
};
use weir_image::{Image, now_utc};

/// Holds the other tests of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// `name` from the environment, or as many as a normal run has time for.
fn count(name: &str, normal: u64) -> u64 {
    std::env::var(name).map_or(normal, |text| text.parse().expect("a number"))
}

/// Memory of this process, bytes.
fn rss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn repositories_of_a_hostile_registry_stay_within_the_budget() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let (store, repos) = (open(&root), count("WEIR_REPOSITORIES", 600));
    let empty = du(&root);
    let one = stored(fat(1, 1));
    add(&store, "docker.io/library/mine:1", &one);
    store.pin("docker.io/library/mine:*", true).unwrap();
    let before = rss();
    for n in 0..repos {
        add(&store, &format!("evil.example/a{n}/b{n}:1"), &one);
    }
    let ((bytes, inodes), grown) = (du(&root), rss().saturating_sub(before));
    println!("{repos} repositories: {bytes} bytes, {inodes} inodes, {grown} bytes of memory more");
    // An eighth of the budget; shards of blobs are made as the store is.
    let share = BUDGET / 8;
    assert!(bytes - empty.0 <= share + (1 << 20), "{bytes} bytes, {} when empty", empty.0);
    assert!(inodes - empty.1 <= share / 4096, "{inodes} inodes, {} when empty", empty.1);
    assert!(grown < 16 << 20, "{grown} bytes");
    // The latest and what is pinned are known, and what was asked for long ago is not.
    let is_known = |name: &str| store.is_public(&name.parse::<Image>().unwrap().source);
    assert!(is_known("docker.io/library/mine:1"));
    assert!(is_known(&format!("evil.example/a{0}/b{0}:1", repos - 1)) && !is_known("evil.example/a0/b0:1"));
    assert!(
        store
            .manifest(&"docker.io/library/mine:1".parse::<Image>().unwrap().source, &one.digest, now_utc())
            .unwrap()
            .is_some()
    );
    // A restart finds the same.
    let known = store.images().len();
    drop(store);
    let store = open(&root);
    assert_eq!(store.images().len(), known);
    // All that is not pinned goes, with its files.
    store.prune(0, now_utc()).unwrap();
    assert_eq!(store.images().len(), 1);
    let (bytes, inodes) = du(&root.join("refs"));
    assert!(bytes < 64 << 10 && inodes < 12, "{bytes} bytes, {inodes} inodes");
}

#[test]
fn fifty_fat_manifests_take_bounded_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (store, manifests) = (open(&dir.path().join("store")), count("WEIR_FAT_MANIFESTS", 50));
    let before = rss();
    for n in 0..manifests {
        let of = stored(fat(n as usize, 1000));
        add(&store, &format!("evil.example/app:{n}"), &of);
    }
    let grown = rss().saturating_sub(before);
    println!("{manifests} manifests of 1000 layers: {grown} bytes of memory more");
    let bound = 40 << 20;
    assert!(grown < bound, "{grown} bytes");
    let source = "evil.example/app:1".parse::<Image>().unwrap().source;
    let is_here = |n: usize| store.manifest(&source, &digest(&fat(n, 1000)), now_utc()).unwrap().is_some();
    let here: HashSet<usize> = (0..manifests as usize).filter(|n| is_here(*n)).collect();
    assert!(here.contains(&(manifests as usize - 1)) && here.len() < 33, "{here:?}");
    // The blobs of a manifest that has left belong to no image.
    let part = |n: usize| digest(&[n.to_le_bytes(), 1usize.to_le_bytes()].concat());
    assert!(store.part_of(&source, &part(manifests as usize - 1)).is_some());
    assert!(store.part_of(&source, &part(0)).is_none());
}
