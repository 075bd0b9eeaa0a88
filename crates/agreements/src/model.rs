use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::{AgreementState, GuaranteeState, Interval, Name, Selector, ServiceState, Terms, Utc};

/// The parties, the end, and the template (`wsag:Context`). The provider of the service is always
/// the responder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// The customer, who makes the offer.
    pub initiator: Name,
    /// The provider, who accepts or rejects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responder: Option<Name>,
    /// When the agreement ends, if its terms do not say; they may not say a later moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Utc>,
    /// The template that the offer was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<Name>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_name: Option<Name>,
}

/// The service of the terms (`wsag:ServiceDescriptionTerm`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The term's name; `server_parameters` in the paper.
    pub term: Name,
    /// The service's name; `httpd` in the paper.
    pub name: Name,
    /// The terms that guarantee the minimum (`wsag:GuaranteeTerm`).
    #[serde(default, skip_serializing_if = "Guarantees::are_usual")]
    pub guarantees: Guarantees,
    /// Where the service is (`wsag:ServiceReference`). It promises nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
}

impl Service {
    /// A service with one guarantee, and without a reference.
    #[must_use]
    pub fn new(term: Name, name: Name) -> Service {
        Service { term, name, guarantees: Guarantees::default(), reference: None }
    }
}

/// The address of a service (`wsag:ServiceReference` with WS-Addressing).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// The term's name.
    pub term: Name,
    /// `wsa:Address`, to the letter.
    pub address: Name,
}

/// The names of the terms that guarantee the minimum. An offer that names none has one, `net_min_bandwidth`.
///
/// Invariant: 1 to [`Guarantees::MAX`] names, each once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Vec<Name>")]
pub struct Guarantees(Vec<Name>);

/// The names break the invariant of [`Guarantees`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot take {0} names of guarantees: write 1 to {max}, each once", max = Guarantees::MAX)]
pub struct GuaranteesError(usize);

impl Guarantees {
    /// The most guarantees of an agreement.
    pub const MAX: usize = 4;

    /// # Errors
    /// There is no name, there are too many, or one is there twice.
    pub fn new(names: Vec<Name>) -> Result<Guarantees, GuaranteesError> {
        let is_there_twice = names.iter().enumerate().any(|(nth, name)| names[..nth].contains(name));
        if names.is_empty() || names.len() > Guarantees::MAX || is_there_twice {
            return Err(GuaranteesError(names.len()));
        }
        Ok(Guarantees(names))
    }

    /// In the document's order.
    pub fn iter(&self) -> std::slice::Iter<'_, Name> {
        self.0.iter()
    }

    /// Whether they are those of an offer that names none.
    #[must_use]
    pub fn are_usual(&self) -> bool {
        *self == Guarantees::default()
    }
}

impl Default for Guarantees {
    fn default() -> Guarantees {
        Guarantees(vec![crate::xml::usual_guarantee()])
    }
}

impl TryFrom<Vec<Name>> for Guarantees {
    type Error = GuaranteesError;

    fn try_from(names: Vec<Name>) -> Result<Guarantees, GuaranteesError> {
        Guarantees::new(names)
    }
}

/// An offer of a customer (`wsag:AgreementOffer`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The customer's own id of it: an accepted offer sent again has the same answer, a refused one is decided again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Name>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The parties, the end, the template.
    pub context: Context,
    /// The service of the terms.
    pub service: Service,
    /// The promise.
    pub terms: Terms,
}

/// A template of a provider (`wsag:Template`): an offer to fill in, and the values that are
/// accepted in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The name that offers use.
    pub id: Name,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The provider.
    pub responder: Name,
    /// The service of the terms.
    pub service: Service,
    /// The terms as they could be offered. Their selector is that of offers without one.
    pub terms: Terms,
    /// The rules of offers.
    #[serde(default)]
    pub constraints: Constraints,
}

/// The rules of offers (`wsag:CreationConstraints`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    /// The least `NetMinBandwidth`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::bounded::optional_rate"
    )]
    pub min_at_least: Option<BitRate>,
    /// The most `NetMinBandwidth`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::bounded::optional_rate"
    )]
    pub min_at_most: Option<BitRate>,
    /// The most `NetMaxBandwidth`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::bounded::optional_rate"
    )]
    pub max_at_most: Option<BitRate>,
    /// The longest time from start to end, in seconds. An offer without an end is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_s: Option<u32>,
}

/// The agreement of both parties (`wsag:AgreementProperties`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    /// The provider's id of it.
    pub id: Name,
    /// Of the agreement.
    pub state: AgreementState,
    /// Of the service.
    pub service_state: ServiceState,
    /// Of the guarantee of the minimum.
    pub guarantee_state: GuaranteeState,
    /// When the offer was answered.
    pub answered: Utc,
    /// The first moment that it is about.
    pub from: Utc,
    /// The first moment that it is no longer about; none if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Utc>,
    /// The packets that it is about: the offer's selector, else its template's, else the service.
    pub selector: Selector,
    /// As it was offered. Of alternatives it has the one that was taken.
    pub offer: Offer,
}

impl Offer {
    /// When it is to end: as its terms say, else as its context says.
    #[must_use]
    pub fn end(&self) -> Option<Utc> {
        self.terms.end.or(self.context.expiration)
    }
}

impl Agreement {
    /// Its packets in words.
    #[must_use]
    pub fn packets(&self) -> String {
        self.offer.terms.direction.packets_of(&self.selector.to_string())
    }

    /// From when to when.
    #[must_use]
    pub fn interval(&self) -> Interval {
        Interval { start: self.from, end: self.until }
    }
}
