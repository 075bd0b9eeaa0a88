//! The store: blobs by digest in a directory, bounded in bytes, verified before they have a name.
//!
//! Only this module changes the directory; its file `layout` says what is where.

mod bounds;
mod check;
mod claims;
mod index;
mod layout;
mod part;
mod part_name;
mod policy;
mod refs;
mod repos;
mod reserve;
mod room;
mod shared;
mod sources;
mod unread;

#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unread_tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{File, FileTimes, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use tokio::sync::broadcast;

use crate::{Digest, Source, Utc, now_utc};

use bounds::on_disk;
pub(crate) use check::Begun;
pub use check::ScrubBatch;
use check::is_gone;
use index::Manifests;
pub(crate) use layout::MAX_PIN;
pub use layout::StoreError;
use layout::{Layout, io_error};
pub use part::PartWriter;
use policy::Order;
use refs::{Extent, Repo};
pub use refs::{Listed, Stored, TagEntry};
use reserve::Reservation;
pub use room::Budget;
use shared::Others;
use sources::Sources;
use unread::Unread;
pub use weir_cache::PolicyKind;

/// The time after which a blob is hashed again before it is served.
const SCRUB: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a cut download is kept, to be continued.
pub const RESUME: Duration = Duration::from_secs(600);

/// A bounded store of verified blobs; cheap to clone. One process has it at a time, or the nodes of a
/// site share it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    budget: Budget,
    state: Mutex<State>,
    /// Blobs that were taken away for what they had become.
    corrupted: broadcast::Sender<Digest>,
}

#[derive(Debug)]
struct State {
    blobs: HashMap<Digest, Blob>,
    reserved: HashMap<Digest, Reservation>,
    /// Images whose manifest was asked for a moment ago, and of which no blob was since.
    announced: HashMap<Digest, Utc>,
    /// Bytes of `blobs`, `reserved` and `repos` together, of files in whole blocks.
    used: u64,
    /// The other nodes, if they share the directory.
    others: Option<Others>,
    /// Blobs that left since they were asked for.
    gone: Vec<Digest>,
    /// Blobs that are out of the index, and still being sent to a client.
    open_after_evict: Vec<(Digest, Weak<()>)>,
    order: Order,
    repos: BTreeMap<Source, Repo>,
    /// The extent of `repos`.
    refs: Extent,
    manifests: Manifests,
    pins: Vec<String>,
    in_use: HashSet<Digest>,
    in_use_elsewhere: HashSet<Digest>,
    /// The most bytes that use by other nodes alone keeps.
    most_elsewhere: u64,
    counts: Counts,
    /// Of this node's journal of checks.
    check_lines: usize,
}

/// The counters of the store since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blobs that left to make room.
    pub evicted: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Files that were not what they were called, and were taken away.
    pub corrupt: u64,
    /// Downloads that were refused for want of room.
    pub refused: u64,
}

#[derive(Debug)]
struct Blob {
    size: u64,
    born: Utc,
    used_at: Utc,
    hits: u64,
    /// As the policy counts: once an image's manifest or a blob by itself.
    uses: u32,
    /// Its manifest was asked for: who asks for it now is counted already.
    is_announced: bool,
    /// One reference here, one in each [`Opened`].
    readers: Arc<()>,
    verified: Option<(Fingerprint, Utc)>,
    /// When some node hashed it last, as a download or later.
    checked: Utc,
    is_manifest: bool,
    /// Another node of the site had it too.
    is_copy: bool,
    /// The sources that have delivered it; none until they are read.
    sources: Option<Sources>,
    /// This node could not read its file; only of a shared directory.
    unread: Option<Unread>,
}

impl Blob {
    fn new(size: u64, born: Utc) -> Blob {
        Blob {
            size,
            born,
            used_at: born,
            hits: 0,
            uses: 1,
            is_announced: false,
            readers: Arc::new(()),
            verified: None,
            checked: born,
            is_manifest: false,
            is_copy: false,
            sources: None,
            unread: None,
        }
    }
}

/// Tells whether a file is still the one that was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    inode: u64,
    size: u64,
    modified_ns: i128,
}

impl Fingerprint {
    fn of(file: &File) -> io::Result<Fingerprint> {
        let meta = file.metadata()?;
        let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Ok(Fingerprint { inode: meta.ino(), size: meta.len(), modified_ns })
    }
}

