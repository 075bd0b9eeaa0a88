//! Effects of a call to a part of the agent.

use weir_api::EventKind;

use super::class_key::ClassKey;

/// The effects of a call to a part. A part changes only its own state and returns this. The loop
/// does what follows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[must_use = "the loop does what follows from a call"]
pub(super) struct Effects {
    /// A policy, a demand or the scheduler changed. The link must be divided again.
    pub(super) reallocate: bool,
    /// Containers, links or the configuration changed. The node's classes must be discovered again.
    pub(super) rediscover: bool,
    /// Events about the node, or about a class, in their order.
    pub(super) events: Vec<(EventKind, Option<ClassKey>, String)>,
}

impl Effects {
    /// The link must be divided again if `is_due`.
    pub(super) fn reallocate(is_due: bool) -> Effects {
        Effects { reallocate: is_due, ..Effects::default() }
    }

    /// The node's classes must be discovered again if `is_due`.
    pub(super) fn rediscover(is_due: bool) -> Effects {
        Effects { rediscover: is_due, ..Effects::default() }
    }

    /// One event about the node.
    pub(super) fn event(kind: EventKind, detail: impl Into<String>) -> Effects {
        Effects { events: vec![(kind, None, detail.into())], ..Effects::default() }
    }

    /// One event about a class.
    pub(super) fn class_event(kind: EventKind, key: ClassKey, detail: String) -> Effects {
        Effects { events: vec![(kind, Some(key), detail)], ..Effects::default() }
    }

    /// Both, in this order.
    pub(super) fn and(mut self, later: Effects) -> Effects {
        self.reallocate |= later.reallocate;
        self.rediscover |= later.rediscover;
        self.events.extend(later.events);
        self
    }
}

/// Logs a fault of the division, and makes it an event.
pub(super) fn not_enforced(why: String) -> Effects {
    tracing::error!("{why}");
    Effects::event(EventKind::NotEnforced, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_effects_keep_their_marks_and_the_order_of_events() {
        let first = Effects::event(EventKind::Repaired, "one").and(Effects::reallocate(true));
        let both = first.and(Effects::rediscover(true)).and(Effects::event(EventKind::Link, "two"));
        let events = [(EventKind::Repaired, "one"), (EventKind::Link, "two")];
        let events = events.map(|(kind, what)| (kind, None, what.to_owned())).to_vec();
        assert_eq!(both, Effects { reallocate: true, rediscover: true, events });
    }
}
