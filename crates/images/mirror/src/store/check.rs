//! Checks: blobs are hashed again, before they are served and from time to time; a blob with wrong
//! content is removed.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    num::NonZeroU64,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::Arc,
};

use rustix::fs::{Advice, fadvise};
use tokio::sync::broadcast;

use super::{
    Fingerprint, Inner, Opened, State, Store, StoreError,
    layout::{Layout, io_error, list, open_file},
};
use crate::{
    Digest, Utc,
    digest::{Algorithm, Hasher},
    now_utc,
};

/// Read at once, bytes.
const READ: usize = 256 << 10;

/// The blobs that a scrub looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubBatch {
    /// Of a directory that several nodes share, those that are this node's to check: each is one node's
    /// while the same nodes are there, and about as many are each one's.
    Own,
    /// All that are here.
    All,
}

/// A blob that is being hashed.
#[derive(Debug)]
pub(crate) struct Check {
    digest: Digest,
    file: Arc<File>,
    fingerprint: Fingerprint,
    hasher: Hasher,
    buffer: Vec<u8>,
    at: u64,
    /// The read goes to the disk, not to the page cache.
    is_of_disk: bool,
}

/// How a check begins.
#[derive(Debug)]
pub(crate) enum Begun {
    Check(Box<Check>),
    /// It left since it was listed.
    Left,
    /// Its file was taken away by another program.
    Missing,
}

impl Check {
    /// Hashes some more of it. Answers the bytes; 0 at its end.
    ///
    /// # Errors
    /// It cannot be read.
    fn step(&mut self) -> io::Result<u64> {
        let advise = |file: &File, at: u64| {
            // Refused, it is a check of memory, which is better than none.
            let _ = fadvise(file, at, NonZeroU64::new(READ as u64), Advice::DontNeed);
        };
        if self.is_of_disk {
            advise(&self.file, self.at);
        }
        let got = self.file.read_at(&mut self.buffer, self.at)?;
        if self.is_of_disk {
            // Nor does a scrub push out what clients want.
            advise(&self.file, self.at);
        }
        self.hasher.update(&self.buffer[..got]);
        self.at += got as u64;
        Ok(got as u64)
    }
}

impl Check {
    /// Hashes at least `most` bytes more, or up to the end. Answers how many it read, and whether that was the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn stretch(&mut self, most: u64) -> io::Result<(u64, bool)> {
        let begun = self.at;
        while self.at - begun < most {
            if self.step()? == 0 {
                return Ok((self.at - begun, true));
            }
        }
        Ok((self.at - begun, false))
    }

    /// How much is hashed, bytes.
    pub(crate) fn hashed(&self) -> u64 {
        self.at
    }
}

impl Store {
    /// Begins to hash an open blob, as it is sent.
    pub(crate) fn recheck(&self, opened: &Opened) -> Check {
        Check::of(&opened.digest, &opened.file, opened.fingerprint, false)
    }

    /// Hears of blobs that were taken away for what they had become.
    #[must_use]
    pub fn corrupted(&self) -> broadcast::Receiver<Digest> {
        self.inner.corrupted.subscribe()
    }

