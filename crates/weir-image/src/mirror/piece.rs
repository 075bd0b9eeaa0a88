//! Pieces of files on their way to clients.
//!
//! What the page cache has is read in place, without a thread's help, into memory that was used
//! before: a fresh piece would have the kernel clear its pages, and a thread its own heap.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    ops::Range,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use rustix::io::{ReadWriteFlags, preadv2};

/// The most that is read at once, bytes: all that a client's answer holds of a blob in memory.
const PIECE: usize = 128 << 10;
/// So much memory waits for the next piece, in pieces.
const SPARES: usize = 16;

static SPARE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

struct Piece {
    memory: Box<[u8]>,
    length: usize,
}

impl Piece {
    /// Of at most `length` bytes.
    fn new(length: u64) -> Piece {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = spare.unwrap_or_else(|| vec![0; PIECE].into());
        Piece { memory, length: usize::try_from(length).map_or(PIECE, |length| length.min(PIECE)) }
    }
}

impl AsMut<[u8]> for Piece {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARES {
            spare.push(std::mem::take(&mut self.memory));
        }
    }
}

/// Reads the beginning of a range that is not empty.
pub(super) async fn read(file: &Arc<File>, range: Range<u64>) -> io::Result<Bytes> {
    let mut piece = Piece::new(range.end - range.start);
    let memory = &mut [IoSliceMut::new(piece.as_mut())];
    if let Ok(got @ 1..) = preadv2(&**file, memory, range.start, ReadWriteFlags::NOWAIT) {
        piece.length = got;
        return Ok(Bytes::from_owner(piece));
    }
    // It is on the disk, or cannot be read: whatever it is, a thread waits for it.
    let file = Arc::clone(file);
    let waited = move || file.read_exact_at(piece.as_mut(), range.start).map(|()| piece);
    let piece = tokio::task::spawn_blocking(waited).await.map_err(io::Error::other)??;
    Ok(Bytes::from_owner(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_are_what_the_file_has_and_memory_is_used_again() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|n| (n % 251) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let (file, end) = (Arc::new(file), bytes.len() as u64);
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let piece = read(&file, got.len() as u64..end).await.unwrap();
            assert!((1..=PIECE).contains(&piece.len()));
            got.extend_from_slice(&piece);
        }
        assert_eq!(got, bytes);
        let spares = || SPARE.lock().unwrap().len();
        assert!(spares() > 0);
        let many: Vec<Bytes> = {
            let mut many = Vec::new();
            for _ in 0..2 * SPARES {
                many.push(read(&file, 7..9).await.unwrap());
            }
            many
        };
        assert!(many.iter().all(|piece| piece[..] == bytes[7..9]));
        drop(many);
        assert_eq!(spares(), SPARES);
        // Shorter than it was: no bytes are made up.
        file.set_len(10).unwrap();
        let short = read(&file, 10..20).await.unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }
}
