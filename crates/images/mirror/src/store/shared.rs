//! One directory for several nodes: what the others set aside, what they have brought and taken away.
//!
//! Only files tell, and only files of one writer each: no lock for which a node waits, no change
//! notification, so that any POSIX file system will do. The bound holds without a server. A node that wants room first
//! writes its claim, and then reads the claims of the others; of two at once at least one sees the
//! other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Fingerprint, Inner, RESUME, SCRUB, State, Store, StoreError,
    bounds::on_disk,
    claims::{ANNOUNCED, Fresh, Heard, NodeReservations},
    layout::{Layout, list},
    part_name::{PartName, digest_of},
};
use crate::{Digest, Utc, scope::Mark};

/// The time for which a removed blob stays in `trash` unless its room is needed. A reader on
/// another node reads on, and a node that finds it in use puts it back.
const GRACE: Duration = Duration::from_secs(60);
/// After so long without a sign of life a node's claims are void.
const SILENT: Duration = Duration::from_secs(60);
/// A directory has changed if its time has; unless it was looked at so soon after that time that the
/// next change may have the same.
const TICK: Duration = Duration::from_secs(3);
/// The most directories whose times are remembered.
const MAX_SEEN: usize = 32_768;
/// Smaller blobs are hashed faster than what is known of them is read.
const SEALED: u64 = 1 << 20;

/// The others, as seen from here.
#[derive(Debug, Default)]
pub(super) struct Others {
    mine: NodeReservations,
    /// The blobs published from here, as they are announced.
    fresh: Fresh,
    /// Blobs that others announced and that could not be seen yet, and until when it is looked for them.
    awaited: HashMap<Digest, Utc>,
    nodes: HashMap<String, Heard>,
    seen: HashMap<PathBuf, Watched>,
    /// Bytes that others have reserved, and of parts without a writer.
    pub(super) bytes: u64,
    /// Bytes in `trash`.
    pub(super) thrown: u64,
    /// Of each of its files, none of which changes.
    sizes: HashMap<PathBuf, u64>,
    looked: Utc,
    listed: Utc,
    loaded: Utc,
}

#[derive(Debug)]
struct Watched {
    modified_ns: i128,
    first: Utc,
    last: Utc,
}

/// The fingerprint of a verified file: the file `seals/…`, so that nodes need not hash again.
#[derive(Debug, Serialize, Deserialize)]
struct Seal {
    inode: u64,
    size: u64,
    modified_ns: i128,
    verified_ms: u64,
}

impl Others {
    /// Whether a directory may have changed since this was asked last.
    fn has_changed(&mut self, dir: &Path, now: Utc) -> bool {
        let Ok(meta) = fs::metadata(dir) else {
            return self.seen.remove(dir).is_some();
        };
        let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        if self.seen.len() >= MAX_SEEN {
            // All are read once more.
            self.seen.clear();
        }
        let fresh = Watched { modified_ns, first: now, last: now };
        let seen = self.seen.entry(dir.to_owned()).or_insert(Watched { modified_ns: i128::MIN, ..fresh });
        if seen.modified_ns != modified_ns {
            *seen = fresh;
            return true;
        }
        let is_settled = seen.last.since(seen.first) > TICK;
        seen.last = now;
        !is_settled
    }

    fn alive(&self) -> impl Iterator<Item = &NodeReservations> {
        let now = self.looked;
        self.nodes.values().filter(move |heard| now.since(heard.at) < SILENT).map(|heard| &heard.claims)
    }

    /// Those who gave a sign of life when it was looked last.
    fn names(&self) -> impl Iterator<Item = &String> {
        let now = self.looked;
        self.nodes.iter().filter(move |(_, heard)| now.since(heard.at) < SILENT).map(|(name, _)| name)
    }

    /// Whether another node wants room just now.
    pub(super) fn are_asking(&self) -> bool {
        self.alive().any(|claims| claims.asking > 0)
    }

    fn is_read_elsewhere(&self, digest: &Digest) -> bool {
        self.alive().any(|claims| claims.reading.contains(digest))
    }
}

impl State {
    /// The nodes that have the directory, `own` among them; only that if it is not shared.
    pub(super) fn nodes(&self, own: &str) -> BTreeSet<String> {
        let others = self.others.iter().flat_map(Others::names).cloned();
        others.chain([own.to_owned()]).collect()
    }
}

