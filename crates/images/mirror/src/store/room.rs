//! Room: the budget, what is set aside for downloads, and who leaves.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use super::{Blob, Inner, State, Store, StoreError, bounds::on_disk, reserve::Reservation, shared::Others};
use crate::{
    Digest, Utc,
    clock::holds,
    manifest::{Manifest, Part},
    scope::Mark,
};

/// How long a manifest that was asked for has its image's first blob set room aside for the others,
/// and how long that room is kept.
const EXPECTED: Duration = Duration::from_secs(60);

/// The most manifests that are remembered so.
const MAX_ANNOUNCED: usize = 1024;

/// The most blobs for which room is set aside at once.
const MAX_RESERVED: usize = 16_384;

/// After this number of removals that fail the disk is at fault, not the blobs.
const MAX_FAILURES: usize = 8;

/// How much the store may take. Invariant of the store: blobs, downloads and what is set aside for
/// them are never more than `bytes`; of a shared one, those of all nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The bound.
    pub bytes: u64,
    /// Above this part of it blobs are evicted,
    pub high: f64,
    /// down to this part.
    pub low: f64,
    /// The free space to leave on the file system, bytes.
    pub floor: u64,
    /// A blob younger than this is not evicted.
    pub young: Duration,
}

impl Budget {
    /// This number of bytes, with the usual marks.
    #[must_use]
    pub fn of(bytes: u64) -> Budget {
        Budget { bytes, high: 0.95, low: 0.85, floor: 0, young: Duration::from_secs(120) }
    }

    fn part(&self, part: f64) -> u64 {
        (self.bytes as f64 * part) as u64
    }
}

impl State {
    /// The blobs that pins or containers keep.
    pub(super) fn protected(&self) -> HashSet<Digest> {
        let mut kept = HashSet::new();
        for image in self.pinned().into_iter().chain(self.images_of(&self.in_use)) {
            kept.extend(self.parts_beside(image, &kept));
        }
        // Anyone who writes to the site's Redis can say that a node uses something.
        let mut left = self.most_elsewhere;
        let mut elsewhere = self.images_of(&self.in_use_elsewhere);
        elsewhere.sort();
        for image in elsewhere {
            let parts = self.parts_beside(image, &kept);
            let size = parts.iter().filter_map(|digest| self.blobs.get(digest)).map(|blob| blob.size).sum();
            if let Some(rest) = left.checked_sub(size) {
                left = rest;
                kept.extend(parts);
            }
        }
        kept
    }

    /// The manifests of which these digests name the manifest itself or a part.
    fn images_of(&self, used: &HashSet<Digest>) -> Vec<Digest> {
        let is_used = |(digest, manifest): &(&Digest, &Arc<Manifest>)| {
            used.contains(*digest) || manifest.parts().any(|part| used.contains(&part.digest))
        };
        self.manifests.iter().filter(is_used).map(|(digest, _)| digest.clone()).collect()
    }

    /// An image and all its parts, but for those that are kept already.
    fn parts_beside(&self, image: Digest, kept: &HashSet<Digest>) -> HashSet<Digest> {
        let (mut parts, mut left) = (HashSet::new(), vec![image]);
        while let Some(digest) = left.pop() {
            if kept.contains(&digest) || !parts.insert(digest.clone()) {
                continue;
            }
            if let Some(manifest) = self.manifests.get(&digest) {
                left.extend(manifest.parts().map(|part| part.digest.clone()));
            }
        }
        parts
    }

    /// The manifests of which room is set aside for a part.
    fn fetched(&self) -> HashSet<Digest> {
        self.reserved.keys().flat_map(|part| self.manifests.naming(part)).cloned().collect()
    }

    /// Keeps the manifests that name a blob from being evicted.
    pub(super) fn hold_manifests(&self, blob: &Digest) -> Vec<Arc<()>> {
        let manifests = self.manifests.naming(blob).filter_map(|manifest| self.blobs.get(manifest));
        manifests.map(|manifest| Arc::clone(&manifest.readers)).collect()
    }

    /// Bytes of what was taken away and is on the disk still.
    fn thrown(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.thrown)
    }
}

impl Inner {
    /// Takes a blob's file away.
    pub(super) fn move_to_trash(
        &self,
        state: &mut State,
        digest: &Digest,
        now: Utc,
    ) -> Result<(), StoreError> {
        let size = state.blobs.get(digest).map_or(0, |b| b.size);
        let is_left = self.layout.move_to_trash(digest, now)?;
        self.unseal(digest);
        if !is_left {
            self.drop_sources(digest);
        }
        if let Some(others) = &mut state.others {
            others.thrown += if is_left { on_disk(size) } else { 0 };
            state.gone.push(digest.clone());
        }
        Ok(())
    }

    pub(super) fn is_held(
        &self,
        blob: &Blob,
        digest: &Digest,
        protected: &HashSet<Digest>,
        now: Utc,
    ) -> bool {
        Arc::strong_count(&blob.readers) > 1
            // A time ahead of now is from before the clock was set back.
            || now.since(blob.born).max(blob.born.since(now)) < self.budget.young
            || protected.contains(digest)
    }

