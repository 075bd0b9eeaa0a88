//! LRU at blob grain.

use weir_units::{Bytes, Instant};

use super::EvictionPolicy;
use crate::{
    Blob, BlobId, Protection,
    queue::{Queue, Sift},
};

/// The blob that was not asked for for longest leaves first.
#[derive(Debug, Clone, Default)]
pub struct Lru {
    queue: Queue<BlobId, u64>,
    bytes: u64,
}

impl EvictionPolicy for Lru {
    fn hit(&mut self, id: BlobId, _now: Instant) -> bool {
        self.queue.touch(id)
    }

    fn insert(&mut self, blob: Blob, _now: Instant) {
        if !self.queue.touch(blob.id) {
            self.queue.push_front(blob.id, blob.bytes.0);
            self.bytes += blob.bytes.0;
        }
    }

    fn remove(&mut self, id: BlobId) -> bool {
        let size = self.queue.remove(id);
        self.bytes -= size.unwrap_or(0);
        size.is_some()
    }

    fn contains(&self, id: BlobId) -> bool {
        self.queue.contains(id)
    }

    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes {
        let mut freed = 0;
        self.queue.sift(|id, size| {
            if freed >= need.0 {
                return Sift::Stop;
            }
            if protection.blob(id) {
                return Sift::Keep;
            }
            freed += size;
            victims.push(id);
            Sift::Take
        });
        self.bytes -= freed;
        Bytes(freed)
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn order(&self) -> Vec<BlobId> {
        super::drain(self.clone())
    }
}
