//! Statements of the nodes of a shared directory: each writes its own, and reads those of the others.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{Digest, Utc};

/// For so long a blob is announced, and looked for where it cannot be seen yet.
pub(super) const ANNOUNCED: Duration = Duration::from_secs(30);

/// The statement of a node about itself: the file `claims/NODE`, which only it writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeReservations {
    /// Grows, as a sign of life.
    pub(super) beat: u64,
    /// Bytes that are wanted, and perhaps not to be had.
    pub(super) asking: u64,
    /// Bytes set aside for parts that it writes.
    pub(super) held: BTreeMap<Digest, u64>,
    /// Those of `held` for a second copy of a blob that is there, because this node cannot read it. An earlier
    /// version writes none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) again: BTreeSet<Digest>,
    /// Bytes reserved for layers of images whose manifest it has served: they come once, from any
    /// node.
    pub(super) expected: BTreeMap<Digest, u64>,
    /// The number of the first of `fresh`: all that a node publishes is numbered, from its start's time on.
    pub(super) first: u64,
    /// The blobs that it published a moment ago, a line each. A reader parses those that it has not seen.
    pub(super) fresh: String,
    /// Blobs that are being sent to clients.
    pub(super) reading: Vec<Digest>,
}

/// The statement of another node.
#[derive(Debug)]
pub(super) struct Heard {
    /// As it stands in its file. Each has another `beat`, so that equal texts are one statement.
    text: Vec<u8>,
    pub(super) claims: NodeReservations,
    /// The number of the next blob that it will publish.
    next: u64,
    pub(super) at: Utc,
}

impl Heard {
    /// Whether it stands in the file as it was read last.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        self.text == text
    }

    /// Reads a file, and what was published since it was read before. None: it is another version's.
    pub(super) fn read(text: Vec<u8>, before: Option<&Heard>, now: Utc) -> Option<(Heard, Vec<Digest>)> {
        let claims: NodeReservations = serde_json::from_slice(&text).ok()?;
        let next = claims.first.saturating_add(claims.fresh.lines().count() as u64);
        let seen = before.map_or(0, |heard| heard.next);
        // Numbers that go back are of a clock that did.
        let seen = if seen > next { 0 } else { seen.saturating_sub(claims.first) };
        let lines = claims.fresh.lines().skip(usize::try_from(seen).unwrap_or(usize::MAX));
        let published = lines.filter_map(|line| line.parse().ok()).collect();
        Some((Heard { text, claims, next, at: now }, published))
    }
}

/// Announcements of what this node has published, oldest first.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    pub(super) first: u64,
    pub(super) text: String,
    /// The length of each line, and until when it stays.
    lines: VecDeque<(usize, Utc)>,
}

impl Fresh {
    pub(super) fn push(&mut self, digest: &Digest, now: Utc) {
        if self.first == 0 {
            // Larger than all numbers of an earlier process.
            self.first = now.unix_millis();
        }
        let line = format!("{digest}\n");
        self.text.push_str(&line);
        self.lines.push_back((line.len(), now.after(ANNOUNCED)));
    }

    pub(super) fn expire(&mut self, now: Utc) {
        let mut length = 0;
        while self.lines.front().is_some_and(|(_, until)| *until <= now) {
            length += self.lines.pop_front().map_or(0, |(line, _)| line);
            self.first += 1;
        }
        self.text.drain(..length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Algorithm;

    fn digest(n: u8) -> Digest {
        Digest::of(Algorithm::Sha256, &[n])
    }

    fn said(fresh: &Fresh) -> Vec<u8> {
        let (first, fresh) = (fresh.first, fresh.text.clone());
        serde_json::to_vec(&NodeReservations { first, fresh, ..NodeReservations::default() }).unwrap()
    }

    #[test]
    fn announcement_is_heard_once_and_also_after_a_restart() {
        let at = |s: u64| Utc::from_unix_millis(1_000_000 + s * 1000);
        let mut fresh = Fresh::default();
        fresh.push(&digest(1), at(0));
        fresh.push(&digest(2), at(10));
        let (heard, published) = Heard::read(said(&fresh), None, at(10)).unwrap();
        assert_eq!(published, [digest(1), digest(2)]);
        fresh.push(&digest(3), at(20));
        // The first is over.
        fresh.expire(at(35));
        let (heard, published) = Heard::read(said(&fresh), Some(&heard), at(35)).unwrap();
        assert_eq!((published, fresh.text.lines().count()), (vec![digest(3)], 2));
        assert!(Heard::read(said(&fresh), Some(&heard), at(35)).unwrap().1.is_empty());
        // Another process of the node, and one whose clock goes back.
        for begun in [at(40), at(0).before(Duration::from_secs(900))] {
            let mut fresh = Fresh::default();
            fresh.push(&digest(4), begun);
            assert_eq!(Heard::read(said(&fresh), Some(&heard), at(41)).unwrap().1, [digest(4)]);
        }
        assert!(Heard::read(b"{}".to_vec(), None, at(0)).is_none());
    }
}
