//! News of the site.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| weir_image::fuzz::site_event(text));
