//! Reports the changes of the class tables: classes that come and go, and promises.

use weir_api::EventKind;

use super::{Agent, class_table::Change, download::told, effects::Effects, views};

impl Agent {
    /// Stores the promises and reports those that changed.
    pub(super) fn keep_promises(&mut self) {
        self.promises.save(&self.store, self.classes.ledger());
        let changes = self.classes.promise_changes();
        self.follow_up(Effects::reallocate(!changes.is_empty()));
        self.publish_changes(changes);
    }

    /// Stores the promises of the download and reports those that changed.
    pub(super) fn keep_download_promises(&mut self) {
        let Some(download) = &mut self.link.download else { return };
        download.promises.save(&self.store, download.classes.ledger());
        let changes = download.classes.promise_changes();
        self.publish_download_changes(changes);
    }

    /// Reports the promises of the download that changed.
    pub(super) fn publish_download_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Added(_) | Change::Removed(_) => {}
                Change::AskedAnew(key) => {
                    let entry = self.link.download.as_ref().and_then(|d| d.classes.entries().get(&key));
                    let text = entry.map(|entry| views::policy_text(&entry.effective.policy));
                    self.event(EventKind::PolicyChanged, Some(&key), told(&text.unwrap_or_default()));
                }
                Change::Unpromised { key, why } => {
                    self.event(EventKind::NotEnforced, Some(&key), told(&why));
                }
                Change::Promised { key, min } => {
                    let text = told(&format!("its minimum of {min} is promised now"));
                    self.event(EventKind::Promised, Some(&key), text);
                }
            }
        }
    }

    /// Reports the changes of the class table.
    pub(super) fn publish_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Added(key) => {
                    let fault = self.classes.entries().get(&key).and_then(|entry| self.fault_of(entry));
                    let detail = match fault {
                        None => format!("{} reports it, and it shares the link now", key.source()),
                        Some(why) => format!("{} reports it, and it is not enforced: {why}", key.source()),
                    };
                    self.event(EventKind::ClassAdded, Some(&key), detail);
                }
                Change::Removed(key) => {
                    self.event(EventKind::ClassRemoved, Some(&key), "no longer here".to_owned())
                }
                Change::AskedAnew(key) => {
                    let policy = self.classes.entries().get(&key).map(|entry| entry.effective.policy);
                    let text = policy.as_ref().map(views::policy_text).unwrap_or_default();
                    self.event(EventKind::PolicyChanged, Some(&key), text);
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
