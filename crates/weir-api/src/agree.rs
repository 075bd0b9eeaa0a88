//! Agreements as the agent reports them, and the calls about them.

use hyper::Method;
use serde::{Deserialize, Serialize};
use weir_agree::{Agreement, Direction, Name, Offer, Report, Share, Template, Utc, Violation};
use weir_units::{BitRate, Bytes};

use crate::{Client, ClientError, client::segment};

/// An agreement and its state on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgreementStatus {
    /// The terms that bind both parties.
    pub agreement: Agreement,
    /// The rates to enforce now; `None` outside its time.
    pub in_force: Option<InForce>,
    /// The class of its packets now, as `source:name`.
    pub class: Option<String>,
    /// The reason and the remedy if it is in force and not enforced.
    pub not_enforced_because: Option<String>,
    /// How this node shares the spare capacity; the terms may leave that open.
    #[serde(default)]
    pub share: Share,
    /// Bytes that passed under it today (UTC), in its directions.
    pub sent_today: Bytes,
    /// Bytes that passed under it this month (UTC), in its directions.
    pub sent_this_month: Bytes,
    /// This month's violations of its guarantee. The last one may still go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
}

/// An agreement's rates at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InForce {
    /// The guarantee, bit/s.
    pub min: BitRate,
    /// The ceiling, bit/s.
    pub max: BitRate,
    /// When the quota renews, if it is used up.
    pub limited_until: Option<Utc>,
}

/// The answer to an offer that is accepted or pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfferAnswer {
    /// The agreement. It is pending if an operator must decide.
    pub agreement: Agreement,
    /// Whether the same offer was answered before.
    pub repeated: bool,
    /// The excess, if more is promised than the link has.
    pub oversubscribed: Option<Oversubscribed>,
}

/// The excess of promises over the link, where oversubscription allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Oversubscribed {
    /// The configured factor.
    pub factor: weir_agree::Oversubscription,
    /// The excess of the busiest moment's promises over the reservable rate.
    pub excess: BitRate,
}

/// Promised and free bandwidth over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalendarView {
    /// The direction of the promises.
    #[serde(default)]
    pub direction: Direction,
    /// B_eth, the link's capacity in that direction.
    pub link: BitRate,
    /// `U_res B_eth`, the largest guarantee of one agreement.
    pub reservable: BitRate,
    /// The sum that may be promised. Oversubscription raises it; minima of classes lower it.
    pub promisable: BitRate,
    /// `U_oth B_eth`, the part of traffic without an agreement.
    pub other: BitRate,
    /// Whether `other` is a ceiling for that traffic while an agreement is in force.
    pub other_is_ceiling: bool,
    /// The moments of change, each with the promises from then on. The first is `from`.
    pub steps: Vec<CalendarStep>,
}

/// One step of a [`CalendarView`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalendarStep {
    /// Start of the step.
    pub from: Utc,
    /// The promised rate.
    pub reserved: BitRate,
    /// The rate that may still be promised.
    pub free: BitRate,
}

impl Client {
    /// The templates of the offers that the node accepts.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if the node makes no agreements.
    pub fn templates(&self) -> Result<Vec<Template>, ClientError> {
        self.get("/v1/agreements/templates")
    }

    /// Offers an agreement.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] with the reason and an acceptable alternative.
    pub fn offer(&self, offer: &Offer) -> Result<OfferAnswer, ClientError> {
        self.call(Method::POST, "/v1/agreements/offers", Some(offer))
    }

    /// All agreements with their state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn agreements(&self) -> Result<Vec<AgreementStatus>, ClientError> {
        self.get("/v1/agreements/status")
    }

    /// One agreement by its id.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn agreement(&self, id: &str) -> Result<AgreementStatus, ClientError> {
        self.get(&format!("/v1/agreements/{}/status", segment(id)))
    }

    /// Ends an agreement now, or withdraws a pending offer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn terminate(&self, id: &str) -> Result<Agreement, ClientError> {
        self.call(Method::DELETE, &format!("/v1/agreements/{}", segment(id)), None::<&()>)
    }

    /// Moves an agreement's end; `None` means no end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn renew(&self, id: &str, end: Option<Utc>) -> Result<Agreement, ClientError> {
        let end = end.map_or("never".to_owned(), |end| end.to_string());
        let path = format!("/v1/agreements/{}/renew?end={}", segment(id), segment(&end));
        self.call(Method::POST, &path, None::<&()>)
    }

    /// Accepts or rejects a pending offer.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if the offer can no longer be accepted.
    pub fn decide(&self, id: &Name, accept: bool) -> Result<Agreement, ClientError> {
        let verb = if accept { "accept" } else { "reject" };
        let path = format!("/v1/agreements/{}/{verb}", segment(id.as_str()));
        self.call(Method::POST, &path, None::<&()>)
    }

    /// The promises of a month in UTC (`2026-11`), and how far they were kept. The default is this
    /// month.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if that month has no record of it.
    pub fn report(&self, id: &str, month: Option<&str>) -> Result<Report, ClientError> {
        let month = month.map_or(String::new(), |month| format!("?month={}", segment(month)));
        self.get(&format!("/v1/agreements/{}/report{month}", segment(id)))
    }

    /// The calendar of a direction between two moments. `from` defaults to now.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if the node does not share its download.
    pub fn calendar(
        &self,
        direction: Direction,
        from: Option<Utc>,
        to: Option<Utc>,
    ) -> Result<CalendarView, ClientError> {
        let moments = [("from", from), ("to", to)];
        let given = moments
            .into_iter()
            .filter_map(|(key, at)| at.map(|at| format!("{key}={}", segment(&at.to_string()))));
        let direction = std::iter::once(format!("direction={direction}"));
        let query = direction.chain(given).collect::<Vec<_>>().join("&");
        self.get(&format!("/v1/agreements/calendar?{query}"))
    }
}

impl From<weir_agree::Oversubscribed> for Oversubscribed {
    fn from(all: weir_agree::Oversubscribed) -> Oversubscribed {
        Oversubscribed { factor: all.factor, excess: all.excess }
    }
}
