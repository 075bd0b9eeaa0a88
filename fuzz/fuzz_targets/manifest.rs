//! A manifest of a registry.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_image::fuzz::manifest(bytes));
