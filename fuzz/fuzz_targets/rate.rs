//! A rate.
#![cfg_attr(feature = "libfuzzer", no_main)]

use weir_units::BitRate;

weir_fuzz::target!(|text: &str| rate(text));

/// A rate is written with three decimals, so that what is read again is at most a thousandth less.
fn rate(text: &str) {
    let Ok(rate) = text.parse::<BitRate>() else { return };
    let Ok(again) = rate.to_string().parse::<BitRate>() else { panic!("{rate} of {text}") };
    let (rate, again) = (rate.bits_per_sec(), again.bits_per_sec());
    assert!(again <= rate && rate - again <= rate / 1000, "{rate} and {again} of {text}");
}
