//! Describes one agreement for people.

use std::io::{self, Write};

use weir_agree::{Agreement, AgreementState, Constraints, ServiceState, Share};
use weir_api::AgreementStatus;

use super::{Look, now};

/// Describes an agreement in one line, as the answer to a change.
pub(super) fn line(out: &mut dyn Write, agreement: &Agreement) -> io::Result<()> {
    let Agreement { id, state, offer, from, until, .. } = agreement;
    let until = until.map_or("without an end".to_owned(), |until| format!("to {until}"));
    let (min, max) = (offer.terms.min, offer.terms.max);
    writeln!(out, "{id} is {}: {min} to {max} for {} from {from} {until}", words(*state), agreement.packets())
}

fn words(state: AgreementState) -> &'static str {
    match state {
        AgreementState::Pending => "pending, an operator decides",
        AgreementState::PendingAndTerminating => "being withdrawn",
        AgreementState::Observed => "agreed",
        AgreementState::ObservedAndTerminating => "being terminated",
        AgreementState::Rejected => "rejected",
        AgreementState::Complete => "complete",
        AgreementState::Terminated => "terminated",
    }
}

/// The state in one word, for the table.
pub(super) fn state(status: &AgreementStatus) -> &'static str {
    let agreement = &status.agreement;
    match (agreement.state, agreement.service_state) {
        (AgreementState::Observed, ServiceState::NotReady) => "reserved",
        (AgreementState::Observed, _) if status.in_force.is_some_and(|now| now.limited_until.is_some()) => {
            "limited"
        }
        (AgreementState::Observed, _) => "in-force",
        (AgreementState::Pending, _) => "pending",
        (AgreementState::Rejected, _) => "rejected",
        (AgreementState::Complete, _) => "complete",
        (AgreementState::Terminated, _) => "terminated",
        (AgreementState::PendingAndTerminating | AgreementState::ObservedAndTerminating, _) => "terminating",
    }
}

/// How the agreement shares spare capacity. The node's rule applies; under a rule by weight, the weight
/// is that of the terms or of the class.
fn spare(status: &AgreementStatus) -> String {
    let terms = &status.agreement.offer.terms;
    match (status.share, terms.share) {
        (Share::Additive, _) => "the spare in equal parts".to_owned(),
        (Share::Weighted, Share::Weighted) => format!("the spare by weight, its is {}", terms.weight),
        (Share::Weighted, Share::Additive) => "the spare by weight, with its class's".to_owned(),
    }
}

/// Writes everything about an agreement.
pub(super) fn status(out: &mut dyn Write, _: Look, status: &AgreementStatus) -> io::Result<()> {
    let agreement = &status.agreement;
    line(out, agreement)?;
    let Agreement { offer, answered, guarantee_state, service_state, .. } = agreement;
    let mut rows = vec![
        ("party", offer.context.initiator.to_string()),
        ("service", offer.service.name.to_string()),
        ("offer", offer.id.as_ref().map_or("without an id".to_owned(), ToString::to_string)),
        ("answered", answered.to_string()),
        (
            "states",
            format!(
                "{}, service {}, guarantee {}",
                agreement.state,
                service_state.name(),
                guarantee_state.name()
            ),
        ),
        ("shares", spare(status)),
    ];
    if let Some(now) = &status.in_force {
        rows.push(("now", format!("{} to {}", now.min, now.max)));
    }
    if let Some(class) = &status.class {
        rows.push(("class", format!("{class} (`weir explain {class}`)")));
    }
    if let Some(quota) = offer.terms.quota {
        let of = |sent: weir_units::Bytes, most: Option<weir_units::Bytes>| match most {
            Some(most) => format!("{sent} of {most}"),
            None => sent.to_string(),
        };
        let text = format!(
            "{} today, {} this month, then {}",
            of(status.sent_today, quota.day),
            of(status.sent_this_month, quota.month),
            quota.after
        );
        rows.push(("quota", text));
    } else {
        rows.push(("passed", format!("{} today, {} this month", status.sent_today, status.sent_this_month)));
    }
    if let Some(until) = status.in_force.and_then(|now| now.limited_until) {
        let left = until.since(now()).as_secs();
        rows.push(("limited", format!("the quota is used up until {until}, for {left} s yet")));
    }
    for (key, text) in rows {
        writeln!(out, "  {key:<10}{text}")?;
    }
    if let Some(why) = &status.not_enforced_because {
        writeln!(out, "! not enforced: {why}")?;
    }
    for violation in &status.violations {
        writeln!(out, "! violated: {violation}")?;
    }
    Ok(())
}

/// The offers that a template accepts, in one line.
pub(super) fn constraints(rules: &Constraints) -> String {
    let mut parts = Vec::new();
    match (rules.min_at_least, rules.min_at_most) {
        (None, None) => {}
        (least, most) => {
            let text =
                |rate: Option<weir_units::BitRate>| rate.map_or(String::new(), |rate| rate.to_string());
            parts.push(format!("min {}..{}", text(least), text(most)));
        }
    }
    parts.extend(rules.max_at_most.map(|most| format!("max ..{most}")));
    parts
        .extend(rules.longest_s.map(|seconds| format!("for {}", super::format::seconds(u64::from(seconds)))));
    if parts.is_empty() { "anything".to_owned() } else { parts.join(", ") }
}
