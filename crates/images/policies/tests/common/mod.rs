//! Helpers of several tests.
#![allow(dead_code)]

use std::time::Duration;

use weir_cache::{Blob, BlobId, FetchModel};
use weir_units::{Bytes, Instant};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(crate) fn second(s: u64) -> Instant {
    Instant(Duration::from_secs(s))
}

/// A new blob that takes as long as the paper's uplink needs.
pub(crate) fn blob(id: u64, bytes: u64) -> Blob {
    Blob { id: BlobId(id), bytes: Bytes(bytes), fetch: FetchModel::PAPER.time(Bytes(bytes)), uses: 1 }
}

/// The golden traces: 10,000 requests; the popularity of the blob of rank r falls as 1 / r, sizes are
/// spread evenly over their logarithm, and every hundredth request begins a new blob's life.
pub(crate) fn golden_trace(seed: u64) -> Vec<(u64, u32)> {
    const BLOBS: f64 = 2000.0;
    let mut rng = SplitMix(seed);
    let mut fresh = 0;
    (0..10_000)
        .map(|_| {
            let rank = BLOBS.powf(rng.unit()) as u64;
            let id = if rng.next().is_multiple_of(100) {
                fresh += 1;
                10_000 + fresh
            } else {
                rank
            };
            // Odd multiples, so that no two blobs of different rank weigh exactly the same.
            let size = 100.0 * 500f64.powf(SplitMix(seed ^ id).unit());
            (id, size as u32)
        })
        .collect()
}
