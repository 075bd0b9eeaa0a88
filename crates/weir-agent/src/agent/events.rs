//! Events for `weir events`, the log, and other listeners.

use std::{collections::VecDeque, time::SystemTime};

use tokio::sync::broadcast;
use weir_api::{Event, EventKind};

use super::{Agent, class_key::ClassKey, class_table::DiscoveredClass, discover::cut_text, effects::Effects};

/// The number of past events kept for `weir events`.
const KEPT_EVENTS: usize = 512;

/// The latest events, and their listeners.
pub(super) struct EventLog {
    kept: VecDeque<Event>,
    /// The number of the last event.
    sequence: u64,
    listeners: broadcast::Sender<Event>,
}

impl EventLog {
    pub(super) fn new() -> EventLog {
        EventLog { kept: VecDeque::new(), sequence: 0, listeners: broadcast::Sender::new(KEPT_EVENTS) }
    }

    /// Logs an event, keeps it, and sends it to the listeners.
    fn publish(&mut self, what: EventKind, class: Option<String>, agreement: Option<String>, detail: String) {
        self.sequence += 1;
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let event = Event {
            seq: self.sequence,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            what,
            class,
            detail,
            agreement,
        };
        let agreement = event.agreement.as_deref();
        tracing::info!(class = event.class.as_deref(), agreement, "{}: {}", event.what, event.detail);
        self.kept.push_back(event.clone());
        if self.kept.len() > KEPT_EVENTS {
            self.kept.pop_front();
        }
        // A send fails only without a listener.
        let _ = self.listeners.send(event);
    }

    /// The kept events, and those that follow.
    pub(super) fn subscribe(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        (self.kept.iter().cloned().collect(), self.listeners.subscribe())
    }
}

impl Agent {
    pub(super) fn event(&mut self, what: EventKind, key: Option<&ClassKey>, detail: String) {
        self.event_of(what, key, None, detail);
    }

    pub(super) fn event_of(
        &mut self,
        what: EventKind,
        key: Option<&ClassKey>,
        agreement: Option<String>,
        detail: String,
    ) {
        self.audit.mark();
        let entries = self.classes.entries();
        let name = |key: &ClassKey| {
            entries.get(key).map_or_else(|| key.name().to_owned(), |entry| entry.class.name.clone())
        };
        self.events.publish(what, key.map(name), agreement, detail);
    }

    /// Publishes the wishes that are new among those cut, ignored or not enforced.
    pub(super) fn publish_remarks(&mut self, classes: &[DiscoveredClass]) {
        for class in classes {
            let is_new = |cut: &&String| !self.sources.warnings().contains(&cut_text(&class.name, cut));
            let cut: Vec<String> = class.cut.iter().filter(is_new).cloned().collect();
            let unmet = class.unmet.as_ref().filter(is_new).cloned();
            for cut in cut {
                self.event(EventKind::LabelCut, Some(&class.key()), cut);
            }
            if let Some(unmet) = unmet {
                self.event(EventKind::NotEnforced, Some(&class.key()), unmet);
            }
        }
    }

    /// Does what follows from a call to a part: marks what is due, and publishes the events.
    pub(super) fn follow_up(&mut self, effects: Effects) {
        if effects.reallocate {
            self.link.allocations.mark();
        }
        if effects.rediscover {
            self.sources.mark();
        }
        for (what, key, detail) in effects.events {
            self.event(what, key.as_ref(), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_gets_the_kept_events_and_the_later_ones() {
        let mut log = EventLog::new();
        for _ in 0..KEPT_EVENTS + 3 {
            log.publish(EventKind::Repaired, None, None, String::new());
        }
        let (kept, mut later) = log.subscribe();
        assert_eq!((kept.len(), kept[0].seq), (KEPT_EVENTS, 4));
        log.publish(EventKind::Link, None, None, "eth0 is up".to_owned());
        let event = later.try_recv().unwrap();
        assert_eq!((event.seq, event.what), (KEPT_EVENTS as u64 + 4, EventKind::Link));
    }
}
