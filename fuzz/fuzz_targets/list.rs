//! A registry's list of tags or of referrers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &str, &[u8])| weir_image::fuzz::list(input.0, input.2, input.1));
