//! The last changes of policy by hand, in the state.

use super::{Change, Ledger, META, Store, StoreError, promises};
use crate::agent::{by_hand::ByHand, history::History};

/// In [`META`]: the changes as JSON.
const HISTORY: &str = "policy-changes";
/// In [`META`]: the capacities by hand as JSON.
const CAPACITY: &str = "capacity";

/// Records the changes, in the change that makes the last of them.
pub(super) fn write(change: &Change<'_>, history: &History) -> Result<(), redb::Error> {
    change.insert(META, HISTORY, &serde_json::to_string(history).unwrap_or_default())
}

impl Store {
    /// The capacities set by hand. An unreadable record is logged, and the configuration's count then.
    pub(crate) fn capacity(&self) -> Result<ByHand, StoreError> {
        self.read("read the capacity from", |tx| {
            let found = tx.open_table(META)?.get(CAPACITY)?.map(|text| text.value().to_owned());
            Ok(found.map_or_else(ByHand::default, |text| {
                serde_json::from_slice(text.as_bytes()).unwrap_or_else(|e| {
                    tracing::warn!("ignoring the stored capacity: {e}");
                    ByHand::default()
                })
            }))
        })
    }

    /// Records the capacities by hand, the promises that follow from them, and the last changes, in one
    /// change. Without a ledger of the download its promises stay as they are.
    pub(crate) fn save_capacity(
        &self,
        set: &ByHand,
        (ledger, down): (&Ledger, Option<&Ledger>),
        past: &History,
    ) -> Result<(), StoreError> {
        self.write("write the capacity to", |change| {
            change.insert(META, CAPACITY, &serde_json::to_string(set).unwrap_or_default())?;
            write(change, past)?;
            promises::replace(change, ledger)?;
            down.map_or(Ok(()), |down| promises::replace_down(change, down))
        })
    }

    /// The last changes of policy by hand. An unreadable history is empty.
    pub(crate) fn history(&self) -> Result<History, StoreError> {
        self.read("read the last changes from", |tx| {
            let found = tx.open_table(META)?.get(HISTORY)?;
            Ok(found
                .and_then(|text| serde_json::from_slice(text.value().as_bytes()).ok())
                .unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_units::BitRate;

    use super::*;
    use crate::agent::{by_hand::LinkByHand, store::Promise};

    #[test]
    fn capacity_by_hand_and_its_promises_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let single = LinkByHand { capacity: Some(BitRate::mbit(30)), download: None };
        let set = ByHand { single, ..ByHand::default() };
        let suspended = Promise { is_suspended: true, ..Promise::new(3, BitRate::mbit(9)) };
        let ledger = Ledger::from([("docker:a".into(), suspended)]);
        let history = History::default().after_capacity(&ByHand::default(), &set, 7);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.capacity().unwrap(), ByHand::default());
        store.save_capacity(&set, (&ledger, Some(&ledger)), &history).unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!((store.capacity().unwrap(), store.history().unwrap()), (set, history));
        assert_eq!((store.promises().unwrap(), store.down_promises().unwrap()), (ledger.clone(), ledger));
    }
}
