//! A peer's address, and a network of its site.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_image::fuzz::peer(text));
