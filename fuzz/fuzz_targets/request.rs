//! A request to the mirror.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|input: (u64, &str)| weir_image::fuzz::request(input.1, input.0));
