//! Links whose rate changes, simulated packet by packet, and the schemes that set their capacity.
//!
//! The tests of `weir-autorate` and the lab's experiments share it. It reads no clock.

mod arrivals;
mod cake_autorate;
mod cubic;
mod probes;
mod scheme;
mod simulation;
mod traces;
mod turns;

pub use arrivals::Arrivals;
pub use scheme::Scheme;
pub use simulation::{Moment, Outcome, Scene};
pub use traces::{Link, Trace, constant};
