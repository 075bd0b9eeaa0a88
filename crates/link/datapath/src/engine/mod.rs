//! Engines enforce a division in the data path.
//!
//! [`Attachments`] brings packets to the scheduler (BPF at the containers' ports and at the uplink).
//! The scheduler is an [`Engine`]: [`Htb`] on any kernel, [`BpfQdisc`] on newer ones, [`Edt`] where
//! there is fq, [`Credit`] where no queue may be, [`User`] in a process of its own. An engine gets a
//! [`Plan`] and enforces it in its own way. Senders must get the shares of water-filling: one suite
//! of tests (`testing/netns/tests/conformance.rs`) holds for all of them.

mod attachments;
mod bpf;
mod credit;
mod download;
mod edt;
mod framed;
mod htb;
mod ifb;
mod kind;
mod left;
pub mod plan;
pub mod selftest;
mod signals;
mod sparse;
pub mod tree;
mod user;
mod weight;
#[cfg(feature = "fuzzing")]
pub use user::fuzz::cut;

use std::collections::BTreeMap;

use weir_netlink::{NetlinkError, tc::Counters};

pub use attachments::{
    Ahead, Attach, Attachments, Created, Foreign, PortClass, Repairs, TunnelDevice, describe_ahead,
};
pub use bpf::BpfQdisc;
pub use credit::Credit;
pub use download::{Addresses, Download};
pub use edt::Edt;
pub use htb::Htb;
pub use ifb::{MAX_LINKS, SCHEDULER_MAC, Uplink, is_scheduler, numbers_left, numbers_taken, retire_devices};
pub use kind::{Choice, EngineKind, Form, NoneWorks, Refused};
pub use left::{Standing, remove_schedulers};
pub use plan::Plan;
pub use signals::{LinkSignals, SignalCounts};
pub use user::{Home, Lateness, User, forward};

/// The kernel's counters of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The class.
    pub minor: u16,
    /// Counters since the class was made.
    pub counters: Counters,
}

/// How packets come to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Through the device of this index.
    Queue(u32),
    /// They do not move: the programs that catch them ask for credit.
    InPlace,
    /// Through the device of this index to a scheduler in a process: its program takes them there.
    Process(u32),
}

/// An engine enforces a division of the link.
///
/// Setting up, taking over, repairing and reconfiguring are the same for it: it compares what should
/// be with what the kernel says is there, and writes the difference. Its objects in the kernel stay
/// when it is dropped, and work on without an agent.
pub trait Engine: Send {
    /// The kind of the engine.
    fn kind(&self) -> EngineKind;

    /// How packets come to it.
    fn place(&self) -> Place;

    /// Writes to the kernel so far.
    fn writes(&self) -> u64;

    /// Enforces the plan; returns how many classes were written or removed.
    /// `hold`: the agent has just taken over and does not know yet which classes send, so that what
    /// its predecessor wrote is the better guess of allocations.
    ///
    /// # Errors
    /// The first refusal; what could be written is, and the next call tries the rest again.
    fn apply(&mut self, plan: &Plan<'_>, hold: bool) -> Result<usize, EngineError>;

    /// Reads all classes' counters (into `out`, emptied first), and sees whether another program
    /// altered the engine's objects: returns the number of such alterations, which the next
    /// [`apply`](Engine::apply) repairs. Nothing in `out`, or an error that
    /// [is gone](EngineError::is_gone): the device went, and [`rebuild`](Device::rebuild) repairs it.
    ///
    /// # Errors
    /// [`EngineError`].
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError>;

    /// Packets that each class has lost, by minor, where the counters of
    /// [`measure`](Engine::measure) lack some.
    ///
    /// # Errors
    /// [`EngineError`].
    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError>;

    /// The device through which packets go, if they go through one.
    fn device(&mut self) -> Option<&mut dyn Device>;

    /// The process that schedules, if a process does.
    fn process(&mut self) -> Option<&mut dyn Process>;

    /// Removes all that the engine has in the kernel.
    ///
    /// # Errors
    /// [`EngineError`].
    fn remove(&mut self) -> Result<(), EngineError>;
}

/// A device with a queue, through which the packets of all classes go.
pub trait Device {
    /// Its name.
    fn name(&self) -> &str;

    /// Its index.
    fn index(&self) -> u32;

    /// Puts device and scheduler back if another program removed them. True if the device is a new
    /// one, to which the programs must be told to send.
    ///
    /// # Errors
    /// [`EngineError`] as in [`EngineKind::open`].
    fn rebuild(&mut self) -> Result<bool, EngineError>;

    /// Sets the device up if another program set it down, which drops all that is sent to it. True
    /// if so.
    ///
    /// # Errors
    /// [`EngineError`].
    fn wake(&mut self) -> Result<bool, EngineError>;

    /// Bytes that wait in all queues.
    ///
    /// # Errors
    /// [`EngineError`].
    fn backlog(&mut self) -> Result<u64, EngineError>;
}

/// A scheduler in a process, which others may keep from running.
pub trait Process {
    /// Has the scheduler go before other processes, or not.
    fn set_realtime(&mut self, is_wanted: bool);

    /// How late the scheduler was as of the last [`measure`](Engine::measure).
    fn lateness(&self) -> Lateness;
}

/// Minor of the class that stands for the whole link.
pub const ROOT: u16 = 1;
/// Minor of the class for traffic that belongs to no other.
pub const DEFAULT: u16 = 2;
/// Minor of the class for ARP, neighbour discovery and DHCP.
pub const CONTROL: u16 = 3;
/// Minor of the class for the host's own traffic.
pub const HOST: u16 = 4;
/// The first minor for groups and containers.
pub const FIRST: u16 = 0x10;

/// Major of the scheduler's handles.
pub const MAJOR: u16 = 1;

/// A fault of the data path.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A BPF program or map.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// The rules of selectors.
    #[error(transparent)]
    Rules(#[from] weir_bpf::RulesError),
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
    /// The kernel does not say which programs are attached.
    #[error("cannot look whether weir's program is attached to {device}: {errno}")]
    Look {
        /// The interface.
        device: String,
        /// The kernel's reason.
        errno: nix::errno::Errno,
    },
    /// There is no number for this tunnel.
    #[error(
        "cannot follow packets into tunnel {device}: weir follows {most} tunnels at most; remove one of the others"
    )]
    TooManyTunnels {
        /// The tunnel's device.
        device: String,
        /// [`weir_bpf::Tunnel::MOST`].
        most: u32,
    },
    /// The kernel has not got what the engine is made of.
    #[error("cannot use engine {engine}: {why}")]
    Lacking {
        /// Which engine.
        engine: EngineKind,
        /// The missing part.
        why: String,
    },
    /// The engine cannot hold this number of classes.
    #[error(
        "cannot schedule class 1:{minor:x}: the bpf engine has room for minors below {room:x}; use engine = \"htb\""
    )]
    NoRoom {
        /// The class.
        minor: u16,
        /// Minors are below this.
        room: u16,
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
            EngineError::Bpf(_)
            | EngineError::Rules(_)
            | EngineError::Look { .. }
            | EngineError::NameTaken { .. }
            | EngineError::TooManyTunnels { .. }
            | EngineError::Lacking { .. }
            | EngineError::NoRoom { .. } => false,
        }
    }
}
