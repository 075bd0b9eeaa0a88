//! The configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir::fuzz::configuration(text));
