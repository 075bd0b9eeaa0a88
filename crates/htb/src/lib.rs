//! The hierarchical token bucket in user space: who may send next, and when.
//!
//! Pure: no clock, no I/O, no allocation after construction; time is an argument. So the same
//! code runs in virtual time in tests, on a cycle counter in a data path, and in a simulation.
//!
//! # Model
//!
//! Classes form a tree of any depth. Each has a `rate` that it is assured of, a `ceil` that it never
//! exceeds, and a bucket for both. Packets wait in the leaves. A leaf
//! * *can send* while it has tokens of its own rate,
//! * *may borrow* while it has none of its rate but some of its ceiling: then the lowest ancestor
//!   with tokens pays, and
//! * *cannot send* while its ceiling is used up.
//!
//! For each packet, the ceilings of all on the way to the root are charged, and the rates of the
//! payer and all above it. Of the classes that can send at the lowest level, the lowest `prio` goes
//! first; equals take turns by deficit round robin, each with its `quantum` of bytes.
//!
//! ```
//! use weir_htb::{ClassId, Htb, Limits, Next, Packet, Params};
//! use weir_units::{BitRate, Instant};
//! use std::time::Duration;
//!
//! let mut htb = Htb::new(Limits::default(), Instant::default());
//! let [link, web, backup] = [ClassId(1), ClassId(10), ClassId(20)];
//! htb.add(link, None, Params::new(BitRate::mbit(10)))?;
//! htb.add(web, Some(link), Params::new(BitRate::mbit(8)).ceil(BitRate::mbit(10)))?;
//! htb.add(backup, Some(link), Params::new(BitRate::mbit(2)).ceil(BitRate::mbit(10)))?;
//!
//! // 100 packets each. `handle` is what the caller knows a packet by.
//! for handle in 0..100 {
//!     htb.enqueue(web, Packet { handle, len: 1_250 })?;
//!     htb.enqueue(backup, Packet { handle, len: 1_250 })?;
//! }
//! let (mut now, mut sent) = (Instant::default(), [0, 0]);
//! while now < Instant(Duration::from_millis(100)) {
//!     match htb.dequeue(now) {
//!         Next::Packet(departure) => sent[usize::from(departure.leaf == backup)] += 1,
//!         Next::At(then) => now = then,
//!         Next::Empty => break,
//!     }
//! }
//! // 100 ms at 10 Mbit/s are 100 packets and the first burst, in shares of 8 to 2.
//! assert!((79..=83).contains(&sent[0]) && (20..=23).contains(&sent[1]), "{sent:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # As in the kernel, and not
//!
//! Modes, charging, lending, levels, priorities, quanta, the 60 s after which debt is forgiven, and
//! what a change keeps (tokens, as time) are those of Linux's `sch_htb` without hysteresis. On
//! purpose different:
//! * Time is exact to 1/256 ns instead of 1 ns, or 64 bytes at 400 Gbit/s would be 22 % too fast.
//! * All moments that have come are acted upon before a packet is chosen. The kernel leaves
//!   those of higher levels until nothing lower can send, and stops after two jiffies.
//! * A turn that was interrupted (the leaf's tokens or packets ended) goes on from the same place
//!   in all lists; the kernel does so among borrowers only. So the order of moments that
//!   come together has no effect.
//! * A bucket deeper than 60 s fills up like others.
//! * A changed `prio` holds at once, also for packets that wait.
//! * A leaf with packets is not silently emptied: making it a parent, or removing it, is refused until
//!   its packets were [taken out](Htb::drain), as only the caller can free them.
//! * There is no direct queue: a packet for a class that is unknown or not a leaf is refused.
//!
//! # How, and at what cost
//!
//! A bucket is one moment instead of tokens and a time ("empty until"), so nothing is refilled.
//! Classes that take turns together are bits of a three-level bitmap in the order of their
//! identifiers; classes that wait for tokens lie in a hierarchical timing wheel. Empty classes are
//! in neither. Packets are in one pool, seven of a leaf in a line of the cache.
//!
//! | operation | cost, with depth `d` of the leaf and `n` classes |
//! |---|---|
//! | [`Htb::enqueue`] | constant; when the leaf was empty, up to `d` ancestors join in |
//! | [`Htb::dequeue`] | `d` charges; each change of mode constant, up to `d` ancestors join or leave |
//! | [`Htb::change`], [`Htb::remove`] | constant |
//! | [`Htb::add`] | constant; the first packet or change after added classes pays `n` once |
//!
//! [`Htb::dequeue_batch`] is the cheaper way to ask: what is above who pays is charged once a turn, and
//! once for all turns of siblings with tokens of their own. Below one link, with packets of 64 bytes,
//! 800 users who always have packets cost 170 instructions a packet, in and out: a turn is up to 24 packets,
//! and what comes together is taken in a leaf at a time ([`Htb::enqueue_batch`]). Where each packet is a turn,
//! and its leaf's first and last, it is 490; where users borrow and change their mode with each packet, 600.
//! `tests/instructions.rs` holds these.
//!
//! # On several cores
//!
//! [`Htb::into_pipeline`] splits a tree into an enqueue stage and a dequeue stage for a thread each, with
//! the same packets leaving at the same moments; [`shards()`] divides the classes below one root among
//! trees that share its rate, within a hundredth of what one tree gives.
//!
//! Memory: some 510 bytes a class with the default depth, 9 a packet.

#![forbid(unsafe_code)]

mod bits;
mod bucket;
mod build;
mod class;
mod error;
mod htb;
mod layout;
mod packets;
mod params;
mod pipeline;
pub mod ring;
mod schedule;
mod shards;
mod tree;
mod wheel;

pub use build::ClassSpec;
pub use class::{Stats, Tokens};
pub use error::{ClassError, EnqueueError};
pub use htb::{Departure, Htb, Next};
pub use params::{ClassId, Limits, Packet, Params, Warning, Warnings};
pub use pipeline::{Intake, Outlet};
pub use shards::{Shard, shards};
