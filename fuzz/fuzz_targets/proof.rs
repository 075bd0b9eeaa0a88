//! The proof in a peer's request.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|input: (u8, u8, &str)| weir_image::fuzz::proof(input.0.into(), input.1.into(), input.2));
