//! Eviction policies: one small trait, and its implementations.

mod auto;
mod greedy;
mod image_lru;
mod lru;
mod s3_fifo;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use weir_units::{Bytes, Instant};

pub use auto::Auto;
pub use greedy::{Cost, Greedy};
pub use image_lru::ImageLru;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;

use crate::{Blob, BlobId, ImageId, Protection, Unprotected};

/// Chooses what leaves the cache.
///
/// It holds an entry for each blob that is stored, and is told of whatever happens to them; the
/// bytes themselves, and the budget, are the caller's. Every call costs O(log n) or less a blob
/// that it is about; [`EvictionPolicy::evict`] passes by protected entries once a call, not once a victim.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// The blob was asked for. Whether it is stored.
    fn hit(&mut self, id: BlobId, now: Instant) -> bool;

    /// The blob is stored from now on; if it was, this is a hit. Room was made before.
    fn insert(&mut self, blob: Blob, now: Instant);

    /// The image was deployed. It is made of these blobs, of which some may not be stored.
    /// Follows the hits and inserts of a deployment; only image-grain policies listen.
    fn deploy(&mut self, _image: ImageId, _blobs: &[BlobId], _now: Instant) {}

    /// The blob is gone, by another decision. Whether it was stored.
    fn remove(&mut self, id: BlobId) -> bool;

    /// Whether the blob is stored.
    fn contains(&self, id: BlobId) -> bool;

    /// Throws out unprotected blobs, in the order in which they deserve it, until `need` is free
    /// or nothing is left that may go. They are added to `victims`; what the caller cannot
    /// remove after all, it inserts again.
    ///
    /// Returns the bytes freed: at least `need`, but where protection forbade it.
    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes;

    /// The size of all that is stored.
    fn bytes(&self) -> Bytes;

    /// How many blobs are stored.
    fn len(&self) -> usize;

    /// All that is stored, in the order in which [`EvictionPolicy::evict`] would throw it out now if
    /// nothing were protected. Changes nothing.
    fn order(&self) -> Vec<BlobId>;

    /// Whether nothing is stored.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The blob was stored before this policy, or stays though it was evicted: as
    /// [`EvictionPolicy::insert`], but without a request now.
    fn restore(&mut self, blob: Blob, now: Instant) {
        self.insert(blob, now);
    }

    /// The policy that decides, if this one chooses between several.
    fn chosen(&self) -> Option<PolicyKind> {
        None
    }

    /// The cost of each of those, s of fetch time.
    fn spent(&self) -> Vec<(PolicyKind, f64)> {
        Vec::new()
    }

    /// Goes on with the choice of an earlier process, and what it rested on; before anything is stored.
    fn resume(&mut self, _chosen: PolicyKind, _spent: &[(PolicyKind, f64)]) {}
}

/// The whole order of eviction, from a copy that is spent for it.
fn drain(mut copy: impl EvictionPolicy) -> Vec<BlobId> {
    let mut order = Vec::with_capacity(copy.len());
    copy.evict(Bytes(u64::MAX), &Unprotected, &mut order);
    order
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// The paper's: the image that was not deployed for longest, one at a time.
    ImageLru,
    /// The blob that was not asked for for longest.
    Lru,
    /// Three queues: what is asked for once only leaves soon.
    S3Fifo,
    /// Greedy-Dual-Size: cheapest to fetch again for its size first, aged; cost is fetch time.
    Gds,
    /// The same times how often it was asked for.
    Gdsf,
    /// The same with the uses of blobs that had left, and less for who was asked for once only.
    GdsfGhost,
    /// GDSF with equal cost for every blob: as few fetches as possible, whatever they take.
    GdsfCount,
    /// The one of LRU, S3-FIFO, GDS, GDSF and GDSF with ghosts that would have saved most fetch
    /// time lately.
    Auto,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::ImageLru,
        PolicyKind::Lru,
        PolicyKind::S3Fifo,
        PolicyKind::Gds,
        PolicyKind::Gdsf,
        PolicyKind::GdsfGhost,
        PolicyKind::GdsfCount,
        PolicyKind::Auto,
    ];

    /// An empty one for a cache of this size.
    #[must_use]
    pub fn build(self, budget: Bytes) -> Box<dyn EvictionPolicy> {
        match self {
            PolicyKind::ImageLru => Box::new(ImageLru::default()),
            PolicyKind::Lru => Box::new(Lru::default()),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(budget)),
            PolicyKind::Gds => Box::new(Greedy::new(Cost::FetchTime, false)),
            PolicyKind::Gdsf => Box::new(Greedy::new(Cost::FetchTime, true)),
            PolicyKind::GdsfGhost => Box::new(Greedy::with_memory()),
            PolicyKind::GdsfCount => Box::new(Greedy::new(Cost::One, true)),
            PolicyKind::Auto => Box::new(Auto::new(budget)),
        }
    }

    /// As configured and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::ImageLru => "image-lru",
            PolicyKind::Lru => "lru",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Gds => "gds",
            PolicyKind::Gdsf => "gdsf",
            PolicyKind::GdsfGhost => "gdsf-ghost",
            PolicyKind::GdsfCount => "gdsf-count",
            PolicyKind::Auto => "auto",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no eviction policy is called `{0}`: take image-lru, lru, s3-fifo, gds, gdsf, gdsf-ghost, gdsf-count or auto"
)]
pub struct PolicyKindError(String);

impl FromStr for PolicyKind {
    type Err = PolicyKindError;

    fn from_str(text: &str) -> Result<PolicyKind, PolicyKindError> {
        let found = PolicyKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| PolicyKindError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name_in_text_and_json() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{:?}", kind.name()));
        }
        let error = "clock".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(PolicyKind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
    }
}