/// A complete blob, open. It is not evicted while this lives.
#[derive(Debug, Clone)]
pub struct Opened {
    digest: Digest,
    file: Arc<File>,
    size: u64,
    fingerprint: Fingerprint,
    is_verified: bool,
    store: Weak<Inner>,
    _reader: Arc<()>,
}

impl Opened {
    /// Its name.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// To read from, at offsets: the position is shared.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the file has been hashed and has not changed since. If not, [`Store::verify`] it
    /// before anything of it is served.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// The same blob, read from another file.
    #[cfg(test)]
    pub(crate) fn over(&self, file: File) -> Opened {
        Opened { file: Arc::new(file), ..self.clone() }
    }

    /// Takes it away if a read for a client failed because its disk has lost it: the next client has it fetched
    /// again. A blob that several nodes share stays. Blocks for as long as the disk takes.
    pub(crate) fn unreadable(&self, why: &io::Error) {
        let Some(inner) = self.store.upgrade().filter(|_| check::is_lost(why)) else { return };
        let store = Store { inner };
        if store.is_shared() {
            return store.note_unread(&self.digest, &self.file, why);
        }
        if let Err(e) = store.quarantine(&self.digest, &self.file) {
            tracing::warn!(
                "{} cannot be read, and cannot be removed: {}",
                self.digest,
                weir_units::chain(&e)
            );
        }
    }
}

/// The contents of a store when it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Complete blobs.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Downloads that can be continued.
    pub resumable: usize,
    /// Temporary files removed.
    pub removed: usize,
}

/// How full the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blobs and manifests.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes set aside for downloads; of a shared directory those of all nodes, and what was taken away
    /// and may still be read. Of the other nodes whole blocks count.
    pub reserved: u64,
    /// Bytes of what may not be evicted now: pinned, in use, being sent.
    pub held: u64,
    /// The bound, bytes.
    pub budget: u64,
    /// The free space of the file system, bytes.
    pub free: u64,
    /// The free space to leave, bytes.
    pub floor: u64,
    /// The eviction policy, and the one that it follows: another if it is `auto`.
    pub policy: (PolicyKind, PolicyKind),
    /// Since the store was opened.
    pub counts: Counts,
}

impl Store {
    /// Opens the store in a directory, or makes one there; removes what a process that was killed
    /// has left behind, but for downloads young enough to be continued.
    ///
    /// # Errors
    /// [`StoreError`]: another version's, another user's, in use, not a store.
    pub fn open(
        root: &Path,
        budget: Budget,
        policy: PolicyKind,
        now: Utc,
    ) -> Result<(Store, Recovered), StoreError> {
        Store::over(Layout::open(root, None)?, budget, policy, now)
    }

    /// Opens a directory that several nodes use at once, on any file system that they all have mounted.
    /// The budget is that of all together, and has to be the same for all.
    ///
    /// * `node`: this one's name, which no other has.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::NodeInUse`] if a node of that name has it.
    pub fn share(
        root: &Path,
        node: &str,
        budget: Budget,
        policy: PolicyKind,
        now: Utc,
    ) -> Result<(Store, Recovered), StoreError> {
        let store = Store::over(Layout::open(root, Some(node))?, budget, policy, now)?;
        store.0.tick(now)?;
        Ok(store)
    }

