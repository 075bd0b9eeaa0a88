//! A line of Docker's events.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_discovery::fuzz::event(bytes));
