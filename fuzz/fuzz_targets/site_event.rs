//! News of the site.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_image::fuzz::site_event(text));
