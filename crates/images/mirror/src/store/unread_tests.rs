//! Reads that fail: of a directory that several nodes share, and blobs that are taken away twice.

use std::{
    os::unix::fs::{FileExt, symlink},
    path::PathBuf,
};

use super::{unread::RETRY, *};
use crate::digest::Algorithm;

const SIZE: u64 = 100_000;

struct Site {
    dir: tempfile::TempDir,
    nodes: [Store; 2],
    bytes: Vec<u8>,
    digest: Digest,
}

impl Site {
    /// Two nodes that share a directory with one blob.
    fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget { young: Duration::ZERO, ..Budget::of(64 << 20) };
        let nodes = ["a", "b"]
            .map(|node| Store::share(dir.path(), node, budget, PolicyKind::Lru, now_utc()).unwrap().0);
        let bytes: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        nodes[0].put(&digest, &bytes, 1, now_utc()).unwrap();
        Site { dir, nodes, bytes, digest }
    }

    fn path(&self) -> PathBuf {
        let hex = self.digest.hex();
        self.dir.path().join("blobs/sha256").join(&hex[..2]).join(hex)
    }

    fn aside(&self) -> PathBuf {
        self.dir.path().join("aside")
    }

    /// All reads of the blob's file fail with EIO: it is this process's memory at its first byte.
    fn fail(&self) {
        std::fs::rename(self.path(), self.aside()).unwrap();
        symlink("/proc/self/mem", self.path()).unwrap();
    }

    /// They succeed again.
    fn mend(&self) {
        std::fs::rename(self.aside(), self.path()).unwrap();
    }

    /// Fails to read the blob as a node does that serves it.
    fn read_badly(&self, node: &Store) {
        let file = File::open(self.path()).unwrap();
        let why = file.read_exact_at(&mut [0; 10], 0).unwrap_err();
        assert_eq!(why.raw_os_error(), Some(nix::libc::EIO));
        let now = now_utc();
        let opened = {
            let mut state = node.lock();
            let blob = state.blobs.get_mut(&self.digest).expect("it is in the index");
            node.held(
                &self.digest,
                blob,
                Arc::new(file),
                Fingerprint { inode: 0, size: SIZE, modified_ns: 0 },
                true,
            )
        };
        opened.unreadable(&why);
        drop(opened);
        node.tick(now).unwrap();
    }

    /// Whether a node can have all of it, hashed.
    fn reads(&self, node: &Store) -> bool {
        node.open_blob(&self.digest, now_utc()).unwrap().is_some_and(|opened| {
            let mut bytes = vec![0; self.bytes.len()];
            let is_right = opened.is_verified() || node.verify(&opened, now_utc()).unwrap();
            opened.file().read_exact_at(&mut bytes, 0).unwrap();
            is_right && bytes == self.bytes
        })
    }
}

#[test]
fn blob_that_one_node_fails_to_read_stays_for_the_others() {
    let site = Site::new();
    let [a, b] = &site.nodes;
    assert!(site.reads(a) && site.reads(b));
    let reading = b.open_blob(&site.digest, now_utc()).unwrap().unwrap();
    site.fail();
    site.read_badly(a);
    assert!(std::fs::symlink_metadata(site.path()).is_ok_and(|meta| meta.is_symlink()), "it was taken away");
    assert_eq!(std::fs::read_dir(site.dir.path().join("trash")).unwrap().count(), 0);
    site.mend();
    assert_eq!(reading.file().metadata().unwrap().len(), SIZE, "it was emptied for a node that reads it");
    // It is hashed before this node serves it again, and then it is believed.
    let opened = a.open_blob(&site.digest, now_utc()).unwrap().unwrap();
    assert!(!opened.is_verified());
    assert!(site.reads(a) && site.reads(b));
    assert!(a.open_blob(&site.digest, now_utc()).unwrap().unwrap().is_verified());
    assert_eq!(a.usage(now_utc()).unwrap().counts.corrupt + b.usage(now_utc()).unwrap().counts.corrupt, 0);
}

#[test]
fn node_that_goes_on_failing_replaces_the_blob_and_never_removes_it() {
    let site = Site::new();
    let [a, b] = &site.nodes;
    let reading = b.open_blob(&site.digest, now_utc()).unwrap().unwrap();
    site.fail();
    site.read_badly(a);
    assert!(a.has(&site.digest), "one failure may be over");
    site.read_badly(a);
    assert!(!a.has(&site.digest) && a.open_blob(&site.digest, now_utc()).unwrap().is_none());
    assert!(b.has(&site.digest), "it is there for others");
    // As long as the other copy comes, both take room, also as the other node sees it.
    let before = b.usage(now_utc()).unwrap();
    let mut part = a.begin(&site.digest, SIZE, 2, now_utc()).unwrap();
    let beside = b.usage(now_utc()).unwrap();
    assert_eq!((beside.bytes, beside.reserved), (before.bytes, before.reserved + on_disk(SIZE)));
    part.write(&site.bytes).unwrap();
    part.finish(now_utc()).unwrap();
    assert!(site.reads(a) && site.reads(b));
    assert_eq!(reading.file().metadata().unwrap().len(), SIZE);
    assert_eq!(a.usage(now_utc()).unwrap().bytes, SIZE);
}

