//! A registry's list of tags or of referrers.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|input: (bool, &str, &[u8])| weir_image::fuzz::list(input.0, input.2, input.1));
