//! Events for `weir events`, the log, and other listeners.

use std::time::SystemTime;

use weir_api::{Event, EventKind};

use super::{Agent, KEPT, class_key::ClassKey};

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
        self.sequence += 1;
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = |key: &ClassKey| {
            self.classes.entries().get(key).map_or_else(|| key.name().to_owned(), |e| e.class.name.clone())
        };
        let event = Event {
            seq: self.sequence,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            what,
            class: key.map(name),
            detail,
            agreement,
        };
        let agreement = event.agreement.as_deref();
        tracing::info!(class = event.class.as_deref(), agreement, "{}: {}", event.what, event.detail);
        self.events.push_back(event.clone());
        if self.events.len() > KEPT {
            self.events.pop_front();
        }
        let _ = self.listeners.send(event);
    }
}
