//! The second copy of the state.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir::fuzz::second_copy(text));
