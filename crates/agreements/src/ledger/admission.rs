//! The answer to an offer: accepted, or refused with the nearest offers that would be accepted.

use weir_units::BitRate;

use super::{
    AgreementLedger, LedgerLimits, Rejection,
    check::{check_constraints, check_expiration},
};
use crate::{
    Agreement, AgreementEvent, AgreementState, Earliest, Grant, GuaranteeState, Name, Offer, Refusal,
    Request, Selector, ServiceState, Shortage, Template, Terms, Utc,
};

/// How many starts of one direction are tried in the other for a counter-offer.
const MAX_STARTS: usize = 16;

impl AgreementLedger {
    /// The answer that an offer would have. Changes nothing, and looks at no earlier answers.
    ///
    /// # Errors
    /// [`Rejection`] with the reason.
    pub fn decide(&self, offer: &Offer, id: &Name, now: Utc) -> Result<(Agreement, Grant), Rejection> {
        self.examine(offer, id, now).map_err(|rejection| match rejection {
            Rejection::Refused(Refusal::NoCapacity(shortage)) => {
                Refusal::NoCapacity(self.confirm(shortage, offer, id, now)).into()
            }
            Rejection::RefusedDownload(Refusal::NoCapacity(shortage)) => {
                Rejection::RefusedDownload(Refusal::NoCapacity(self.confirm(shortage, offer, id, now)))
            }
            other => other,
        })
    }

    /// Makes a calendar's counter-offers those that the whole book would accept. The other direction may have
    /// room for a smaller minimum only, or later.
    fn confirm(&self, mut shortage: Shortage, offer: &Offer, id: &Name, now: Utc) -> Shortage {
        let answer = |terms: Terms| self.examine(&Offer { terms, ..offer.clone() }, id, now);
        let terms = &offer.terms;
        let with = |min: BitRate| answer(Terms { min, ..terms.clone() });
        let of_other = shortage.largest_min.and_then(|min| lacking(&with(min))?.largest_min);
        let mins = [shortage.largest_min, of_other];
        shortage.largest_min = mins.into_iter().flatten().find(|min| with(*min).is_ok());
        for _ in 0..MAX_STARTS {
            let Earliest::At(start) = shortage.earliest else { return shortage };
            let end = terms.end.map(|end| start.after(end.since(shortage.interval.start)));
            let answer = answer(Terms { start: Some(start), end, ..terms.clone() });
            if answer.is_ok() {
                return shortage;
            }
            shortage.earliest = lacking(&answer).map_or(Earliest::Unknown, |other| other.earliest);
        }
        if let Earliest::At(start) = shortage.earliest {
            shortage.earliest = Earliest::NotBefore(start);
        }
        shortage
    }

    fn examine(&self, offer: &Offer, id: &Name, now: Utc) -> Result<(Agreement, Grant), Rejection> {
        let terms = &offer.terms;
        terms.check()?;
        if self.entries.contains_key(id) {
            return Err(Rejection::IdTaken { id: id.clone() });
        }
        let template = self.template_of(offer)?;
        check_expiration(offer, offer.end())?;
        let request = Request { min: terms.min, max: terms.max, start: terms.start, end: offer.end() };
        let interval = self.reservations.check_request(terms.direction, &request, now)?;
        if let Some(template) = template {
            check_constraints(template, offer, interval)?;
        }
        let of_template = template.map(|template| &template.terms.selector).filter(|s| !s.is_empty());
        let selector = match of_template {
            _ if !terms.selector.is_empty() => terms.selector.clone(),
            Some(selector) => selector.clone(),
            None => Selector::service(&offer.service.name),
        };
        self.reservations.check_selector(terms.direction, &selector, interval)?;
        let grant = self.reservations.check(terms.direction, &request, now)?;
        let state = AgreementState::Pending.on(AgreementEvent::Accept)?;
        let service_state = if interval.start > now { ServiceState::NotReady } else { ServiceState::Ready };
        let agreement = Agreement {
            id: id.clone(),
            state,
            service_state,
            guarantee_state: GuaranteeState::NotDetermined,
            answered: now,
            from: interval.start,
            until: interval.end,
            selector,
            offer: offer.clone(),
        };
        Ok((agreement, grant))
    }

    /// Tests whether there is a place for one more agreement of this account.
    pub(super) fn check_places(&self, account: &Name) -> Result<(), Rejection> {
        let LedgerLimits { agreements, of_account, .. } = self.limits;
        if self.places.open_of(account) >= of_account {
            return Err(Rejection::TooManyAgreements { limit: of_account, account: Some(account.clone()) });
        }
        if self.places.open() >= agreements {
            return Err(Rejection::TooManyAgreements { limit: agreements, account: None });
        }
        Ok(())
    }

    fn template_of(&self, offer: &Offer) -> Result<Option<&Template>, Rejection> {
        let Some(id) = &offer.context.template_id else { return Ok(None) };
        self.templates.get(id).map(Some).ok_or_else(|| {
            let known = self.templates.keys().take(8).cloned().collect();
            Rejection::UnknownTemplate { id: id.clone(), known }
        })
    }
}

/// The bandwidth that an answer says is lacking.
fn lacking<T>(answer: &Result<T, Rejection>) -> Option<&Shortage> {
    match answer {
        Err(
            Rejection::Refused(Refusal::NoCapacity(shortage))
            | Rejection::RefusedDownload(Refusal::NoCapacity(shortage)),
        ) => Some(shortage),
        _ => None,
    }
}
