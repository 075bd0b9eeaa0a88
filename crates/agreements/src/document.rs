//! The three languages of a document, and the reading of JSON and TOML.

use std::{fmt, str::FromStr};

use serde::{Serialize, de::DeserializeOwned};
use weir_units::plain_words;

use crate::{Agreement, Fault, FaultCode, Offer, Place, Template, xml};

/// The largest document that is read, in bytes. One with every term and names of the greatest
/// length has less than three quarters of it.
pub const MAX_DOCUMENT: usize = 64 * 1024;

/// The language of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// WS-Agreement.
    Xml,
    /// The fields of this crate's types.
    Json,
    /// The same fields.
    Toml,
}

/// The text is not a language.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read or write documents in `{0}`: say xml, json or toml")]
pub struct LanguageError(pub String);

impl Language {
    /// All of them.
    pub const ALL: [Language; 3] = [Language::Xml, Language::Json, Language::Toml];

    /// By how the document begins: `<` for XML, `{` for JSON, else TOML.
    #[must_use]
    pub fn guess(text: &str) -> Language {
        match text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']).as_bytes().first() {
            Some(b'<') => Language::Xml,
            Some(b'{') => Language::Json,
            _ => Language::Toml,
        }
    }

    /// As in the header `Content-Type`.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Language::Xml => "application/xml",
            Language::Json => "application/json",
            Language::Toml => "application/toml",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Language::Xml => "xml",
            Language::Json => "json",
            Language::Toml => "toml",
        })
    }
}

impl FromStr for Language {
    type Err = LanguageError;
    fn from_str(text: &str) -> Result<Language, LanguageError> {
        Language::ALL
            .into_iter()
            .find(|language| language.to_string() == text)
            .ok_or_else(|| LanguageError(text.to_owned()))
    }
}

/// A document that can be read and written in every [`Language`]: [`Template`], [`Offer`],
/// [`Agreement`].
///
/// In XML prefixes are free and namespaces count: [`WSAG`](crate::WSAG) for WS-Agreement's own
/// elements and attributes, [`QOS`](crate::QOS) for the paper's `ServerParams`,
/// [`WEIR`](crate::WEIR) for what neither has a word for. Units of bandwidth are `bps`, `Kbps`,
/// `Mbps`, `Gbps` (10^3) and `Kibps`, `Mibps`, `Gibps` (2^10). In every language, what is not known
/// is refused: a term that is not understood cannot be promised.
pub trait Document: Serialize + DeserializeOwned + xml::XmlDocument {
    /// Reads it.
    ///
    /// # Errors
    /// A [`Fault`] with the place and what would be accepted there.
    fn read(text: &str, language: Language) -> Result<Self, Fault> {
        if text.len() > MAX_DOCUMENT {
            let message = format!(
                "cannot read a document of {} bytes: the largest that is read has {MAX_DOCUMENT}",
                text.len()
            );
            return Err(Fault::new(FaultCode::DocumentTooLarge, message));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match language {
            Language::Xml => xml::read(text),
            Language::Json => read_json(text),
            Language::Toml => read_toml(text),
        }
    }

    /// Writes it. A written document reads as the same again, if its rates are not above
    /// [`BitRate::MAX`](weir_units::BitRate::MAX). No rate that was read is.
    #[must_use]
    fn write(&self, language: Language) -> String {
        match language {
            Language::Xml => xml::write(self),
            Language::Json => serde_json::to_string_pretty(self).unwrap_or_default(),
            Language::Toml => toml::to_string_pretty(self).unwrap_or_default(),
        }
    }
}

impl Document for Template {}
impl Document for Offer {}
impl Document for Agreement {}

fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(text.as_bytes());
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        json_fault(&path, error.inner())
    })?;
    json.end().map_err(|error| json_fault(".", &error))?;
    Ok(value)
}

fn json_fault(path: &str, error: &serde_json::Error) -> Fault {
    let code = if error.is_data() { value_code(&error.to_string()) } else { FaultCode::Malformed };
    let (line, column) = (Some(error.line() as u64), Some(error.column() as u64));
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    fault(code, path, line, column, "json", &plain_words(message))
}

fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    let table = toml::Deserializer::parse(text).map_err(|error| toml_fault(text, ".", &error, true))?;
    serde_path_to_error::deserialize(table).map_err(|error| {
        let path = error.path().to_string();
        toml_fault(text, &path, error.inner(), false)
    })
}

fn toml_fault(text: &str, path: &str, error: &toml::de::Error, malformed: bool) -> Fault {
    let code = if malformed { FaultCode::Malformed } else { value_code(error.message()) };
    let at = error.span().map(|span| crate::position::position(text, span.start));
    fault(code, path, at.map(|at| at.0), at.map(|at| at.1), "toml", &plain_words(error.message()))
}

/// The rule for fields that an error of serde's is about.
fn value_code(message: &str) -> FaultCode {
    match message {
        m if m.starts_with("unknown field") => FaultCode::UnknownElement,
        m if m.starts_with("missing field") => FaultCode::Missing,
        m if m.starts_with("duplicate field") => FaultCode::Repeated,
        _ => FaultCode::BadValue,
    }
}

fn fault(
    code: FaultCode,
    path: &str,
    line: Option<u64>,
    column: Option<u64>,
    language: &str,
    message: &str,
) -> Fault {
    let what = if path == "." { "the document".to_owned() } else { path.to_owned() };
    let mut text = format!("cannot read {what}");
    if let (Some(line), Some(column)) = (line, column) {
        text += &format!(" at line {line}, column {column}");
    }
    text += &format!(" of the {language}: {message}");
    Fault { at: Some(Box::new(Place { what, line, column })), ..Fault::new(code, text) }
}
