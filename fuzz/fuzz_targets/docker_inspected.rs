//! Docker's answer about a container.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_discovery::fuzz::inspected(bytes));
