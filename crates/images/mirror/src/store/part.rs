//! A blob on its way in: written, hashed, and given its name only if it is what it is called.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Fingerprint, Opened, RESUME, State, Store, StoreError,
    bounds::on_disk,
    layout::{Layout, io_error, list},
    part_name::{PartName, digest_of},
    reserve::Reservation,
};
use crate::{Digest, Utc, digest::Hasher, now_utc, scope::Mark};

/// As often what is written is put on the disk if other nodes read it there, bytes.
const FLUSH: u64 = 8 << 20;

/// Writes a blob that is not complete. Dropped before [`PartWriter::finish`], what was written
/// stays for [`RESUME`], and the next [`Store::begin`] of the digest continues it.
#[derive(Debug)]
pub struct PartWriter {
    store: Store,
    digest: Digest,
    size: u64,
    fence: u64,
    path: PathBuf,
    file: Arc<File>,
    hasher: Hasher,
    written: Arc<AtomicU64>,
    /// When other nodes are to see what is written.
    flush_at: u64,
    is_over: bool,
}

impl Store {
    /// Begins to write a blob of `size` bytes, or continues where an earlier writer stopped; room
    /// for all of it is set aside first. One writer of a digest at a time: `fence` is that of its
    /// lease, in whose name the file is. An earlier holder that does not know yet that it lost its
    /// lease writes on into a file that has no name any more.
    ///
    /// # Errors
    /// [`StoreError::TooBig`], [`StoreError::NoRoom`], [`StoreError::Io`].
    pub fn begin(&self, digest: &Digest, size: u64, fence: u64, now: Utc) -> Result<PartWriter, StoreError> {
        self.begin_in(Mark::default(), digest, size, fence, true, now)
    }

    /// As [`Store::begin`], without a lease: what other nodes write is left alone.
    ///
    /// # Errors
    /// As there.
    pub fn begin_alone(
        &self,
        digest: &Digest,
        size: u64,
        fence: u64,
        now: Utc,
    ) -> Result<PartWriter, StoreError> {
        self.begin_in(Mark::default(), digest, size, fence, false, now)
    }

    /// As [`Store::begin`], of a download in the scope of this mark. Bytes of other scopes are not continued.
    ///
    /// # Errors
    /// As there; [`StoreError::Elsewhere`] while this node keeps a download of another scope.
    pub(crate) fn begin_in(
        &self,
        mark: Mark,
        digest: &Digest,
        size: u64,
        fence: u64,
        has_lease: bool,
        now: Utc,
    ) -> Result<PartWriter, StoreError> {
        if self.is_too_big(size) {
            return Err(StoreError::TooBig { size, budget: self.inner.budget.bytes });
        }
        self.inner.layout.check_lock()?;
        let node = self.inner.layout.node().to_owned();
        let name = PartName { digest: digest.clone(), fence, size, mark, node };
        self.lock().check_mark(digest, mark)?;
        let earlier = self.earlier(&name, has_lease)?;
        // A continued part is copied: it exists twice for a moment.
        let mut extra = earlier.as_ref().map_or(0, |(_, length)| *length);
        let mut state = self.lock();
        state.check_mark(digest, mark)?;
        // Room for a blob is not made of its image's manifest.
        let manifests = state.hold_manifests(digest);
        self.inner.expect_images(&mut state, digest, now);
        if self.is_shared() {
            // An expected blob counts once for all nodes: now it is this one's.
            state.forget_expected(digest);
        }
        let before = state.reserved.get(digest).map_or(0, Reservation::room);
        let need = (on_disk(size) + on_disk(extra)).saturating_sub(before);
        if need > 0 && self.inner.make_room(&mut state, need, now).is_err() {
            extra = 0;
            if let Some((path, _)) = &earlier {
                self.inner.layout.discard(path)?;
            }
            self.inner.make_room(&mut state, on_disk(size).saturating_sub(before), now)?;
        }
        let written = Arc::new(AtomicU64::new(0));
        let both = on_disk(size) + extra;
        let reservation =
            Reservation { size: both, fence, mark, written: Arc::clone(&written), expires: None };
        state.reserve(digest.clone(), reservation);
        drop(manifests);
        let claimed = self.inner.claim(&mut state, 0, now);
        drop(state);
        if let Err(e) = claimed {
            self.lock().unreserve_of(digest, fence);
            return Err(e);
        }
        let part = earlier.filter(|_| extra > 0).map(|(path, _)| path);
        let opened = self.adopt(&name, part.clone()).or_else(|e| {
            let Some(part) = part else { return Err(e) };
            tracing::warn!("{e}: its download begins again");
            self.inner.layout.discard(&part)?;
            self.adopt(&name, None)
        });
        self.lock().resize(digest, fence, size);
        match opened {
            Ok((path, file, hasher, at)) => {
                written.store(at, Ordering::Relaxed);
                let (store, digest) = (self.clone(), digest.clone());
                let flush_at = at + (256 << 10);
                let (file, is_over) = (Arc::new(file), false);
                Ok(PartWriter { store, digest, size, fence, path, file, hasher, written, flush_at, is_over })
            }
            Err(e) => {
                // The file of a part without a reservation would be beside the budget.
                let _ = self.inner.layout.discard(&self.inner.layout.part(&name));
                self.lock().unreserve_of(digest, fence);
                Err(e)
            }
        }
    }

