//! The names of classes and groups in commands.

use std::collections::BTreeMap;

use weir_api::{Error, ErrorCode};

use super::{CONTROL_KEY, ClassEntry, promise::Awaited};
use crate::agent::{
    by_hand::SetLayers,
    class_key::{ClassKey, ClassSource},
};

/// The entries by name, for a request with many names.
pub(crate) struct Names<'a> {
    entries: &'a BTreeMap<ClassKey, ClassEntry>,
    by_name: BTreeMap<&'a str, Vec<&'a ClassKey>>,
}

impl<'a> Names<'a> {
    pub(super) fn of(entries: &'a BTreeMap<ClassKey, ClassEntry>) -> Names<'a> {
        let mut by_name: BTreeMap<&str, Vec<&ClassKey>> = BTreeMap::new();
        for (key, entry) in entries {
            by_name.entry(&entry.class.name).or_default().push(key);
        }
        Names { entries, by_name }
    }

    /// The key of the class or group called `name`.
    ///
    /// # Errors
    /// `unknown-name`, `ambiguous-name`.
    pub(crate) fn find(&self, name: &str) -> Result<&'a ClassKey, Error> {
        // Weir's own names take precedence over containers' names. `docker:host` means the container.
        let own = [ClassKey::own(name), ClassKey::group(name)];
        for key in [name, own[0].as_str(), own[1].as_str()] {
            if let Some((key, _)) = self.entries.get_key_value(key) {
                return Ok(key);
            }
        }
        match self.by_name.get(name).map(Vec::as_slice).unwrap_or_default() {
            [key] => Ok(key),
            [] => {
                let known: Vec<&str> = self.entries.values().map(|e| e.class.name.as_str()).take(8).collect();
                let more = if self.entries.len() > 8 { ", ..." } else { "" };
                let message = format!(
                    "no class or group is called {name}; there are {}{more} (`weir ps` lists all)",
                    known.join(", ")
                );
                Err(Error::new(ErrorCode::UnknownName, message))
            }
            keys => {
                let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
                let message = format!("{name} could be {}: say which", keys.join(" or "));
                Err(Error::new(ErrorCode::AmbiguousName, message))
            }
        }
    }

    /// Whether a class or group with that key or name is present.
    pub(super) fn is_present(&self, name: &str) -> bool {
        let is_here = |key: &str| self.entries.get(key).is_some_and(|entry| entry.minor.is_some());
        is_here(name)
            || self.by_name.get(name).is_some_and(|keys| keys.iter().any(|key| is_here(key.as_str())))
    }

    /// Gives the policy kept for a name to the class of this key. Each other class of that name that follows
    /// the policy gets a copy of its own, so that a change of one class leaves the others as they are. The name
    /// keeps the policy while a source has not told of its classes: one of them may follow it.
    pub(super) fn hand_out_kept(&self, set: &mut SetLayers, key: &str, awaited: Awaited) {
        let Some(entry) = self.entries.get(key) else { return };
        let name = entry.class.name.as_str();
        let Some(kept) = set.get(name).copied() else { return };
        let mut is_awaited = awaited != Awaited::Nobody;
        for key in self.by_name.get(name).into_iter().flatten() {
            match key.source() {
                // No class of this name is here, so that the policy still waits for one.
                ClassSource::Absent => is_awaited = true,
                ClassSource::Agreement => {}
                _ if **key == CONTROL_KEY => {}
                _ => {
                    set.entry(key.to_string()).or_insert(kept);
                }
            }
        }
        if !is_awaited {
            set.remove(name);
        }
    }

    /// Whether a class has no policy by hand in spite of one that its name keeps for another class.
    pub(super) fn is_exempt(&self, set: &SetLayers, key: &str) -> bool {
        let name = self.entries.get(key).map(|entry| entry.class.name.as_str());
        name.is_some_and(|name| name != key && set.contains_key(name))
    }
}
