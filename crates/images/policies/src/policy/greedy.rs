//! Greedy-Dual-Size, with and without frequency: Cao and Irani (1997), Cherkasova (1998).
//!
//! ```text
//! H = L + uses * cost / size        uses = 1 without frequency
//! ```
//!
//! The smallest H leaves, and L becomes that H: a blob without requests is overtaken.
//!
//! [`Greedy::with_memory`] goes two steps further, which of what a registry is asked for again saves
//! half as much once more: uses before a blob was thrown out count when it is back, and who was asked for
//! once only counts a fifth, as most never are again.

use std::collections::BTreeSet;

use weir_units::{Bytes, Instant};

use super::EvictionPolicy;
use crate::{Blob, BlobId, Protection, hash::Map, queue::Queue};

/// Blobs that left and are remembered: 5 MB.
const REMEMBERED: usize = 100_000;
/// The weight of the only use of a blob, for policies that remember.
const FIRST: f64 = 0.2;

/// The cost of a blob that has to be fetched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// The time that it takes, s.
    FetchTime,
    /// The same for every blob.
    One,
}

/// The order of eviction: the bits of H, which order as H does since it is never negative; then the
/// longer wait.
type Rank = (u64, u64, BlobId);

#[derive(Debug, Clone, Copy)]
struct Entry {
    rank: Rank,
    bytes: u64,
    cost: f64,
    uses: u32,
}

/// Cheapest to fetch again for its size first, aged.
#[derive(Debug, Clone)]
pub struct Greedy {
    cost: Cost,
    frequency: bool,
    entries: Map<BlobId, Entry>,
    order: BTreeSet<Rank>,
    /// Uses of those that left, the latest in front; none: forgotten.
    left: Option<Queue<BlobId, u32>>,
    /// L.
    inflation: f64,
    /// Counts what happened, to tell equal H apart.
    step: u64,
    bytes: u64,
}

impl Greedy {
    /// An empty one: GDSF if `frequency` counts, else GDS.
    #[must_use]
    pub fn new(cost: Cost, frequency: bool) -> Greedy {
        Greedy {
            cost,
            frequency,
            entries: Map::default(),
            order: BTreeSet::new(),
            left: None,
            inflation: 0.0,
            step: 0,
            bytes: 0,
        }
    }

    /// GDSF by fetch time that remembers who left.
    #[must_use]
    pub(crate) fn with_memory() -> Greedy {
        Greedy { left: Some(Queue::default()), ..Greedy::new(Cost::FetchTime, true) }
    }

    fn rank(&mut self, id: BlobId, uses: u32, cost: f64, bytes: u64) -> Rank {
        self.step += 1;
        let uses = match uses {
            1 if self.left.is_some() => FIRST,
            uses if self.frequency => f64::from(uses),
            _ => 1.0,
        };
        // Costs a megabyte, so that L + 1/size is not rounded away.
        let h = self.inflation + uses * (cost * 1e6) / bytes.max(1) as f64;
        (h.to_bits(), self.step, id)
    }
}

impl EvictionPolicy for Greedy {
    fn hit(&mut self, id: BlobId, _now: Instant) -> bool {
        let Some(&entry) = self.entries.get(&id) else { return false };
        let uses = entry.uses.saturating_add(1);
        let rank = self.rank(id, uses, entry.cost, entry.bytes);
        self.order.remove(&entry.rank);
        self.order.insert(rank);
        self.entries.insert(id, Entry { rank, uses, ..entry });
        true
    }

    fn insert(&mut self, blob: Blob, now: Instant) {
        if self.hit(blob.id, now) {
            return;
        }
        let cost = match self.cost {
            Cost::FetchTime => blob.fetch.as_secs_f64(),
            Cost::One => 1.0,
        };
        let before = self.left.as_mut().and_then(|left| left.remove(blob.id)).unwrap_or(0);
        let uses = blob.uses.max(1).saturating_add(before);
        let rank = self.rank(blob.id, uses, cost, blob.bytes.0);
        self.order.insert(rank);
        self.entries.insert(blob.id, Entry { rank, bytes: blob.bytes.0, cost, uses });
        self.bytes += blob.bytes.0;
    }

    fn remove(&mut self, id: BlobId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.order.remove(&entry.rank);
        self.bytes -= entry.bytes;
        if let Some(left) = &mut self.left {
            if left.len() == REMEMBERED {
                left.pop_back();
            }
            left.push_front(id, entry.uses);
        }
        true
    }

    fn restore(&mut self, blob: Blob, now: Instant) {
        // Its uses are known: they do not count twice.
        if let Some(left) = &mut self.left {
            left.remove(blob.id);
        }
        self.insert(blob, now);
    }

    fn contains(&self, id: BlobId) -> bool {
        self.entries.contains_key(&id)
    }

    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes {
        let mut freed = 0;
        let first = victims.len();
        for &(h, _, id) in &self.order {
            if freed >= need.0 {
                break;
            }
            if !protection.blob(id) {
                freed += self.entries[&id].bytes;
                // A protected blob may have had a smaller H: L does not go back.
                self.inflation = self.inflation.max(f64::from_bits(h));
                victims.push(id);
            }
        }
        for id in &victims[first..] {
            self.remove(*id);
        }
        Bytes(freed)
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn order(&self) -> Vec<BlobId> {
        super::drain(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Unprotected;

    const NOW: Instant = Instant(Duration::ZERO);

    fn blob(id: u64, uses: u32) -> Blob {
        Blob { id: BlobId(id), bytes: Bytes(10), fetch: Duration::from_secs(1), uses }
    }

    fn throw_out(policy: &mut Greedy) -> u64 {
        let mut victims = Vec::new();
        policy.evict(Bytes(1), &Unprotected, &mut victims);
        victims[0].0
    }

    #[test]
    fn blob_that_returns_counts_its_remembered_uses() {
        for (mut policy, stays) in [(Greedy::with_memory(), 1), (Greedy::new(Cost::FetchTime, true), 2)] {
            policy.insert(blob(1, 1), NOW);
            policy.hit(BlobId(1), NOW);
            policy.hit(BlobId(1), NOW);
            assert_eq!(throw_out(&mut policy), 1);
            policy.insert(blob(1, 1), NOW);
            policy.insert(blob(2, 1), NOW);
            policy.hit(BlobId(2), NOW);
            assert_eq!(throw_out(&mut policy), 3 - stays);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_restored_counts_once() {
        let mut policy = Greedy::with_memory();
        for id in 0..REMEMBERED as u64 + 10 {
            policy.insert(blob(id, 1), NOW);
            policy.remove(BlobId(id));
        }
        assert_eq!(policy.left.as_ref().unwrap().len(), REMEMBERED);
        policy.restore(blob(REMEMBERED as u64, 3), NOW);
        assert_eq!(policy.entries[&BlobId(REMEMBERED as u64)].uses, 3);
    }
}
