//! Promises to classes: stored before they are relied on, and reported.

use weir_api::EventKind;
use weir_units::chain;

use super::{Agent, class_table::Change};

impl Agent {
    /// Stores the promises to classes before the kernel enforces them.
    pub(super) fn save_promises(&mut self) {
        if self.classes.ledger() == &self.promises {
            return;
        }
        match self.store.save_promises(self.classes.ledger()) {
            Ok(()) => {
                self.promises.clone_from(self.classes.ledger());
                self.promises_error = None;
            }
            Err(e) => {
                let why = format!(
                    "the order of promises is not stored, and may be another after a restart: {}",
                    chain(&e)
                );
                if self.promises_error.as_ref() != Some(&why) {
                    tracing::error!("{why}");
                }
                self.promises_error = Some(why);
            }
        }
    }

    /// Stores the promises and reports those that changed.
    pub(super) fn keep_promises(&mut self) {
        self.save_promises();
        let changes = self.classes.promise_changes();
        self.dirty |= !changes.is_empty();
        self.tell(changes);
    }

    /// Reports the changes of the class table.
    pub(super) fn tell(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Added(key) => {
                    let fault = self.classes.entries().get(&key).and_then(|entry| self.fault_of(entry));
                    let detail = match fault {
                        None => "shares the link now".to_owned(),
                        Some(why) => format!("is here and not enforced: {why}"),
                    };
                    self.event(EventKind::ClassAdded, Some(&key), detail);
                }
                Change::Removed(key) => {
                    self.event(EventKind::ClassRemoved, Some(&key), "no longer here".to_owned())
                }
                Change::Unpromised { key, why } => self.event(EventKind::NotEnforced, Some(&key), why),
                Change::Promised { key, min } => {
                    self.event(
                        EventKind::Promised,
                        Some(&key),
                        format!("its minimum of {min} is promised now"),
                    );
                }
            }
        }
    }
}
