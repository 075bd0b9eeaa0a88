//! Faults: why a document, an offer or a command is refused, in words and in fields.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::{Earliest, Language, Refusal, Utc, xml};

macro_rules! codes {
    ($($(#[$doc:meta])+ $code:ident = $name:literal,)+) => {
        /// The kind of the fault, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum FaultCode {
            $($(#[$doc])+ #[serde(rename = $name)] $code,)+
        }

        impl FaultCode {
            /// The code as text, as in JSON and XML.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(FaultCode::$code => $name,)+ }
            }
        }
    };
}

codes! {
    /// The document is too large.
    DocumentTooLarge = "document-too-large",
    /// It is not well-formed in its language.
    Malformed = "malformed",
    /// It has a document type definition.
    Dtd = "dtd",
    /// It has an entity other than XML's own five.
    Entity = "entity",
    /// Its elements are nested too deeply.
    TooDeep = "too-deep",
    /// An element has too many attributes.
    TooManyAttributes = "too-many-attributes",
    /// A text or an attribute is too long.
    TooLong = "too-long",
    /// Its outermost element is another.
    WrongDocument = "wrong-document",
    /// A namespace that is not known, or a prefix that stands for none.
    UnknownNamespace = "unknown-namespace",
    /// An element that is not known there.
    UnknownElement = "unknown-element",
    /// An attribute that is not known there.
    UnknownAttribute = "unknown-attribute",
    /// Something is missing.
    Missing = "missing",
    /// Something is there twice.
    Repeated = "repeated",
    /// A value that means nothing.
    BadValue = "bad-value",
    /// A unit of bandwidth that is not known.
    UnknownUnit = "unknown-unit",
    /// A bandwidth below zero.
    Negative = "negative",
    /// A bandwidth that is no number.
    NotANumber = "not-a-number",
    /// Terms that contradict themselves.
    Contradiction = "contradiction",
    /// [`Refusal::BelowGrain`].
    BelowGrain = "below-grain",
    /// [`Refusal::TooLarge`].
    RateTooLarge = "rate-too-large",
    /// [`Refusal::MinAboveMax`].
    MinAboveMax = "min-above-max",
    /// [`Refusal::MaxAboveReservable`].
    MaxAboveReservable = "max-above-reservable",
    /// [`Refusal::EndBeforeStart`].
    EndBeforeStart = "end-before-start",
    /// [`Refusal::ZeroLength`].
    ZeroLength = "zero-length",
    /// [`Refusal::StartInPast`].
    StartInPast = "start-in-past",
    /// [`Refusal::TooFarAhead`].
    TooFarAhead = "too-far-ahead",
    /// The terms end after the context's expiration.
    EndAfterExpiration = "end-after-expiration",
    /// [`Refusal::NoCapacity`] and [`Refusal::NoCapacityToExtend`].
    NoCapacity = "no-capacity",
    /// [`Refusal::NotLater`], [`Refusal::NoEnd`] and [`Refusal::Over`].
    CannotExtend = "cannot-extend",
    /// The template is not known.
    UnknownTemplate = "unknown-template",
    /// The offer breaks a constraint of its template.
    OutsideTemplate = "outside-template",
    /// Another agreement selects the same packets at the same time.
    SelectorTaken = "selector-taken",
    /// Another offer had the same id.
    OfferIdReused = "offer-id-reused",
    /// The id is another agreement's.
    AgreementIdTaken = "agreement-id-taken",
    /// Offers come too fast.
    TooManyOffers = "too-many-offers",
    /// There are as many agreements as may be.
    TooManyAgreements = "too-many-agreements",
    /// There is no such agreement.
    UnknownAgreement = "unknown-agreement",
    /// That cannot happen to the agreement in its state.
    IllegalTransition = "illegal-transition",
    /// The provider makes no agreements.
    AgreementsOff = "agreements-off",
    /// The provider does not divide its spare bandwidth in the way that is asked for.
    ShareNotOffered = "share-not-offered",
    /// The provider promises nothing in that direction, or not for these packets.
    DirectionNotOffered = "direction-not-offered",
    /// The document is in none of the languages, or the answer is wanted in none of them.
    UnknownLanguage = "unknown-language",
    /// It is not known whether it was recorded: ask again, with the same id.
    NotRecorded = "not-recorded",
    /// The caller has no right to it.
    Forbidden = "forbidden",
    /// The provider gave no answer in time.
    Busy = "busy",
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The element, attribute or field.
    pub what: String,
    /// Its line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Its column in characters, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
}

/// The offer that would be accepted instead. Each is a change of the offer by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CounterOffer {
    /// The largest minimum over the whole time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<BitRate>,
    /// The largest maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<BitRate>,
    /// The earliest start, for as long as was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Utc>,
    /// The earliest start is not before this; how much later was not found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_not_before: Option<Utc>,
    /// The latest end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Utc>,
}

/// A refusal as it is answered (`wsag:ContinuingFault`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct Fault {
    /// The kind of the fault.
    pub code: FaultCode,
    /// The refusal and its reason, for people.
    pub message: String,
    /// Where in the document, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Box<Place>>,
    /// The values that would be accepted there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
    /// The offers that would be accepted instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter_offer: Option<Box<CounterOffer>>,
    /// After how many milliseconds to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Fault {
    /// One without details.
    #[must_use]
    pub fn new(code: FaultCode, message: String) -> Fault {
        Fault { code, message, at: None, accepted: Vec::new(), counter_offer: None, retry_after_ms: None }
    }

    /// Writes it in that language; `now` is the time of it that WS-Agreement wants. In JSON and
    /// TOML everything is below the key `fault`.
    #[must_use]
    pub fn write(&self, language: Language, now: Utc) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            fault: &'a Fault,
        }
        let whole = Whole { fault: self };
        match language {
            Language::Xml => xml::write_fault(self, now),
            Language::Json => serde_json::to_string_pretty(&whole).unwrap_or_default(),
            Language::Toml => toml::to_string_pretty(&whole).unwrap_or_default(),
        }
    }
}

