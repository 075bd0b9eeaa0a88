//! A frame of engine `user`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| weir_datapath::fuzz::packet(input.1, usize::from(input.0)));
