//! A peer's address, and a network of its site.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_image::fuzz::peer(text));
