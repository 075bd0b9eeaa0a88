//! Promises to classes, stored before they are relied on.

use weir_units::chain;

use super::store::{Ledger, Store, StoreError};

/// Stores promises.
type Save = fn(&Store, &Ledger) -> Result<(), StoreError>;

/// The stored promises to classes.
pub(super) struct Promises {
    stored: Ledger,
    /// The reason if the stored promises differ from those made.
    error: Option<String>,
    save: Save,
}

impl Promises {
    /// Those of a direction, which `save` stores.
    pub(super) fn new(stored: Ledger, save: Save) -> Promises {
        Promises { stored, error: None, save }
    }

    /// Those of a link beside the main one, which no store holds.
    pub(super) fn unstored() -> Promises {
        Promises::new(Ledger::new(), |_, _| Ok(()))
    }

    pub(super) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    /// Stores the promises made, before the kernel enforces them.
    pub(super) fn save(&mut self, store: &Store, made: &Ledger) {
        if *made == self.stored {
            return;
        }
        match (self.save)(store, made) {
            Ok(()) => self.saved(made.clone()),
            Err(e) => {
                let why = format!(
                    "the order of promises is not stored, and may be another after a restart: {}",
                    chain(&e)
                );
                if self.error.as_ref() != Some(&why) {
                    tracing::error!("{why}");
                }
                self.error = Some(why);
            }
        }
    }

    /// Notes that these promises are stored.
    pub(super) fn saved(&mut self, made: Ledger) {
        (self.stored, self.error) = (made, None);
    }
}
