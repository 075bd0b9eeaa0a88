use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::{
    Error,
    common::entries::{ignore, u32_at, u64_at},
};

/// `struct weir_refill` of credit.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// The credit rate of a class.
    pub bytes_per_sec: u64,
    /// The most credit it keeps.
    pub burst_bytes: u64,
    /// Monotonic time, ns, until which this holds; then everything passes.
    pub until_ns: u64,
}

/// The fate of a class's packets, since its credit was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// Passed, layer 2.
    pub bytes: u64,
    /// Passed, segments.
    pub packets: u64,
    /// Dropped, layer 2.
    pub bytes_dropped: u64,
    /// Dropped, segments; it wraps around.
    pub packets_dropped: u32,
}

/// The credits of classes, by handle: see `credit.h`.
pub struct Credits {
    pub(crate) refills: MapHandle,
    pub(crate) credits: MapHandle,
}

impl Credits {
    /// Sets what a class earns; it begins without credit and with counters of zero.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 classes.
    pub fn set(&self, handle: u32, refill: &Refill) -> Result<(), Error> {
        let key = handle.to_ne_bytes();
        let mut value = [0; 24];
        let words = [refill.bytes_per_sec, refill.burst_bytes, refill.until_ns];
        for (chunk, word) in value.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let made = self.credits.update(&key, &[0; CREDIT], MapFlags::NO_EXIST);
        ignore(made, &[ErrorKind::AlreadyExists])
            .and_then(|()| self.refills.update(&key, &value, MapFlags::ANY))
            .map_err(|source| Error { what: "set a class's credit", source })
    }

    /// Forgets a class: its packets pass.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&self, handle: u32) -> Result<(), Error> {
        let key = handle.to_ne_bytes();
        let gone = |map: &MapHandle| ignore(map.delete(&key), &[ErrorKind::NotFound]);
        gone(&self.refills)
            .and_then(|()| gone(&self.credits))
            .map_err(|source| Error { what: "forget a class's credit", source })
    }

    /// The fate of a class's packets; none without such a class.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&self, handle: u32) -> Result<Option<Credit>, Error> {
        let value = self
            .credits
            .lookup(&handle.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "read a class's credit", source })?;
        let Some(value) = value else { return Ok(None) };
        let word = |at| u64_at(&value, at);
        let dropped = u32_at(&value, 4);
        Ok(Some(Credit {
            bytes: word(24),
            packets: word(32),
            bytes_dropped: word(40),
            packets_dropped: dropped,
        }))
    }
}

/// Size of `struct weir_credit` of credit.h.
const CREDIT: usize = 48;
