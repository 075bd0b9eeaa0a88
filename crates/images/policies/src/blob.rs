//! Cached blobs, and those that must stay.

use std::time::Duration;

use weir_units::{BitRate, Bytes};

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
}
