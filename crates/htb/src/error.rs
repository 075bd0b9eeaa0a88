use std::fmt;

use weir_units::BitRate;

use crate::{ClassId, Limits, Packet, Params};

/// Why a class was not added, changed or removed. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClassError {
    /// The number is not below [`Limits::classes`].
    TooManyClasses {
        /// The class.
        class: ClassId,
        /// The limit.
        classes: u32,
    },
    /// There is one of this number already.
    Exists {
        /// The class.
        class: ClassId,
    },
    /// No class has this number.
    Unknown {
        /// The class.
        class: ClassId,
    },
    /// There is no such parent.
    UnknownParent {
        /// The class.
        class: ClassId,
        /// The parent asked for.
        parent: ClassId,
    },
    /// The class is among its own ancestors.
    Cycle {
        /// One of the cycle.
        class: ClassId,
    },
    /// More classes from root to leaf than [`Limits::depth`].
    TooDeep {
        /// The class.
        class: ClassId,
        /// The limit.
        depth: u8,
    },
    /// The rate is below [`Params::MIN_RATE`] or above [`BitRate::MAX`].
    Rate {
        /// The class.
        class: ClassId,
        /// The rate asked for.
        rate: BitRate,
    },
    /// The ceiling is below the rate.
    CeilBelowRate {
        /// The class.
        class: ClassId,
        /// The ceiling asked for.
        ceil: BitRate,
        /// The rate asked for.
        rate: BitRate,
    },
    /// The quantum is 0 or above [`Params::MAX_QUANTUM`].
    Quantum {
        /// The class.
        class: ClassId,
        /// The quantum asked for, in bytes.
        quantum: u32,
    },
    /// The priority is not below [`Params::PRIOS`].
    Prio {
        /// The class.
        class: ClassId,
        /// The priority asked for.
        prio: u8,
    },
    /// Packets wait in a leaf that would become a parent, or be removed.
    HasPackets {
        /// The leaf.
        class: ClassId,
        /// How many.
        packets: u32,
    },
    /// A class with children would be removed.
    HasChildren {
        /// The class.
        class: ClassId,
        /// How many.
        children: u32,
    },
}

impl fmt::Display for ClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ClassError::TooManyClasses { class, classes } => write!(
                f,
                "cannot add class {class}: numbers are below {classes} here (raise `Limits::classes`, at most {})",
                Limits::MAX_CLASSES
            ),
            ClassError::Exists { class } => {
                write!(f, "cannot add class {class}: there is one already (change it, or remove it first)")
            }
            ClassError::Unknown { class } => write!(f, "there is no class {class} (add it first)"),
            ClassError::UnknownParent { class, parent } => {
                write!(f, "cannot add class {class}: its parent {parent} does not exist (add that first)")
            }
            ClassError::Cycle { class } => {
                write!(
                    f,
                    "cannot add class {class}: it is its own ancestor (give one of them another parent)"
                )
            }
            ClassError::TooDeep { class, depth } => write!(
                f,
                "cannot add class {class}: it would be {} below a root, {depth} classes from root to leaf are \
                 allowed (raise `Limits::depth`, at most {})",
                depth,
                Limits::MAX_DEPTH
            ),
            ClassError::Rate { class, rate } => write!(
                f,
                "cannot give class {class} a rate of {rate}: rates are from {} to {}",
                Params::MIN_RATE,
                BitRate::MAX
            ),
            ClassError::CeilBelowRate { class, ceil, rate } => write!(
                f,
                "cannot give class {class} a ceil of {ceil}: its rate is {rate} (raise ceil or lower rate)"
            ),
            ClassError::Quantum { class, quantum } => write!(
                f,
                "cannot give class {class} a quantum of {quantum} bytes: from 1 to {}, best above the largest packet",
                Params::MAX_QUANTUM
            ),
            ClassError::Prio { class, prio } => {
                write!(f, "cannot give class {class} prio {prio}: from 0 to {}", Params::PRIOS - 1)
            }
            ClassError::HasPackets { class, packets } => write!(
                f,
                "cannot remove class {class} or give it children: {packets} packets wait in it (drain it first)"
            ),
            ClassError::HasChildren { class, children } => {
                write!(f, "cannot remove class {class}: it has {children} children (remove them first)")
            }
        }
    }
}

impl std::error::Error for ClassError {}

/// Why a packet was not taken; it still belongs to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnqueueError {
    /// There is no such class, or it has children.
    NotALeaf {
        /// The class asked for.
        class: ClassId,
    },
    /// As many packets wait in the leaf as may. Counted as a drop.
    LeafFull {
        /// The leaf.
        class: ClassId,
        /// Its limit.
        limit: u32,
    },
    /// As many packets wait in all leaves as may. Counted as a drop.
    AllFull {
        /// The leaf.
        class: ClassId,
        /// The limit of all leaves.
        packets: u32,
    },
    /// Longer than [`Packet::MAX_LEN`], or empty. Counted as a drop.
    Length {
        /// The leaf.
        class: ClassId,
        /// The packet's length in bytes.
        len: u32,
    },
}

impl fmt::Display for EnqueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EnqueueError::NotALeaf { class } => {
                write!(f, "cannot queue a packet in class {class}: it is not a leaf (add it, or choose one)")
            }
            EnqueueError::LeafFull { class, limit } => write!(
                f,
                "cannot queue a packet in class {class}: {limit} wait in it (send later, or raise `Params::limit`)"
            ),
            EnqueueError::AllFull { class, packets } => write!(
                f,
                "cannot queue a packet in class {class}: {packets} wait in all (raise `Limits::packets`)"
            ),
            EnqueueError::Length { class, len } => write!(
                f,
                "cannot queue a packet of {len} bytes in class {class}: lengths are from 1 to {}",
                Packet::MAX_LEN
            ),
        }
    }
}

impl std::error::Error for EnqueueError {}