    fn over(
        layout: Layout,
        budget: Budget,
        policy: PolicyKind,
        now: Utc,
    ) -> Result<(Store, Recovered), StoreError> {
        let mut state = State {
            blobs: HashMap::new(),
            reserved: HashMap::new(),
            announced: HashMap::new(),
            used: 0,
            others: layout.is_shared().then(Others::default),
            gone: Vec::new(),
            open_after_evict: Vec::new(),
            order: Order::new(policy, budget.bytes),
            repos: BTreeMap::new(),
            refs: Extent::default(),
            manifests: Manifests::default(),
            pins: refs::load_pins(&layout)?,
            in_use: HashSet::new(),
            in_use_elsewhere: HashSet::new(),
            most_elsewhere: budget.bytes / 2,
            counts: Counts::default(),
            check_lines: 0,
        };
        let mut recovered = Recovered { removed: part::sweep(&layout)?, ..Recovered::default() };
        let mut found = Vec::new();
        for (digest, path) in layout.blobs()? {
            // Another node may have taken it away.
            let Some(meta) = std::fs::metadata(&path).ok().filter(Metadata::is_file) else { continue };
            let times = [meta.accessed(), meta.modified()].map(|t| t.map_or(Utc::MIN, Utc::from));
            found.push((times[0].max(times[1]), times[1], digest, meta.len()));
        }
        let noted = Inner::noted(&layout);
        state.order.resume(&noted);
        found.sort_by_key(|(used_at, ..)| *used_at);
        for (used_at, born, digest, size) in found {
            recovered.blobs += 1;
            recovered.bytes += size;
            let uses = noted.uses(&digest);
            state.order.restored(&digest, size, uses, used_at);
            state.index(digest, Blob { used_at, uses, ..Blob::new(size, born) });
        }
        let (resumable, removed) = part::recover(&layout, &mut state, now)?;
        (recovered.resumable, recovered.removed) = (resumable, recovered.removed + removed);
        let (state, corrupted) = (Mutex::new(state), broadcast::Sender::new(64));
        let store = Store { inner: Arc::new(Inner { layout, budget, state, corrupted }) };
        store.inner.load(&mut store.lock(), now)?;
        store.lock().deploy_all();
        store.inner.read_checks(&mut store.lock())?;
        store.inner.sweep_sources(&store.lock())?;
        // The budget may have become smaller.
        store.inner.make_room(&mut store.lock(), 0, now).ok();
        Ok((store, recovered))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state whole before it can fail.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.inner.layout.root()
    }

    /// Opens a complete blob and counts a hit. `None`: not here, also if the index thought so.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open_blob(&self, digest: &Digest, now: Utc) -> Result<Option<Opened>, StoreError> {
        let mut state = self.lock();
        if !self.inner.knows_at(&mut state, digest, now) {
            return Ok(None);
        }
        let path = self.inner.layout.blob(digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if is_gone(&e) => {
                state.forget(digest);
                return Ok(None);
            }
            Err(e) => return Err(io_error("open", &path)(e)),
        };
        let fingerprint = Fingerprint::of(&file).map_err(io_error("look at", &path))?;
        let announced = state.blobs.get_mut(digest).map(|blob| std::mem::take(&mut blob.is_announced));
        if announced == Some(false) {
            state.use_blob(digest, now);
        }
        let Some(blob) = state.blobs.get_mut(digest) else { return Ok(None) };
        if fingerprint.size != blob.size {
            drop(state);
            self.quarantine(digest, &file)?;
            return Ok(None);
        }
        let mut is_verified =
            blob.verified.is_some_and(|(then, at)| then == fingerprint && now.since(at) < SCRUB);
        // The seal tells of the file, not of this node's way to it.
        if !is_verified && blob.unread.is_none() && self.inner.is_sealed(digest, fingerprint, now) {
            blob.verified = Some((fingerprint, now));
            is_verified = true;
        }
        blob.hits += 1;
        if now.since(blob.used_at) > Duration::from_secs(60) {
            // So that the order outlives a restart; if it cannot be written, it does not.
            let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
        }
        blob.used_at = now;
        Ok(Some(self.held(digest, blob, Arc::new(file), fingerprint, is_verified)))
    }

    /// A blob of the index, which is not evicted while this lives.
    fn held(
        &self,
        digest: &Digest,
        blob: &Blob,
        file: Arc<File>,
        fingerprint: Fingerprint,
        is_verified: bool,
    ) -> Opened {
        let (store, _reader) = (Arc::downgrade(&self.inner), Arc::clone(&blob.readers));
        Opened { digest: digest.clone(), file, size: blob.size, fingerprint, is_verified, store, _reader }
    }

    /// Whether a blob is here, without counting a hit.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.inner.knows(&mut self.lock(), digest)
    }

    /// Blobs that left since this was asked last, so that others can be told.
    #[must_use]
    pub(crate) fn take_gone(&self) -> Vec<Digest> {
        std::mem::take(&mut self.lock().gone)
    }

    /// Keeps bytes that are here whole already: manifests.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] if they are not what `digest` names, [`StoreError::NoRoom`].
    pub fn put(&self, digest: &Digest, bytes: &[u8], fence: u64, now: Utc) -> Result<(), StoreError> {
        if self.has(digest) {
            return Ok(());
        }
        let mut part = self.begin(digest, bytes.len() as u64, fence, now)?;
        part.write(bytes)?;
        match part.finish(now) {
            // By another node, the same bytes.
            Err(StoreError::TakenOver(_)) => Ok(()),
            other => other,
        }
    }

    /// Tells the store which images containers run from, by manifest or by configuration; their
    /// blobs stay.
    pub fn set_in_use(&self, digests: HashSet<Digest>) {
        self.lock().in_use = digests;
    }

    /// The images that containers of this node run from, as last told.
    #[must_use]
    pub fn in_use(&self) -> HashSet<Digest> {
        self.lock().in_use.clone()
    }

    /// Tells the store which images the nodes of its site use. They keep at most half of the budget.
    pub fn set_in_use_elsewhere(&self, digests: HashSet<Digest>) {
        self.lock().in_use_elsewhere = digests;
    }

    /// How full it is.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file system does not say.
    pub fn usage(&self, now: Utc) -> Result<Usage, StoreError> {
        let mut state = self.lock();
        self.inner.look_around(&mut state, now)?;
        let own: u64 = state.reserved.values().map(|r| r.size).sum();
        let (reserved, bytes) = (own + state.elsewhere(), state.blob_bytes());
        let protected = state.protected();
        let held = |(digest, blob): (&Digest, &Blob)| {
            let is = self.inner.is_held(blob, digest, &protected, now);
            is.then_some(blob.size)
        };
        Ok(Usage {
            blobs: state.blobs.len(),
            bytes,
            reserved,
            held: state.blobs.iter().filter_map(held).sum(),
            budget: self.inner.budget.bytes,
            free: self.inner.layout.free()?,
            floor: self.inner.budget.floor,
            policy: state.order.kinds(),
            counts: state.counts,
        })
    }

    /// Periodic work: downloads that were not continued go.
    ///
    /// # Errors
    /// [`StoreError::Replaced`]: it is to be opened again. [`StoreError::Io`].
    pub fn tick(&self, now: Utc) -> Result<(), StoreError> {
        self.inner.layout.check_lock()?;
        let mut state = self.lock();
        state.open_after_evict.retain(|(_, reader)| reader.strong_count() > 0);
        state.expire(now);
        part::expire(&self.inner.layout, &mut state, now)?;
        self.inner.note(&mut state, now);
        self.inner.maintain(&mut state, now)
    }
}

