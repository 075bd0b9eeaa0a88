//! The last changes of policy by hand, in the state.

use super::{Change, META, Store, StoreError};
use crate::agent::history::History;

/// In [`META`]: the changes as JSON.
const HISTORY: &str = "policy-changes";

/// Records the changes, in the change that makes the last of them.
pub(super) fn write(change: &Change<'_>, history: &History) -> Result<(), redb::Error> {
    change.insert(META, HISTORY, &serde_json::to_string(history).unwrap_or_default())
}

impl Store {
    /// The last changes of policy by hand. An unreadable history is empty.
    pub(crate) fn history(&self) -> Result<History, StoreError> {
        self.read("read the last changes from", |tx| {
            let found = tx.open_table(META)?.get(HISTORY)?;
            Ok(found.and_then(|text| serde_json::from_str(text.value()).ok()).unwrap_or_default())
        })
    }
}
