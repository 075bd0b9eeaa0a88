//! The agreements' part of the database. An agreement is one row, and its sent bytes under a quota are
//! another. The next number is written together with the agreement that takes it.

use std::collections::BTreeMap;

use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use weir_agree::{Agreement, Month, Name, Usage, Utc};

use super::{META, Store, StoreError, Text};
use crate::agent::maker::Maker;

/// Agreements as JSON, by id.
const AGREEMENTS: Text = TableDefinition::new("agreements");
/// The sent bytes as JSON, by agreement.
const USAGE: Text = TableDefinition::new("agreement-usage");
/// The months of agreements as JSON, by `id/2026-11`.
const MONTHS: Text = TableDefinition::new("agreement-months");
/// The maker of an agreement, as [`Maker::stored`] writes it.
const OWNERS: Text = TableDefinition::new("agreement-owners");
/// In [`META`]: the number of the next agreement.
const NEXT: &str = "next-agreement";

pub(super) fn prepare(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(AGREEMENTS)?;
    tx.open_table(USAGE)?;
    tx.open_table(MONTHS)?;
    tx.open_table(OWNERS)?;
    Ok(())
}

/// Key of an agreement's month.
fn month_key(id: &Name, month: Utc) -> String {
    let month: String = month.to_string().chars().take(7).collect();
    format!("{id}/{month}")
}

fn read_usage(id: &str, text: &str) -> Option<Usage> {
    let usage = serde_json::from_str(text);
    usage
        .inspect_err(|e| {
            tracing::error!("ignoring the stored bytes of agreement {id}, which begin at 0: {e}")
        })
        .ok()
}

/// The stored agreements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Stored {
    /// All agreements with their sent bytes.
    pub(crate) agreements: Vec<(Agreement, Usage)>,
    /// The users who made them, where recorded.
    pub(crate) owners: BTreeMap<Name, Maker>,
    /// The number of the next agreement. No number is used twice.
    pub(crate) next: u64,
}

impl Store {
    /// All agreements. An unreadable row is left out and logged. A quota without a readable row begins at 0.
    pub(crate) fn agreements(&self) -> Result<Stored, StoreError> {
        self.read("read the agreements of", |tx| {
            let (rows, usages) = (tx.open_table(AGREEMENTS)?, tx.open_table(USAGE)?);
            let mut agreements = Vec::new();
            for row in rows.iter()? {
                let (id, text) = row?;
                let agreement: Agreement = match serde_json::from_slice(text.value().as_bytes()) {
                    Ok(agreement) => agreement,
                    Err(e) => {
                        tracing::error!("ignoring the stored agreement {}: {e}", id.value());
                        continue;
                    }
                };
                let usage = usages.get(id.value())?;
                let usage = usage.and_then(|text| read_usage(id.value(), text.value()));
                agreements.push((agreement, usage.unwrap_or_default()));
            }
            let next = tx.open_table(META)?.get(NEXT)?.and_then(|v| v.value().parse().ok());
            let mut owners = BTreeMap::new();
            for row in tx.open_table(OWNERS)?.iter()? {
                let (id, maker) = row?;
                if let (Ok(id), Some(maker)) = (Name::new(id.value()), Maker::read(maker.value())) {
                    owners.insert(id, maker);
                }
            }
            Ok(Stored { agreements, owners, next: next.unwrap_or(1) })
        })
    }

    /// Records agreements and the number of the next one. After an error it is unknown how much was
    /// written, and the content of the database counts.
    pub(crate) fn save_agreements<'a>(
        &self,
        agreements: impl IntoIterator<Item = &'a Agreement> + Clone,
        next: u64,
    ) -> Result<(), StoreError> {
        self.write("write an agreement to", |change| {
            for agreement in agreements.clone() {
                let text = serde_json::to_string(agreement).unwrap_or_default();
                change.insert(AGREEMENTS, agreement.id.as_str(), &text)?;
            }
            change.insert(META, NEXT, &next.to_string())
        })
    }

    /// Records a new agreement with its maker. Errors are as in [`Store::save_agreements`].
    pub(crate) fn save_offer(
        &self,
        agreement: &Agreement,
        next: u64,
        owner: Option<&Maker>,
    ) -> Result<(), StoreError> {
        self.write("write an agreement to", |change| {
            let text = serde_json::to_string(agreement).unwrap_or_default();
            change.insert(AGREEMENTS, agreement.id.as_str(), &text)?;
            if let Some(owner) = owner {
                change.insert(OWNERS, agreement.id.as_str(), &owner.stored())?;
            }
            change.insert(META, NEXT, &next.to_string())
        })
    }

    /// Records the sent bytes.
    pub(crate) fn save_usage(&self, usages: &[(Name, Usage)]) -> Result<(), StoreError> {
        self.write("write what was sent to", |change| {
            usages.iter().try_for_each(|(id, usage)| {
                change.insert(USAGE, id.as_str(), &serde_json::to_string(usage).unwrap_or_default())
            })
        })
    }

    /// An agreement's month that contains `month`.
    pub(crate) fn month(&self, id: &Name, month: Utc) -> Result<Option<Month>, StoreError> {
        self.read("read what was seen of an agreement from", |tx| {
            let row = tx.open_table(MONTHS)?.get(month_key(id, month).as_str())?;
            Ok(row.and_then(|text| match serde_json::from_slice(text.value().as_bytes()) {
                Ok(month) => Some(month),
                Err(e) => {
                    tracing::error!("ignoring the stored month of agreement {id}: {e}");
                    None
                }
            }))
        })
    }

    /// Records the months of agreements.
    pub(crate) fn save_months(&self, months: &[(Name, Month)]) -> Result<(), StoreError> {
        self.write("write what was seen of agreements to", |change| {
            months.iter().try_for_each(|(id, month)| {
                let text = serde_json::to_string(month).unwrap_or_default();
                change.insert(MONTHS, &month_key(id, month.month()), &text)
            })
        })
    }

    /// Deletes agreements.
    pub(crate) fn forget_agreements(&self, ids: &[Name]) -> Result<(), StoreError> {
        self.write("forget agreements of", |change| {
            for id in ids {
                change.remove(AGREEMENTS, id.as_str())?;
                change.remove(USAGE, id.as_str())?;
                change.remove(OWNERS, id.as_str())?;
                for month in change.keys(MONTHS, &format!("{id}/"))? {
                    change.remove(MONTHS, &month)?;
                }
            }
            Ok(())
        })
    }
}
