//! Metrics of agreements in force.

use prometheus_client::encoding::EncodeLabelSet;
use weir_agree::Violation;

use super::page::{BYTES, NONE, PER_SECOND, Page, SECONDS, bytes_per_second, flag};
use crate::agent::agree::{Figure, Figures};

/// The most agreements with metrics of their own.
pub(super) const MAX_AGREEMENTS: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAgreement {
    agreement: String,
    party: String,
    direction: String,
}

fn sum(figure: &Figure, part: fn(&Violation) -> u64) -> f64 {
    figure.violations.iter().map(part).sum::<u64>() as f64
}

/// Returns the number of agreements in force that are left out.
pub(super) fn write(page: &mut Page, agreements: &Figures) -> usize {
    let Figures { in_force, shown } = agreements;
    page.gauge("agreements_in_force", NONE, "Agreements in force", *in_force as f64);
    let labels = |figure: &Figure| OfAgreement {
        agreement: figure.id.to_string(),
        party: figure.party.to_string(),
        direction: figure.direction.to_string(),
    };
    let mut gauges = |name, unit, help, value: &dyn Fn(&Figure) -> f64| {
        page.gauges(name, unit, help, shown.iter().map(|figure| (labels(figure), value(figure))));
    };
    gauges("agreement_guarantee", PER_SECOND, "The minimum in force", &|f| bytes_per_second(f.min));
    gauges("agreement_met", NONE, "0 if the guarantee is violated now, else 1", &|f| flag(f.is_met));
    gauges("agreement_violations", NONE, "Violations of this month", &|f| f.violations.len() as f64);
    gauges("agreement_violated", SECONDS, "Time of violation in this month", &|f| {
        sum(f, |v| v.violated_ms) / 1000.0
    });
    gauges("agreement_lacking", BYTES, "Promised this month and not delivered", &|f| sum(f, |v| v.lacking.0));
    in_force - shown.len()
}
