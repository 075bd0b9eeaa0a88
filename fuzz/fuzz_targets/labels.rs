//! The labels of a container.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_discovery::fuzz::labels(text));
