//! Pieces of answers on their way to clients: bytes, or a part of a file that the kernel sends itself.
//!
//! hyper writes bytes, and knows no files. A part of a file is given to it as a [`hole`](is_hole):
//! bytes of an unread array, whose place in memory identifies the part. The connection
//! ([`Wire`](super::wire::Wire)) has the file in its queue, and calls `sendfile` where it is told
//! to write a hole. The page cache is then read once, by the network's side, instead of being
//! copied to and fro.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use bytes::{Buf, Bytes};
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::runtime::Handle;

use crate::store::Opened;

/// The most that is taken at once, bytes: all that a client's answer holds of a blob in memory.
pub(super) const PIECE: usize = 128 << 10;

/// The array that stands for parts of files. Its bytes are never sent.
static HOLE: [u8; PIECE] = [0; PIECE];

/// Whether these are bytes that stand for a part of a file.
pub(super) fn is_hole(bytes: &[u8]) -> bool {
    HOLE.as_ptr_range().contains(&bytes.as_ptr())
}

/// A part of a file, of at most [`PIECE`] bytes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) file: Arc<File>,
    pub(super) range: Range<u64>,
    /// Of which it is, if that is in the store. It is not evicted before the part is sent.
    pub(super) blob: Option<Opened>,
}

impl Part {
    /// The hole that stands for it.
    pub(super) fn hole(&self) -> &'static [u8] {
        let length = usize::try_from(self.range.end - self.range.start).unwrap_or(PIECE);
        &HOLE[..length.min(PIECE)]
    }

    /// Has its blob taken away if the disk has lost it.
    pub(super) fn unreadable(&self, why: &io::Error) {
        if let (Some(blob), Some(code), Ok(runtime)) =
            (self.blob.clone(), why.raw_os_error(), Handle::try_current())
        {
            runtime.spawn_blocking(move || blob.unreadable(&io::Error::from_raw_os_error(code)));
        }
    }
}

/// A piece of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Bytes),
    Part(Part),
}

impl Piece {
    /// Its bytes. Those of a part are in the page cache: [`take`] has looked.
    ///
    /// # Errors
    /// The file is shorter by now, or cannot be read.
    pub(super) fn read(self) -> io::Result<Bytes> {
        match self {
            Piece::Bytes(bytes) => Ok(bytes),
            Piece::Part(part) => {
                let length = usize::try_from(part.range.end - part.range.start).map_err(io::Error::other)?;
                let mut bytes = vec![0; length];
                let read = part.file.read_exact_at(&mut bytes, part.range.start);
                read.inspect_err(|e| part.unreadable(e)).map(|()| bytes.into())
            }
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.chunk().len()
    }

    /// Of a part, a hole.
    fn chunk(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Part(part) => part.hole(),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Piece::Bytes(bytes) => bytes.advance(count),
            Piece::Part(part) => part.range.start += count as u64,
        }
    }
}

