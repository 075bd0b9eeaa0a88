use std::collections::{BTreeMap, HashMap};

use crate::{Interval, Name, Selector, Utc};

/// Packets under agreement, by time. The intervals of a selector do not overlap.
///
/// The outer keys are selectors without the source in their container's name. The inner ones have the name as it was
/// said.
#[derive(Debug, Clone, Default)]
pub(super) struct SelectorReservations(HashMap<Selector, HashMap<Option<Name>, Intervals>>);

/// Ends by starts.
type Intervals = BTreeMap<Utc, Option<Utc>>;

impl SelectorReservations {
    /// The first interval that overlaps that one, of the same selector or of one that may mean the same container.
    pub(super) fn overlap(&self, selector: &Selector, interval: Interval) -> Option<Interval> {
        let said = selector.container.as_ref();
        let alike = self.0.get(&without_source(selector))?.iter();
        let alike = alike.filter(|(other, _)| may_be_same(said, other.as_ref()));
        alike.filter_map(|(_, taken)| overlap_in(taken, interval)).min_by_key(|other| other.start)
    }

    /// Takes an interval, or changes the end of the one with its start.
    pub(super) fn take(&mut self, selector: &Selector, interval: Interval) {
        let alike = self.0.entry(without_source(selector)).or_default();
        alike.entry(selector.container.clone()).or_default().insert(interval.start, interval.end);
    }

    /// Gives back the interval with that start.
    pub(super) fn give_back(&mut self, selector: &Selector, start: Utc) {
        let key = without_source(selector);
        let Some(alike) = self.0.get_mut(&key) else { return };
        if let Some(taken) = alike.get_mut(&selector.container) {
            taken.remove(&start);
        }
        alike.retain(|_, taken| !taken.is_empty());
        if alike.is_empty() {
            self.0.remove(&key);
        }
    }
}

/// The first of the intervals that overlaps that one.
fn overlap_in(taken: &Intervals, interval: Interval) -> Option<Interval> {
    let as_interval = |(&start, &end): (&Utc, &Option<Utc>)| Interval { start, end };
    let before = taken.range(..=interval.start).next_back().map(as_interval);
    let behind = taken.range(interval.start..).next().map(as_interval);
    [before, behind].into_iter().flatten().find(|other| other.overlaps(&interval))
}

/// `web` of `docker:web`.
fn bare(name: &Name) -> &str {
    name.as_str().split_once(':').map_or(name.as_str(), |(_, name)| name)
}

fn without_source(selector: &Selector) -> Selector {
    // Nothing may stand behind the source. Such a name is still one of a container.
    let bare = |name: &Name| Name::new(bare(name)).unwrap_or_else(|_| name.clone());
    Selector { container: selector.container.as_ref().map(bare), ..selector.clone() }
}

/// The source of a name, if it has one. The node's own classes have theirs also by their bare names.
fn source(name: Option<&Name>) -> Option<&str> {
    const OWN: [&str; 3] = ["host", "default", "control"];
    let name = name?.as_str();
    let own = Some("weir").filter(|_| OWN.contains(&name));
    name.split_once(':').map(|(source, _)| source).or(own)
}

/// Whether two names with the same part behind the source may mean one container: `web` may be `docker:web`, which is
/// never `netns:web`. The node's own class is `host` and `weir:host`, and never `docker:host`.
fn may_be_same(one: Option<&Name>, other: Option<&Name>) -> bool {
    match (source(one), source(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

/// Whether two names may mean one container.
pub(super) fn may_be_one_container(one: &Name, other: &Name) -> bool {
    bare(one) == bare(other) && may_be_same(Some(one), Some(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_container_has_one_agreement_at_a_time_by_whatever_name() {
        let of = |name: &str| Selector::service(&Name::new(name).unwrap());
        let all = Interval { start: Utc::from_millis(0), end: None };
        let overlaps = |taken: &str, asked: &str| {
            let mut claims = SelectorReservations::default();
            claims.take(&of(taken), all);
            let found = claims.overlap(&of(asked), all).is_some();
            claims.give_back(&of(taken), all.start);
            assert!(claims.0.is_empty());
            found
        };
        for (one, other) in
            [("web", "config:web"), ("docker:web", "web"), ("weir:host", "host"), ("web", "web")]
        {
            assert!(overlaps(one, other) && overlaps(other, one), "{one}, {other}");
        }
        let others =
            [("netns:web", "docker:web"), ("web", "docker:shop"), ("web", "shop"), ("host", "docker:host")];
        for (one, other) in others {
            assert!(!overlaps(one, other) && !overlaps(other, one), "{one}, {other}");
        }
        // A name without a part behind its source is no selector of all containers.
        let mut claims = SelectorReservations::default();
        claims.take(&of("docker:"), all);
        assert_eq!(claims.overlap(&Selector::default(), all), None);
    }

    proptest! {
        #[test]
        fn an_overlap_is_found_if_and_only_if_there_is_one(
            intervals in prop::collection::vec((0..50i64, prop::option::weighted(0.9, 1..10i64)), 1..30),
        ) {
            let (mut claims, mut taken) = (SelectorReservations::default(), Vec::<Interval>::new());
            for (start, length) in intervals {
                let start = Utc::from_millis(start);
                let end = length.map(|length| Utc::from_millis(start.millis() + length));
                let interval = Interval { start, end };
                let overlap = claims.overlap(&Selector::default(), interval);
                prop_assert_eq!(overlap.is_some(), taken.iter().any(|other| other.overlaps(&interval)));
                match overlap {
                    Some(other) => prop_assert!(taken.contains(&other)),
                    None => {
                        claims.take(&Selector::default(), interval);
                        taken.push(interval);
                    }
                }
            }
            for interval in taken {
                claims.give_back(&Selector::default(), interval.start);
            }
            prop_assert!(claims.0.is_empty());
        }
    }
}
