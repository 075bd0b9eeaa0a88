//! A manifest of a registry.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|bytes: &[u8]| weir_image::fuzz::manifest(bytes));
