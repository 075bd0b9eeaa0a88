//! A frame of engine `user`.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|input: (u8, &[u8])| weir_datapath::fuzz::packet(input.1, usize::from(input.0)));
