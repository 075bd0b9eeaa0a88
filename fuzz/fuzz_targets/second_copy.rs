//! The second copy of the state.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_agent::fuzz::second_copy(text));
