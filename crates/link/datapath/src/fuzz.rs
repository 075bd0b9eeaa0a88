//! The parser of packets, for its fuzz target.

pub use crate::engine::cut as packet;
