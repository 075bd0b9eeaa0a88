use std::fmt;

use weir_units::{BitRate, Bytes};

use crate::bits::Bits;

/// Names a class: any number below [`Limits::classes`], the caller's choice. Equals take turns in
/// the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u32);

impl fmt::Display for ClassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A packet, as the scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Packet {
    /// The caller's name of it, such as the index of its frame. Not looked at.
    pub handle: u32,
    /// Bytes on the wire, from 1 to [`Packet::MAX_LEN`].
    pub len: u32,
}

impl Packet {
    /// The longest packet, in bytes: 16 MiB less one, 32 times the largest that Linux forms.
    pub const MAX_LEN: u32 = (1 << 24) - 1;
}

/// How much is allocated at construction; nothing is later.
///
/// A value above a maximum of this type counts as that maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Class identifiers are below this; leaves and parents together. At most
    /// [`Limits::MAX_CLASSES`].
    pub classes: u32,
    /// Packets that may wait in all leaves together. At most [`Limits::MAX_PACKETS`].
    pub packets: u32,
    /// Classes from a root to a leaf, both counted: from 2 to [`Limits::MAX_DEPTH`].
    pub depth: u8,
}

impl Limits {
    /// Four times 65,536.
    pub const MAX_CLASSES: u32 = Bits::MAX as u32;
    /// 2^28, which takes 2.3 GiB.
    pub const MAX_PACKETS: u32 = 1 << 28;
    /// As many as a word has bits.
    pub const MAX_DEPTH: u8 = 64;

    pub(crate) fn within_bounds(self) -> Limits {
        Limits {
            classes: self.classes.clamp(1, Limits::MAX_CLASSES),
            packets: self.packets.clamp(1, Limits::MAX_PACKETS),
            depth: self.depth.clamp(2, Limits::MAX_DEPTH),
        }
    }
}

impl Default for Limits {
    /// 4,096 classes of the kernel's depth, 8, and 65,536 packets: 2.6 MiB.
    fn default() -> Limits {
        Limits { classes: 4_096, packets: 65_536, depth: 8 }
    }
}

/// The configuration of a class.
///
/// ```
/// use weir_htb::Params;
/// use weir_units::{BitRate, Bytes};
///
/// let params = Params::new(BitRate::mbit(2)).ceil(BitRate::mbit(12)).prio(1).burst(Bytes(15_000));
/// assert_eq!(params.effective_quantum(), 25_000, "a tenth of the bytes of a second, as tc's r2q");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// The assured rate of the class; from 8 bit/s to [`BitRate::MAX`].
    pub rate: BitRate,
    /// The ceiling; at least `rate`.
    pub ceil: BitRate,
    /// The burst of `rate` after a pause; the default is a millisecond's and 1,600 bytes, as tc's.
    pub burst: Option<Bytes>,
    /// The same of `ceil`.
    pub cburst: Option<Bytes>,
    /// Bytes of a turn among equals, from 1 to 2^30; the default is a tenth of the bytes of a second,
    /// from 1,000 to 200,000. The excess of a parent is divided in proportion to it.
    pub quantum: Option<u32>,
    /// From 0, which is served first, to 7. Counts in leaves.
    pub prio: u8,
    /// Packets that may wait; counts in leaves.
    pub limit: u32,
}

impl Params {
    /// Priorities are below this.
    pub const PRIOS: u8 = 8;
    /// The largest quantum: 1 GiB.
    pub const MAX_QUANTUM: u32 = 1 << 30;
    /// The lowest rate: a byte a second.
    pub const MIN_RATE: BitRate = BitRate(8);

    /// `rate` and nothing more: a ceiling of the same, defaults, and at most 1,000 packets.
    #[must_use]
    pub fn new(rate: BitRate) -> Params {
        Params { rate, ceil: rate, burst: None, cburst: None, quantum: None, prio: 0, limit: 1_000 }
    }

