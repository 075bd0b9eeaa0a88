//! The last changes of policy by hand, so that the last one can be taken back.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::by_hand::{ByHand, SetLayers};

/// The most changes that are kept.
const MAX_CHANGES: usize = 10;
/// The most policies of all kept changes together.
const MAX_POLICIES: usize = 1_000;

/// The policies that one change replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    /// When the change was made, milliseconds since the epoch.
    pub(crate) time_ms: u64,
    /// The policies set by hand before it, of the names that it changed. An empty one was not set.
    before: SetLayers,
    /// The same of what arrives.
    #[serde(default)]
    before_down: SetLayers,
    /// The capacities by hand before it. `None` if it changed policies.
    #[serde(default)]
    before_capacity: Option<ByHand>,
}

/// The policies set by hand of both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct BothLayers {
    pub(crate) up: SetLayers,
    /// Those of what arrives. It is empty if the download is not shared.
    pub(crate) down: SetLayers,
}

/// The policies of the names that differ, as they are in `old`.
fn replaced(old: &SetLayers, new: &SetLayers) -> SetLayers {
    let names = old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name));
    names.map(|name| (name.clone(), old.get(name).copied().unwrap_or_default())).collect()
}

/// The policies `now` with those that a change replaced.
fn restored(now: &SetLayers, before: &SetLayers) -> SetLayers {
    let mut set = now.clone();
    for (name, layer) in before {
        if layer.is_empty() {
            set.remove(name);
        } else {
            set.insert(name.clone(), *layer);
        }
    }
    set
}

/// The last changes, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct History(VecDeque<Replaced>);

impl History {
    /// The history after a change from `old` to `new`. A change of nothing is no change.
    pub(crate) fn after(&self, old: &BothLayers, new: &BothLayers, time_ms: u64) -> History {
        let (before, before_down) = (replaced(&old.up, &new.up), replaced(&old.down, &new.down));
        let mut next = self.clone();
        if before.is_empty() && before_down.is_empty() {
            return next;
        }
        next.push(Replaced { time_ms, before, before_down, before_capacity: None });
        next
    }

    /// The history after a change of the capacities by hand. A change of nothing is no change.
    pub(crate) fn after_capacity(&self, old: &ByHand, new: &ByHand, time_ms: u64) -> History {
        let (before, before_down) = (SetLayers::new(), SetLayers::new());
        let mut next = self.clone();
        if old != new {
            next.push(Replaced { time_ms, before, before_down, before_capacity: Some(old.clone()) });
        }
        next
    }

    fn push(&mut self, change: Replaced) {
        self.0.push_back(change);
        let size = |changes: &VecDeque<Replaced>| {
            changes.iter().map(|change| change.before.len() + change.before_down.len()).sum::<usize>()
        };
        while self.0.len() > MAX_CHANGES || (self.0.len() > 1 && size(&self.0) > MAX_POLICIES) {
            self.0.pop_front();
        }
    }

    /// The last change, the policies set by hand without it, and the history without it.
    pub(crate) fn undo(&self, now: &BothLayers) -> Option<(Replaced, BothLayers, History)> {
        let mut earlier = self.clone();
        let last = earlier.0.pop_back()?;
        let (up, down) = (restored(&now.up, &last.before), restored(&now.down, &last.before_down));
        Some((last, BothLayers { up, down }, earlier))
    }
}

impl Replaced {
    /// The names whose policy the change set.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.before.keys().chain(self.before_down.keys()).map(String::as_str).collect()
    }

    /// The capacities by hand before the change, if it changed these.
    pub(crate) fn capacity(&self) -> Option<&ByHand> {
        self.before_capacity.as_ref()
    }

    /// Whether the change set policies of what arrives.
    pub(crate) fn is_of_download(&self) -> bool {
        !self.before_down.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_units::BitRate;

    use super::*;
    use crate::{agent::by_hand::LinkByHand, config::Layer};

    fn layer(kbit: u64) -> Layer {
        Layer { max: (kbit > 0).then(|| BitRate::kbit(kbit)), ..Layer::default() }
    }

    proptest! {
        #[test]
        fn undo_walks_back_through_the_last_changes_in_order(
            changes in prop::collection::vec((0..4_u8, 0..3_u64, 0..3_u64), 1..30)
        ) {
            let mut states = vec![BothLayers::default()];
            let mut history = History::default();
            for (name, kbit, down_kbit) in changes {
                let old = states.last().unwrap();
                let mut new = old.clone();
                for (set, kbit) in [(&mut new.up, kbit), (&mut new.down, down_kbit)] {
                    set.insert(format!("class{name}"), layer(kbit));
                    set.retain(|_, layer| !layer.is_empty());
                }
                history = history.after(old, &new, 7);
                if new != *old {
                    states.push(new);
                }
            }
            let kept = (states.len() - 1).min(MAX_CHANGES);
            for _ in 0..kept {
                let now = states.pop().unwrap();
                let (_, before, earlier) = history.undo(&now).unwrap();
                prop_assert_eq!(&before, states.last().unwrap());
                history = earlier;
            }
            prop_assert!(history.undo(&BothLayers::default()).is_none());
        }
    }

    #[test]
    fn undo_of_a_capacity_leaves_the_policies_as_they_are() {
        let single = LinkByHand { capacity: Some(BitRate::mbit(3)), download: None };
        let (none, hand) = (ByHand::default(), ByHand { single, ..ByHand::default() });
        let set = BothLayers { up: SetLayers::from([("a".to_owned(), layer(9))]), ..Default::default() };
        let first = History::default().after(&BothLayers::default(), &set, 1);
        let history = first.after_capacity(&none, &hand, 2).after_capacity(&hand, &hand, 3);
        let stored = serde_json::to_string(&history).unwrap();
        let (last, policies, earlier) = serde_json::from_str::<History>(&stored).unwrap().undo(&set).unwrap();
        assert_eq!((last.time_ms, last.capacity(), last.names().len()), (2, Some(&none), 0));
        assert_eq!((policies, earlier), (set, first));
    }

    #[test]
    fn history_is_bounded_and_keeps_the_last_change_whole() {
        let many = |from: usize, to: usize| (from..to).map(|n| (format!("class{n}"), layer(9)));
        let both = |up: usize, down: usize| BothLayers {
            up: many(0, up).collect(),
            down: many(1_200 - down, 1_200).collect(),
        };
        let (none, first, second) = (BothLayers::default(), both(600, 0), both(900, 300));
        let history = History::default().after(&none, &first, 1).after(&first, &second, 2);
        let (last, before, earlier) = history.undo(&second).unwrap();
        assert_eq!((last.time_ms, last.names().len(), before), (2, 600, first));
        assert_eq!(earlier, History::default(), "the older one would exceed the bound");
    }
}
