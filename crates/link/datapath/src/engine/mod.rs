//! Engines enforce a division in the data path.
//!
//! [`Attachments`] brings packets to the scheduler (BPF at the containers' ports and at the uplink).
//! The scheduler is an [`Engine`]: [`Htb`] on any kernel, [`BpfQdisc`] on newer ones, [`Edt`] where
//! there is fq, [`Credit`] where no queue may be, [`User`] in this process. An engine gets a
//! [`Plan`] and enforces it in its own way. Senders must get the shares of water-filling: one suite
//! of tests (`testing/netns/tests/conformance.rs`) holds for all of them.

mod attachments;
mod bpf;
mod credit;
mod edt;
mod htb;
mod ifb;
mod kind;
pub mod plan;
pub mod selftest;
pub mod tree;
mod user;
#[cfg(fuzzing)]
pub use user::fuzz::cut;

use std::collections::BTreeMap;

use weir_netlink::{NetlinkError, tc::Counters};

pub use attachments::{Attach, Attachments, Created, PortClass, Repairs};
pub use bpf::BpfQdisc;
pub use credit::Credit;
pub use edt::Edt;
pub use htb::Htb;
pub use ifb::DEVICE;
pub use kind::{Choice, Kind, NoneWorks, Refused};
pub use plan::Plan;
pub use user::{Lateness, User};

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
    /// Through the device of this index to a scheduler in this process: its program takes them there.
    Process(u32),
}

impl Place {
    /// The part of it that the programs have to know ([`weir_bpf::Config::pacing`]).
    #[must_use]
    pub fn programs(self) -> u32 {
        match self {
            Place::Queue(_) => 0,
            Place::InPlace => weir_bpf::Config::IN_PLACE,
            Place::Process(_) => weir_bpf::Config::USER,
        }
    }
}

/// The scheduler of a link.
///
/// Setting up, adopting, repairing and reconfiguring are the same for it: it compares what should
/// be with what the kernel says is there, and writes the difference. Its objects in the kernel stay
/// when it is dropped, and work on without an agent.
pub trait Engine: Send {
    /// The kind of the engine.
    fn kind(&self) -> Kind;

    /// Name of the device that carries the scheduler.
    fn device(&self) -> &str;

    /// Index of that device.
    fn index(&self) -> u32;

    /// Where packets have to be for it.
    fn placed(&self) -> Place {
        Place::Queue(self.index())
    }

    /// Gets to know the programs that bring packets, before the first
    /// [`apply`](Engine::apply).
    ///
    /// # Errors
    /// [`EngineError`].
    fn join(&mut self, attachments: &Attachments) -> Result<(), EngineError> {
        let _ = attachments;
        Ok(())
    }

    /// Writes to the scheduler so far.
    fn writes(&self) -> u64;

    /// Makes the scheduler enforce the plan; returns how many classes were written or removed.
    /// `hold`: the agent has just taken over and does not know yet who sends, so that what
    /// its predecessor wrote is the better guess of allocations.
    ///
    /// # Errors
    /// The first refusal; what could be written is, and the next call tries the rest again.
    fn apply(&mut self, plan: &Plan<'_>, hold: bool) -> Result<usize, EngineError>;

    /// Reads all classes' counters (into `out`, emptied first), and sees whether someone else
    /// altered the scheduler: returns the number of such alterations, which the next
    /// [`apply`](Engine::apply) mends. Nothing in `out`, or an error that
    /// [is gone](EngineError::is_gone): the whole scheduler went, and
    /// [`rebuild`](Engine::rebuild) mends it.
    ///
    /// # Errors
    /// [`EngineError`].
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError>;

    /// Packets that each class's queue has dropped, by minor, where the counters of
    /// [`measure`](Engine::measure) lack some.
    ///
    /// # Errors
    /// [`EngineError`].
    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError>;

    /// Has the scheduler go before other processes, or not, where it is one.
    fn set_realtime(&mut self, _ahead: bool) {}

    /// How late the scheduler was as of the last [`measure`](Engine::measure), where it is a process
    /// that others may keep from running.
    fn lateness(&self) -> Option<Lateness> {
        None
    }

    /// Puts device and scheduler back if someone removed them. True if the device is a new
    /// one, to which the programs must be told to send.
    ///
    /// # Errors
    /// [`EngineError`] as in [`Kind::open`].
    fn rebuild(&mut self) -> Result<bool, EngineError>;

    /// Sets the device up if someone set it down, which drops all that is sent to it. True
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

    /// Removes device and scheduler.
    ///
    /// # Errors
    /// [`EngineError`].
    fn remove(&mut self) -> Result<(), EngineError>;

    /// Takes back what [`Kind::open`] did, for a start that fails later: the device is removed
    /// if it was not there before. A scheduler that was taken over stays.
    fn undo(self: Box<Self>);
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
    /// The kernel has not got what the engine is made of.
    #[error("cannot use engine {engine}: {why}")]
    Lacking {
        /// Which engine.
        engine: Kind,
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
            | EngineError::Lacking { .. }
            | EngineError::NoRoom { .. } => false,
        }
    }
}
