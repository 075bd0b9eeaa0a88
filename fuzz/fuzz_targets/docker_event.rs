//! A line of Docker's events.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|bytes: &[u8]| weir_discovery::fuzz::event(bytes));
