use std::collections::{BTreeMap, HashMap};

use crate::{Interval, Selector, Utc};

/// Packets under agreement, by time. The intervals of a selector do not overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct SelectorReservations(HashMap<Selector, BTreeMap<Utc, Option<Utc>>>);

impl SelectorReservations {
    /// The first interval that overlaps that one.
    pub(super) fn overlap(&self, selector: &Selector, interval: Interval) -> Option<Interval> {
        let taken = self.0.get(selector)?;
        let as_interval = |(&start, &end): (&Utc, &Option<Utc>)| Interval { start, end };
        let before = taken.range(..=interval.start).next_back().map(as_interval);
        let behind = taken.range(interval.start..).next().map(as_interval);
        [before, behind].into_iter().flatten().find(|other| other.overlaps(&interval))
    }

    /// Takes an interval, or changes the end of the one with its start.
    pub(super) fn take(&mut self, selector: &Selector, interval: Interval) {
        self.0.entry(selector.clone()).or_default().insert(interval.start, interval.end);
    }

    /// Gives back the interval with that start.
    pub(super) fn give_back(&mut self, selector: &Selector, start: Utc) {
        if let Some(taken) = self.0.get_mut(selector) {
            taken.remove(&start);
            if taken.is_empty() {
                self.0.remove(selector);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
