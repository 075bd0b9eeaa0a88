//! The life of an agreement, or of an offer that waits, after its first answer.

use super::{
    Accepted, AgreementLedger, LedgerEntry, Rejection,
    check::{check_expiration, check_length},
    pop_due,
};
use crate::{
    Agreement, AgreementEvent, AgreementState, Grant, IllegalTransition, Interval, Name, Refusal,
    ServiceState, Usage, Utc,
};

impl AgreementLedger {
    /// Accepts a pending offer as one made `now`.
    ///
    /// # Errors
    /// [`Rejection`] if it can no longer be accepted; it is pending still.
    pub fn accept(&mut self, id: &Name, now: Utc) -> Result<Accepted, Rejection> {
        let entry = self.entries.get(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        let state = entry.agreement.state;
        if state != AgreementState::Pending {
            return Err(IllegalTransition { event: AgreementEvent::Accept, state }.into());
        }
        let Some(LedgerEntry { agreement: pending, account, .. }) = self.take_out(id) else {
            return Err(Rejection::UnknownAgreement(id.clone()));
        };
        match self.decide(&pending.offer, id, now) {
            Ok((agreement, Grant { oversubscribed, .. })) => {
                self.enter(account, agreement.clone(), Usage::default(), oversubscribed);
                Ok(Accepted { agreement, oversubscribed, repeated: false })
            }
            Err(rejection) => {
                self.enter(account, pending, Usage::default(), None);
                Err(rejection)
            }
        }
    }

    /// Rejects a pending offer, or one that is being withdrawn.
    ///
    /// # Errors
    /// [`Rejection`] without such an agreement, or if its state does not allow it.
    pub fn reject(&mut self, id: &Name, now: Utc) -> Result<(), Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        entry.agreement.state = entry.agreement.state.on(AgreementEvent::Reject)?;
        entry.agreement.service_state = ServiceState::Completed;
        self.unlist(id, now);
        self.close(id, now);
        Ok(())
    }

    /// Lets an agreement last until a later end, or without an end. Only what is added is tested.
    ///
    /// # Errors
    /// [`Rejection`] with the reason.
    pub fn renew(&mut self, id: &Name, end: Option<Utc>, now: Utc) -> Result<Grant, Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        let LedgerEntry { agreement, bookings: Some(bookings), .. } = entry else {
            let state = entry.agreement.state;
            return Err(IllegalTransition { event: AgreementEvent::Renew, state }.into());
        };
        let Some(old) = agreement.until else { return Err(Refusal::NoEnd.into()) };
        check_expiration(&agreement.offer, end)?;
        if let Some(template) =
            agreement.offer.context.template_id.as_ref().and_then(|id| self.templates.get(id))
        {
            check_length(template, Interval { start: agreement.from, end })?;
        }
        let grant = self.reservations.extend(bookings, &agreement.selector, (old, end), now)?;
        agreement.until = end;
        self.revision += 1;
        self.ending.remove(&(old, id.clone()));
        if let Some(end) = end {
            self.ending.insert((end, id.clone()));
        }
        Ok(grant)
    }

    /// Terminates an agreement: it ends `now`, its bandwidth and its selector are free. It stays
    /// in [`AgreementState::ObservedAndTerminating`] until [`AgreementLedger::finish_termination`].
    ///
    /// # Errors
    /// [`Rejection`] without such an agreement, or if its state does not allow it.
    pub fn terminate(&mut self, id: &Name, now: Utc) -> Result<(), Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        entry.agreement.state = entry.agreement.state.on(AgreementEvent::Terminate)?;
        self.unlist(id, now);
        if let Some(LedgerEntry { agreement, .. }) = self.entries.get_mut(id) {
            let end = agreement.until.map_or(now, |until| until.min(now));
            agreement.until = Some(end.max(agreement.from));
            self.revision += 1;
        }
        Ok(())
    }

    /// Notes that nothing enforces a terminating agreement any more.
    ///
    /// # Errors
    /// [`Rejection`] without such an agreement, or if its state does not allow it.
    pub fn finish_termination(&mut self, id: &Name, now: Utc) -> Result<(), Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        entry.agreement.state = entry.agreement.state.on(AgreementEvent::TerminationDone)?;
        entry.agreement.service_state = ServiceState::Completed;
        self.close(id, now);
        Ok(())
    }

    pub(super) fn close(&mut self, id: &Name, at: Utc) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.closed = Some(at);
            self.closed.insert((at, id.clone()));
            self.places.give_back(&entry.account);
            self.places.remember(&entry.account, at, id);
        }
    }

    /// Forgets the agreements that came to their final state up to that moment, and with them
    /// the answers to their offers; returns them.
    pub fn forget_until(&mut self, moment: Utc) -> Vec<Agreement> {
        let mut forgotten = Vec::new();
        while let Some((_, id)) = pop_due(&mut self.closed, moment) {
            forgotten.extend(self.withdraw(&id));
        }
        forgotten
    }

    /// Forgets agreements that are over while the book has more of them than it may, and returns them. The account
    /// that has most of them loses its oldest.
    pub fn forget_excess(&mut self) -> Vec<Agreement> {
        let mut forgotten = Vec::new();
        while self.closed.len() > self.limits.agreements
            && let Some(id) = self.places.first_to_forget().cloned()
        {
            forgotten.extend(self.withdraw(&id));
        }
        forgotten
    }
}
