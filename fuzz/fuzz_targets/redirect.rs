//! The place that a registry sends to.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_image::fuzz::redirect(text));
