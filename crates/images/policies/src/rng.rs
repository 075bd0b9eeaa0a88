//! Randomness from a seed: the same everywhere.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// A whole number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + ((u128::from(self.next_u64()) * u128::from(high - low + 1)) >> 64) as u64
    }

    /// A time between events of a Poisson process with this mean.
    pub(crate) fn gap(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

/// Ranks whose probability falls as rank^-s.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    up_to: Vec<f64>,
}

impl Zipf {
    /// Of `n` ranks, at least one.
    pub(crate) fn new(n: usize, s: f64) -> Zipf {
        let mut sum = 0.0;
        let up_to = (1..=n.max(1)).map(|rank| {
            sum += (rank as f64).powf(-s);
            sum
        });
        Zipf { up_to: up_to.collect() }
    }

    /// From 0.
    pub(crate) fn draw(&self, rng: &mut SplitMix) -> usize {
        let last = self.up_to.len() - 1;
        let x = rng.unit() * self.up_to[last];
        self.up_to.partition_point(|sum| *sum <= x).min(last)
    }
}
