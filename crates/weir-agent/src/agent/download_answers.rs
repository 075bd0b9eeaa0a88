//! Changes to the policies of what arrives.

use std::collections::BTreeMap;

use weir_api::{Error, ErrorCode, EventKind, PolicyChange, SetPolicies};

use super::{
    Agent,
    by_hand::SetLayers,
    class_key::ClassKey,
    download::{Download, told},
    store::Ledger,
    views::policy_text,
};

/// A change of what arrives as one of a table.
fn change_of(change: &PolicyChange) -> Option<PolicyChange> {
    let down = change.down?;
    let (weight, min, max) = (down.weight, down.min, down.max);
    Some(PolicyChange { name: change.name.clone(), weight, min, max, down: None })
}

fn bad(name: &str, why: &str) -> Error {
    Error::new(ErrorCode::BadRequest, format!("cannot set down of {name}: {why}"))
}

impl Agent {
    /// The policies of what arrives as they are after `changes`. `None` if they stay as they are.
    pub(super) fn plan_down(&self, changes: &SetPolicies) -> Result<Option<SetLayers>, Error> {
        let asked: Vec<PolicyChange> = changes.changes.iter().filter_map(change_of).collect();
        let Some(first) = asked.first() else { return Ok(None) };
        let Some(download) = &self.link.download else {
            return Err(bad(
                &first.name,
                "the download is not shared; set [link] download in the configuration",
            ));
        };
        for change in &asked {
            let is_here = self.classes.find(&change.name).is_ok();
            if is_here && download.classes.find(&change.name).is_err() {
                let why = "it selects packets that leave; what arrives belongs to the sender's class";
                return Err(bad(&change.name, why));
            }
        }
        let asked = SetPolicies { changes: asked, allow_absent: changes.allow_absent };
        let planned = download.classes.plan(&asked);
        planned.map(Some).map_err(|e| Error { message: told(&e.message), ..e })
    }

    /// The same without those of one name.
    pub(super) fn plan_unset_down(&self, name: &str) -> Result<Option<SetLayers>, Error> {
        match &self.link.download {
            Some(download) if download.classes.find(name).is_ok() => {
                let planned = download.classes.plan_unset(name);
                planned.map(Some).map_err(|e| Error { message: told(&e.message), ..e })
            }
            _ => Ok(None),
        }
    }

    /// Applies stored policies of what arrives.
    pub(super) fn put_down(&mut self, set: SetLayers, ledger: Ledger) {
        let Some(download) = &mut self.link.download else { return };
        let (effects, changed) = download.put(&self.store, set, ledger);
        self.follow_up(effects);
        for (key, text) in changed {
            self.event(EventKind::PolicyChanged, Some(&key), told(&text));
        }
        self.keep_download_promises();
    }
}

impl Download {
    fn put(
        &mut self,
        store: &super::Store,
        set: SetLayers,
        ledger: Ledger,
    ) -> (super::Effects, Vec<(ClassKey, String)>) {
        self.promises.saved(ledger);
        let before: BTreeMap<ClassKey, _> =
            self.classes.entries().iter().map(|(key, entry)| (key.clone(), entry.effective)).collect();
        self.classes.commit(set);
        self.promises.save(store, self.classes.ledger());
        self.allocations.follow(&self.classes);
        let effects = self.divide();
        let entries = self.classes.entries().iter();
        let other = entries.filter(|(key, entry)| before.get(*key) != Some(&entry.effective));
        let text = |(key, entry): (&ClassKey, &super::class_table::ClassEntry)| {
            (key.clone(), policy_text(&entry.effective.policy))
        };
        (effects, other.map(text).collect())
    }
}
