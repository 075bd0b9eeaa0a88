//! A fault of the configuration.

/// The place of the fault, and the reason.
pub(super) type Fault = (String, String);

pub(super) fn fault(what: impl Into<String>, detail: impl ToString) -> Fault {
    (what.into(), detail.to_string())
}
