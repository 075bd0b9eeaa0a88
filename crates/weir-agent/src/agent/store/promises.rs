//! The order in which minima were promised. After a restart the oldest promise still wins.

use std::collections::BTreeMap;

use redb::{ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use super::{Change, Store, StoreError, Text};
use crate::agent::class_key::ClassKey;

/// Promises as JSON, by `source:name`.
const PROMISES: Text = TableDefinition::new("promises");

/// The same of what arrives.
const DOWN_PROMISES: Text = TableDefinition::new("down-promises");

/// A promised minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// The position in the order of promises. A lower number is an older promise.
    pub(crate) since: u64,
    pub(crate) min: BitRate,
    /// It does not fit now. It keeps its place until there is room again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_suspended: bool,
}

impl Promise {
    pub(crate) fn new(since: u64, min: BitRate) -> Promise {
        Promise { since, min, is_suspended: false }
    }

    /// The minimum that is promised now.
    pub(crate) fn in_force(&self) -> Option<BitRate> {
        (!self.is_suspended).then_some(self.min)
    }
}

/// The promises made to classes and groups, by `source:name`.
pub(crate) type Ledger = BTreeMap<ClassKey, Promise>;

pub(super) fn prepare(tx: &redb::WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(PROMISES)?;
    tx.open_table(DOWN_PROMISES)?;
    Ok(())
}

impl Store {
    /// The promises to classes and groups. An unreadable promise is left out and logged.
    pub(crate) fn promises(&self) -> Result<Ledger, StoreError> {
        self.promises_in(PROMISES)
    }

    /// The same of what arrives.
    pub(crate) fn down_promises(&self) -> Result<Ledger, StoreError> {
        self.promises_in(DOWN_PROMISES)
    }

    fn promises_in(&self, table: Text) -> Result<Ledger, StoreError> {
        self.read("read the promises of", |tx| {
            let mut ledger = Ledger::new();
            for row in tx.open_table(table)?.iter()? {
                let (key, text) = row?;
                match (ClassKey::parse(key.value()), serde_json::from_slice(text.value().as_bytes())) {
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
        self.write("write the promises of", |change| replace(change, ledger))
    }

    /// The same of what arrives.
    pub(crate) fn save_down_promises(&self, ledger: &Ledger) -> Result<(), StoreError> {
        self.write("write the promises of", |change| replace_down(change, ledger))
    }
}

/// Replaces the promises as a part of a change.
pub(super) fn replace(change: &Change<'_>, ledger: &Ledger) -> Result<(), redb::Error> {
    replace_in(PROMISES, change, ledger)
}

/// The same of what arrives.
pub(super) fn replace_down(change: &Change<'_>, ledger: &Ledger) -> Result<(), redb::Error> {
    replace_in(DOWN_PROMISES, change, ledger)
}

fn replace_in(table: Text, change: &Change<'_>, ledger: &Ledger) -> Result<(), redb::Error> {
    let rows = ledger
        .iter()
        .map(|(key, promise)| (key.to_string(), serde_json::to_string(promise).unwrap_or_default()));
    change.replace(table, &rows.collect())
}

#[cfg(test)]
mod tests {
    use super::{super::SetLayers, *};
    use crate::config::Layer;

    #[test]
    fn promises_saved_are_there_after_a_restart_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let promise = |since, mbit| Promise::new(since, BitRate::mbit(mbit));
        let old = Ledger::from([("docker:z".into(), promise(0, 60)), ("absent:x".into(), promise(1, 1))]);
        let suspended = Promise { is_suspended: true, ..promise(2, 9) };
        let new = Ledger::from([("docker:z".into(), promise(0, 50)), ("docker:a".into(), suspended)]);
        let store = Store::open(dir.path()).unwrap();
        store.save_promises(&old).unwrap();
        store.save_promises(&new).unwrap();
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().promises().unwrap(), new);
    }

    /// A crash between two changes would make the class a newcomer, behind all others.
    #[test]
    fn a_policy_and_its_promise_are_one_change() {
        let dir = tempfile::tempdir().unwrap();
        let lines = || std::fs::read_to_string(dir.path().join("weir.promises")).unwrap();
        let layer = Layer { min: Some(BitRate::mbit(9)), ..Layer::default() };
        let set = SetLayers::from([("docker:a".to_owned(), layer)]);
        let ledger = Ledger::from([("docker:a".into(), Promise::new(3, BitRate::mbit(9)))]);
        let store = Store::open(dir.path()).unwrap();
        let before = lines().lines().count();
        store.save_policies((&set, &ledger), None, &crate::agent::history::History::default()).unwrap();
        let added: Vec<String> = lines().lines().skip(before).map(str::to_owned).collect();
        assert!(
            matches!(&added[..], [one] if one.contains("policies") && one.contains("promises")),
            "{added:?}"
        );
        assert_eq!((store.policies().unwrap(), store.promises().unwrap()), (set, ledger));
    }
}
