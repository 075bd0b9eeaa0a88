//! The second copy of the state.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|text: &str| weir_agent::fuzz::second_copy(text));