impl From<&Refusal> for Fault {
    fn from(refusal: &Refusal) -> Fault {
        let mut counter = CounterOffer::default();
        let code = match refusal {
            Refusal::BelowGrain { .. } => FaultCode::BelowGrain,
            Refusal::TooLarge { .. } => FaultCode::RateTooLarge,
            Refusal::MinAboveMax { .. } => FaultCode::MinAboveMax,
            Refusal::MaxAboveReservable { reservable, .. } => {
                counter.max = Some(*reservable);
                FaultCode::MaxAboveReservable
            }
            Refusal::EndBeforeStart { .. } => FaultCode::EndBeforeStart,
            Refusal::ZeroLength { .. } => FaultCode::ZeroLength,
            Refusal::StartInPast { .. } => FaultCode::StartInPast,
            Refusal::TooFarAhead { .. } => FaultCode::TooFarAhead,
            Refusal::NotLater { .. } | Refusal::NoEnd | Refusal::Over { .. } => FaultCode::CannotExtend,
            Refusal::NoCapacityToExtend { end, busiest, .. } => {
                counter.end = (busiest > end).then_some(*busiest);
                FaultCode::NoCapacity
            }
            Refusal::NoCapacity(shortage) => {
                counter.min = shortage.largest_min;
                match shortage.earliest {
                    Earliest::At(start) => counter.start = Some(start),
                    Earliest::NotBefore(moment) => counter.start_not_before = Some(moment),
                    Earliest::Never | Earliest::Unknown => {}
                }
                FaultCode::NoCapacity
            }
        };
        let counter_offer = (counter != CounterOffer::default()).then(|| Box::new(counter));
        Fault { counter_offer, ..Fault::new(code, refusal.to_string()) }
    }
}
