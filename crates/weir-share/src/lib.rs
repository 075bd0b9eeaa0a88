//! How a link is shared: policies and demands in, allocations out.
//!
//! Pure: no clock, no I/O, no randomness.

mod policy;

pub use policy::{Demand, Policy, PolicyError, Weight, WeightError};
