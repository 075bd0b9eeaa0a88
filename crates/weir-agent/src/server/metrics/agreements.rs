//! Metrics of agreements in force.

use prometheus_client::encoding::EncodeLabelSet;
use weir_agree::{GuaranteeState, Violation};
use weir_api::{AgreementStatus, InForce};

use super::page::{BYTES, NONE, PER_SECOND, Page, SECONDS, bytes_per_second, flag};

/// The most agreements with metrics of their own.
const MAX_AGREEMENTS: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAgreement {
    agreement: String,
    party: String,
    direction: String,
}

fn sum(status: &AgreementStatus, part: fn(&Violation) -> u64) -> f64 {
    status.violations.iter().map(part).sum::<u64>() as f64
}

/// Returns the number of agreements in force that are left out.
pub(super) fn write(page: &mut Page, agreements: &[AgreementStatus]) -> usize {
    let is_met = |status: &AgreementStatus| status.agreement.guarantee_state != GuaranteeState::Violated;
    let mut shown: Vec<(&AgreementStatus, &InForce)> =
        agreements.iter().filter_map(|status| Some((status, status.in_force.as_ref()?))).collect();
    let all = shown.len();
    page.gauge("agreements_in_force", NONE, "Agreements in force", all as f64);
    // A violated one is never left out before one that is met.
    shown.sort_by_key(|(status, _)| is_met(status));
    shown.truncate(MAX_AGREEMENTS);
    let labels = |status: &AgreementStatus| OfAgreement {
        agreement: status.agreement.id.to_string(),
        party: status.agreement.offer.context.initiator.to_string(),
        direction: status.agreement.offer.terms.direction.to_string(),
    };
    let mut gauges = |name, unit, help, value: &dyn Fn(&AgreementStatus, &InForce) -> f64| {
        page.gauges(name, unit, help, shown.iter().map(|(status, now)| (labels(status), value(status, now))));
    };
    gauges("agreement_guarantee", PER_SECOND, "The minimum in force", &|_, now| bytes_per_second(now.min));
    gauges("agreement_met", NONE, "0 if the guarantee is violated now, else 1", &|s, _| flag(is_met(s)));
    gauges("agreement_violations", NONE, "Violations of this month", &|s, _| s.violations.len() as f64);
    gauges("agreement_violated", SECONDS, "Time of violation in this month", &|s, _| {
        sum(s, |v| v.violated_ms) / 1000.0
    });
    gauges("agreement_lacking", BYTES, "Promised this month and not delivered", &|s, _| {
        sum(s, |v| v.lacking.0)
    });
    all - shown.len()
}
