//! The entries of the class table: present classes, and absent ones with a policy.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::{ClassKind, Origin};
use weir_datapath::engine::{CONTROL, DEFAULT, FIRST, HOST};
use weir_share::Policy;

use super::{ClassEntry, ClassTable, DiscoveredClass, Effective, GroupWish, agreed};
use crate::{
    agent::by_hand::SetLayers,
    agent::class_key::{ClassKey, ClassSource},
    config::{Config, OTHER},
};

impl ClassTable {
    /// All classes and groups, present or not. They have minors but no policies yet.
    pub(super) fn entries_for(
        &self,
        config: &Config,
        set: &SetLayers,
        discovered: &[DiscoveredClass],
    ) -> BTreeMap<ClassKey, ClassEntry> {
        let nobody = Effective { policy: Policy::default(), origins: [Origin::Default; 3] };
        let mut entries = BTreeMap::new();
        let mut add = |claim: DiscoveredClass, minor| {
            let entry =
                ClassEntry { class: claim, effective: nobody, agreement: None, minor, unpromised: None };
            entries.entry(entry.class.key()).or_insert(entry);
        };
        let other = agreed::ceiling(config).map(|_| OTHER);
        let own = |name: &str, kind| DiscoveredClass::new(ClassSource::Weir, name, kind);
        let unreserved =
            |claim: DiscoveredClass| DiscoveredClass { group: other.map(str::to_owned), ..claim };
        add(unreserved(own("host", ClassKind::Host)), Some(HOST));
        add(unreserved(own("default", ClassKind::Default)), Some(DEFAULT));
        add(own("control", ClassKind::Control), Some(CONTROL));

        let mut taken: BTreeSet<u16> = self.minors.values().copied().collect();
        let mut next = FIRST;
        let mut minor_of = |key: &ClassKey| -> Option<u16> {
            if let Some(minor) = self.minors.get(key) {
                return Some(*minor);
            }
            while taken.contains(&next) {
                next = next.checked_add(1).filter(|m| *m < u16::MAX)?;
            }
            taken.insert(next);
            Some(next)
        };
        let mut numbered = |mut claim: DiscoveredClass| {
            let minor = minor_of(&claim.key());
            if minor.is_none() {
                claim.problem = Some("the scheduler has room for 65,518 classes and they are used up".into());
            }
            add(claim, minor);
        };

        let mut groups: BTreeSet<&str> = config.groups.iter().map(|g| g.name.as_str()).collect();
        match other {
            // Groups do not nest.
            Some(other) => drop(groups.insert(other)),
            None => discovered.iter().for_each(|claim| groups.extend(group_of(config, claim))),
        }
        for name in groups {
            let GroupWish { label, down_label, cut, asked_by } =
                self.group_wishes.get(name).cloned().unwrap_or_default();
            let group = own(name, ClassKind::Group);
            numbered(DiscoveredClass {
                source: ClassSource::Group,
                label,
                down_label,
                cut,
                asked_by,
                ..group
            });
        }
        for claim in discovered {
            let group = other.or_else(|| group_of(config, claim)).map(str::to_owned);
            numbered(DiscoveredClass { group, ..claim.clone() });
        }
        for claim in agreed::discovered(&self.agreed, discovered) {
            numbered(claim);
        }
        // Absent classes with a policy from the configuration or set by hand.
        let here: BTreeSet<String> =
            discovered.iter().flat_map(|c| [c.name.clone(), c.key().to_string()]).collect();
        let is_here = |name: &str| here.contains(name);
        let mut absent: BTreeMap<&str, Option<&String>> = BTreeMap::new();
        // A policy set by hand for a container of that name already reserves the same minimum.
        let by_hand: BTreeSet<&str> =
            set.keys().filter(|key| !is_here(key)).filter_map(|key| Some(key.split_once(':')?.1)).collect();
        for class in config
            .classes
            .iter()
            .filter(|c| !c.is_static() && !is_here(&c.name) && !by_hand.contains(c.name.as_str()))
        {
            absent.insert(&class.name, class.group.as_ref());
        }
        for name in set.keys().filter(|name| !is_here(name)) {
            let source = ClassKey::parse(name).map(|key| key.source());
            if !matches!(source, Some(ClassSource::Weir | ClassSource::Group)) {
                absent.entry(name).or_insert(None);
            }
        }
        for (name, group) in absent {
            let key = ClassKey::parse(name).filter(|key| key.source().is_discovered());
            let (source, bare) = key.as_ref().map_or((ClassSource::Absent, name), |k| (k.source(), k.name()));
            add(DiscoveredClass { source, group: group.cloned(), ..own(bare, ClassKind::Container) }, None);
        }
        entries
    }
}

fn group_of<'a>(config: &'a Config, claim: &'a DiscoveredClass) -> Option<&'a str> {
    let configured = config.classes.iter().find(|c| c.is_about(claim.source.as_str(), &claim.name));
    configured.and_then(|c| c.group.as_deref()).or(claim.group.as_deref())
}