impl Inner {
    /// Says what this node has set aside, and that it wants `asking` more.
    pub(super) fn claim(&self, state: &mut State, asking: u64, now: Utc) -> Result<(), StoreError> {
        let Some(others) = &mut state.others else { return Ok(()) };
        others.fresh.expire(now);
        let (mut held, mut expected, mut again) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (digest, reservation) in &state.reserved {
            if state.blobs.contains_key(digest) {
                again.insert(digest.clone());
            }
            let of = if reservation.is_expected() { &mut expected } else { &mut held };
            of.insert(digest.clone(), reservation.room());
        }
        let is_read = |blob: &super::Blob| Arc::strong_count(&blob.readers) > 1;
        let open_after_evict = state.open_after_evict.iter().filter(|(_, reader)| reader.strong_count() > 0);
        let reading = state.blobs.iter().filter(|(_, b)| is_read(b)).map(|(digest, _)| digest);
        let reading = reading.chain(open_after_evict.map(|(digest, _)| digest)).cloned().collect();
        let (beat, first, fresh) = (others.mine.beat + 1, others.fresh.first, others.fresh.text.clone());
        others.mine = NodeReservations { beat, asking, held, again, expected, first, fresh, reading };
        let text = serde_json::to_vec(&others.mine).unwrap_or_default();
        let file = self.layout.dir("claims").join(self.layout.node());
        // Read by others, and of no use after a crash: it need not be on the disk.
        self.layout.write_soon(&file, &text)
    }

    /// A blob published from here is announced until all nodes have seen it.
    pub(super) fn published(&self, state: &mut State, digest: &Digest, now: Utc) {
        if let Some(others) = &mut state.others {
            others.fresh.push(digest, now);
        }
    }

    /// Looks what the others have set aside; and, now and then, what they have brought and taken away.
    pub(super) fn look_around(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        let Some(mut others) = state.others.take() else { return Ok(()) };
        let looked = self.look(state, &mut others, now);
        state.others = Some(others);
        looked
    }

