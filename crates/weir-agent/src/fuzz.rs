//! The parsers of files and of the API server's lines, for the fuzz targets.

use std::path::Path;

use crate::config;
pub use crate::{agent::store::fuzz::second_copy, kubernetes::fuzz::pods};

/// Parses a configuration. A refusal names the file.
///
/// # Panics
/// The parser never panics.
pub fn configuration(text: &str) {
    if let Err(refusal) = config::parse(text, Path::new("weir.toml")) {
        assert!(refusal.to_string().contains("weir.toml"), "{refusal}");
    }
}
