//! An offer in TOML.
#![cfg_attr(feature = "libfuzzer", no_main)]

use weir_agree::{Document, Language, Offer};

weir_fuzz::target!(|text: &str| document(text, Language::Toml));

/// A document that is read is the same once written and read again.
fn document(text: &str, language: Language) {
    let Ok(offer) = Offer::read(text, language) else { return };
    let written = offer.write(language);
    assert_eq!(Offer::read(&written, language).as_ref(), Ok(&offer), "{written}");
}
