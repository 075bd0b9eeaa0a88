//! The states of an agreement and of its terms, WS-Agreement 1.0 (GFD.192), section 7.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of an agreement as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AgreementState {
    /// Offered, neither accepted nor rejected.
    Pending,
    /// Withdrawn before it was accepted; the withdrawal is under way.
    PendingAndTerminating,
    /// Accepted: it binds both parties.
    Observed,
    /// Accepted and then terminated; what enforces it is being taken down.
    ObservedAndTerminating,
    /// Not accepted.
    Rejected,
    /// Carried out to its end.
    Complete,
    /// Terminated before its end.
    Terminated,
}

/// An event of an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgreementEvent {
    /// The responder accepts the offer.
    Accept,
    /// The responder rejects the offer.
    Reject,
    /// A party terminates it.
    Terminate,
    /// The termination under way is done.
    TerminationDone,
    /// Its end is moved. WS-Agreement 1.0 has no word for it, and it changes no state.
    Renew,
    /// Its services have come to their end.
    End,
}

/// That cannot happen in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {event} an agreement that is {state}")]
pub struct IllegalTransition {
    /// The event.
    pub event: AgreementEvent,
    /// The state it was to happen in.
    pub state: AgreementState,
}

impl AgreementState {
    /// All of them.
    pub const ALL: [AgreementState; 7] = [
        AgreementState::Pending,
        AgreementState::PendingAndTerminating,
        AgreementState::Observed,
        AgreementState::ObservedAndTerminating,
        AgreementState::Rejected,
        AgreementState::Complete,
        AgreementState::Terminated,
    ];

    /// The state after `event`.
    ///
    /// A withdrawal and an acceptance can cross: a pending agreement that is being withdrawn
    /// may still be accepted (it is then terminating) or rejected.
    ///
    /// # Errors
    /// [`IllegalTransition`] if it cannot happen in this state.
    pub fn on(self, event: AgreementEvent) -> Result<AgreementState, IllegalTransition> {
        use AgreementState::*;
        match (self, event) {
            (Pending, AgreementEvent::Accept) => Ok(Observed),
            (Pending | PendingAndTerminating, AgreementEvent::Reject) => Ok(Rejected),
            (Pending, AgreementEvent::Terminate) => Ok(PendingAndTerminating),
            (PendingAndTerminating, AgreementEvent::Accept) | (Observed, AgreementEvent::Terminate) => {
                Ok(ObservedAndTerminating)
            }
            (PendingAndTerminating | ObservedAndTerminating, AgreementEvent::TerminationDone) => {
                Ok(Terminated)
            }
            (Observed, AgreementEvent::Renew) => Ok(Observed),
            (Observed | ObservedAndTerminating, AgreementEvent::End) => Ok(Complete),
            (state, event) => Err(IllegalTransition { event, state }),
        }
    }

    /// Whether nothing can happen to it any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, AgreementState::Rejected | AgreementState::Complete | AgreementState::Terminated)
    }

    /// Its name in WS-Agreement.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AgreementState::Pending => "Pending",
            AgreementState::PendingAndTerminating => "PendingAndTerminating",
            AgreementState::Observed => "Observed",
            AgreementState::ObservedAndTerminating => "ObservedAndTerminating",
            AgreementState::Rejected => "Rejected",
            AgreementState::Complete => "Complete",
            AgreementState::Terminated => "Terminated",
        }
    }
}

impl fmt::Display for AgreementState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for AgreementEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AgreementEvent::Accept => "accept",
            AgreementEvent::Reject => "reject",
            AgreementEvent::Terminate => "terminate",
            AgreementEvent::TerminationDone => "finish terminating",
            AgreementEvent::Renew => "renew",
            AgreementEvent::End => "end",
        })
    }
}

/// The state of a service that an agreement describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ServiceState {
    /// Not before its start.
    NotReady,
    /// It can be used: its class exists.
    Ready,
    /// Over.
    Completed,
}

impl ServiceState {
    /// All of them.
    pub const ALL: [ServiceState; 3] = [ServiceState::NotReady, ServiceState::Ready, ServiceState::Completed];

    /// Its name in WS-Agreement.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ServiceState::NotReady => "NotReady",
            ServiceState::Ready => "Ready",
            ServiceState::Completed => "Completed",
        }
    }
}

/// The state of the guarantee of an agreement's minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum GuaranteeState {
    /// Not measured: not in force, or no demand so far.
    NotDetermined,
    /// The demand up to the minimum was delivered.
    Fulfilled,
    /// It was not.
    Violated,
}

impl GuaranteeState {
    /// All of them.
    pub const ALL: [GuaranteeState; 3] =
        [GuaranteeState::NotDetermined, GuaranteeState::Fulfilled, GuaranteeState::Violated];

    /// Its name in WS-Agreement.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GuaranteeState::NotDetermined => "NotDetermined",
            GuaranteeState::Fulfilled => "Fulfilled",
            GuaranteeState::Violated => "Violated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [AgreementEvent; 6] = [
        AgreementEvent::Accept,
        AgreementEvent::Reject,
        AgreementEvent::Terminate,
        AgreementEvent::TerminationDone,
        AgreementEvent::Renew,
        AgreementEvent::End,
    ];

    #[test]
    fn only_the_transitions_of_the_table_are_possible() {
        use AgreementState::*;
        let table = [
            (Pending, AgreementEvent::Accept, Observed),
            (Pending, AgreementEvent::Reject, Rejected),
            (Pending, AgreementEvent::Terminate, PendingAndTerminating),
            (PendingAndTerminating, AgreementEvent::Accept, ObservedAndTerminating),
            (PendingAndTerminating, AgreementEvent::Reject, Rejected),
            (PendingAndTerminating, AgreementEvent::TerminationDone, Terminated),
            (Observed, AgreementEvent::Terminate, ObservedAndTerminating),
            (Observed, AgreementEvent::Renew, Observed),
            (Observed, AgreementEvent::End, Complete),
            (ObservedAndTerminating, AgreementEvent::TerminationDone, Terminated),
            (ObservedAndTerminating, AgreementEvent::End, Complete),
        ];
        for state in AgreementState::ALL {
            for event in EVENTS {
                let want = table.iter().find(|(s, e, _)| (*s, *e) == (state, event)).map(|(_, _, to)| *to);
                assert_eq!(state.on(event).ok(), want, "{event} in {state}");
            }
        }
    }

    #[test]
    fn nothing_happens_to_an_agreement_in_a_final_state() {
        for state in AgreementState::ALL {
            assert_eq!(state.is_final(), EVENTS.iter().all(|&event| state.on(event).is_err()), "{state}");
        }
        let error = AgreementState::Rejected.on(AgreementEvent::Accept).unwrap_err();
        assert_eq!(error.to_string(), "cannot accept an agreement that is Rejected");
    }
}
