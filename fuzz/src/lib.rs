//! The fuzz targets of weir: each reads input that a stranger has a hand in.

#[cfg(feature = "libfuzzer")]
#[doc(hidden)]
pub use libfuzzer_sys;

/// Makes a program a fuzz target, which calls this function with each input.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! target {
    (|$input:ident: $kind:ty| $call:expr) => {
        $crate::libfuzzer_sys::fuzz_target!(|$input: $kind| $call);
    };
}

/// Makes a program a fuzz target. Without libFuzzer it does nothing, and the compiler checks it.
#[cfg(not(feature = "libfuzzer"))]
#[macro_export]
macro_rules! target {
    (|$input:ident: $kind:ty| $call:expr) => {
        fn main() {
            let _ = |$input: $kind| $call;
        }
    };
}
