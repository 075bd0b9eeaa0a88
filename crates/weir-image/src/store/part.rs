//! A blob on its way in: written, hashed, and given its name only if it is what it is called.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Fingerprint, RESUME, State, Store, StoreError,
    layout::{Layout, io_error, list},
    room::Reservation,
};
use crate::{Digest, digest::Hasher, moment::Moment};

/// Writes a blob that is not complete. Dropped before [`PartWriter::finish`], what was written
/// stays for [`RESUME`], and the next [`Store::begin`] of the digest continues it.
#[derive(Debug)]
pub struct PartWriter {
    store: Store,
    digest: Digest,
    size: u64,
    fence: u64,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    written: Arc<AtomicU64>,
    is_over: bool,
}

impl Store {
    /// Begins to write a blob of `size` bytes, or continues where an earlier writer stopped; room
    /// for all of it is set aside first. One writer of a digest at a time: `fence` is that of its
    /// lease, in whose name the file is.
    ///
    /// # Errors
    /// [`StoreError::TooBig`], [`StoreError::NoRoom`], [`StoreError::Io`].
    pub fn begin(
        &self,
        digest: &Digest,
        size: u64,
        fence: u64,
        now: Moment,
    ) -> Result<PartWriter, StoreError> {
        if self.is_too_big(size) {
            return Err(StoreError::TooBig { size, budget: self.inner.budget.bytes });
        }
        let mut state = self.lock();
        let before = state.reserved.get(digest).map_or(0, |r| r.size);
        if size > before {
            self.inner.make_room(&mut state, size - before, now)?;
        }
        // Making room may have dropped the old reservation.
        if let Some(old) = state.reserved.remove(digest) {
            state.used -= old.size;
        }
        let written = Arc::new(AtomicU64::new(0));
        state.used += size;
        let reservation = Reservation { size, written: Arc::clone(&written), expires: None };
        state.reserved.insert(digest.clone(), reservation);
        drop(state);
        let opened = self.adopt(digest, size, fence);
        match opened {
            Ok((path, file, hasher, at)) => {
                written.store(at, Ordering::Relaxed);
                let (store, digest) = (self.clone(), digest.clone());
                Ok(PartWriter { store, digest, size, fence, path, file, hasher, written, is_over: false })
            }
            Err(e) => {
                self.release(digest);
                Err(e)
            }
        }
    }

    /// The file of the lease, with what an earlier one has left, hashed.
    fn adopt(
        &self,
        digest: &Digest,
        size: u64,
        fence: u64,
    ) -> Result<(PathBuf, File, Hasher, u64), StoreError> {
        let path = self.inner.layout.part(digest, fence);
        let dir = path.parent().unwrap_or(&path);
        self.inner.layout.make_dir(dir)?;
        for (n, old) in list(dir)?.into_iter().enumerate() {
            if n == 0 && old != path {
                fs::rename(&old, &path).map_err(io_error("take over", &old))?;
            } else if old != path {
                fs::remove_file(&old).map_err(io_error("remove", &old))?;
            }
        }
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("make", &path))?;
        let mut hasher = Hasher::new(digest.algorithm());
        let mut at = 0;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let got = file.read(&mut buffer).map_err(io_error("read", &path))?;
            if got == 0 {
                break;
            }
            hasher.update(&buffer[..got]);
            at += got as u64;
        }
        // A whole file, or more than one: nothing to continue, and what it is nobody proved.
        if at >= size {
            file.set_len(0).map_err(io_error("empty", &path))?;
            std::io::Seek::rewind(&mut file).map_err(io_error("empty", &path))?;
            (hasher, at) = (Hasher::new(digest.algorithm()), 0);
        }
        Ok((path, file, hasher, at))
    }

    fn release(&self, digest: &Digest) {
        let mut state = self.lock();
        if let Some(reservation) = state.reserved.remove(digest) {
            state.used -= reservation.size;
        }
    }
}

impl PartWriter {
    /// How much there is of it.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// The file, to read what is written while more comes.
    ///
    /// # Errors
    /// [`StoreError::Io`]: out of file descriptors.
    pub fn reader(&self) -> Result<File, StoreError> {
        File::open(&self.path).map_err(io_error("open", &self.path))
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
        self.file.write_all(bytes).map_err(io_error("write", &self.path))?;
        self.hasher.update(bytes);
        self.written.store(got, Ordering::Relaxed);
        Ok(())
    }

