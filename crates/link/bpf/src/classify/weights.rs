//! The bytes of a class as its scheduler counts them, beside those that the uplink carries.

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::{Error, common::entries::u64_at};

/// Size of `struct weir_counters` of intf.h.
pub(super) const COUNTERS: usize = 40;
/// Where `moved_packets` is in it.
pub(super) const MOVED: usize = 32;

/// The counters of scheduled packets.
pub struct Weights {
    pub(super) counters: MapHandle,
}

impl Weights {
    /// Bytes of a class that the scheduler has seen, and how many of them the uplink does not carry. Nothing
    /// of a class that is not tracked.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&self, handle: u32) -> Result<(u64, u64), Error> {
        let values = match self.counters.lookup_percpu(&handle.to_ne_bytes(), MapFlags::ANY) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            other => other.map_err(|source| Error { what: "read what a class's packets weigh", source })?,
        };
        let sum = |at| values.iter().flatten().fold(0u64, |sum, value| sum.wrapping_add(u64_at(value, at)));
        Ok((sum(16), sum(24)))
    }
}
