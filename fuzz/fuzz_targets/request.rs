//! A request to the mirror.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &str)| weir_image::fuzz::request(input.1, input.0));
