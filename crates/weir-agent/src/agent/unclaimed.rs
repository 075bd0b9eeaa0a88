//! Network namespaces of container runtimes that no source has claimed yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_discovery::{Found, Location, NsId, netns::is_runtimes};
use weir_units::Instant;

/// The time that such a namespace waits for a source that knows its container. Then it is a class of its own.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// The namespaces that have waited, and since when.
#[derive(Debug, Default, Clone)]
pub(super) struct Unclaimed {
    /// `None` stands for a namespace of the first discovery.
    since: BTreeMap<NsId, Option<Instant>>,
    has_looked: bool,
}

impl Unclaimed {
    /// The namespaces that are classes of their own now. `claimed` are those of containers. The namespaces of
    /// the first discovery do not wait, because most are older than the agent.
    pub(super) fn settle(
        &mut self,
        mut namespaces: Vec<Found>,
        claimed: &BTreeSet<NsId>,
        now: Instant,
    ) -> Vec<Found> {
        let mut since = BTreeMap::new();
        namespaces.retain(|found| {
            let Location::Netns(netns) = &found.location else { return true };
            if claimed.contains(&netns.id) || !is_runtimes(&found.name) {
                return true;
            }
            let seen = self.since.get(&netns.id).copied().unwrap_or(self.has_looked.then_some(now));
            since.insert(netns.id, seen);
            seen.is_none_or(|seen| now.since(seen) >= OWNER_TIMEOUT)
        });
        self.since = since;
        self.has_looked = true;
        namespaces
    }

    /// Whether one of them became a class after the last discovery, which was at `looked`.
    pub(super) fn is_due(&self, looked: Instant, now: Instant) -> bool {
        let due = |seen: &Instant| *seen + OWNER_TIMEOUT;
        self.since.values().flatten().any(|seen| due(seen) > looked && due(seen) <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_discovery::{NetnsRef, Source};

    fn namespace(name: &str, ino: u64) -> Found {
        let netns = NetnsRef { path: name.into(), id: NsId { dev: 4, ino } };
        Found::new(name.to_owned(), name.to_owned(), Source::Netns, Location::Netns(netns))
    }

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_millis(ms))
    }

    #[test]
    fn a_runtimes_namespace_waits_a_second_for_its_container() {
        let pod = namespace("cni-0b9cbd8e-6a1f-52cb-9d0e-f2d1a3b4c5d6", 1);
        let old = namespace("netns-0b9cbd8e-6a1f-52cb-9d0e-f2d1a3b4c5d7", 2);
        let by_hand = namespace("blue", 3);
        let nobody = BTreeSet::new();
        let mut unclaimed = Unclaimed::default();
        let first = unclaimed.settle(vec![old.clone()], &nobody, at(100));
        assert_eq!(first, std::slice::from_ref(&old), "the first discovery does not wait");
        let all = vec![pod.clone(), old.clone(), by_hand.clone()];
        let mut settle = |now| unclaimed.settle(all.clone(), &nobody, at(now));
        assert_eq!(settle(200), [old.clone(), by_hand.clone()]);
        assert_eq!(settle(1_199).len(), 2);
        assert_eq!(settle(1_200), all);
        // A claimed namespace waits again when its owner is gone.
        let claimed = BTreeSet::from([NsId { dev: 4, ino: 1 }]);
        assert_eq!(unclaimed.settle(all.clone(), &claimed, at(2_000)), all);
        assert_eq!(unclaimed.settle(all.clone(), &nobody, at(3_000)), [old, by_hand]);
        assert!(!unclaimed.is_due(at(3_000), at(3_999)));
        assert!(unclaimed.is_due(at(3_000), at(4_000)));
        assert!(!unclaimed.is_due(at(4_000), at(9_000)), "a discovery has seen it");
    }
}