    /// The size of a blob of which there is a part, as the sender of that part said.
    #[must_use]
    pub(crate) fn size_of_part(&self, digest: &Digest, mark: Mark) -> Option<u64> {
        let paths = list(&self.inner.layout.parts(digest)).unwrap_or_default();
        let named = paths.iter().filter_map(|path| PartName::of(path).zip(Some(path)));
        let own = named.filter(|(name, _)| name.mark == mark);
        own.max_by_key(|(_, path)| fs::metadata(path).map_or(0, |meta| meta.len())).map(|(name, _)| name.size)
    }

    /// The longest of what earlier leases of the same scope have left of a blob, and its length; the others are
    /// removed. Of another scope another node may be writing, and this one is not: [`State::check_mark`].
    fn earlier(&self, name: &PartName, has_lease: bool) -> Result<Option<(PathBuf, u64)>, StoreError> {
        let mut found = Vec::new();
        for path in list(&self.inner.layout.parts(&name.digest))? {
            // Of a name without a mark no one knows the scope: an earlier version wrote it.
            let Some(old) = PartName::of(&path) else {
                self.inner.layout.discard(&path)?;
                continue;
            };
            let is_own = old.node == name.node;
            if old.mark != name.mark {
                if is_own {
                    self.inner.layout.discard(&path)?;
                }
            } else if has_lease || is_own {
                found.push((fs::metadata(&path).map_or(0, |meta| meta.len()), path));
            }
        }
        found.sort();
        // A whole file, or a longer one: it cannot be continued, and its content is not proved.
        let best = found.pop_if(|(length, _)| (1..name.size).contains(length));
        for (_, path) in found {
            self.inner.layout.discard(&path)?;
        }
        Ok(best.map(|(length, path)| (path, length)))
    }

    /// The file of the lease, with what an earlier one has left, hashed.
    fn adopt(
        &self,
        name: &PartName,
        earlier: Option<PathBuf>,
    ) -> Result<(PathBuf, File, Hasher, u64), StoreError> {
        let path = self.inner.layout.part(name);
        let mut tries = 0;
        let mut file = loop {
            // Another node may find the directory empty, and remove it.
            self.inner.layout.make_dir(&self.inner.layout.parts(&name.digest))?;
            match File::options().create(true).truncate(true).read(true).write(true).mode(0o600).open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < 5 => tries += 1,
                opened => break opened.map_err(io_error("make", &path))?,
            }
        };
        let mut hasher = Hasher::new(name.digest.algorithm());
        let mut at = 0;
        if let Some(earlier) = earlier {
            let mut old = File::open(&earlier).map_err(io_error("take over", &earlier))?;
            let mut buffer = vec![0; 256 << 10];
            loop {
                let got = old.read(&mut buffer).map_err(io_error("read", &earlier))?;
                // Its writer may not know yet that it lost its lease.
                if got == 0 || at + got as u64 >= name.size {
                    break;
                }
                hasher.update(&buffer[..got]);
                file.write_all(&buffer[..got]).map_err(io_error("write", &path))?;
                at += got as u64;
            }
            self.inner.layout.discard(&earlier)?;
        }
        Ok((path, file, hasher, at))
    }
}

