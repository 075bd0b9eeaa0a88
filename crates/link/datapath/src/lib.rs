//! The data path: the engines that hold the link's division, what attaches packets to them, pacing and
//! congestion control of sockets.
//!
//! **Invariant**: nothing here decides how much a class gets. Allocations come in.

pub mod congestion;
pub mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod left;
pub mod pacing;
pub mod super_packets;
