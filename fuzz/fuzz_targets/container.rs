//! A container in an answer of containerd.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|input: (&str, &[u8])| weir_discovery::fuzz::container(input.0, input.1));
