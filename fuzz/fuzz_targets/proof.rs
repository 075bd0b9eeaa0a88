//! The proof in a peer's request.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &str)| weir_image::fuzz::proof(input.0.into(), input.1.into(), input.2));
