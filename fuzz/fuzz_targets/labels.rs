//! The labels of a container.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_discovery::fuzz::labels(text));
