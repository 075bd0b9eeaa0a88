//! Maps from numbers that we gave ourselves: no attacker chooses them, so one multiplication does.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

pub(crate) type Build = BuildHasherDefault<Mix>;
pub(crate) type Map<K, V> = HashMap<K, V, Build>;
pub(crate) type Set<K> = HashSet<K, Build>;

/// Multiplies and folds: the high and low halves of a 128-bit product.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mix(u64);

/// 2^64 over the golden ratio, odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

pub(crate) fn mix(x: u64) -> u64 {
    let product = u128::from(x ^ FACTOR) * u128::from(FACTOR);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ x);
    }

    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
