//! Room: the budget, what is set aside for downloads, and who leaves.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Blob, Inner, State, Store, StoreError};
use crate::{Digest, manifest::Part, moment::Moment};

/// How long room is kept for the layers of an image whose manifest was served.
const EXPECTED: Duration = Duration::from_secs(60);

/// How much the store may take. Invariant of the store: blobs, downloads and what is set aside for
/// them are never more than `bytes`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The bound.
    pub bytes: u64,
    /// Above this part of it blobs are evicted,
    pub high: f64,
    /// down to this part.
    pub low: f64,
    /// What is to stay free on the file system, bytes.
    pub floor: u64,
    /// A blob younger than this is not evicted.
    pub young: Duration,
}

impl Budget {
    /// So many bytes, with the usual marks.
    #[must_use]
    pub fn of(bytes: u64) -> Budget {
        Budget { bytes, high: 0.95, low: 0.85, floor: 0, young: Duration::from_secs(120) }
    }

    fn part(&self, part: f64) -> u64 {
        (self.bytes as f64 * part) as u64
    }
}

/// Room for a blob that is not here yet.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) size: u64,
    /// Bytes that are on the disk already.
    pub(super) written: Arc<AtomicU64>,
    /// When it ends; never while a download has it.
    pub(super) expires: Option<Moment>,
}

impl State {
    /// What pins, or containers, keep.
    pub(super) fn protected(&self) -> HashSet<Digest> {
        let mut kept = HashSet::new();
        let mut images: Vec<Digest> = self.pinned();
        for (digest, manifest) in &self.manifests {
            let used = |d: &Digest| self.in_use.contains(d);
            if used(digest) || manifest.parts().any(|part| used(&part.digest)) {
                images.push(digest.clone());
            }
        }
        while let Some(digest) = images.pop() {
            if !kept.insert(digest.clone()) {
                continue;
            }
            if let Some(manifest) = self.manifests.get(&digest) {
                images.extend(manifest.parts().map(|part| part.digest.clone()));
            }
        }
        kept
    }

    pub(super) fn expire(&mut self, now: Moment) {
        let mut freed = 0;
        self.reserved.retain(|_, r| {
            let over = r.expires.is_some_and(|at| at <= now) && r.written.load(Ordering::Relaxed) == 0;
            freed += if over { r.size } else { 0 };
            !over
        });
        self.used -= freed;
    }

    /// Bytes that are set aside and not on the disk yet.
    fn outstanding(&self) -> u64 {
        self.reserved.values().map(|r| r.size.saturating_sub(r.written.load(Ordering::Relaxed))).sum()
    }
}

impl Inner {
    pub(super) fn is_held(
        &self,
        blob: &Blob,
        digest: &Digest,
        protected: &HashSet<Digest>,
        now: Moment,
    ) -> bool {
        Arc::strong_count(&blob.readers) > 1
            || now.since(blob.born) < self.budget.young
            || protected.contains(digest)
    }

    /// Evicts until `need` more bytes fit, or refuses; what left stays away either way.
    pub(super) fn make_room(&self, state: &mut State, need: u64, now: Moment) -> Result<(), StoreError> {
        state.expire(now);
        let budget = &self.budget;
        let free = || self.layout.free();
        let fits = |state: &State, bound: u64, free: u64| {
            state.used.saturating_add(need) <= bound
                && free >= budget.floor.saturating_add(state.outstanding()).saturating_add(need)
        };
        if fits(state, budget.part(budget.high), free()?) {
            return Ok(());
        }
        self.evict(state, now, &|state| Ok(fits(state, budget.part(budget.low), free()?)))?;
        let free = free()?;
        if fits(state, budget.bytes, free) {
            return Ok(());
        }
        state.counts.refused += 1;
        Err(StoreError::NoRoom { need, used: state.used, budget: budget.bytes, free })
    }

    /// Evicts until `enough`, or until nothing is left that may go. Manifests go last: they are
    /// small, and tell what belongs together.
    pub(super) fn evict(
        &self,
        state: &mut State,
        now: Moment,
        enough: &dyn Fn(&State) -> Result<bool, StoreError>,
    ) -> Result<u64, StoreError> {
        let protected = state.protected();
        let mut freed = 0;
        for manifests_too in [false, true] {
            while !enough(state)? {
                let mut policy = std::mem::replace(&mut state.policy, Box::new(super::Lru::default()));
                let victim = policy.victim(&|digest| {
                    state.blobs.get(digest).is_none_or(|blob| {
                        (blob.is_manifest && !manifests_too) || self.is_held(blob, digest, &protected, now)
                    })
                });
                state.policy = policy;
                let Some(victim) = victim else { break };
                let size = state.blobs.get(&victim).map_or(0, |b| b.size);
                self.layout.discard(&self.layout.blob(&victim))?;
                state.forget(&victim);
                state.counts.evicted += 1;
                state.counts.evicted_bytes += size;
                freed += size;
                if state.manifests.contains_key(&victim) {
                    self.drop_manifest(state, &victim)?;
                }
            }
        }
        Ok(freed)
    }
}

impl Store {
    /// Sets room aside for all that is missing of an image, before its download begins; and counts
    /// what is here already as used now. All or nothing; without room each blob tries by itself.
    ///
    /// Answers the bytes that are missing.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`], [`StoreError::Io`].
    pub fn expect(&self, parts: &[Part], now: Moment) -> Result<u64, StoreError> {
        let mut state = self.lock();
        let mut missing: Vec<&Part> = Vec::new();
        for part in parts {
            if state.blobs.contains_key(&part.digest) {
                state.policy.hit(&part.digest);
            } else if missing.iter().all(|m| m.digest != part.digest) {
                missing.push(part);
            }
        }
        let total = missing.iter().map(|part| part.size).fold(0, u64::saturating_add);
        missing.retain(|part| !state.reserved.contains_key(&part.digest) && !self.is_too_big(part.size));
        let need = missing.iter().map(|part| part.size).fold(0, u64::saturating_add);
        self.inner.make_room(&mut state, need, now)?;
        for part in missing {
            let expires = Some(now.after(EXPECTED));
            state.used += part.size;
            state.reserved.insert(
                part.digest.clone(),
                Reservation { size: part.size, written: Arc::default(), expires },
            );
        }
        Ok(total)
    }

    /// Whether a blob is not kept for its size.
    #[must_use]
    pub fn is_too_big(&self, size: u64) -> bool {
        size > self.inner.budget.bytes / 2
    }

    /// Evicts by the policy until no more than `bytes` are used, as far as what is in use and pinned
    /// allows. Answers the bytes freed.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn prune(&self, bytes: u64, now: Moment) -> Result<u64, StoreError> {
        let mut state = self.lock();
        state.expire(now);
        self.inner.evict(&mut state, now, &|state| Ok(state.used <= bytes))
    }
}
