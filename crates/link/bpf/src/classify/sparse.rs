//! Flows that send little, and the queues of classes in which their packets go first.

use std::os::fd::RawFd;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::{
    Error,
    common::entries::{ignore, u64_at},
};

/// `COST_SHIFT` of sparse.h.
const COST_SHIFT: u32 = 20;
const NANOS: u64 = 1_000_000_000;
/// No class is slower, bytes a second. The programs multiply the cost of a byte.
const LEAST: u64 = 1_000;
/// Bounds of the time that a flow must pause, nanoseconds. The rate of a class may fall below what is known.
const LEAST_QUIET: u64 = NANOS;
const MOST_QUIET: u64 = 60 * NANOS;

/// The classes of HTB with a queue that goes first.
pub struct SparseFlows {
    pub(crate) classes: MapHandle,
    pub(crate) class_filter: RawFd,
    pub(crate) first_filter: RawFd,
}

impl SparseFlows {
    /// The device of the download's programs, which lead to one alone (`WEIR_DOWNLOAD`).
    pub const DOWNLOAD: u32 = 0;
    /// The map's name.
    pub(crate) const MAP: &'static str = "weir_sparse";
    /// The name under which the kernel knows the filter at the root.
    pub const CLASS_FILTER: &'static str = "weir_htb_class";
    /// The same of the filter inside a class's queue.
    pub const FIRST_FILTER: &'static str = "weir_htb_first";
    /// Majors of the qdiscs whose direct queue goes first, beside the minor of their class (`WEIR_SPARSE_MAJOR`).
    pub const MAJOR: u16 = 0x8000;

    /// The filter at the root of HTB, as a number for netlink. It returns the class of a packet.
    #[must_use]
    pub fn class_filter(&self) -> RawFd {
        self.class_filter
    }

    /// The filter at the HTB inside a class's queue. It returns that qdisc for a packet that goes first.
    #[must_use]
    pub fn first_filter(&self) -> RawFd {
        self.first_filter
    }

    /// Lets sparse flows of a class go first. A flow is sparse by the part that it takes of this rate. The class is that
    /// of the scheduler on this device, or of the [`DOWNLOAD`](SparseFlows::DOWNLOAD). Its queue holds `limit` bytes.
    ///
    /// # Errors
    /// [`Error`]: the map holds 16,384 classes.
    pub fn set(&self, device: u32, handle: u32, bytes_per_second: u64, limit: u64) -> Result<(), Error> {
        let error = |source| Error { what: "let sparse flows of a class go first", source };
        let (cost, quiet) = times(bytes_per_second, limit);
        let key = key(device, handle);
        // The kernel's part of the value stays.
        let passed = self.classes.lookup(&key, MapFlags::ANY).map_err(error)?.map_or(0, |v| u64_at(&v, 16));
        let value = [cost, quiet, passed].map(u64::to_ne_bytes).concat();
        self.classes.update(&key, &value, MapFlags::ANY).map_err(error)
    }

    /// No flow of this class goes first any more.
    ///
    /// # Errors
    /// [`Error`].
    pub fn forget(&self, device: u32, handle: u32) -> Result<(), Error> {
        ignore(self.classes.delete(&key(device, handle)), &[ErrorKind::NotFound])
            .map_err(|source| Error { what: "forget the sparse flows of a class", source })
    }
}

/// The cost of a byte, and the time that a flow must pause: `struct weir_sparse` of intf.h.
fn times(bytes_per_second: u64, limit: u64) -> (u64, u64) {
    let rate = bytes_per_second.max(LEAST);
    let quiet = (limit.saturating_mul(NANOS) / rate).clamp(LEAST_QUIET, MOST_QUIET);
    ((NANOS << COST_SHIFT) / rate, quiet)
}

/// `struct weir_sparse_key` of intf.h.
fn key(device: u32, handle: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&device.to_ne_bytes());
    key[4..].copy_from_slice(&handle.to_ne_bytes());
    key
}

#[cfg(test)]
mod tests;