    /// Hashes an open blob; blocks for as long as reading it takes. A blob with wrong content is
    /// removed. Answers whether it is.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn verify(&self, opened: &Opened, now: Utc) -> Result<bool, StoreError> {
        let mut check = self.recheck(opened);
        loop {
            match check.step() {
                Ok(0) => return self.checked(check, now),
                Ok(_) => {}
                Err(e) => return self.unreadable(&check, e).map(|()| false),
            }
        }
    }

    /// Begins to hash a blob, as the disk has it, without counting a hit.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn check(&self, digest: &Digest) -> Result<Begun, StoreError> {
        let path = self.inner.layout.blob(digest);
        let cannot = || io_error("open", &path);
        let file = match open_file(&path) {
            Err(e) if is_gone(&e) => return self.missed(digest),
            file => file.map_err(cannot())?,
        };
        let fingerprint = Fingerprint::of(&file).map_err(cannot())?;
        Ok(Begun::Check(Box::new(Check::of(digest, &Arc::new(file), fingerprint, true))))
    }

    /// Forgets a blob whose file is not there. Of a shared directory another node may have evicted it.
    fn missed(&self, digest: &Digest) -> Result<Begun, StoreError> {
        let mut state = self.lock();
        if !state.blobs.contains_key(digest) || self.inner.layout.blob(digest).is_file() {
            return Ok(Begun::Left);
        }
        state.forget(digest);
        if self.is_shared() {
            return Ok(Begun::Left);
        }
        tracing::warn!("the file of {digest} is missing: fetched again when asked for");
        self.inner.drop_sources(digest);
        if state.manifests.contains_key(digest) {
            self.inner.drop_manifest(&mut state, digest)?;
        }
        Ok(Begun::Missing)
    }

    /// The end of a check: what is right is believed again for a while, what is wrong is taken away.
    /// Answers whether it is right.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn checked(&self, check: Check, now: Utc) -> Result<bool, StoreError> {
        let Check { digest, file, fingerprint, hasher, .. } = check;
        if hasher.finish() != digest {
            self.quarantine(&digest, &file)?;
            return Ok(false);
        }
        let mut state = self.lock();
        if let Some(blob) = state.blobs.get_mut(&digest) {
            blob.verified = Some((fingerprint, now));
            (blob.checked, blob.unread) = (now, None);
            self.inner.note_check(&mut state, &digest, now);
        }
        drop(state);
        self.inner.seal(&digest, fingerprint, now);
        Ok(true)
    }

    /// A file that cannot be read: taken away if its disk has lost it, an error else. Of a shared directory it
    /// stays, because other nodes may read it well.
    pub(crate) fn unreadable(&self, check: &Check, why: io::Error) -> Result<(), StoreError> {
        if is_gone(&why) {
            return Ok(());
        }
        if self.is_shared() {
            self.note_unread(&check.digest, &check.file, &why);
        } else if is_lost(&why) {
            return self.quarantine(&check.digest, &check.file);
        }
        Err(io_error("read", &self.inner.layout.blob(&check.digest))(why))
    }

    /// Takes away a file that is not what it is called, unless another has its name by now. It is
    /// emptied first, so that no process that sends it, on another node too, sends it to its end.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn quarantine(&self, digest: &Digest, file: &File) -> Result<(), StoreError> {
        let path = self.inner.layout.blob(digest);
        let of = file.metadata().map_err(io_error("look at", &path))?.ino();
        let mut state = self.lock();
        match File::options().write(true).open(&path) {
            Ok(named) if named.metadata().is_ok_and(|meta| meta.ino() == of) => {
                let _ = named.set_len(0);
            }
            Ok(_) => return Ok(()),
            // Another has taken it away.
            Err(e) if is_gone(&e) => {
                state.forget(digest);
                return Ok(());
            }
            // A file that cannot be emptied is removed all the same.
            Err(e) => tracing::warn!("cannot empty {}: {e}", path.display()),
        }
        tracing::warn!(
            "{digest} is not what it is called any more: removed, and fetched again when asked for"
        );
        state.counts.corrupt += 1;
        state.forget(digest);
        self.inner.unseal(digest);
        self.inner.drop_sources(digest);
        // An error means that no receiver listens.
        let _ = self.inner.corrupted.send(digest.clone());
        self.inner.layout.condemn(digest, now_utc())
    }

    /// A blob about which another node has doubts: it is hashed before it is served again.
    pub(crate) fn doubt(&self, digest: &Digest) {
        let mut state = self.lock();
        if let Some(blob) = state.blobs.get_mut(digest) {
            blob.verified = None;
        }
        self.inner.unseal(digest);
    }

    /// The blobs that have not been hashed since `before`, the longest unchecked first, and their
    /// sizes.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn unchecked(
        &self,
        lot: ScrubBatch,
        before: Utc,
        now: Utc,
    ) -> Result<Vec<(Digest, u64)>, StoreError> {
        let mut state = self.lock();
        self.inner.look_around(&mut state, now)?;
        self.inner.read_checks(&mut state)?;
        let nodes = match lot {
            ScrubBatch::Own => state.nodes(self.inner.layout.node()),
            ScrubBatch::All => BTreeSet::new(),
        };
        let mut due: Vec<_> = state
            .blobs
            .iter()
            .filter(|(digest, blob)| {
                blob.checked <= before
                    && owner(&nodes, digest).is_none_or(|node| node == self.inner.layout.node())
            })
            .map(|(digest, blob)| (blob.checked, digest.clone(), blob.size))
            .collect();
        due.sort();
        Ok(due.into_iter().map(|(_, digest, size)| (digest, size)).collect())
    }

    /// How many blobs were taken away for what they had become, since the store was opened.
    pub(crate) fn corrupt(&self) -> u64 {
        self.lock().counts.corrupt
    }

    /// When the blob that was hashed the longest ago was; none if there is no blob.
    #[must_use]
    pub fn oldest_check(&self) -> Option<Utc> {
        self.lock().blobs.values().map(|blob| blob.checked).min()
    }
}

