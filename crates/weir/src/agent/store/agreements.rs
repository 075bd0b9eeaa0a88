//! The agreements' part of the database. An agreement is one row; what was sent under it, with
//! a quota, another; the number of the next is written with the agreement that takes it.

use redb::{ReadableTable, TableDefinition, WriteTransaction};
use weir_agree::{Agreement, Name, Usage};

use super::{META, Store, StoreError};

/// Agreements as JSON, by id.
const AGREEMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("agreements");
/// What was sent, as JSON, by agreement.
const USAGE: TableDefinition<'_, &str, &str> = TableDefinition::new("agreement-usage");
/// In [`META`]: the number of the next agreement.
const NEXT: &str = "next-agreement";

pub(super) fn prepare(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(AGREEMENTS)?;
    tx.open_table(USAGE)?;
    Ok(())
}

/// What is stored of agreements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Stored {
    /// All of them, with what was sent.
    pub(crate) agreements: Vec<(Agreement, Usage)>,
    /// The number that the next one has; none was given to two.
    pub(crate) next: u64,
}

impl Store {
    /// All agreements. A row that can no longer be read is left out, and logged.
    pub(crate) fn agreements(&self) -> Result<Stored, StoreError> {
        self.read("read the agreements of", |tx| {
            let (rows, usages) = (tx.open_table(AGREEMENTS)?, tx.open_table(USAGE)?);
            let mut agreements = Vec::new();
            for row in rows.iter()? {
                let (id, text) = row?;
                let agreement: Agreement = match serde_json::from_str(text.value()) {
                    Ok(agreement) => agreement,
                    Err(e) => {
                        tracing::error!("ignoring the stored agreement {}: {e}", id.value());
                        continue;
                    }
                };
                let usage = usages.get(id.value())?.and_then(|u| serde_json::from_str(u.value()).ok());
                agreements.push((agreement, usage.unwrap_or_default()));
            }
            let next = tx.open_table(META)?.get(NEXT)?.and_then(|v| v.value().parse().ok());
            Ok(Stored { agreements, next: next.unwrap_or(1) })
        })
    }

    /// Records agreements as they are now, and the number of the next: all of it, or, with an
    /// error, nobody knows. Afterwards what the database says is true.
    pub(crate) fn save_agreements<'a>(
        &self,
        agreements: impl IntoIterator<Item = &'a Agreement>,
        next: u64,
    ) -> Result<(), StoreError> {
        self.write("write an agreement to", |tx| {
            let mut rows = tx.open_table(AGREEMENTS)?;
            for agreement in agreements {
                let text = serde_json::to_string(agreement).unwrap_or_default();
                rows.insert(agreement.id.as_str(), text.as_str())?;
            }
            tx.open_table(META)?.insert(NEXT, next.to_string().as_str())?;
            Ok(())
        })
    }

    /// Records what was sent.
    pub(crate) fn save_usage(&self, usages: &[(Name, Usage)]) -> Result<(), StoreError> {
        self.write("write what was sent to", |tx| {
            let mut rows = tx.open_table(USAGE)?;
            for (id, usage) in usages {
                let text = serde_json::to_string(usage).unwrap_or_default();
                rows.insert(id.as_str(), text.as_str())?;
            }
            Ok(())
        })
    }

    /// Forgets agreements.
    pub(crate) fn forget_agreements(&self, ids: &[Name]) -> Result<(), StoreError> {
        self.write("forget agreements of", |tx| {
            let (mut rows, mut usages) = (tx.open_table(AGREEMENTS)?, tx.open_table(USAGE)?);
            for id in ids {
                rows.remove(id.as_str())?;
                usages.remove(id.as_str())?;
            }
            Ok(())
        })
    }
}
