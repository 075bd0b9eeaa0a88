use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name or id of a party, a document, a service, a container.
///
/// Invariant: 1 to [`Name::MAX_LEN`] bytes; no control characters, no space at either end, and
/// nothing that XML cannot hold, so that every language carries it unchanged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

/// The text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot take `{shown}` ({bytes} bytes) as a name: write 1 to {max} bytes without control characters and \
     without space at the ends",
    max = Name::MAX_LEN
)]
pub struct NameError {
    /// The beginning of the text, escaped.
    pub shown: String,
    /// How long the text is.
    pub bytes: usize,
}

impl Name {
    /// The length of the longest name, in bytes.
    pub const MAX_LEN: usize = 256;

    /// Takes the text as a name.
    ///
    /// # Errors
    /// [`NameError`] if it breaks the invariant.
    pub fn new(text: &str) -> Result<Name, NameError> {
        let forbidden = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
        if text.is_empty() || text.len() > Name::MAX_LEN || text.trim() != text || text.contains(forbidden) {
            let shown = text.chars().take(32).flat_map(char::escape_debug).collect();
            return Err(NameError { shown, bytes: text.len() });
        }
        Ok(Name(text.into()))
    }

    /// The first of all names in order: the first character that a name can begin with.
    pub(crate) fn least() -> Name {
        Name("!".into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::new(text)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Name {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let text = String::deserialize(deserializer)?;
        Name::new(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_holds_nothing_that_some_language_would_change() {
        for text in ["httpd", "Ünïcode & <tags>", "a  b", &"x".repeat(256)] {
            assert_eq!(Name::new(text).unwrap().as_str(), text);
        }
        for text in ["", " a", "a\n", "a\nb", "a\u{0}", "a\u{ffff}", "\u{a0}a", &"x".repeat(257)] {
            assert!(Name::new(text).is_err(), "{text:?}");
        }
        let first = (0..=0x10_ffff).filter_map(char::from_u32).find(|c| Name::new(&c.to_string()).is_ok());
        assert_eq!(first.map(|c| c.to_string()).as_deref(), Some(Name::least().as_str()));
        assert!(Name::new(&"\n".repeat(1 << 20)).unwrap_err().shown.len() < 100);
    }
}
