//! The place that a registry sends to.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_image::fuzz::redirect(text));
