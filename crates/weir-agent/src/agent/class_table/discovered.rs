//! A class as its source reports it.

use std::collections::BTreeMap;

use weir_api::ClassKind;

use crate::agent::class_key::{ClassKey, ClassSource};
use crate::config::{Layer, RESERVED, Selector};

/// A class that a source reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiscoveredClass {
    pub(crate) source: ClassSource,
    pub(crate) name: String,
    pub(crate) kind: ClassKind,
    pub(crate) group: Option<String>,
    /// The policy of its labels, as far as `[labels]` allows it.
    pub(crate) label: Layer,
    /// The same of what arrives.
    pub(crate) down_label: Layer,
    /// The wishes that `[labels]` cut or that are ignored, with reasons.
    pub(crate) cut: Vec<String>,
    /// The place of each wish that is no label, by key.
    pub(crate) asked_by: BTreeMap<&'static str, String>,
    /// The wish that weir cannot enforce, if any, with the reason.
    pub(crate) unmet: Option<String>,
    /// Host-side interfaces: index and name.
    pub(crate) ports: Vec<(u32, String)>,
    /// Cgroups: id, and the depths at which it may be, as bits.
    pub(crate) cgroups: Vec<(u64, u32)>,
    /// Selectors of its packets, from any sender. An earlier class's selectors come first.
    pub(crate) selectors: Vec<Selector>,
    /// The reason why its traffic cannot be classified.
    pub(crate) problem: Option<String>,
}

/// The wishes of sources for groups, by the group's name.
pub(crate) type GroupWishes = BTreeMap<String, GroupWish>;

/// The policy that a source asks for a group, within `[labels]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GroupWish {
    pub(crate) label: Layer,
    /// The same of what arrives.
    pub(crate) down_label: Layer,
    /// The wishes that are cut or ignored, with reasons.
    pub(crate) cut: Vec<String>,
    /// The place of each wish, by key.
    pub(crate) asked_by: BTreeMap<&'static str, String>,
}

impl GroupWish {
    /// The same as the download sees it.
    pub(crate) fn of_download(&self) -> GroupWish {
        GroupWish {
            label: self.down_label,
            down_label: Layer::default(),
            cut: Vec::new(),
            asked_by: asked_of_download(&self.asked_by),
        }
    }
}

/// The places of the wishes about what arrives.
pub(crate) fn asked_of_download(asked_by: &BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    let of_download = |key: &str| key == "group" || key.starts_with("down.");
    asked_by.iter().filter(|(key, _)| of_download(key)).map(|(key, by)| (*key, by.clone())).collect()
}

impl DiscoveredClass {
    /// A class that asks for nothing, and has no port, cgroup or selector.
    pub(crate) fn new(source: ClassSource, name: impl Into<String>, kind: ClassKind) -> DiscoveredClass {
        DiscoveredClass {
            source,
            name: name.into(),
            kind,
            group: None,
            label: Layer::default(),
            down_label: Layer::default(),
            cut: Vec::new(),
            asked_by: BTreeMap::new(),
            unmet: None,
            ports: Vec::new(),
            cgroups: Vec::new(),
            selectors: Vec::new(),
            problem: None,
        }
    }

    pub(crate) fn key(&self) -> ClassKey {
        ClassKey::new(self.source, &self.name)
    }

    /// Whether this class's packets are those that a selector takes from `name`.
    pub(crate) fn sends_as(&self, name: &str) -> bool {
        let sends = !matches!(self.kind, ClassKind::Group | ClassKind::Selector | ClassKind::Control);
        let is_own = self.source != ClassSource::Weir && RESERVED.contains(&name);
        sends && !is_own && (self.name == name || self.key() == name)
    }
}

/// The classes of both discoveries that ask for something else in the later one.
pub(super) fn asked_anew(before: &[DiscoveredClass], after: &[DiscoveredClass]) -> Vec<ClassKey> {
    let asked = |class: &DiscoveredClass| (class.key(), (class.label, class.group.clone()));
    let before: BTreeMap<ClassKey, (Layer, Option<String>)> = before.iter().map(asked).collect();
    let after = after.iter().map(asked);
    after.filter(|(key, now)| before.get(key).is_some_and(|was| was != now)).map(|(key, _)| key).collect()
}
