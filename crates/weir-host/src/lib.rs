//! The kernel's side of weir: netlink, the engines, and finding containers.
//!
//! **Invariant**: nothing here decides who gets how much; that comes in as allocations.

pub mod discover;
pub mod doctor;
pub mod engine;
pub mod netlink;
