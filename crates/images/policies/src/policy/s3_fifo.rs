//! S3-FIFO: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction"
//! (SOSP 2023), with sizes.
//!
//! A tenth of the budget is a small queue for new blobs. A blob with two requests there goes on to
//! the main queue at the end. Others leave and are remembered by name for a while (nine tenths of
//! the budget, of bytes not kept). A remembered blob that comes again goes to the main queue at
//! once. That one is a FIFO in which every use, up to three, saves from one eviction.
//!
//! Unlike the form that simulators take, a blob larger than the small queue is accepted: the
//! queues' sizes decide the order, and are no bounds. Layers of a gigabyte are the ones that are
//! worth most.

use weir_units::{Bytes, Instant};

use super::EvictionPolicy;
use crate::{Blob, BlobId, Protection, queue::Queue};

/// Uses in the small queue that lead to the main one.
const PROMOTED: u8 = 2;
/// Uses that count.
const MAX_USES: u8 = 3;
/// Blobs that are remembered as coming again before they are inserted; more than an image has.
const RETURNING: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    uses: u8,
}

/// A queue and its bytes.
#[derive(Debug, Clone, Default)]
struct Fifo {
    queue: Queue<BlobId, Entry>,
    bytes: u64,
}

impl Fifo {
    fn push(&mut self, id: BlobId, entry: Entry) {
        self.queue.push_front(id, entry);
        self.bytes += entry.bytes;
    }

    fn remove(&mut self, id: BlobId) -> Option<Entry> {
        let entry = self.queue.remove(id);
        self.bytes -= entry.map_or(0, |entry| entry.bytes);
        entry
    }
}

/// A blob with one request leaves soon.
#[derive(Debug, Clone)]
pub struct S3Fifo {
    small: Fifo,
    main: Fifo,
    ghost: Fifo,
    /// Were in the ghost when they were asked for, and are about to be inserted.
    returning: Queue<BlobId, ()>,
    main_target: u64,
    ghost_limit: u64,
}

impl S3Fifo {
    /// An empty one for a cache of this size.
    #[must_use]
    pub fn new(budget: Bytes) -> S3Fifo {
        // As libCacheSim rounds: the parts are cut off to whole bytes.
        let part = |of: f64| (budget.0 as f64 * of) as u64;
        S3Fifo {
            small: Fifo::default(),
            main: Fifo::default(),
            ghost: Fifo::default(),
            returning: Queue::default(),
            main_target: budget.0 - part(0.1),
            ghost_limit: part(0.9),
        }
    }

    /// Remembers who left.
    fn remember(&mut self, id: BlobId, entry: Entry) {
        if entry.bytes > self.ghost_limit || self.ghost.queue.contains(id) {
            return;
        }
        while self.ghost.bytes + entry.bytes > self.ghost_limit {
            let Some((_, old)) = self.ghost.queue.pop_back() else { break };
            self.ghost.bytes -= old.bytes;
        }
        self.ghost.push(id, entry);
    }

    /// One blob less, if one may go. A protected blob is set aside, still counted in its queue.
    fn evict_one(&mut self, protection: &dyn Protection, aside: &mut Aside) -> Option<(BlobId, u64)> {
        loop {
            let main_turn = self.main.bytes > self.main_target || self.small.queue.len() == 0;
            if main_turn && self.main.queue.len() > 0 {
                while let Some((id, entry)) = self.main.queue.pop_back() {
                    if protection.blob(id) {
                        aside.main.push((id, entry));
                    } else if entry.uses > 0 {
                        self.main.queue.push_front(id, Entry { uses: entry.uses - 1, ..entry });
                    } else {
                        self.main.bytes -= entry.bytes;
                        return Some((id, entry.bytes));
                    }
                }
            } else if self.small.queue.len() > 0 {
                while let Some((id, entry)) = self.small.queue.pop_back() {
                    if protection.blob(id) {
                        aside.small.push((id, entry));
                        continue;
                    }
                    self.small.bytes -= entry.bytes;
                    if entry.uses < PROMOTED {
                        self.remember(id, entry);
                        return Some((id, entry.bytes));
                    }
                    self.main.push(id, Entry { uses: 0, ..entry });
                }
            } else {
                return None;
            }
        }
    }
}

/// Protected entries that an eviction came by.
#[derive(Debug, Default)]
struct Aside {
    small: Vec<(BlobId, Entry)>,
    main: Vec<(BlobId, Entry)>,
}

impl EvictionPolicy for S3Fifo {
    fn hit(&mut self, id: BlobId, _now: Instant) -> bool {
        for fifo in [&mut self.small, &mut self.main] {
            if let Some(entry) = fifo.queue.get_mut(id) {
                entry.uses = (entry.uses + 1).min(MAX_USES);
                return true;
            }
        }
        if self.ghost.remove(id).is_some() {
            if self.returning.len() == RETURNING {
                self.returning.pop_back();
            }
            self.returning.push_front(id, ());
        }
        false
    }

    fn insert(&mut self, blob: Blob, now: Instant) {
        if self.hit(blob.id, now) {
            return;
        }
        let uses = u8::try_from(blob.uses.saturating_sub(1)).unwrap_or(MAX_USES).min(MAX_USES);
        let entry = Entry { bytes: blob.bytes.0, uses };
        match self.returning.remove(blob.id) {
            Some(()) => self.main.push(blob.id, entry),
            None => self.small.push(blob.id, entry),
        }
    }

    fn remove(&mut self, id: BlobId) -> bool {
        self.small.remove(id).or_else(|| self.main.remove(id)).is_some()
    }

    fn contains(&self, id: BlobId) -> bool {
        self.small.queue.contains(id) || self.main.queue.contains(id)
    }

    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes {
        let mut freed = 0;
        let mut aside = Aside::default();
        while freed < need.0 {
            let Some((id, bytes)) = self.evict_one(protection, &mut aside) else { break };
            victims.push(id);
            freed += bytes;
        }
        for (fifo, kept) in [(&mut self.small, aside.small), (&mut self.main, aside.main)] {
            for (id, entry) in kept.into_iter().rev() {
                fifo.queue.push_back(id, entry);
            }
        }
        Bytes(freed)
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.small.bytes + self.main.bytes)
    }

    fn len(&self) -> usize {
        self.small.queue.len() + self.main.queue.len()
    }

    fn order(&self) -> Vec<BlobId> {
        super::drain(self.clone())
    }
}