#[test]
fn blob_that_could_not_be_read_is_read_again_after_a_while() {
    let site = Site::new();
    let a = &site.nodes[0];
    site.fail();
    site.read_badly(a);
    site.read_badly(a);
    let now = now_utc();
    let knows = |now| a.inner.knows_at(&mut a.lock(), &site.digest, now);
    assert!(!knows(now) && !knows(now.after(RETRY / 2)) && knows(now.after(RETRY)));
    // Another node has put another copy in its place.
    site.mend();
    assert!(knows(now) && site.reads(a));
}

#[test]
fn scrub_of_a_blob_that_cannot_be_read_fails_and_takes_nothing_away() {
    let site = Site::new();
    let a = &site.nodes[0];
    site.fail();
    let Begun::Check(mut check) = a.check(&site.digest).unwrap() else { panic!("it is not here") };
    let why = check.stretch(SIZE).unwrap_err();
    let told = a.unreadable(&check, why).unwrap_err();
    assert!(
        matches!(&told, StoreError::Io { what: "read", source, .. } if source.raw_os_error() == Some(5)),
        "{told}"
    );
    site.mend();
    assert!(site.reads(a) && site.reads(&site.nodes[1]));
}

/// Two requests can find the same bad file. The second one must not touch the copy that has come since.
#[test]
fn blob_that_is_quarantined_twice_is_counted_once_and_its_successor_stays() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (budget, now) = (Budget::of(64 << 20), now_utc());
        let opened = if is_shared {
            Store::share(dir.path(), "a", budget, PolicyKind::Lru, now)
        } else {
            Store::open(dir.path(), budget, PolicyKind::Lru, now)
        };
        let store = opened.unwrap().0;
        let bytes = vec![7; 5000];
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        store.put(&digest, &bytes, 1, now).unwrap();
        let bad = store.open_blob(&digest, now).unwrap().unwrap();
        store.quarantine(&digest, bad.file()).unwrap();
        store.quarantine(&digest, bad.file()).unwrap();
        assert!(!store.has(&digest) && store.usage(now).unwrap().counts.corrupt == 1, "shared: {is_shared}");
        assert_eq!(bad.file().metadata().unwrap().len(), 0, "a node that sends it does not send its end");
        store.put(&digest, &bytes, 2, now).unwrap();
        store.quarantine(&digest, bad.file()).unwrap();
        let fresh = store.open_blob(&digest, now).unwrap().expect("it is another file");
        assert!(fresh.is_verified() && fresh.file().metadata().unwrap().len() == 5000);
        let usage = store.usage(now).unwrap();
        assert_eq!((usage.counts.corrupt, usage.bytes), (1, 5000), "shared: {is_shared}");
    }
}

/// Blobs that cannot be removed must not keep a request busy for as long as there are blobs.
#[test]
fn eviction_ends_after_eight_removals_that_fail() {
    for (failing, is_tried) in [(7, true), (8, false)] {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget { high: 1.0, low: 1.0, young: Duration::ZERO, ..Budget::of(64 << 20) };
        let store = Store::open(dir.path(), budget, PolicyKind::Lru, Utc::from_unix_millis(0)).unwrap().0;
        let mut shards = HashSet::new();
        let kept = (0u32..).map(u32::to_be_bytes).map(|bytes| (Digest::of(Algorithm::Sha256, &bytes), bytes));
        let kept: Vec<_> = kept
            .filter(|(digest, _)| shards.insert(digest.hex()[..2].to_owned()))
            .take(failing + 1)
            .collect();
        for (at, (digest, bytes)) in (0..).zip(&kept) {
            store.put(digest, bytes, 1, Utc::from_unix_millis(at)).unwrap();
        }
        // A file in place of the directory: `rename` fails, for root too.
        for (digest, _) in &kept[..failing] {
            let shard = dir.path().join("blobs/sha256").join(&digest.hex()[..2]);
            std::fs::remove_dir_all(&shard).unwrap();
            std::fs::write(&shard, "").unwrap();
        }
        let pruned = store.prune(0, Utc::from_unix_millis(1000));
        assert!(matches!(pruned, Err(StoreError::Io { what: "remove", .. })), "{failing}: {pruned:?}");
        assert_eq!(!store.has(&kept[failing].0), is_tried, "{failing} removals fail");
    }
}
