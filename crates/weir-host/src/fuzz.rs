//! The parsers of what Docker says and of packets, for the fuzz targets.

pub use crate::{discover::docker::fuzz::*, engine::cut as packet};
