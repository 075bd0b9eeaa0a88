//! A class as its source tells of it.

use weir_api::Kind;

use crate::config::{Layer, RESERVED, Selector};

/// A class that a source of classes told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// `docker`, `netns`, `config`.
    pub(crate) source: &'static str,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) group: Option<String>,
    /// The wishes of its labels, as far as `[labels]` lets them count.
    pub(crate) label: Layer,
    /// The wishes that `[labels]` cut.
    pub(crate) cut: Vec<String>,
    /// Host-side interfaces: index and name.
    pub(crate) ports: Vec<(u32, String)>,
    /// Cgroups: id and depth.
    pub(crate) cgroups: Vec<(u64, u32)>,
    /// Packets that belong to it, from any sender; those of an earlier claim go first.
    pub(crate) selectors: Vec<Selector>,
    /// Why its traffic cannot be caught.
    pub(crate) problem: Option<String>,
}

impl Claim {
    pub(crate) fn key(&self) -> String {
        format!("{}:{}", self.source, self.name)
    }

    /// Whether packets that a selector takes from `name` are those of this claim.
    pub(crate) fn sends_as(&self, name: &str) -> bool {
        let sends = !matches!(self.kind, Kind::Group | Kind::Selector | Kind::Control);
        let is_own = self.source != "weir" && RESERVED.contains(&name);
        sends && !is_own && (self.name == name || self.key() == name)
    }
}