    /// With this ceiling.
    #[must_use]
    pub fn ceil(self, ceil: BitRate) -> Params {
        Params { ceil, ..self }
    }

    /// With this burst at `rate`.
    #[must_use]
    pub fn burst(self, burst: Bytes) -> Params {
        Params { burst: Some(burst), ..self }
    }

    /// With this burst at `ceil`.
    #[must_use]
    pub fn cburst(self, cburst: Bytes) -> Params {
        Params { cburst: Some(cburst), ..self }
    }

    /// With turns of this many bytes.
    #[must_use]
    pub fn quantum(self, quantum: u32) -> Params {
        Params { quantum: Some(quantum), ..self }
    }

    /// With this priority.
    #[must_use]
    pub fn prio(self, prio: u8) -> Params {
        Params { prio, ..self }
    }

    /// With room for this many packets.
    #[must_use]
    pub fn limit(self, limit: u32) -> Params {
        Params { limit, ..self }
    }

    /// Burst at `rate`, given or by default.
    #[must_use]
    pub fn effective_burst(&self) -> Bytes {
        self.burst.unwrap_or_else(|| default_burst(self.rate))
    }

    /// Burst at `ceil`, given or by default.
    #[must_use]
    pub fn effective_cburst(&self) -> Bytes {
        self.cburst.unwrap_or_else(|| default_burst(self.ceil))
    }

    /// Bytes of a turn, given or by default.
    #[must_use]
    pub fn effective_quantum(&self) -> u32 {
        self.quantum.unwrap_or_else(|| (self.rate.bytes_per_sec() / 10).clamp(1_000, 200_000) as u32)
    }
}

fn default_burst(rate: BitRate) -> Bytes {
    Bytes(rate.bytes_per_sec() / 1_000 + 1_600)
}

/// Accepted, but perhaps not what was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warning {
    /// The children of a class are assured of more than the class.
    ChildrenExceedParent {
        /// The parent.
        parent: ClassId,
        /// Its rate.
        rate: BitRate,
        /// The sum of its children's rates.
        children: BitRate,
    },
    /// The ceiling is above that of the parent, which will hold.
    CeilAboveParent {
        /// The class.
        class: ClassId,
        /// Its ceiling.
        ceil: BitRate,
        /// The parent's ceiling.
        parent: BitRate,
    },
    /// A burst holds less than a packet of 1,514 bytes: such packets leave nevertheless, and each is
    /// counted as a giant, but the class falls short of its rate when it does not always have packets.
    BurstBelowPacket {
        /// The class.
        class: ClassId,
        /// The smaller of its bursts.
        burst: Bytes,
    },
    /// A turn is less than a packet of 1,514 bytes, so that shares of what is borrowed are not in
    /// proportion to quanta.
    QuantumBelowPacket {
        /// The class.
        class: ClassId,
        /// Its quantum, in bytes.
        quantum: u32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::ChildrenExceedParent { parent, rate, children } => write!(
                f,
                "class {parent} has a rate of {rate} but its children's rates add up to {children}: raise the \
                 one or lower the others, or their rates do not hold"
            ),
            Warning::CeilAboveParent { class, ceil, parent } => {
                write!(f, "class {class} has a ceil of {ceil} but its parent's, {parent}, will hold")
            }
            Warning::BurstBelowPacket { class, burst } => {
                write!(f, "class {class} has a burst of {burst}, less than a packet of 1514 bytes: raise it")
            }
            Warning::QuantumBelowPacket { class, quantum } => write!(
                f,
                "class {class} has a quantum of {quantum} bytes, less than a packet of 1514: raise it, or what \
                 is borrowed is not divided in proportion to quanta"
            ),
        }
    }
}

/// The warnings about one class, none of them twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Warnings(pub(crate) [Option<Warning>; 4]);

impl Warnings {
    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Warning> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Whether there is nothing to warn about.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}