    /// As [`Store::expect`].
    fn expect(&self, state: &mut State, parts: &[Part], now: Utc) -> Result<u64, StoreError> {
        let mut missing: Vec<&Part> = Vec::new();
        let mut held = Vec::new();
        for part in parts {
            if self.knows(state, &part.digest) {
                held.extend(state.blobs.get(&part.digest).map(|blob| Arc::clone(&blob.readers)));
            } else if missing.iter().all(|m| m.digest != part.digest) {
                missing.push(part);
            }
        }
        let total = missing.iter().map(|part| part.size).fold(0, u64::saturating_add);
        missing.retain(|part| !state.reserved.contains_key(&part.digest) && !self.is_too_big(part.size));
        // Parts of no size take no room, and memory all the same.
        missing.truncate(MAX_RESERVED.saturating_sub(state.reserved.len()));
        if missing.is_empty() {
            return Ok(total);
        }
        let need = missing.iter().map(|part| on_disk(part.size)).fold(0, u64::saturating_add);
        self.make_room(state, need, now)?;
        drop(held);
        for part in missing {
            let expires = Some(now.after(EXPECTED));
            let (mark, written) = (Mark::default(), Arc::default());
            let reservation = Reservation { size: part.size, fence: 0, mark, written, expires };
            state.reserve(part.digest.clone(), reservation);
        }
        self.claim(state, 0, now)?;
        Ok(total)
    }

    /// Sets room aside for the images to which a blob belongs that is downloaded now, if their
    /// manifests were asked for a moment ago.
    pub(super) fn expect_images(&self, state: &mut State, blob: &Digest, now: Utc) {
        let announced = &mut state.announced;
        announced.retain(|_, until| holds(*until, now, EXPECTED));
        let images: Vec<Digest> =
            state.manifests.naming(blob).filter(|i| announced.contains_key(i)).cloned().collect();
        for image in images {
            state.announced.remove(&image);
            let Some(manifest) = state.manifests.get(&image).cloned() else { continue };
            let parts: Vec<Part> = manifest.parts().cloned().collect();
            if let Err(e) = self.expect(state, &parts, now) {
                tracing::warn!("{e}");
            }
        }
    }

    /// Whether a blob is not kept for its size.
    fn is_too_big(&self, size: u64) -> bool {
        size > self.budget.bytes / 2
    }

    /// Evicts until `need` more bytes fit, or refuses; what left stays away either way. Where nodes share
    /// the room, each has said by then what it wants, so that two at once may be in each other's way:
    /// they try again, after different times.
    pub(super) fn make_room(&self, state: &mut State, need: u64, now: Utc) -> Result<(), StoreError> {
        for tries in 0.. {
            self.claim(state, need, now)?;
            let made = self.try_room(state, need, now);
            if made.is_ok() {
                return made;
            }
            self.claim(state, 0, now)?;
            if tries == 2 || !state.others.as_ref().is_some_and(Others::are_asking) {
                return made;
            }
            let chance = RandomState::new().hash_one(tries) % 40;
            std::thread::sleep(Duration::from_millis(5 + chance));
        }
        Ok(())
    }

    fn try_room(&self, state: &mut State, need: u64, now: Utc) -> Result<(), StoreError> {
        state.expire(now);
        self.look_around(state, now)?;
        let budget = &self.budget;
        // `thrown`: bytes of what was thrown away and is there still.
        let fits = |state: &State, bound: u64, thrown: u64| {
            let free = self.layout.free()?.saturating_add(state.thrown() - thrown);
            let used = state.used.saturating_add(state.elsewhere()) - (state.thrown() - thrown);
            Ok(used.saturating_add(need) <= bound
                && free >= budget.floor.saturating_add(state.outstanding()).saturating_add(need))
        };
        if fits(state, budget.part(budget.high), state.thrown())? {
            return Ok(());
        }
        let is_enough = |state: &State| fits(state, budget.bytes, state.thrown());
        let evicted = self.evict(state, now, &|state| fits(state, budget.part(budget.low), 0), &is_enough);
        self.empty_trash(state, now, &is_enough)?;
        if is_enough(state)? {
            return Ok(());
        }
        evicted?;
        let used = state.used.saturating_add(state.elsewhere());
        Err(StoreError::NoRoom { need, used, budget: budget.bytes, free: self.layout.free()? })
    }