impl PartWriter {
    /// How much there is of it.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// All of it, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The file, to read what is written at offsets while more comes.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Takes more of it in.
    ///
    /// # Errors
    /// [`StoreError::Length`] if that is more than was announced, [`StoreError::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let got = self.written() + bytes.len() as u64;
        if got > self.size {
            return Err(StoreError::Length { digest: self.digest.clone(), got, want: self.size });
        }
        (&*self.file).write_all(bytes).map_err(io_error("write", &self.path))?;
        self.hasher.update(bytes);
        self.written.store(got, Ordering::Relaxed);
        if got >= self.flush_at && self.store.is_shared() {
            // Often at first, as a client waits for the first byte.
            self.flush_at = got + got.min(FLUSH);
            self.file.sync_data().map_err(io_error("write", &self.path))?;
            if self.file.metadata().map_err(io_error("look at", &self.path))?.nlink() == 0 {
                return Err(StoreError::TakenOver(self.digest.clone()));
            }
        }
        Ok(())
    }

    /// Verifies it, has it on the disk, gives it its name.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`], [`StoreError::Length`]: it is gone then. [`StoreError::Io`].
    pub fn finish(self, now: Utc) -> Result<(), StoreError> {
        self.finish_copy(false, now).map(drop)
    }

    /// As [`PartWriter::finish`]. Answers the blob, open; none if it is there already as another file.
    ///
    /// * `is_copy`: another node has it too, so this one is evicted before all that it has alone.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn finish_copy(mut self, is_copy: bool, now: Utc) -> Result<Option<Opened>, StoreError> {
        let got = self.written();
        if got != self.size {
            return Err(StoreError::Length { digest: self.digest.clone(), got, want: self.size });
        }
        let fresh = Hasher::new(self.digest.algorithm());
        let found = std::mem::replace(&mut self.hasher, fresh).finish();
        if found != self.digest {
            self.remove();
            return Err(StoreError::Mismatch { expected: self.digest.clone(), found, size: got });
        }
        if self.store.has(&self.digest) {
            // Another source has delivered the same bytes: one copy of them is enough.
            self.remove();
            return Ok(None);
        }
        self.file.sync_all().map_err(io_error("write", &self.path))?;
        let layout = &self.store.inner.layout;
        // The path has the fence in it: of a lease that was lost it is there no more.
        if let Err(e) = layout.publish(&self.path, &layout.blob(&self.digest)) {
            if !self.path.exists() {
                self.remove();
                return Err(StoreError::TakenOver(self.digest.clone()));
            }
            return Err(e);
        }
        let fingerprint = Fingerprint::of(&self.file).map_err(io_error("look at", &self.path))?;
        self.store.inner.seal(&self.digest, fingerprint, now);
        let mut state = self.store.lock();
        self.store.inner.published(&mut state, &self.digest, now);
        state.unreserve_of(&self.digest, self.fence);
        state.insert(self.digest.clone(), self.size, now);
        let opened = state.blobs.get_mut(&self.digest).map(|blob| {
            blob.verified = Some((fingerprint, now));
            blob.is_copy = is_copy;
            self.store.held(&self.digest, blob, Arc::clone(&self.file), fingerprint, true)
        });
        self.store.inner.claim(&mut state, 0, now)?;
        drop(state);
        self.is_over = true;
        if let Some(dir) = self.path.parent() {
            // Of no other lease: empty now.
            let _ = fs::remove_dir(dir);
        }
        Ok(opened)
    }

    /// Gives it up: nothing of it is kept.
    pub(crate) fn discard(mut self) {
        self.remove();
    }

    fn remove(&mut self) {
        self.is_over = true;
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            let _ = fs::remove_dir(dir);
        }
        // Last: its room is another's from then on.
        self.store.lock().unreserve_of(&self.digest, self.fence);
    }

    /// That of its lease.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.written() == 0 {
            self.remove();
            return;
        }
        // Bytes on the disk still take room; others do not.
        let mut state = self.store.lock();
        let kept = self.written.load(Ordering::Relaxed);
        if let Some(reservation) = state.resize(&self.digest, self.fence, kept) {
            reservation.expires = Some(now_utc().after(RESUME));
        }
    }
}

