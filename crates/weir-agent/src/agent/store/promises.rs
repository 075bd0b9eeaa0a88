//! The order in which minima were promised. After a restart the oldest promise still wins.

use std::collections::BTreeMap;

use redb::{ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use super::{Store, StoreError, Text};
use crate::agent::class_key::ClassKey;

/// Promises as JSON, by `source:name`.
const PROMISES: Text = TableDefinition::new("promises");

/// A promised minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// The position in the order of promises. A lower number is an older promise.
    pub(crate) since: u64,
    pub(crate) min: BitRate,
}

/// The promises made to classes and groups, by `source:name`.
pub(crate) type Ledger = BTreeMap<ClassKey, Promise>;

pub(super) fn prepare(tx: &redb::WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(PROMISES)?;
    Ok(())
}

impl Store {
    /// The promises to classes and groups. An unreadable promise is left out and logged.
    pub(crate) fn promises(&self) -> Result<Ledger, StoreError> {
        self.read("read the promises of", |tx| {
            let mut ledger = Ledger::new();
            for row in tx.open_table(PROMISES)?.iter()? {
                let (key, text) = row?;
                match (ClassKey::parse(key.value()), serde_json::from_str(text.value())) {
                    (Some(key), Ok(promise)) => drop(ledger.insert(key, promise)),
                    (None, _) => {
                        tracing::warn!("ignoring the stored promise to {}: no such source", key.value())
                    }
                    (_, Err(e)) => tracing::warn!("ignoring the stored promise to {}: {e}", key.value()),
                }
            }
            Ok(ledger)
        })
    }

    /// Records the promises to classes and groups.
    pub(crate) fn save_promises(&self, ledger: &Ledger) -> Result<(), StoreError> {
        let rows = ledger
            .iter()
            .map(|(key, promise)| (key.to_string(), serde_json::to_string(promise).unwrap_or_default()));
        let rows = rows.collect();
        self.write("write the promises of", |change| change.replace(PROMISES, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_saved_are_there_after_a_restart_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let promise = |since, mbit| Promise { since, min: BitRate::mbit(mbit) };
        let old = Ledger::from([("docker:z".into(), promise(0, 60)), ("absent:x".into(), promise(1, 1))]);
        let new = Ledger::from([("docker:z".into(), promise(0, 50)), ("docker:a".into(), promise(2, 9))]);
        let store = Store::open(dir.path()).unwrap();
        store.save_promises(&old).unwrap();
        store.save_promises(&new).unwrap();
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().promises().unwrap(), new);
    }
}
