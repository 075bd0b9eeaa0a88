use std::time::Duration;

use weir_units::Bytes;

use crate::{
    Params,
    bucket::{self, Price},
};

/// No class, no packet.
pub(crate) const NONE: u32 = u32::MAX;

/// The mode of a class now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    CanSend,
    MayBorrow,
    CannotSend,
}

/// The fields of a class used for each packet: two lines of the cache.
///
/// **Invariant**: while `activity` is not zero, `mode` is that of the wheel's moment, and unless
/// it is `CanSend` the wheel holds a moment not after that at which it ends.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Class {
    /// There are no tokens of `rate` before this.
    pub(crate) empty_until: u64,
    /// There are no tokens of `ceil` before this.
    pub(crate) cempty_until: u64,
    pub(crate) depth: u64,
    pub(crate) cdepth: u64,
    pub(crate) price: Price,
    pub(crate) cprice: Price,
    pub(crate) parent: u32,
    /// A leaf's first packet.
    pub(crate) head: u32,
    pub(crate) mode: Mode,
    /// Leaves have 0, parents that many more the closer they are to the root.
    pub(crate) level: u8,
    /// The priorities it has packets of: a leaf its own, a parent those of children that may
    /// borrow.
    pub(crate) activity: u8,
    pub(crate) prio: u8,
    pub(crate) backlog: u32,

    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) lended: u64,
    pub(crate) borrowed: u64,
    pub(crate) overlimits: u64,
    pub(crate) quantum: i32,
    /// The rest of a leaf's turn among those with tokens of their own, in bytes.
    pub(crate) deficit: i32,
    /// Its place among its siblings, in the bitmaps of borrowers.
    pub(crate) place: u32,
    /// The place of its first child.
    pub(crate) first: u32,
    /// How many places its children have.
    pub(crate) span: u32,
}

impl Class {
    pub(crate) fn new(params: &Params, parent: u32) -> Class {
        let mut class = Class {
            empty_until: 0,
            cempty_until: 0,
            depth: 0,
            cdepth: 0,
            price: Price::at(params.rate),
            cprice: Price::at(params.ceil),
            parent,
            head: NONE,
            mode: Mode::CanSend,
            level: 0,
            activity: 0,
            prio: params.prio,
            backlog: 0,
            packets: 0,
            bytes: 0,
            lended: 0,
            borrowed: 0,
            overlimits: 0,
            quantum: 0,
            deficit: 0,
            place: NONE,
            first: 0,
            span: 0,
        };
        class.set(params);
        class
    }

    /// All of `params` but the priority. The buckets keep their tokens, as time.
    pub(crate) fn set(&mut self, params: &Params) {
        self.price = Price::at(params.rate);
        self.cprice = Price::at(params.ceil);
        self.depth = self.price.depth(params.effective_burst());
        self.cdepth = self.cprice.depth(params.effective_cburst());
        self.quantum = params.effective_quantum() as i32;
    }

    pub(crate) fn fill_buckets(&mut self, now: u64) {
        (self.empty_until, self.cempty_until) = (now - self.depth, now - self.cdepth);
    }

    #[inline]
    pub(crate) fn mode_at(&self, now: u64) -> Mode {
        if now < self.cempty_until {
            Mode::CannotSend
        } else if now < self.empty_until {
            Mode::MayBorrow
        } else {
            Mode::CanSend
        }
    }

    /// When `mode` ends, if it is not `CanSend`.
    #[inline]
    pub(crate) fn mode_ends(&self) -> u64 {
        if self.mode == Mode::CannotSend { self.cempty_until } else { self.empty_until }
    }

    /// Packets of equal length take from `rate`. Rounding is by packet, so that together they pay
    /// what each does.
    #[inline]
    pub(crate) fn take_rate(&mut self, now: u64, len: u32, packets: u32) {
        let cost = self.price.of(len).saturating_mul(packets.into());
        self.empty_until = bucket::take(self.empty_until, now, self.depth, cost);
    }

    /// The same from `ceil`.
    #[inline]
    pub(crate) fn take_ceil(&mut self, now: u64, len: u32, packets: u32) {
        let cost = self.cprice.of(len).saturating_mul(packets.into());
        self.cempty_until = bucket::take(self.cempty_until, now, self.cdepth, cost);
    }
}

/// The fields of a leaf used when a packet comes.
#[derive(Debug, Clone)]
pub(crate) struct LeafQueue {
    /// The last packet.
    pub(crate) tail: u32,
    pub(crate) limit: u32,
    /// Longer packets are giants.
    pub(crate) giant: u32,
    pub(crate) drops: u32,
}

/// The fields used when the tree changes.
#[derive(Debug, Clone)]
pub(crate) struct ClassConfig {
    pub(crate) params: Params,
    pub(crate) children: u32,
    /// The sum of the children's rates, in bit/s.
    pub(crate) assured: u64,
    /// How many classes are above it.
    pub(crate) above: u8,
    pub(crate) giants: u64,
}

/// The fate of a class's packets; the kernel's counters of an HTB class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets that left, of a parent those of all leaves below.
    pub packets: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// Packets that wait; in a parent none.
    pub backlog: u32,
    /// Their bytes.
    pub backlog_bytes: Bytes,
    /// Packets paid by this class, for itself or for one below.
    pub lended: u64,
    /// Packets paid by a class above.
    pub borrowed: u64,
    /// Times that the ceiling was used up.
    pub overlimits: u64,
    /// Packets that were refused at a leaf.
    pub drops: u32,
    /// Packets taken by a leaf that are longer than one of its bursts hold.
    pub giants: u64,
    /// Tokens of `rate`, as time.
    pub tokens: Tokens,
    /// Tokens of `ceil`, as time.
    pub ctokens: Tokens,
}

/// The content of a bucket, as time to earn it. Rounded down to nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// The bytes that may be sent at once.
    Have(Duration),
    /// So long until anything may be sent.
    Owe(Duration),
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens::Have(Duration::ZERO)
    }
}

impl Tokens {
    pub(crate) fn of(empty_until: u64, depth: u64, now: u64) -> Tokens {
        let time = |ticks: u64| Duration::from_nanos(ticks / bucket::TICKS_PER_NS);
        match now.checked_sub(empty_until) {
            Some(have) => Tokens::Have(time(have.min(depth))),
            None => Tokens::Owe(time(empty_until - now)),
        }
    }
}