    fn look(&self, state: &mut State, others: &mut Others, now: Utc) -> Result<(), StoreError> {
        others.looked = now;
        if now.since(others.listed) > Duration::from_secs(1) || now < others.listed {
            others.listed = now;
            self.look_at_blobs(state, others, now)?;
        }
        let mut there = HashSet::new();
        for path in list(&self.layout.dir("claims"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == self.layout.node() || name.starts_with('.') {
                continue;
            }
            let Ok(text) = fs::read(&path) else { continue };
            let before = others.nodes.get(&name);
            if before.is_some_and(|heard| heard.is(&text)) {
                there.insert(name);
                continue;
            }
            // Written whole; what cannot be read is another version's.
            let Some((heard, published)) = Heard::read(text, before, now) else { continue };
            others.awaited.extend(published.into_iter().map(|digest| (digest, now.after(ANNOUNCED))));
            there.insert(name.clone());
            others.nodes.insert(name, heard);
        }
        others.nodes.retain(|name, _| there.contains(name));
        others.awaited.retain(|digest, until| {
            !state.blobs.contains_key(digest) && !self.notice(state, digest) && now < *until
        });
        let mut held: Vec<(&Digest, u64, bool)> = Vec::new();
        let mut expected: BTreeMap<&Digest, u64> = BTreeMap::new();
        let mut bytes = 0u64;
        for claims in others.alive() {
            bytes = bytes.saturating_add(claims.asking);
            let again = |digest| claims.again.contains(digest);
            held.extend(claims.held.iter().map(|(digest, size)| (digest, *size, again(digest))));
            expected.extend(claims.expected.iter().map(|(digest, size)| (digest, *size)));
        }
        for (digest, ..) in &held {
            // It comes: no need to keep room for it here too.
            state.forget_expected(digest);
            expected.remove(digest);
        }
        expected
            .retain(|digest, _| !state.blobs.contains_key(*digest) && !state.reserved.contains_key(*digest));
        let is_more =
            |(digest, _, again): &&(&Digest, u64, bool)| *again || !state.blobs.contains_key(*digest);
        let sizes = held.iter().filter(is_more).map(|(_, size, _)| size);
        bytes = sizes.chain(expected.values()).fold(bytes, |sum, size| sum.saturating_add(*size));
        for dir in list(&self.layout.dir("part"))? {
            for path in list(&dir)? {
                let name = PartName::of(&path);
                let is_claimed = name.as_ref().is_some_and(|name| match name.node.as_str() {
                    node if node == self.layout.node() => {
                        state.reserved.get(&name.digest).is_some_and(|r| !r.is_expected())
                    }
                    node => others.nodes.get(node).is_some_and(|heard| {
                        now.since(heard.at) < SILENT && heard.claims.held.contains_key(&name.digest)
                    }),
                });
                if !is_claimed {
                    bytes += fs::metadata(&path).map_or(0, |meta| on_disk(meta.len()));
                }
            }
        }
        others.bytes = bytes;
        let trash = list(&self.layout.dir("trash"))?;
        let mut sizes = HashMap::with_capacity(trash.len());
        for path in trash {
            let before = others.sizes.get(&path).copied();
            let size = before.or_else(|| Some(on_disk(fs::metadata(&path).ok()?.len()))).unwrap_or_default();
            sizes.insert(path, size);
        }
        others.thrown = sizes.values().sum();
        others.sizes = sizes;
        Ok(())
    }

    /// Brings the index in step with the directory.
    fn look_at_blobs(&self, state: &mut State, others: &mut Others, now: Utc) -> Result<(), StoreError> {
        // The blobs of each directory that was read.
        let mut read: HashMap<(&str, String), HashSet<Digest>> = HashMap::new();
        for algorithm in ["sha256", "sha512"] {
            for shard in list(&self.layout.dir("blobs").join(algorithm))? {
                if !others.has_changed(&shard, now) {
                    continue;
                }
                let mut there = HashSet::new();
                for path in list(&shard)? {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let Ok(digest) = format!("{algorithm}:{name}").parse::<Digest>() else { continue };
                    if !state.blobs.contains_key(&digest) {
                        self.notice(state, &digest);
                    }
                    there.insert(digest);
                }
                let prefix = shard.file_name().unwrap_or_default().to_string_lossy().into_owned();
                read.insert((algorithm, prefix), there);
            }
        }
        let is_gone = |digest: &&Digest| {
            let shard = (digest.algorithm().name(), digest.hex()[..2].to_owned());
            read.get(&shard).is_some_and(|there| !there.contains(*digest))
        };
        let gone: Vec<Digest> = state.blobs.keys().filter(is_gone).cloned().collect();
        for digest in gone {
            state.forget(&digest);
        }
        Ok(())
    }

    /// Takes a blob that another node has brought into the index. Answers whether it is there.
    pub(super) fn notice(&self, state: &mut State, digest: &Digest) -> bool {
        let Ok(meta) = fs::metadata(self.layout.blob(digest)) else { return false };
        let of = |time: std::io::Result<std::time::SystemTime>| time.map_or(Utc::MIN, Utc::from);
        state.forget_expected(digest);
        state.insert(digest.clone(), meta.len(), of(meta.modified()));
        if let Some(blob) = state.blobs.get_mut(digest) {
            blob.used_at = of(meta.accessed()).max(of(meta.modified()));
        }
        true
    }

    /// Whether another node has used a blob since this one heard of it; it counts as used here then.
    pub(super) fn is_used_elsewhere(&self, state: &mut State, digest: &Digest) -> bool {
        let Some(others) = &state.others else { return false };
        if others.is_read_elsewhere(digest) {
            return true;
        }
        let at = fs::metadata(self.layout.blob(digest)).and_then(|meta| meta.accessed()).map(Utc::from);
        let (Ok(at), Some(blob)) = (at, state.blobs.get_mut(digest)) else { return false };
        // Times of use are written once a minute.
        if at.since(blob.used_at) > Duration::from_secs(1) {
            blob.used_at = at;
            return true;
        }
        false
    }

    /// Empties `trash`: what is older than [`GRACE`], and then, oldest first, as much as `enough`
    /// wants. A blob that turns out to be used goes back to its place.
    pub(super) fn empty_trash(
        &self,
        state: &mut State,
        now: Utc,
        enough: &dyn Fn(&State) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        if state.others.is_none() {
            return Ok(());
        }
        let mut thrown: Vec<_> = list(&self.layout.dir("trash"))?
            .into_iter()
            .map(|path| (thrown(&path).unwrap_or_default(), path))
            .collect();
        thrown.sort();
        let protected = state.protected();
        for ((at, digest), path) in thrown {
            if now.since(at) < GRACE && enough(state)? {
                return Ok(());
            }
            let size = fs::metadata(&path).map_or(0, |meta| on_disk(meta.len()));
            let is_used = |digest: &Digest| {
                protected.contains(digest)
                    || state.others.as_ref().is_some_and(|o| o.is_read_elsewhere(digest))
            };
            if let Some(digest) = digest.clone().filter(is_used) {
                tracing::info!("{digest} is used again: it stays");
                let blob = self.layout.blob(&digest);
                // Another node may have been faster, or fetched it again.
                if fs::rename(&path, &blob).is_ok() {
                    self.notice(state, &digest);
                }
            } else {
                self.layout.discard(&path)?;
                if let Some(digest) = digest.filter(|digest| !self.layout.blob(digest).exists()) {
                    self.drop_sources(&digest);
                }
            }
            if let Some(others) = &mut state.others {
                others.thrown = others.thrown.saturating_sub(size);
            }
        }
        Ok(())
    }

    fn seal_file(&self, digest: &Digest) -> PathBuf {
        self.layout.dir("seals").join(format!("{}-{}", digest.algorithm().name(), digest.hex()))
    }

    /// Notes for all nodes that a file was verified.
    pub(super) fn seal(&self, digest: &Digest, of: Fingerprint, now: Utc) {
        if of.size < SEALED || !self.layout.is_shared() {
            return;
        }
        let Fingerprint { inode, size, modified_ns } = of;
        let seal = Seal { inode, size, modified_ns, verified_ms: now.unix_millis() };
        let text = serde_json::to_vec(&seal).unwrap_or_default();
        if let Err(e) = self.layout.write_soon(&self.seal_file(digest), &text) {
            tracing::warn!("{e}: other nodes will hash {digest} themselves");
        }
    }

    /// Whether a node has verified just this file.
    pub(super) fn is_sealed(&self, digest: &Digest, is: Fingerprint, now: Utc) -> bool {
        if is.size < SEALED || !self.layout.is_shared() {
            return false;
        }
        let seal =
            fs::read(self.seal_file(digest)).ok().and_then(|b| serde_json::from_slice::<Seal>(&b).ok());
        seal.is_some_and(|seal| {
            let then = Fingerprint { inode: seal.inode, size: seal.size, modified_ns: seal.modified_ns };
            then == is && now.since(Utc::from_unix_millis(seal.verified_ms)) < SCRUB
        })
    }

    pub(super) fn unseal(&self, digest: &Digest) {
        if self.layout.is_shared() {
            // Without its blob it says nothing; the next one replaces it.
            let _ = fs::remove_file(self.seal_file(digest));
        }
    }

    /// Periodic work about the others: a sign of life, a look, the files that they left.
    pub(super) fn maintain(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        if state.others.is_none() {
            return Ok(());
        }
        self.claim(state, 0, now)?;
        self.look_around(state, now)?;
        self.empty_trash(state, now, &|_| Ok(true))?;
        self.reload(state, now)?;
        expire_orphans(&self.layout, state, now)
    }

    /// Reads again what is known of repositories, and the pins, if that is some time ago.
    pub(super) fn reload(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        let Some(others) = &mut state.others else { return Ok(()) };
        if now.since(others.loaded) < Duration::from_secs(15) && now >= others.loaded {
            return Ok(());
        }
        others.loaded = now;
        state.pins = super::refs::load_pins(&self.layout)?;
        self.load(state, now)
    }

    /// Whether a directory may have changed since it was read. One that is not shared is read once.
    pub(super) fn has_news(&self, state: &mut State, dir: &Path, now: Utc) -> bool {
        state.others.as_mut().is_none_or(|others| others.has_changed(dir, now))
    }
}

/// Since when a file of `trash` is there, and what it was.
fn thrown(path: &Path) -> Option<(Utc, Option<Digest>)> {
    let name = path.file_name()?.to_str()?;
    let (at, rest) = name.split_once('-')?;
    Some((Utc::from_unix_millis(at.parse().ok()?), rest.replacen('-', ":", 1).parse().ok()))
}

/// A blob that another node brings, as far as it is there.
#[derive(Debug)]
pub(crate) struct Growing {
    /// All of it, bytes.
    pub(crate) size: u64,
    /// The bytes of it that are here.
    pub(crate) length: u64,
    /// To read it from.
    pub(crate) file: File,
}

impl Store {
    /// Whether several nodes use the directory.
    #[must_use]
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.layout.is_shared()
    }

