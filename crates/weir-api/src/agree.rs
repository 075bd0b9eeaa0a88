//! Agreements as the agent tells of them, and the calls about them.

use hyper::Method;
use serde::{Deserialize, Serialize};
use weir_agree::{Agreement, Name, Offer, Report, Share, Template, Utc, Violation};
use weir_units::{BitRate, Bytes};

use crate::{Client, ClientError, client::segment};

/// An agreement, and what has become of it on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgreementStatus {
    /// The agreement that binds both parties.
    pub agreement: Agreement,
    /// The policy to enforce now; none outside of the agreement's time.
    pub in_force: Option<InForce>,
    /// The class that its packets are in now, as `source:name`.
    pub class: Option<String>,
    /// Why the promise is not enforced though it is in force: and the way out.
    pub not_enforced_because: Option<String>,
    /// How this node shares the spare, whatever the terms leave open.
    #[serde(default)]
    pub share: Share,
    /// Sent under it today, in UTC.
    pub sent_today: Bytes,
    /// Sent under it this month, in UTC.
    pub sent_this_month: Bytes,
    /// When its guarantee was not met, this month; the last may go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
}

/// An agreement's rates at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// The guarantee, bit/s.
    pub min: BitRate,
    /// The ceiling, bit/s.
    pub max: BitRate,
    /// Until when the quota is used up, if it is.
    pub limited_until: Option<Utc>,
}

/// The answer to an offer that is accepted, or waits to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferAnswer {
    /// The agreement; pending if an operator is to decide.
    pub agreement: Agreement,
    /// Whether it is the answer to the same offer, sent before.
    pub repeated: bool,
    /// If more may be promised than there is: how much more is.
    pub oversubscribed: Option<Oversubscribed>,
}

/// That more may be promised than the link has, and is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oversubscribed {
    /// As configured.
    pub factor: weir_agree::Oversubscription,
    /// By how much the promises of the busiest moment exceed what may be reserved.
    pub excess: BitRate,
}

/// The promises over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarView {
    /// B_eth, the link's capacity.
    pub link: BitRate,
    /// U_res B_eth, the most of one agreement.
    pub reservable: BitRate,
    /// The rate that may be promised in all: more if oversubscribed, less if classes have minima.
    pub promisable: BitRate,
    /// U_oth B_eth.
    pub other: BitRate,
    /// Whether `other` is a ceiling for all that has no agreement, while one is in force.
    pub other_is_ceiling: bool,
    /// Each moment of change, and what is promised from then on; the first is `from`.
    pub steps: Vec<CalendarStep>,
}

/// One step of a [`CalendarView`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarStep {
    /// From then on.
    pub from: Utc,
    /// Promised.
    pub reserved: BitRate,
    /// May still be promised.
    pub free: BitRate,
}

impl Client {
    /// The templates that the node accepts offers for.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if it makes no agreements.
    pub fn templates(&self) -> Result<Vec<Template>, ClientError> {
        self.get("/v1/agreements/templates")
    }

    /// Offers an agreement.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] with the reason, and what would be accepted.
    pub fn offer(&self, offer: &Offer) -> Result<OfferAnswer, ClientError> {
        self.call(Method::POST, "/v1/agreements/offers", Some(offer))
    }

    /// All agreements, with what has become of them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn agreements(&self) -> Result<Vec<AgreementStatus>, ClientError> {
        self.get("/v1/agreements/status")
    }

    /// One agreement, by its id.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn agreement(&self, id: &str) -> Result<AgreementStatus, ClientError> {
        self.get(&format!("/v1/agreements/{}/status", segment(id)))
    }

    /// Ends an agreement now, or withdraws an offer that waits.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn terminate(&self, id: &str) -> Result<Agreement, ClientError> {
        self.call(Method::DELETE, &format!("/v1/agreements/{}", segment(id)), None::<&()>)
    }

    /// Lets an agreement last until a later end, or without an end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn renew(&self, id: &str, end: Option<Utc>) -> Result<Agreement, ClientError> {
        let end = end.map_or("never".to_owned(), |end| end.to_string());
        let path = format!("/v1/agreements/{}/renew?end={}", segment(id), segment(&end));
        self.call(Method::POST, &path, None::<&()>)
    }

    /// Decides about an offer that waits.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if it can no longer be accepted.
    pub fn decide(&self, id: &Name, accept: bool) -> Result<Agreement, ClientError> {
        let verb = if accept { "accept" } else { "reject" };
        let path = format!("/v1/agreements/{}/{verb}", segment(id.as_str()));
        self.call(Method::POST, &path, None::<&()>)
    }

    /// The promises and the delivery of a month of UTC (`2026-11`), by default this month.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fault`] if nothing was seen of it in that month.
    pub fn report(&self, id: &str, month: Option<&str>) -> Result<Report, ClientError> {
        let month = month.map_or(String::new(), |month| format!("?month={}", segment(month)));
        self.get(&format!("/v1/agreements/{}/report{month}", segment(id)))
    }

    /// The promises between two moments; the first one is now by default.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn calendar(&self, from: Option<Utc>, to: Option<Utc>) -> Result<CalendarView, ClientError> {
        let moments = [("from", from), ("to", to)];
        let given = moments
            .into_iter()
            .filter_map(|(key, at)| at.map(|at| format!("{key}={}", segment(&at.to_string()))));
        let query = given.collect::<Vec<_>>().join("&");
        self.get(&format!("/v1/agreements/calendar?{query}"))
    }
}

impl From<weir_agree::Oversubscribed> for Oversubscribed {
    fn from(all: weir_agree::Oversubscribed) -> Oversubscribed {
        Oversubscribed { factor: all.factor, excess: all.excess }
    }
}