impl Inner {
    /// Whether a blob is here; of a shared directory, also if another node has brought it just now.
    fn knows(&self, state: &mut State, digest: &Digest) -> bool {
        self.knows_at(state, digest, now_utc())
    }

    fn knows_at(&self, state: &mut State, digest: &Digest, now: Utc) -> bool {
        if state.blobs.contains_key(digest) {
            return !self.is_given_up(state, digest, now);
        }
        self.layout.is_shared() && self.notice(state, digest)
    }
}

impl State {
    /// A blob is there now, and was asked for.
    fn insert(&mut self, digest: Digest, size: u64, now: Utc) {
        self.order.inserted(&digest, size, now);
        self.index(digest, Blob::new(size, now));
    }

    /// Counts a use of a blob, which may be missing.
    fn use_blob(&mut self, digest: &Digest, now: Utc) {
        if let Some(blob) = self.blobs.get_mut(digest) {
            blob.uses = blob.uses.saturating_add(1);
        }
        self.order.hit(digest, now);
    }

    fn index(&mut self, digest: Digest, blob: Blob) {
        self.used += on_disk(blob.size);
        if let Some(before) = self.blobs.insert(digest, blob) {
            self.used -= on_disk(before.size);
        }
    }

    /// Out of the index; the file is the caller's.
    fn forget(&mut self, digest: &Digest) {
        if let Some(blob) = self.blobs.remove(digest) {
            if Arc::strong_count(&blob.readers) > 1 {
                self.open_after_evict.push((digest.clone(), Arc::downgrade(&blob.readers)));
            }
            self.used -= on_disk(blob.size);
            self.order.removed(digest);
        }
    }

    /// Bytes of the budget that other nodes have, or that are free.
    fn elsewhere(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.bytes.saturating_add(others.thrown))
    }

    fn blob_bytes(&self) -> u64 {
        self.blobs.values().map(|b| b.size).sum()
    }
}
