//! Lines of a watch of pods, in two pieces.
#![cfg_attr(feature = "libfuzzer", no_main)]

weir_fuzz::target!(|pieces: (&[u8], &[u8])| weir_agent::fuzz::pods(pieces));
