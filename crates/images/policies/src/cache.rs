//! A policy with a budget: what a store does, without the bytes.

use weir_units::{Bytes, Instant};

use crate::{Blob, BlobId, EvictionPolicy, PolicyKind, Protection, Unprotected};

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It was stored.
    Hit,
    /// It was fetched, and is stored now.
    Stored,
    /// It was fetched and is not kept: too big, or no room that is not protected.
    Passed,
}

/// A cache of metadata, never above its budget.
#[derive(Debug)]
pub struct Cache {
    policy: Box<dyn EvictionPolicy>,
    budget: u64,
    most_blobs: usize,
    victims: Vec<BlobId>,
    evictions: u64,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(kind: PolicyKind, budget: Bytes) -> Cache {
        Cache {
            policy: kind.build(budget),
            budget: budget.0,
            most_blobs: usize::MAX,
            victims: Vec::new(),
            evictions: 0,
        }
    }

    /// The same that never holds more blobs than this, at least one: a bound on memory.
    #[must_use]
    pub(crate) fn with_at_most(self, blobs: usize) -> Cache {
        Cache { most_blobs: blobs.max(1), ..self }
    }

    /// Whether a blob of this size is passed through: more than half of the budget.
    #[must_use]
    pub fn is_too_big(&self, bytes: Bytes) -> bool {
        bytes.0 > self.budget / 2
    }

    /// Whoever decides.
    #[must_use]
    pub fn policy(&self) -> &dyn EvictionPolicy {
        &*self.policy
    }

    /// How many blobs had to leave so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A client asks for a blob; a miss is fetched and, where it may be, stored.
    pub fn request(&mut self, blob: Blob, now: Instant) -> Access {
        if self.policy.hit(blob.id, now) {
            return Access::Hit;
        }
        if self.is_too_big(blob.bytes) || !self.make_room(blob.bytes, &Unprotected) {
            return Access::Passed;
        }
        self.policy.insert(blob, now);
        Access::Stored
    }

    /// A blob that was stored before this cache was made, if it fits; what is there stays as it is.
    pub fn restore(&mut self, blob: Blob, now: Instant) {
        if self.policy.contains(blob.id) {
            return;
        }
        let fits = self.policy.bytes().0.saturating_add(blob.bytes.0) <= self.budget;
        if fits && self.policy.len() < self.most_blobs {
            self.policy.restore(blob, now);
        }
    }

    /// The blob was asked for. Whether it is stored.
    pub fn hit(&mut self, id: BlobId, now: Instant) -> bool {
        self.policy.hit(id, now)
    }

    /// Whether `need` is free, or could be made free: before a download begins.
    pub fn make_room(&mut self, need: Bytes, protection: &dyn Protection) -> bool {
        let over = (self.policy.bytes().0.saturating_add(need.0)).saturating_sub(self.budget);
        self.victims.clear();
        if over > 0 {
            self.policy.evict(Bytes(over), protection, &mut self.victims);
        }
        if self.policy.len() >= self.most_blobs {
            self.policy.evict(Bytes(1), protection, &mut self.victims);
        }
        self.evictions += self.victims.len() as u64;
        self.policy.bytes().0.saturating_add(need.0) <= self.budget && self.policy.len() < self.most_blobs
    }

    /// Stores a blob if there is room, and it is not too big.
    pub fn insert(&mut self, blob: Blob, now: Instant) -> Access {
        let full = self.policy.bytes().0.saturating_add(blob.bytes.0) > self.budget;
        if full || self.is_too_big(blob.bytes) {
            return Access::Passed;
        }
        self.policy.insert(blob, now);
        Access::Stored
    }

    /// Tells the policy of a deployment; see [`EvictionPolicy::deploy`].
    pub fn deploy(&mut self, image: crate::ImageId, blobs: &[BlobId], now: Instant) {
        self.policy.deploy(image, blobs, now);
    }

    /// The blobs that the last call evicted.
    #[must_use]
    pub fn victims(&self) -> &[BlobId] {
        &self.victims
    }
}
