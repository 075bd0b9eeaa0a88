//! What enforces allocations in the data path.
//!
//! [`Catcher`] brings packets to the scheduler (BPF at the containers' ports and at the
//! uplink), [`Htb`] is the scheduler, [`tree`] says, without touching the kernel, which HTB
//! tree stands for which allocations.

mod catcher;
mod htb;
pub mod tree;

pub use catcher::{Attach, Catcher, Created, PortClass};
pub use htb::{Htb, Measured};

use crate::netlink::NetlinkError;

/// Minor of the class that stands for the whole link.
pub const ROOT: u16 = 1;
/// Minor of the class for traffic nobody claimed.
pub const DEFAULT: u16 = 2;
/// Minor of the class for ARP, neighbour discovery and DHCP.
pub const CONTROL: u16 = 3;
/// Minor of the class for the host's own traffic.
pub const HOST: u16 = 4;
/// The first minor for groups and containers.
pub const FIRST: u16 = 0x10;

/// Major of the scheduler's handles.
pub const MAJOR: u16 = 1;

/// What the data path could not do.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A BPF program or map.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// A program could not be attached.
    #[error("cannot attach weir's program to {device} by {how}: {errno}{hint}")]
    Attach {
        /// The interface.
        device: String,
        /// `tcx` or `clsact`.
        how: &'static str,
        /// The kernel's reason.
        errno: nix::errno::Errno,
        /// The way out, beginning with a separator, or nothing.
        hint: &'static str,
    },
    /// The name weir wants for its device belongs to someone else.
    #[error(
        "cannot create device {name}: one of this name exists and is not weir's; rename it, or remove it with `ip link del {name}`"
    )]
    NameTaken {
        /// The device.
        name: String,
    },
}

impl EngineError {
    /// Whether an interface went away while something was done to it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use nix::errno::Errno::ENODEV;
        match self {
            EngineError::Netlink(e) => e.errno() == Some(ENODEV),
            EngineError::Attach { errno, .. } => *errno == ENODEV,
            EngineError::Bpf(_) | EngineError::NameTaken { .. } => false,
        }
    }
}
