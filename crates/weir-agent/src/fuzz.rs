//! The parsers of files, for the fuzz targets.

use std::path::Path;

pub use crate::agent::store::fuzz::second_copy;
use crate::config;

/// Parses a configuration. A refusal names the file.
///
/// # Panics
/// The parser never panics.
pub fn configuration(text: &str) {
    if let Err(refusal) = config::parse(text, Path::new("weir.toml")) {
        assert!(refusal.to_string().contains("weir.toml"), "{refusal}");
    }
}
