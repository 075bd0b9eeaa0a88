//! Docker's answer about a container.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|bytes: &[u8]| weir_discovery::fuzz::inspected(bytes));
