use std::collections::{BTreeMap, BTreeSet};

use crate::{Name, Utc};

/// How many agreements each account has, those that are over apart.
#[derive(Debug, Default)]
pub(super) struct Places {
    open: BTreeMap<Name, usize>,
    all_open: usize,
    /// By when they came to their end.
    over: BTreeMap<Name, BTreeSet<(Utc, Name)>>,
}

impl Places {
    /// How many agreements of all accounts are not over.
    pub(super) fn open(&self) -> usize {
        self.all_open
    }

    /// How many agreements of this account are not over.
    pub(super) fn open_of(&self, account: &Name) -> usize {
        self.open.get(account).copied().unwrap_or(0)
    }

    /// Counts an agreement that is not over.
    pub(super) fn take(&mut self, account: &Name) {
        *self.open.entry(account.clone()).or_default() += 1;
        self.all_open += 1;
    }

    /// Counts an agreement no longer that was not over.
    pub(super) fn give_back(&mut self, account: &Name) {
        let Some(count) = self.open.get_mut(account) else { return };
        *count -= 1;
        self.all_open -= 1;
        if *count == 0 {
            self.open.remove(account);
        }
    }

    /// Remembers an agreement that is over.
    pub(super) fn remember(&mut self, account: &Name, at: Utc, id: &Name) {
        self.over.entry(account.clone()).or_default().insert((at, id.clone()));
    }

    /// Remembers it no longer.
    pub(super) fn forget(&mut self, account: &Name, at: Utc, id: &Name) {
        if let Some(over) = self.over.get_mut(account) {
            over.remove(&(at, id.clone()));
            if over.is_empty() {
                self.over.remove(account);
            }
        }
    }

    /// The oldest agreement that is over of the account that has most of them. So an account that makes many
    /// has its own forgotten, and no other's.
    pub(super) fn first_to_forget(&self) -> Option<&Name> {
        let (_, fullest) = self.over.iter().max_by_key(|(_, over)| over.len())?;
        fullest.first().map(|(_, id)| id)
    }
}
