//! The last changes of policy by hand, so that the last one can be taken back.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::store::SetLayers;

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
}

/// The last changes, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct History(VecDeque<Replaced>);

impl History {
    /// The history after a change from `old` to `new`. A change of nothing is no change.
    pub(crate) fn after(&self, old: &SetLayers, new: &SetLayers, time_ms: u64) -> History {
        let names = old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name));
        let before: SetLayers =
            names.map(|name| (name.clone(), old.get(name).copied().unwrap_or_default())).collect();
        let mut next = self.clone();
        if before.is_empty() {
            return next;
        }
        next.0.push_back(Replaced { time_ms, before });
        let size =
            |changes: &VecDeque<Replaced>| changes.iter().map(|change| change.before.len()).sum::<usize>();
        while next.0.len() > MAX_CHANGES || (next.0.len() > 1 && size(&next.0) > MAX_POLICIES) {
            next.0.pop_front();
        }
        next
    }

    /// The last change, the policies set by hand without it, and the history without it.
    pub(crate) fn undo(&self, now: &SetLayers) -> Option<(Replaced, SetLayers, History)> {
        let mut earlier = self.clone();
        let last = earlier.0.pop_back()?;
        let mut set = now.clone();
        for (name, layer) in &last.before {
            if layer.is_empty() {
                set.remove(name);
            } else {
                set.insert(name.clone(), *layer);
            }
        }
        Some((last, set, earlier))
    }
}

impl Replaced {
    /// The names whose policy the change set.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.before.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_units::BitRate;

    use super::*;
    use crate::config::Layer;

    fn layer(kbit: u64) -> Layer {
        Layer { max: (kbit > 0).then(|| BitRate::kbit(kbit)), ..Layer::default() }
    }

    proptest! {
        #[test]
        fn undo_walks_back_through_the_last_changes_in_order(
            changes in prop::collection::vec((0..4_u8, 0..3_u64), 1..30)
        ) {
            let mut states = vec![SetLayers::new()];
            let mut history = History::default();
            for (name, kbit) in changes {
                let old = states.last().unwrap();
                let mut new = old.clone();
                new.insert(format!("class{name}"), layer(kbit));
                new.retain(|_, layer| !layer.is_empty());
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
            prop_assert!(history.undo(&SetLayers::new()).is_none());
        }
    }

    #[test]
    fn history_is_bounded_and_keeps_the_last_change_whole() {
        let many =
            |from: usize| (from..from + 600).map(|n| (format!("class{n}"), layer(9))).collect::<SetLayers>();
        let (none, first) = (SetLayers::new(), many(0));
        let mut second = first.clone();
        second.extend(many(600));
        let history = History::default().after(&none, &first, 1).after(&first, &second, 2);
        let (last, before, earlier) = history.undo(&second).unwrap();
        assert_eq!((last.time_ms, last.names().count(), before), (2, 600, first));
        assert_eq!(earlier, History::default(), "the older one would exceed the bound");
    }
}
