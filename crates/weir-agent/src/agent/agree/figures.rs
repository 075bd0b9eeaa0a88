//! The agreements in force, for `/metrics`. Most agreements may be in force, and the loop waits for the answer: each
//! one costs a look-up, and only the shown ones are read.

use std::collections::BTreeMap;

use weir_agree::{Directions, GuaranteeState, Name, Violation};
use weir_api::AgreementStatus;
use weir_units::BitRate;

use super::Agreements;
use crate::agent::class_table::Agreed;

/// The agreements in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// Their number.
    pub in_force: usize,
    /// Some of them. A violated one is never left out before one that is met.
    pub shown: Vec<Figure>,
}

/// An agreement in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    pub(crate) id: Name,
    pub(crate) party: Name,
    pub(crate) direction: Directions,
    /// The lowest minimum in force among its directions.
    pub(crate) min: BitRate,
    pub(crate) is_met: bool,
    /// Those of this month.
    pub(crate) violations: Vec<Violation>,
}

impl Figure {
    /// The figure of a status. `None` outside the agreement's time.
    #[must_use]
    pub fn of(status: &AgreementStatus) -> Option<Figure> {
        Some(Figure {
            id: status.agreement.id.clone(),
            party: status.agreement.offer.context.initiator.clone(),
            direction: status.agreement.offer.terms.direction,
            min: status.in_force.as_ref()?.min,
            is_met: is_met(status.agreement.guarantee_state),
            violations: status.violations.clone(),
        })
    }
}

fn is_met(state: GuaranteeState) -> bool {
    state != GuaranteeState::Violated
}

impl Agreements {
    /// The agreements that are enforced now as `agreed` says, and the figures of at most `most` of them.
    pub(in crate::agent) fn figures<'a>(
        &self,
        agreed: impl Iterator<Item = &'a Agreed>,
        most: usize,
    ) -> Figures {
        let mut minima: BTreeMap<&Name, BitRate> = BTreeMap::new();
        for one in agreed {
            let min = minima.entry(&one.id).or_insert(BitRate(u64::MAX));
            *min = (*min).min(one.enforced_min());
        }
        let in_force = minima.len();
        let known = minima.into_iter().filter_map(|(id, min)| Some((self.ledger.agreement(id)?, min)));
        let (met, mut shown): (Vec<_>, Vec<_>) =
            known.partition(|(agreement, _)| is_met(agreement.guarantee_state));
        shown.extend(met);
        shown.truncate(most);
        let figure = |(agreement, min): (&weir_agree::Agreement, BitRate)| Figure {
            id: agreement.id.clone(),
            party: agreement.offer.context.initiator.clone(),
            direction: agreement.offer.terms.direction,
            min,
            is_met: is_met(agreement.guarantee_state),
            violations: self.monitor.month(&agreement.id).map_or(Vec::new(), |month| month.violations),
        };
        Figures { in_force, shown: shown.into_iter().map(figure).collect() }
    }
}
