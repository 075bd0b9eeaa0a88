//! Cached blobs, and those that must stay.

use std::{collections::HashMap, hash::Hash, time::Duration};

use weir_units::{BitRate, Bytes, Instant};

use crate::hash::{Map, Set};

/// A blob, by a number that the caller gave it: a store counts its digests, a trace its layers.
///
/// The number outlives the blob's stay in the cache: S3-FIFO remembers whom it threw out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u64);

/// An image, by a number that the caller gave it: one a manifest digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub u64);

/// A blob as eviction sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// Which.
    pub id: BlobId,
    /// Its size.
    pub bytes: Bytes,
    /// How long it would take to fetch it again.
    pub fetch: Duration,
    /// How often it was asked for, this time included: 1 for a new one. A store that starts
    /// again inserts what it has in the order of last use, with the counts that it kept.
    pub uses: u32,
}

/// Predicts how long a blob takes to fetch: a time for each, and one for its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchModel {
    /// Asking, being answered, redirects: whatever the size.
    pub each: Duration,
    /// The rate at which bytes come.
    pub rate: BitRate,
}

impl FetchModel {
    /// 0.3 s a blob and 80 Mbit/s: `ubuntu:latest` (27 MB in four layers) comes in 3.9 s, which
    /// is 5.2 s less the start of 1 s in Table III of the paper, within a tenth.
    pub const PAPER: FetchModel = FetchModel { each: Duration::from_millis(300), rate: BitRate::mbit(80) };

    /// The time for a blob of this size; rounded up.
    #[must_use]
    pub fn time(self, bytes: Bytes) -> Duration {
        let nanos = (u128::from(bytes.0) * 8 * 1_000_000_000).div_ceil(u128::from(self.rate.0.max(1)));
        self.each + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The blobs that eviction must leave alone, now.
pub trait Protection {
    /// Whether this blob must stay, whatever refers to it.
    fn blob(&self, id: BlobId) -> bool;
    /// Whether this image must stay, with its blobs; asked by image-grain eviction only.
    fn image(&self, _id: ImageId) -> bool {
        false
    }
}

/// Nothing is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unprotected;

impl Protection for Unprotected {
    fn blob(&self, _id: BlobId) -> bool {
        false
    }
}

impl<F: Fn(BlobId) -> bool> Protection for F {
    fn blob(&self, id: BlobId) -> bool {
        self(id)
    }
}

/// The time for which a new blob is left alone: its client is still reading.
pub const GRACE: Duration = Duration::from_secs(120);

/// The reasons why something must stay, counted: in use, being sent, pinned, young.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    images: Counts<ImageId>,
    blobs: Counts<BlobId>,
    born: Map<BlobId, Instant>,
    made: Set<ImageId>,
}

type Counts<K> = HashMap<K, u32, crate::hash::Build>;

fn less<K: Eq + Hash>(counts: &mut Counts<K>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Holds {
    /// A container began to use the image, which is made of these blobs; or it is on a node that
    /// says so. Once for each of them.
    pub fn take_image(&mut self, id: ImageId, blobs: &[BlobId]) {
        *self.images.entry(id).or_default() += 1;
        blobs.iter().for_each(|blob| self.take_blob(*blob));
    }

    /// One user of the image less.
    pub fn release_image(&mut self, id: ImageId, blobs: &[BlobId]) {
        less(&mut self.images, &id);
        blobs.iter().for_each(|blob| self.release_blob(*blob));
    }

    /// The operator pins the image: once, however often it is said.
    pub fn pin(&mut self, id: ImageId, blobs: &[BlobId]) {
        if self.made.insert(id) {
            self.take_image(id, blobs);
        }
    }

    /// The operator does so no more.
    pub fn unpin(&mut self, id: ImageId, blobs: &[BlobId]) {
        if self.made.remove(&id) {
            self.release_image(id, blobs);
        }
    }

    /// The blob is being sent to a client.
    pub fn take_blob(&mut self, id: BlobId) {
        *self.blobs.entry(id).or_default() += 1;
    }

    /// It was sent, or the receiver is gone.
    pub fn release_blob(&mut self, id: BlobId) {
        less(&mut self.blobs, &id);
    }

    /// The blob was stored at that moment.
    pub fn born(&mut self, id: BlobId, now: Instant) {
        self.born.insert(id, now);
    }

    /// The predicate at this moment. A blob that is no longer young is forgotten.
    pub fn at(&mut self, now: Instant) -> HoldsAt<'_> {
        self.born.retain(|_, born| now.since(*born) < GRACE);
        HoldsAt(self)
    }
}

/// [`Holds`] at a moment.
#[derive(Debug, Clone, Copy)]
pub struct HoldsAt<'a>(&'a Holds);

impl Protection for HoldsAt<'_> {
    fn blob(&self, id: BlobId) -> bool {
        self.0.blobs.contains_key(&id) || self.0.born.contains_key(&id)
    }

    fn image(&self, id: ImageId) -> bool {
        self.0.images.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ubuntu_comes_in_the_papers_time_within_a_tenth() {
        let layers = [26_700_000, 35_000, 850, 163].map(Bytes);
        let fetch: Duration = layers.iter().map(|bytes| FetchModel::PAPER.time(*bytes)).sum();
        let deployment = fetch.as_secs_f64() + 0.99;
        assert!((deployment / 5.2 - 1.0).abs() < 0.1, "{deployment}");
    }

    #[test]
    fn a_blob_is_held_while_anybody_has_a_reason() {
        let (blob, image, shared) = (BlobId(1), ImageId(7), BlobId(2));
        let second = |s| Instant(Duration::from_secs(s));
        let mut holds = Holds::default();
        holds.born(blob, second(10));
        assert!(holds.at(second(129)).blob(blob));
        assert!(!holds.at(second(130)).blob(blob), "two minutes old");
        holds.take_blob(blob);
        holds.take_image(image, &[blob, shared]);
        holds.pin(image, &[blob, shared]);
        holds.pin(image, &[blob, shared]);
        holds.release_blob(blob);
        holds.release_image(image, &[blob, shared]);
        assert!(holds.at(second(500)).blob(shared) && holds.at(second(500)).image(image), "pinned");
        holds.unpin(image, &[blob, shared]);
        assert!(!holds.at(second(500)).blob(blob) && !holds.at(second(500)).image(image));
        holds.release_blob(blob);
        assert!(!holds.at(second(500)).blob(blob), "one release too many changes nothing");
    }
}
