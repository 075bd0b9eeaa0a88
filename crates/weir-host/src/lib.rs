//! The kernel's side of weir: netlink, the engines, and finding containers.
//!
//! **Invariant**: nothing here decides who gets how much; that comes in as allocations.

pub mod congestion;
pub mod containerd;
pub mod discover;
pub mod doctor;
pub mod engine;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod netlink;
pub mod pacing;

/// An error with its causes on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
