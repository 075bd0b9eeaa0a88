//! Parts that the loaders of all features share: errors, programs at their hooks, entries of maps.

pub mod attach;
pub(crate) mod entries;
pub(crate) mod framing;
pub(crate) mod mapped;

use libbpf_rs::{MapCore, MapHandle};

/// Why a program could not be loaded or a map not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct Error {
    /// The attempt.
    pub what: &'static str,
    /// libbpf's words.
    #[source]
    pub source: libbpf_rs::Error,
}

/// The map of a name among the maps of these ids.
pub(crate) fn map_named(ids: &[u32], name: &str) -> Option<MapHandle> {
    let mut maps = ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    maps.find(|map| map.name() == name)
}
