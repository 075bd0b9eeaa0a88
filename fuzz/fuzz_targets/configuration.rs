//! The configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_agent::fuzz::configuration(text));