    /// The part of a blob that another node brings in the scope of this mark, under the latest lease that has
    /// brought anything.
    pub(crate) fn growing(&self, digest: &Digest, mark: Mark) -> Option<Growing> {
        let names = list(&self.inner.layout.parts(digest)).ok()?;
        let of_scope = names.iter().filter_map(|path| PartName::of(path)).filter(|name| name.mark == mark);
        let latest = of_scope.max_by_key(|name| name.fence)?;
        // Opened each time: that is when NFS asks its server how long a file is.
        let file = File::open(self.inner.layout.part(&latest)).ok()?;
        let length = file.metadata().ok()?.len();
        Some(Growing { size: latest.size, length, file })
    }
}

/// Removes parts of a shared directory that no node has written to for [`RESUME`].
fn expire_orphans(layout: &Layout, state: &State, now: Utc) -> Result<(), StoreError> {
    for dir in list(&layout.dir("part"))? {
        if digest_of(&dir).is_some_and(|digest| state.reserved.contains_key(&digest)) {
            continue;
        }
        for path in list(&dir)? {
            let at = fs::metadata(&path).and_then(|meta| meta.modified()).map_or(now, Utc::from);
            if now.since(at) >= RESUME {
                layout.discard(&path)?;
            }
        }
        // It fails where there is something in it.
        let _ = fs::remove_dir(&dir);
    }
    Ok(())
}
