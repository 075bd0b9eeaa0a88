//! Agreements on bandwidth: who is promised how much of a link, from when to when.
//!
//! The system of Anastasi, Coppola, Dazzi and Distefano, "QoS Guarantees for Network Bandwidth in
//! Private Clouds" (2016), with the advance reservations that they leave as future work. Pure:
//! no clock, no I/O, no randomness; moments and ids are arguments.
//!
//! * [`Offer`], [`Template`], [`Agreement`]: the documents of WS-Agreement 1.0 (GFD.192), read and
//!   written as its XML with the paper's terms (Fig. 2), as JSON and as TOML: [`Document`].
//!   [`AgreementState::on`] is the table of what can happen to an agreement.
//! * [`Calendar`]: admission, the paper's Eq. 2 at every moment of an interval, in O(log n), with
//!   counter-offers in refusals.
//! * [`AgreementLedger`]: both together. Offers in, answers out; what is in force when; quotas.
//! * [`Monitor`]: whether guarantees were met; what fell short as [`Violation`]s with a cause, and
//!   [`Report`]s of a month as JSON and HTML.
//! * [`Fault`]: every refusal in words, with a code, the place, and what would be accepted.
//!
//! A promise is about what leaves by the link, what arrives, or both ([`Directions`]). Each direction has a calendar.
//!
//! How the spare is shared (Eq. 1, [`Share::Additive`]) is `weir-share`'s matter.
//!
//! # An offer
//!
//! The paper's, as in its Fig. 2:
//!
//! ```xml
#![doc = include_str!("../docs/fig2.xml")]
//! ```
//!
//! One with everything in it, as TOML. Rates are bit/s or text such as `"20Mbps"`, sizes bytes or
//! text such as `"10GiB"`; only `context.initiator`, `service`, `terms.min` and `terms.max` have to
//! be there. JSON has the same fields; examples of every document in every language are in the
//! crate's `docs`.
//!
//! ```toml
#![doc = include_str!("../docs/offer.toml")]
//! ```
//!
//! # An answer
//!
//! ```
//! use std::time::Duration;
//! use weir_agree::*;
//! use weir_units::{BitRate, Instant};
//!
//! let mut ledger = AgreementLedger::new(Limits::new(BitRate::mbit(100)), LedgerLimits::default());
//! let offer = Offer::read(include_str!("../docs/fig2.xml"), Language::Xml)?;
//! let now = ClockReading { utc: "2026-11-20T11:00:00Z".parse()?, monotonic: Instant(Duration::ZERO) };
//!
//! let accepted = ledger.offer(offer.clone(), Name::new("a-1")?, now)?;
//! assert_eq!(accepted.agreement.state, AgreementState::Observed);
//! assert_eq!(ledger.in_force(now.utc)[0].min, BitRate::mbit(19));
//!
//! let mut greedy = Offer { terms: Terms::new(BitRate::mbit(80), BitRate::mbit(80)), ..offer };
//! greedy.service.name = Name::new("backup")?;
//! let rejection = ledger.offer(greedy, Name::new("a-2")?, now).unwrap_err();
//! let fault = Fault::from(&rejection);
//! assert_eq!(fault.code, FaultCode::NoCapacity);
//! assert_eq!(fault.counter_offer.unwrap().min, Some(BitRate::mbit(71)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounded;
mod calendar;
mod direction;
mod document;
mod fault;
mod interval;
mod ledger;
mod model;
mod monitor;
mod name;
mod position;
mod quota;
mod report;
mod selector;
mod state;
mod terms;
mod xml;

pub use calendar::{
    Bandwidth, Booking, Calendar, Earliest, GRAIN, Grant, Limits, Oversubscribed, Oversubscription,
    OversubscriptionError, Refusal, Request, Shortage, Split, SplitError,
};
pub use direction::{Direction, DirectionError, Directions, DirectionsError};
pub use document::{Document, Language, LanguageError, MAX_DOCUMENT};
pub use fault::{CounterOffer, Fault, FaultCode, Place};
pub use interval::Interval;
pub use ledger::{
    Accepted, AgreementLedger, Change, ClockReading, InForce, LedgerLimits, Pace, Rejection, Sender,
    Throttle, ThrottleLimits,
};
pub use model::{
    Agreement, Constraints, Context, Guarantees, GuaranteesError, Offer, Reference, Service, Template,
};
pub use monitor::{
    Cause, Conditions, Hour, INTERVAL, Look, MAX_VIOLATIONS, MERGE, MET_PERCENT, Monitor, MonitorEvent,
    Month, Violation,
};
pub use name::{Name, NameError};
pub use quota::{Quota, Usage};
pub use report::Report;
pub use selector::{Protocol, Selector, SelectorError};
pub use state::{AgreementEvent, AgreementState, GuaranteeState, IllegalTransition, ServiceState};
pub use terms::{Share, ShareError, Terms, TermsError};
pub use weir_units::{ParseUtcError, Utc};
pub use xml::{QOS, WEIR, WSA, WSAG};