/// Takes the beginning of a range that is not empty.
///
/// Bytes in the page cache are sent without a look at them. For the rest a thread waits for the
/// disk, as `sendfile` would have all clients do. Looked at are a piece's ends and its middle: if
/// the kernel has just thrown away what is between, the others wait for that.
///
/// * `blob`: the blob that the file is, if it is in the store.
///
/// # Errors
/// The file cannot be read, or is shorter. A blob that its disk has lost is taken away then.
pub(super) async fn take(file: &Arc<File>, blob: Option<Opened>, range: Range<u64>) -> io::Result<Piece> {
    let length = usize::try_from(range.end - range.start).map_or(PIECE, |length| length.min(PIECE));
    let range = range.start..range.start + length as u64;
    let places = [range.start, range.start + length as u64 / 2, range.end - 1];
    let is_at_hand =
        |at| preadv2(&**file, &mut [IoSliceMut::new(&mut [0])], at, ReadWriteFlags::NOWAIT) == Ok(1);
    let file = Arc::clone(file);
    if places.into_iter().all(is_at_hand) {
        return Ok(Piece::Part(Part { file, range, blob }));
    }
    let waited = move || {
        let mut bytes = vec![0; length];
        let read = file.read_exact_at(&mut bytes, range.start);
        let unreadable = |e: &io::Error| blob.iter().for_each(|blob| blob.unreadable(e));
        read.inspect_err(unreadable).map(|()| bytes)
    };
    let bytes = tokio::task::spawn_blocking(waited).await.map_err(io::Error::other)??;
    Ok(Piece::Bytes(bytes.into()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::{
        Digest,
        digest::Algorithm,
        now_utc,
        store::{Budget, PolicyKind, Store},
    };

    #[tokio::test]
    async fn pieces_are_what_the_file_has_whether_it_is_in_memory_or_on_the_disk() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|n| (n % 251) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        let end = bytes.len() as u64;
        let knows = preadv2(&*file, &mut [IoSliceMut::new(&mut [0])], 0, ReadWriteFlags::NOWAIT).is_ok();
        for is_cold in [false, true] {
            if is_cold {
                rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            let mut got = Vec::new();
            while got.len() < bytes.len() {
                let piece = take(&file, None, got.len() as u64..end).await.unwrap();
                assert!((1..=PIECE).contains(&piece.remaining()));
                assert_eq!(matches!(piece, Piece::Part(_)), is_hole(piece.chunk()));
                // The kernel reads ahead: later ones may be there.
                if got.is_empty() && knows {
                    assert_eq!(matches!(piece, Piece::Bytes(_)), is_cold, "{piece:?}");
                }
                got.extend(piece.read().unwrap());
            }
            assert!(got == bytes, "cold: {is_cold}");
        }
        // Shorter than it was: no bytes are made up.
        file.set_len(10).unwrap();
        let short = take(&file, None, 10..20).await.unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// A store that keeps nothing which no one reads, and a blob in it.
    fn kept() -> (tempfile::TempDir, Store, Opened) {
        let (dir, now) = (tempfile::tempdir().unwrap(), now_utc());
        let budget = Budget { young: Duration::ZERO, ..Budget::of(64 << 20) };
        let store = Store::open(dir.path(), budget, PolicyKind::Lru, now).unwrap().0;
        let bytes = [7; 5000];
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        store.put(&digest, &bytes, 1, now).unwrap();
        let blob = store.open_blob(&digest, now).unwrap().unwrap();
        (dir, store, blob)
    }

    #[tokio::test]
    async fn blob_is_not_evicted_before_its_last_piece_is_sent() {
        let (_dir, store, blob) = kept();
        let digest = blob.digest().clone();
        let piece = take(blob.file(), Some(blob.clone()), 0..5000).await.unwrap();
        assert!(matches!(piece, Piece::Part(_)), "{piece:?}");
        drop(blob);
        store.prune(0, now_utc()).unwrap();
        assert!(store.has(&digest), "it is being sent");
        drop(piece);
        store.prune(0, now_utc()).unwrap();
        assert!(!store.has(&digest));
    }

    /// The memory of this process at its first byte, where nothing is: a read fails as one of a bad sector does.
    fn lost(blob: &Opened, root: &std::path::Path) -> Opened {
        let hex = blob.digest().hex();
        let path = root.join("blobs/sha256").join(&hex[..2]).join(hex);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        blob.over(File::open(&path).unwrap())
    }

    #[tokio::test]
    async fn blob_that_its_disk_has_lost_is_taken_away_when_it_is_sent() {
        for is_taken_before in [false, true] {
            let (dir, store, blob) = kept();
            let mut told = store.corrupted();
            let bad = lost(&blob, dir.path());
            let why = if is_taken_before {
                // The kernel has thrown away since what was there when the piece was made.
                let (file, blob) = (Arc::clone(bad.file()), Some(bad.clone()));
                Piece::Part(Part { file, range: 0..5000, blob }).read().unwrap_err()
            } else {
                take(bad.file(), Some(bad.clone()), 0..5000).await.unwrap_err()
            };
            assert_eq!(why.raw_os_error(), Some(nix::libc::EIO));
            let told = timeout(Duration::from_secs(10), told.recv()).await.expect("it is taken away");
            assert_eq!(told.as_ref(), Ok(blob.digest()), "before: {is_taken_before}");
            assert!(store.open_blob(blob.digest(), now_utc()).unwrap().is_none());
        }
    }
}
