use std::time::Duration;

use weir_units::BitRate;

use crate::{
    Bandwidth, Directions, Fault, FaultCode, IllegalTransition, Name, Refusal, Selector, TermsError, Utc,
};

/// Why an offer is rejected, or a change of an agreement refused. Nothing changes by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Offers come too fast; this one was not looked at.
    #[error("cannot look at more offers of {party} now: try again in {retry_after:?}")]
    TooManyOffers {
        /// Whose.
        party: Name,
        /// When one may come again.
        retry_after: Duration,
    },
    /// Another offer of the party had the same id.
    #[error("cannot answer another offer with the id {id}: give each offer its own")]
    OfferIdReused {
        /// The id.
        id: Name,
    },
    /// The provider's id is another agreement's.
    #[error("cannot give the id {id} to another agreement")]
    IdTaken {
        /// The id.
        id: Name,
    },
    /// The terms contradict themselves.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The terms go on after the agreement.
    #[error("cannot promise bandwidth {} in an agreement that expires at {expiration}", until(*end))]
    EndAfterExpiration {
        /// The end of the terms; none without an end.
        end: Option<Utc>,
        /// The context's.
        expiration: Utc,
    },
    /// There is no such template.
    #[error("cannot agree by template {id}: there is none of that id{}", list(known))]
    UnknownTemplate {
        /// As offered.
        id: Name,
        /// Some that there are.
        known: Vec<Name>,
    },
    /// The template does not allow that bandwidth.
    #[error("cannot agree by template {template}: a {which} of {asked} is outside of {least} to {most}")]
    BandwidthOutsideTemplate {
        /// The template's id.
        template: Name,
        /// Which bandwidth.
        which: Bandwidth,
        /// How much.
        asked: BitRate,
        /// The least that it allows.
        least: BitRate,
        /// The most that it allows.
        most: BitRate,
    },
    /// The template is about another direction.
    #[error("cannot agree by template {template}: its direction is {offered}, and the offer's is {asked}")]
    DirectionOutsideTemplate {
        /// The template's id.
        template: Name,
        /// The offer's.
        asked: Directions,
        /// The template's.
        offered: Directions,
    },
    /// The template does not allow that time.
    #[error("cannot agree by template {template}: it holds for {longest:?} at most, name an end within that")]
    TimeOutsideTemplate {
        /// The template's id.
        template: Name,
        /// The longest time that it allows.
        longest: Duration,
    },
    /// Another agreement is about the same packets at the same time.
    #[error("cannot promise bandwidth to {selector}: another agreement does from {from} {}", last(*until))]
    SelectorTaken {
        /// Which packets.
        selector: Box<Selector>,
        /// From when on they are taken.
        from: Utc,
        /// The end; none without an end.
        until: Option<Utc>,
    },
    /// As many agreements as may be are not over.
    #[error("cannot keep more than {limit} agreements{}: let one end or terminate one", of(account.as_ref()))]
    TooManyAgreements {
        /// How many may be.
        limit: usize,
        /// The account; none if in all.
        account: Option<Name>,
    },
    /// Admission refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Admission of the download refuses.
    #[error("download: {0}")]
    RefusedDownload(Refusal),
    /// The download is not shared, so that nothing of it can be promised.
    #[error(
        "cannot promise what arrives: this node does not share its download (leave direction out, or write upload)"
    )]
    DownloadNotShared,
    /// The packets cannot be told apart before they have a receiver.
    #[error(
        "cannot promise what arrives for {0}: an agreement on the download is about all that one container receives \
         (select a container alone)"
    )]
    DownloadSelector(Box<Selector>),
    /// There is no such agreement.
    #[error("cannot find an agreement with the id {0}")]
    UnknownAgreement(Name),
    /// That cannot happen to the agreement in its state.
    #[error(transparent)]
    State(#[from] IllegalTransition),
}

impl Rejection {
    /// The latest end that a refused extension could have.
    pub(super) fn latest_end(&self) -> Option<Utc> {
        match self {
            Rejection::Refused(Refusal::NoCapacityToExtend { busiest, .. })
            | Rejection::RefusedDownload(Refusal::NoCapacityToExtend { busiest, .. }) => Some(*busiest),
            _ => None,
        }
    }
}

fn list(known: &[Name]) -> String {
    if known.is_empty() {
        return String::new();
    }
    format!(" (known: {})", known.iter().map(Name::as_str).collect::<Vec<_>>().join(", "))
}

fn last(until: Option<Utc>) -> String {
    until.map_or("on, without an end".to_owned(), |until| format!("to {until}"))
}

fn until(end: Option<Utc>) -> String {
    end.map_or("without an end".to_owned(), |end| format!("to {end}"))
}

fn of(account: Option<&Name>) -> String {
    account.map_or(String::new(), |account| format!(" of {account}"))
}

impl From<&Rejection> for Fault {
    fn from(rejection: &Rejection) -> Fault {
        let code = match rejection {
            Rejection::Refused(refusal) => return Fault::from(refusal),
            Rejection::RefusedDownload(refusal) => {
                return Fault { message: rejection.to_string(), ..Fault::from(refusal) };
            }
            Rejection::DownloadNotShared | Rejection::DownloadSelector(_) => FaultCode::DirectionNotOffered,
            Rejection::TooManyOffers { .. } => FaultCode::TooManyOffers,
            Rejection::OfferIdReused { .. } => FaultCode::OfferIdReused,
            Rejection::IdTaken { .. } => FaultCode::AgreementIdTaken,
            Rejection::Terms(_) => FaultCode::Contradiction,
            Rejection::EndAfterExpiration { .. } => FaultCode::EndAfterExpiration,
            Rejection::UnknownTemplate { .. } => FaultCode::UnknownTemplate,
            Rejection::BandwidthOutsideTemplate { .. }
            | Rejection::DirectionOutsideTemplate { .. }
            | Rejection::TimeOutsideTemplate { .. } => FaultCode::OutsideTemplate,
            Rejection::SelectorTaken { .. } => FaultCode::SelectorTaken,
            Rejection::TooManyAgreements { .. } => FaultCode::TooManyAgreements,
            Rejection::UnknownAgreement(_) => FaultCode::UnknownAgreement,
            Rejection::State(_) => FaultCode::IllegalTransition,
        };
        let mut fault = Fault::new(code, rejection.to_string());
        match rejection {
            Rejection::TooManyOffers { retry_after, .. } => {
                // Rounded up: who comes then is let pass.
                let millis = retry_after.as_nanos().div_ceil(1_000_000);
                fault.retry_after_ms = Some(u64::try_from(millis).unwrap_or(u64::MAX));
            }
            Rejection::UnknownTemplate { known, .. } => {
                fault.accepted = known.iter().map(ToString::to_string).collect();
            }
            Rejection::DirectionOutsideTemplate { offered, .. } => fault.accepted = vec![offered.to_string()],
            Rejection::DownloadNotShared => fault.accepted = vec!["upload".to_owned()],
            _ => {}
        }
        fault
    }
}
