//! Finds the policy that would have saved most: several caches of metadata beside the real one.

use weir_units::{Bytes, Instant};

use crate::{Access, Blob, Cache, PolicyKind};

/// How policies are compared, and when the choice changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowSettings {
    /// The candidates; the first decides until there is reason to change.
    pub candidates: Vec<PolicyKind>,
    /// After how many requests the choice is looked at again. No clock has a part in it, as a small
    /// node has a hundred requests a week. With 100, 3,000 requests of builds cost 3.7 % above LRU.
    pub period: u64,
    /// The part of earlier periods that still counts, a period later.
    pub memory: f64,
    /// By which part the fetch time of the best must be below that of the chosen one.
    pub margin: f64,
    /// The most blobs that each candidate remembers: a bound on memory.
    pub most_blobs: usize,
}

impl Default for ShadowSettings {
    fn default() -> ShadowSettings {
        ShadowSettings {
            candidates: vec![
                // The best of traces of real registries.
                PolicyKind::GdsfGhost,
                PolicyKind::Lru,
                PolicyKind::S3Fifo,
                PolicyKind::Gds,
                PolicyKind::Gdsf,
            ],
            period: 20,
            memory: 0.9999,
            margin: 0.02,
            most_blobs: 200_000,
        }
    }
}

/// A candidate and what it would have paid.
#[derive(Debug)]
struct Candidate {
    kind: PolicyKind,
    cache: Cache,
    /// Fetch time, s, of this period and, less and less, of earlier ones.
    spent: f64,
}

/// Every candidate on the same requests with the real budget, exactly.
///
/// Costs the candidates' time a request, and memory for `most_blobs` entries each.
#[derive(Debug)]
pub struct Shadow {
    settings: ShadowSettings,
    candidates: Vec<Candidate>,
    chosen: usize,
    requests: u64,
}

impl Shadow {
    /// Nothing seen yet.
    ///
    /// # Panics
    /// Without candidates.
    #[must_use]
    pub fn new(budget: Bytes, settings: ShadowSettings) -> Shadow {
        assert!(!settings.candidates.is_empty(), "somebody has to decide");
        let candidate = |kind: &PolicyKind| Candidate {
            kind: *kind,
            cache: Cache::new(*kind, budget).with_at_most(settings.most_blobs),
            spent: 0.0,
        };
        let candidates = settings.candidates.iter().map(candidate).collect();
        Shadow { settings, candidates, chosen: 0, requests: 0 }
    }

    /// The candidate that decides now.
    #[must_use]
    pub fn chosen(&self) -> PolicyKind {
        self.candidates[self.chosen].kind
    }

    /// The recent cost of each candidate, s of fetch time.
    pub fn spent(&self) -> impl Iterator<Item = (PolicyKind, f64)> {
        self.candidates.iter().map(|candidate| (candidate.kind, candidate.spent))
    }

    /// A blob that the real cache has had since before: the candidates have it too, where it fits.
    pub fn restore(&mut self, blob: Blob, now: Instant) {
        for candidate in &mut self.candidates {
            candidate.cache.restore(blob, now);
        }
    }

    /// Goes on with an earlier one's choice, if that is among the candidates, and what each had spent.
    pub fn resume(&mut self, chosen: PolicyKind, spent: &[(PolicyKind, f64)]) {
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            self.chosen = if candidate.kind == chosen { index } else { self.chosen };
            let earlier = spent.iter().find(|(kind, s)| *kind == candidate.kind && s.is_finite());
            candidate.spent = earlier.map_or(0.0, |(_, s)| *s);
        }
    }

    /// A request, as the real cache had it. Returns who decides from now on, if that changes.
    pub fn request(&mut self, blob: Blob, now: Instant) -> Option<PolicyKind> {
        for candidate in &mut self.candidates {
            // How often the real cache saw it, this one need not have.
            if candidate.cache.request(Blob { uses: 1, ..blob }, now) != Access::Hit {
                candidate.spent += blob.fetch.as_secs_f64();
            }
        }
        self.requests += 1;
        if self.requests < self.settings.period {
            return None;
        }
        self.requests = 0;
        self.review()
    }

    fn review(&mut self) -> Option<PolicyKind> {
        let spent = |index: usize| self.candidates[index].spent;
        let best = (0..self.candidates.len()).min_by(|a, b| spent(*a).total_cmp(&spent(*b)))?;
        let change = spent(best) < spent(self.chosen) * (1.0 - self.settings.margin);
        for candidate in &mut self.candidates {
            candidate.spent *= self.settings.memory;
        }
        if change {
            self.chosen = best;
        }
        change.then(|| self.chosen())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::BlobId;

    /// LRU decides until there is reason to change.
    fn lru_first() -> ShadowSettings {
        let mut settings = ShadowSettings::default();
        settings.candidates.swap(0, 1);
        assert_eq!(settings.candidates[0], PolicyKind::Lru);
        settings
    }

    /// Blobs of one size that take a second each.
    fn ask(shadow: &mut Shadow, id: u64, now: u64) -> Option<PolicyKind> {
        let blob = Blob { id: BlobId(id), bytes: Bytes(10), fetch: Duration::from_secs(1), uses: 1 };
        shadow.request(blob, Instant(Duration::from_secs(now)))
    }

    #[test]
    fn a_hot_set_beside_a_scan_is_no_work_for_lru() {
        let mut shadow = Shadow::new(Bytes(1000), lru_first());
        let mut changes = Vec::new();
        for now in 0..40_000 {
            // Fifty blobs again and again; twice as many that never come again between two visits.
            let id = if now % 3 == 0 { now / 3 % 50 } else { 1000 + now };
            changes.extend(ask(&mut shadow, id, now));
        }
        assert!(changes.len() == 1 && shadow.chosen() != PolicyKind::Lru, "{changes:?}");
        let spent: Vec<_> = shadow.spent().collect();
        let of = |kind| spent.iter().find(|(other, _)| *other == kind).unwrap().1;
        assert!(of(shadow.chosen()) < 0.9 * of(PolicyKind::Lru), "{spent:?}");
    }

    #[test]
    fn nobody_takes_over_for_a_gain_within_the_margin() {
        let settings = ShadowSettings { margin: 0.5, ..lru_first() };
        let mut shadow = Shadow::new(Bytes(1000), settings);
        for now in 0..40_000 {
            let id = if now % 3 == 0 { now / 3 % 50 } else { 1000 + now };
            assert_eq!(ask(&mut shadow, id, now), None);
        }
        assert_eq!(shadow.chosen(), PolicyKind::Lru);
    }

    #[test]
    fn a_candidate_never_remembers_more_blobs_than_it_may() {
        let settings = ShadowSettings { most_blobs: 70, ..ShadowSettings::default() };
        let mut shadow = Shadow::new(Bytes(u64::MAX), settings);
        for now in 0..5_000 {
            ask(&mut shadow, now, now);
            assert!(shadow.candidates.iter().all(|c| c.cache.policy().len() <= 70));
        }
        assert!(shadow.candidates.iter().all(|c| c.cache.policy().len() == 70));
    }
}
