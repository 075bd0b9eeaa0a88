//! The policy that chooses between policies.

use weir_units::{Bytes, Instant};

use super::{EvictionPolicy, PolicyKind};
use crate::{Blob, BlobId, Protection, Shadow, ShadowSettings, hash::Map};

/// The record of a stored blob, for a new policy.
#[derive(Debug, Clone, Copy)]
struct Known {
    blob: Blob,
    /// When it was last asked for, as a count of requests.
    last: u64,
}

/// Follows a [`Shadow`]'s choice. A policy that takes over begins with what is stored, in the order
/// of last use and with the counts of uses.
#[derive(Debug)]
pub struct Auto {
    shadow: Shadow,
    current: Box<dyn EvictionPolicy>,
    budget: Bytes,
    known: Map<BlobId, Known>,
    step: u64,
    switches: u64,
}

impl Auto {
    /// An empty one for a cache of this size.
    #[must_use]
    pub fn new(budget: Bytes) -> Auto {
        Auto::with(budget, ShadowSettings::default())
    }

    /// The same with other candidates or times.
    ///
    /// # Panics
    /// Without candidates.
    #[must_use]
    pub fn with(budget: Bytes, settings: ShadowSettings) -> Auto {
        let shadow = Shadow::new(budget, settings);
        let current = shadow.chosen().build(budget);
        Auto { shadow, current, budget, known: Map::default(), step: 0, switches: 0 }
    }

    /// How often the choice changed.
    #[cfg(test)]
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }

    fn know(&mut self, blob: Blob) {
        self.step += 1;
        self.known.insert(blob.id, Known { blob, last: self.step });
    }

    fn account(&mut self, blob: Blob, now: Instant) {
        self.know(blob);
        let Some(kind) = self.shadow.request(blob, now) else { return };
        self.switches += 1;
        let mut stored: Vec<Known> = self.known.values().copied().collect();
        stored.sort_unstable_by_key(|known| known.last);
        self.current = kind.build(self.budget);
        for known in stored {
            self.current.restore(known.blob, now);
        }
    }
}

impl EvictionPolicy for Auto {
    fn hit(&mut self, id: BlobId, now: Instant) -> bool {
        let stored = self.current.hit(id, now);
        if let Some(known) = self.known.get(&id).filter(|_| stored) {
            let uses = known.blob.uses.saturating_add(1);
            self.account(Blob { uses, ..known.blob }, now);
        }
        stored
    }

    fn insert(&mut self, blob: Blob, now: Instant) {
        if !self.hit(blob.id, now) {
            self.current.insert(blob, now);
            self.account(blob, now);
        }
    }

    fn remove(&mut self, id: BlobId) -> bool {
        self.known.remove(&id);
        self.current.remove(id)
    }

    fn contains(&self, id: BlobId) -> bool {
        self.current.contains(id)
    }

    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes {
        let first = victims.len();
        let freed = self.current.evict(need, protection, victims);
        for id in &victims[first..] {
            self.known.remove(id);
        }
        freed
    }

    fn bytes(&self) -> Bytes {
        self.current.bytes()
    }

    fn len(&self) -> usize {
        self.current.len()
    }

    fn order(&self) -> Vec<BlobId> {
        self.current.order()
    }

    fn restore(&mut self, blob: Blob, now: Instant) {
        self.current.restore(blob, now);
        self.shadow.restore(blob, now);
        self.know(blob);
    }

    fn chosen(&self) -> Option<PolicyKind> {
        Some(self.shadow.chosen())
    }

    fn spent(&self) -> Vec<(PolicyKind, f64)> {
        self.shadow.spent().collect()
    }

    fn resume(&mut self, chosen: PolicyKind, spent: &[(PolicyKind, f64)]) {
        self.shadow.resume(chosen, spent);
        self.current = self.shadow.chosen().build(self.budget);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn whoever_takes_over_knows_what_is_stored_and_how_often_it_was_used() {
        let settings = ShadowSettings {
            candidates: vec![PolicyKind::Lru, PolicyKind::Gdsf],
            period: 1,
            ..ShadowSettings::default()
        };
        let mut auto = Auto::with(Bytes(100), settings);
        let blob = |id| Blob { id: BlobId(id), bytes: Bytes(10), fetch: Duration::from_secs(1), uses: 1 };
        let at = |s| Instant(Duration::from_secs(s));
        // Five that are asked for again and again, then beside a scan that LRU gives way to.
        for now in 0..400 {
            let id = if now < 50 || now % 3 == 0 { now / 3 % 5 } else { 100 + now };
            if !auto.hit(BlobId(id), at(now)) {
                let mut victims = Vec::new();
                let over = (auto.bytes().0 + 10).saturating_sub(100);
                assert_eq!(auto.evict(Bytes(over), &crate::Unprotected, &mut victims).0, over);
                auto.insert(blob(id), at(now));
            }
            assert_eq!(auto.known.len(), auto.len());
            if auto.switches() > 0 {
                break;
            }
        }
        assert_eq!((auto.chosen(), auto.switches()), (Some(PolicyKind::Gdsf), 1));
        let used = |auto: &Auto| auto.known.values().filter(|known| known.blob.uses > 3).count();
        let (before, mut victims) = (used(&auto), Vec::new());
        auto.evict(Bytes(50), &crate::Unprotected, &mut victims);
        assert!(before > 0 && used(&auto) == before, "{victims:?}");
        assert_eq!((auto.len(), auto.bytes(), auto.known.len()), (5, Bytes(50), 5));
    }
}
