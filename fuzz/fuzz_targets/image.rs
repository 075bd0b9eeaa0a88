//! An image's name.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_image::fuzz::image(text));
