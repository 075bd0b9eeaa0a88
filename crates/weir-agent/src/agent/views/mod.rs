//! The agent's answers: status, classes, explanations, its own health.

mod class;
mod doctor;
mod explain;
mod status;

use weir_api::{Error, ErrorCode};
use weir_share::Policy;
use weir_units::BitRate;

use super::class_table::ClassTable;

/// A policy in the syntax of `weir set`.
pub(super) fn policy_text(policy: &Policy) -> String {
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |r| r.to_string());
    format!("weight={} min={} max={}", policy.weight(), rate(policy.min()), rate(policy.max()))
}

/// The error if a name disappeared between question and answer.
pub(super) fn gone(name: &str) -> Error {
    let message = format!("no class or group is called {name} any more");
    Error::new(ErrorCode::UnknownName, message)
}

/// The classes of a table whose minimum is not promised; the first are named.
pub(super) fn unpromised(table: &ClassTable) -> Vec<String> {
    const SHOWN: usize = 8;
    let all = table.unpromised_minima();
    let more = all.len().saturating_sub(SHOWN);
    let rest = (more > 0).then(|| format!("{more} more minima are not promised (`weir ps` lists all)"));
    all.into_iter().take(SHOWN).chain(rest).collect()
}
