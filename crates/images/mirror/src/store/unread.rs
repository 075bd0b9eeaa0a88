//! Blobs of a shared directory that this node cannot read: they stay for the other nodes.

use std::{fs::File, io, os::unix::fs::MetadataExt, time::Duration};

use super::{Fingerprint, Inner, State, Store};
use crate::{Digest, Utc, clock::holds, now_utc};

/// Failed reads of one file after which this node fetches a copy of its own.
const MAX_UNREAD: u32 = 2;
/// After this time a blob that this node could not read is read again.
pub(super) const RETRY: Duration = Duration::from_secs(600);

/// Failed reads of a blob's file on this node. A check of the whole blob that succeeds ends them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    inode: u64,
    times: u32,
    last: Utc,
}

impl Unread {
    fn is_given_up(self, inode: u64, now: Utc) -> bool {
        self.inode == inode && self.times >= MAX_UNREAD && holds(self.last.after(RETRY), now, RETRY)
    }
}

impl Inner {
    /// Whether this node treats a blob of the index as missing, because it cannot read the file.
    ///
    /// The file of another inode is another copy, which is read.
    pub(super) fn is_given_up(&self, state: &State, digest: &Digest, now: Utc) -> bool {
        let Some(unread) = state.blobs.get(digest).and_then(|blob| blob.unread) else { return false };
        let inode = std::fs::metadata(self.layout.blob(digest)).map(|meta| meta.ino());
        inode.is_ok_and(|inode| unread.is_given_up(inode, now))
    }
}

impl Store {
    /// Notes a failed read of a shared blob. The file stays, because other nodes may read it well.
    pub(super) fn note_unread(&self, digest: &Digest, file: &File, why: &io::Error) {
        let now = now_utc();
        let inode = Fingerprint::of(file).map_or(0, |of| of.inode);
        let mut state = self.lock();
        let Some(blob) = state.blobs.get_mut(digest) else { return };
        let before =
            blob.unread.filter(|before| before.inode == inode && holds(before.last.after(RETRY), now, RETRY));
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        blob.unread = Some(Unread { inode, times, last: now });
        // The next reader hashes it, so that no client gets the end of a file which is read badly.
        blob.verified = None;
        drop(state);
        let next = if times < MAX_UNREAD {
            "the next request reads it again"
        } else {
            "the next request fetches another copy"
        };
        tracing::warn!("cannot read {digest} ({times} times): {why}; it stays for other nodes, and {next}");
    }
}