impl Check {
    fn of(digest: &Digest, file: &Arc<File>, fingerprint: Fingerprint, is_of_disk: bool) -> Check {
        Check {
            digest: digest.clone(),
            file: Arc::clone(file),
            fingerprint,
            hasher: Hasher::new(digest.algorithm()),
            buffer: vec![0; READ],
            at: 0,
            is_of_disk,
        }
    }
}

/// The disk has lost what was written.
pub(super) fn is_lost(e: &io::Error) -> bool {
    e.raw_os_error() == Some(nix::libc::EIO)
}

/// Another node or program has taken it away.
pub(super) fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(nix::libc::ESTALE)
}

/// The node that checks a blob: the one with the largest hash (rendezvous hashing). A node that
/// comes or goes takes over its own part and no other.
fn owner<'a>(nodes: &'a BTreeSet<String>, digest: &Digest) -> Option<&'a String> {
    let rank = |node: &&String| {
        Digest::of(Algorithm::Sha256, format!("{node} {digest}").as_bytes()).hex().to_owned()
    };
    if nodes.len() < 2 {
        return nodes.first();
    }
    nodes.iter().min_by_key(|node| Reverse(rank(node)))
}

/// `MS DIGEST`, a line of a journal of checks.
fn read_line(line: &str) -> Option<(Digest, Utc)> {
    let (at, digest) = line.split_once(' ')?;
    Some((digest.parse().ok()?, Utc::from_unix_millis(at.parse().ok()?)))
}

fn journal(layout: &Layout) -> PathBuf {
    layout.dir("checked").join(layout.node())
}

impl Inner {
    /// Notes that a blob was hashed, so that a scrub goes on there after a restart. Lost, it is hashed again.
    fn note_check(&self, state: &mut State, digest: &Digest, now: Utc) {
        let path = journal(&self.layout);
        let opened = File::options().create(true).append(true).mode(0o600).open(&path);
        let written = opened
            .and_then(|mut file| file.write_all(format!("{} {digest}\n", now.unix_millis()).as_bytes()));
        if let Err(e) = written {
            tracing::warn!("cannot write {}: {e}", path.display());
        }
        state.check_lines += 1;
    }

    /// Takes in what this node and others have noted, and has this node's journal as short as it can be.
    pub(super) fn read_checks(&self, state: &mut State) -> Result<(), StoreError> {
        let own = journal(&self.layout);
        for path in list(&self.layout.dir("checked"))? {
            // Another version's, or torn: checked once more.
            let text = fs::read_to_string(&path).unwrap_or_default();
            for (digest, at) in text.lines().filter_map(read_line) {
                if let Some(blob) = state.blobs.get_mut(&digest) {
                    blob.checked = blob.checked.max(at);
                }
            }
            if path == own {
                state.check_lines = text.lines().count();
            }
        }
        if state.check_lines > 1000 + 2 * state.blobs.len() {
            let lines = state.blobs.iter().filter(|(_, blob)| blob.checked > blob.born);
            let text: String =
                lines.map(|(digest, blob)| format!("{} {digest}\n", blob.checked.unix_millis())).collect();
            self.layout.write_soon(&own, text.as_bytes())?;
            state.check_lines = text.lines().count();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_blob_is_one_nodes_to_check_and_who_goes_leaves_only_its_own() {
        let nodes: BTreeSet<String> = (0..5).map(|n| format!("node{n}")).collect();
        let mut fewer = nodes.clone();
        fewer.remove("node3");
        let mut counts = [0; 5];
        for n in 0..2000 {
            let digest = Digest::of(Algorithm::Sha256, &[n as u8, (n >> 8) as u8]);
            let whose = owner(&nodes, &digest).unwrap();
            counts[usize::from(whose.as_bytes()[4] - b'0')] += 1;
            if whose != "node3" {
                assert_eq!(owner(&fewer, &digest), Some(whose));
            }
        }
        assert!(counts.iter().all(|count| (300..500).contains(count)), "{counts:?}");
        assert_eq!(owner(&BTreeSet::new(), &Digest::of(Algorithm::Sha256, b"x")), None);
    }
}