    /// Evicts until `enough`, or until nothing is left that may go. Blobs that other nodes have too
    /// go first. Manifests go last: they are small, and tell which blobs belong together. They go
    /// until there is what is `needed`, and stay while a blob of theirs is fetched.
    ///
    /// # Errors
    /// The first removal that failed, unless it is `enough` without. The others were tried all the same.
    pub(super) fn evict(
        &self,
        state: &mut State,
        now: Utc,
        enough: &dyn Fn(&State) -> Result<bool, StoreError>,
        needed: &dyn Fn(&State) -> Result<bool, StoreError>,
    ) -> Result<u64, StoreError> {
        let mut passed = state.protected();
        let (mut freed, mut failed, mut failures) = (0, None, 0);
        for (copies_only, manifests_too) in [(true, false), (false, false), (false, true)] {
            let (until, fetched) = match manifests_too {
                true => (needed, state.fetched()),
                false => (enough, HashSet::new()),
            };
            while failures < MAX_FAILURES && !until(state)? {
                let blobs = &state.blobs;
                let is_held = |digest: &Digest| {
                    blobs.get(digest).is_none_or(|blob| {
                        (blob.is_manifest && (!manifests_too || fetched.contains(digest)))
                            || (copies_only && !blob.is_copy)
                            || self.is_held(blob, digest, &passed, now)
                    })
                };
                // Copies and other blobs are not one image together.
                let stays =
                    |image: Option<&Digest>| copies_only || image.is_some_and(|image| passed.contains(image));
                let victims = state.order.victims(&is_held, &stays);
                if victims.is_empty() {
                    break;
                }
                for victim in victims {
                    match self.evict_one(state, &victim, &mut passed, now) {
                        Ok(bytes) => freed += bytes,
                        Err(e) => {
                            tracing::warn!("cannot evict {victim}: {}", weir_units::chain(&e));
                            // Not tried again for this room.
                            passed.insert(victim);
                            failed.get_or_insert(e);
                            failures += 1;
                        }
                    }
                }
            }
        }
        match failed {
            Some(e) if !enough(state)? => Err(e),
            _ => Ok(freed),
        }
    }

    /// Removes what the policy has given up, unless another node uses it. Answers the bytes freed.
    fn evict_one(
        &self,
        state: &mut State,
        victim: &Digest,
        passed: &mut HashSet<Digest>,
        now: Utc,
    ) -> Result<u64, StoreError> {
        let (size, uses) = state.blobs.get(victim).map_or((0, 1), |b| (b.size, b.uses));
        if self.is_used_elsewhere(state, victim) {
            state.order.restored(victim, size, uses.saturating_add(1), now);
            passed.insert(victim.clone());
            return Ok(0);
        }
        if let Err(e) = self.move_to_trash(state, victim, now) {
            state.order.restored(victim, size, uses, now);
            return Err(e);
        }
        state.forget(victim);
        state.counts.evicted += 1;
        state.counts.evicted_bytes += size;
        if state.manifests.contains_key(victim) {
            self.drop_manifest(state, victim)?;
        }
        Ok(size)
    }
}

impl Store {
    /// An image was asked for: what is here of it is used. The client that asks for its blobs next
    /// does not count again.
    pub fn used(&self, image: &Digest, parts: &[Part], now: Utc) {
        let mut state = self.lock();
        for part in parts {
            state.use_blob(&part.digest, now);
            if let Some(blob) = state.blobs.get_mut(&part.digest) {
                (blob.is_announced, blob.used_at) = (true, now);
            }
        }
        state.order.deployed(image, parts.iter(), now);
    }

    /// Sets room aside for all that is missing of an image, before its download begins; what is here of
    /// it does not leave for the rest. All or nothing; without room each blob tries by itself.
    ///
    /// Answers the bytes that are missing.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`], [`StoreError::Io`].
    pub fn expect(&self, parts: &[Part], now: Utc) -> Result<u64, StoreError> {
        self.inner.expect(&mut self.lock(), parts, now)
    }

    /// Notes that an image's manifest was asked for. That is a question: the image takes room when
    /// the first of its blobs is downloaded.
    pub(crate) fn announce(&self, image: &Digest, now: Utc) {
        let mut state = self.lock();
        state.announced.retain(|_, until| holds(*until, now, EXPECTED));
        if state.announced.len() < MAX_ANNOUNCED {
            state.announced.insert(image.clone(), now.after(EXPECTED));
        }
    }

    /// Counts a download that is not kept for want of room.
    pub(crate) fn count_refused(&self) {
        self.lock().counts.refused += 1;
    }

    /// Whether a blob is not kept for its size.
    #[must_use]
    pub fn is_too_big(&self, size: u64) -> bool {
        self.inner.is_too_big(size)
    }

    /// Evicts by the policy until no more than `bytes` are used, as far as what is in use and pinned
    /// allows. Answers the bytes freed.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn prune(&self, bytes: u64, now: Utc) -> Result<u64, StoreError> {
        let mut state = self.lock();
        state.expire(now);
        self.inner.look_around(&mut state, now)?;
        let is_done = |state: &State| Ok(state.used <= bytes);
        let mut freed = self.inner.evict(&mut state, now, &is_done, &is_done)?;
        let before = state.used;
        self.inner.forget_repos(&mut state, &|state| state.used <= bytes, false, now)?;
        freed += before - state.used;
        self.inner.empty_trash(&mut state, now, &|state| Ok(state.used + state.elsewhere() <= bytes))?;
        Ok(freed)
    }
}
