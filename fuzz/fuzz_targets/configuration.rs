//! The configuration file.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_agent::fuzz::configuration(text));
