//! Who has to go when the store is full.

use std::collections::{BTreeMap, HashMap};

use crate::Digest;

/// The order in which blobs leave. It only ranks: what may not go (in use, pinned, being sent) is the
/// store's to say, by `held`.
pub trait Policy: Send + std::fmt::Debug {
    /// A blob is there now.
    ///
    /// * `size`: bytes.
    /// * `cost_s`: seconds that fetching it again would take.
    fn inserted(&mut self, digest: &Digest, size: u64, cost_s: f64);
    /// A blob that is there was asked for.
    fn hit(&mut self, digest: &Digest);
    /// A blob is there no longer; unknown ones are none of its business.
    fn removed(&mut self, digest: &Digest);
    /// The blob to remove next, of those that are not `held`; stays known until
    /// [`Policy::removed`].
    fn victim(&mut self, held: &dyn Fn(&Digest) -> bool) -> Option<Digest>;
}

/// Least recently used first.
#[derive(Debug, Default)]
pub struct Lru {
    turn: u64,
    by_turn: BTreeMap<u64, Digest>,
    turns: HashMap<Digest, u64>,
}

impl Policy for Lru {
    fn inserted(&mut self, digest: &Digest, _size: u64, _cost_s: f64) {
        self.turn += 1;
        if let Some(before) = self.turns.insert(digest.clone(), self.turn) {
            self.by_turn.remove(&before);
        }
        self.by_turn.insert(self.turn, digest.clone());
    }

    fn hit(&mut self, digest: &Digest) {
        if self.turns.contains_key(digest) {
            self.inserted(digest, 0, 0.0);
        }
    }

    fn removed(&mut self, digest: &Digest) {
        if let Some(turn) = self.turns.remove(digest) {
            self.by_turn.remove(&turn);
        }
    }

    fn victim(&mut self, held: &dyn Fn(&Digest) -> bool) -> Option<Digest> {
        self.by_turn.values().find(|digest| !held(digest)).cloned()
    }
}