    /// Verifies it, has it on the disk, gives it its name.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`], [`StoreError::Length`]: it is gone then. [`StoreError::Io`].
    pub fn finish(mut self, now: Moment) -> Result<(), StoreError> {
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
        self.file.sync_all().map_err(io_error("write", &self.path))?;
        let layout = &self.store.inner.layout;
        // The path has the fence in it: of a lease that was lost it is there no more.
        layout.publish(&self.path, &layout.blob(&self.digest))?;
        let fingerprint = Fingerprint::of(&self.file).map_err(io_error("look at", &self.path))?;
        let mut state = self.store.lock();
        if let Some(reservation) = state.reserved.remove(&self.digest) {
            state.used -= reservation.size;
        }
        state.insert(self.digest.clone(), self.size, 0.0, now);
        if let Some(blob) = state.blobs.get_mut(&self.digest) {
            blob.verified = Some((fingerprint, now));
        }
        drop(state);
        self.is_over = true;
        if let Some(dir) = self.path.parent() {
            // Of no other lease: empty now.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Gives it up: nothing of it is kept.
    pub fn discard(mut self) {
        self.remove();
    }

    fn remove(&mut self) {
        self.is_over = true;
        self.store.release(&self.digest);
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            let _ = fs::remove_dir(dir);
        }
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
        // What is there still takes room; what is not there does not.
        let mut state = self.store.lock();
        let kept = self.written.load(Ordering::Relaxed);
        let mut freed = 0;
        if let Some(reservation) = state.reserved.get_mut(&self.digest) {
            freed = reservation.size - kept;
            reservation.size = kept;
            reservation.expires = Some(Moment::now().after(RESUME));
        }
        state.used -= freed;
    }
}

/// Removes what no process can need any more; answers how many.
pub(super) fn sweep(layout: &Layout) -> Result<usize, StoreError> {
    let mut removed = 0;
    for path in list(&layout.dir("trash"))? {
        fs::remove_file(&path).map_err(io_error("remove", &path))?;
        removed += 1;
    }
    let mut dirs = vec![layout.dir("blobs"), layout.dir("refs")];
    while let Some(dir) = dirs.pop() {
        for path in list(&dir)? {
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(".new-")) {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Looks through what was being downloaded: the longest part of each blob stays if it is young and
/// the blob is not here, and takes room; all else goes. Answers how many stay, and how many went.
pub(super) fn recover(layout: &Layout, state: &mut State, now: Moment) -> Result<(usize, usize), StoreError> {
    let (mut kept, mut removed) = (0, 0);
    for dir in list(&layout.dir("part"))? {
        let digest = digest_of(&dir);
        let mut parts: Vec<(u64, Moment, PathBuf)> = Vec::new();
        for path in list(&dir)? {
            let meta = fs::metadata(&path).map_err(io_error("look at", &path))?;
            parts.push((meta.len(), meta.modified().map_or(now, Moment::of), path));
        }
        parts.sort();
        let best = parts.pop_if(|(len, at, _)| {
            *len > 0
                && now.since(*at) < RESUME
                && digest.as_ref().is_some_and(|d| !state.blobs.contains_key(d))
        });
        for (_, _, path) in parts {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            removed += 1;
        }
        if let (Some((size, at, _)), Some(digest)) = (best, digest) {
            kept += 1;
            state.used += size;
            let written = Arc::new(AtomicU64::new(size));
            state.reserved.insert(digest, Reservation { size, written, expires: Some(at.after(RESUME)) });
        } else {
            let _ = fs::remove_dir(&dir);
        }
    }
    Ok((kept, removed))
}

/// Removes downloads that nobody continued in time.
pub(super) fn expire(layout: &Layout, state: &mut State, now: Moment) -> Result<(), StoreError> {
    let over: HashMap<Digest, u64> = state
        .reserved
        .iter()
        .filter(|(_, r)| r.expires.is_some_and(|at| at <= now))
        .map(|(digest, r)| (digest.clone(), r.size))
        .collect();
    for (digest, size) in over {
        let dir = layout.dir("part").join(digest.hex());
        for path in list(&dir)? {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        let _ = fs::remove_dir(&dir);
        state.reserved.remove(&digest);
        state.used -= size;
    }
    Ok(())
}

/// The digits tell the algorithm by their number.
fn digest_of(dir: &std::path::Path) -> Option<Digest> {
    let hex = dir.file_name()?.to_str()?;
    let algorithm = if hex.len() == 128 { "sha512" } else { "sha256" };
    format!("{algorithm}:{hex}").parse().ok()
}