impl State {
    /// Whether this node may keep a download of this scope: one of another scope may be under way.
    fn check_mark(&self, digest: &Digest, mark: Mark) -> Result<(), StoreError> {
        let is_written = |r: &&Reservation| r.expires.is_none() && r.mark != mark;
        match self.reserved.get(digest).filter(is_written) {
            Some(_) => Err(StoreError::Elsewhere(digest.clone())),
            None => Ok(()),
        }
    }
}

/// Removes what no process can need any more; answers how many.
pub(super) fn sweep(layout: &Layout) -> Result<usize, StoreError> {
    let mut removed = 0;
    let mut dirs: Vec<PathBuf> = ["blobs", "refs", "checked", "claims", "seals", "order", "sources"]
        .map(|name| layout.dir(name))
        .into();
    if !layout.is_shared() {
        for path in list(&layout.dir("trash"))? {
            layout.discard(&path)?;
            removed += 1;
        }
    }
    while let Some(dir) = dirs.pop() {
        let own = layout.new_in(&dir);
        for path in list(&dir)? {
            let is_new = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(".new-"));
            if path.is_dir() {
                dirs.push(path);
            } else if is_new && (path == own || !layout.is_shared()) {
                layout.discard(&path)?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Looks through what was being downloaded: the longest part of each blob stays if it is young and
/// the blob is not here, and takes room; all else goes. Answers how many stay, and how many went.
/// Parts of a shared directory are left to `shared.rs`.
pub(super) fn recover(layout: &Layout, state: &mut State, now: Utc) -> Result<(usize, usize), StoreError> {
    let (mut kept, mut removed) = (0, 0);
    for dir in list(&layout.dir("part"))? {
        let digest = digest_of(&dir);
        let mut parts: Vec<(u64, Utc, PathBuf)> = Vec::new();
        for path in list(&dir)? {
            if layout.is_shared() {
                kept += usize::from(PartName::of(&path).is_some_and(|name| name.node == layout.node()));
                continue;
            }
            if PartName::of(&path).is_none() {
                layout.discard(&path)?;
                removed += 1;
                continue;
            }
            let meta = fs::metadata(&path).map_err(io_error("look at", &path))?;
            parts.push((meta.len(), meta.modified().map_or(now, Utc::from), path));
        }
        if layout.is_shared() {
            continue;
        }
        parts.sort();
        let best = parts.pop_if(|(len, at, _)| {
            *len > 0
                && now.since(*at) < RESUME
                && digest.as_ref().is_some_and(|d| !state.blobs.contains_key(d))
        });
        for (_, _, path) in parts {
            layout.discard(&path)?;
            removed += 1;
        }
        if let (Some((size, at, path)), Some(digest)) = (best, digest) {
            let mark = PartName::of(&path).map_or_else(Mark::default, |name| name.mark);
            kept += 1;
            let written = Arc::new(AtomicU64::new(size));
            let expires = Some(at.after(RESUME));
            state.reserve(digest, Reservation { size, fence: 0, mark, written, expires });
        } else {
            let _ = fs::remove_dir(&dir);
        }
    }
    Ok((kept, removed))
}

/// Removes downloads of this node that were not continued in time, and forgets those that another
/// node continues.
pub(super) fn expire(layout: &Layout, state: &mut State, now: Utc) -> Result<(), StoreError> {
    let is_left = |r: &Reservation| r.expires.is_some() && r.written.load(Ordering::Relaxed) > 0;
    let left: Vec<Digest> =
        state.reserved.iter().filter(|(_, r)| is_left(r)).map(|(digest, _)| digest.clone()).collect();
    for digest in left {
        let dir = layout.parts(&digest);
        let mut own = list(&dir)?;
        own.retain(|path| PartName::of(path).is_none_or(|name| name.node == layout.node()));
        let is_over = state.reserved.get(&digest).is_some_and(|r| r.is_over(now));
        if !is_over && !own.is_empty() {
            continue;
        }
        for path in own {
            layout.discard(&path)?;
        }
        let _ = fs::remove_dir(&dir);
        state.unreserve(&digest);
    }
    Ok(())
}
