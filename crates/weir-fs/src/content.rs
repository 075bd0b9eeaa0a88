//! The text of a class's file, and of a write to it.

use std::fmt::Write;

use weir_api::{Activity, ChangeError, Class, PolicyChange, Setting, SettingError};
use weir_units::BitRate;

/// The most bytes that one write may have.
const MAX_WRITE: usize = 4096;

/// The keys that no write changes.
const READ_ONLY: [&str; 9] =
    ["allocation", "rate", "bytes", "packets", "drops", "backlog", "state", "enforced", "because"];

/// The error of a write. Nothing is changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("{0} bytes are too many for one write: {MAX_WRITE} are allowed")]
    TooLong(usize),
    #[error("the bytes are not UTF-8 text")]
    NotText,
    #[error("`{0}` is read-only: write weight, min or max")]
    ReadOnly(&'static str),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// The content of the file of `class`: a line for each value.
///
/// A written `weight`, `min` or `max` line gives the same policy again.
pub(crate) fn of(class: &Class) -> String {
    let policy = class.policy;
    let bound = |bound: Option<BitRate>| bound.map_or_else(|| "none".to_owned(), exact);
    let state = match class.activity {
        Activity::Active => "active",
        Activity::Idle => "idle",
        Activity::Absent => "absent",
    };
    let mut text = format!(
        "weight={}\nmin={}\nmax={}\nallocation={}\nrate={}\nbytes={}\npackets={}\ndrops={}\nbacklog={}\n\
         state={state}\nenforced={}\n",
        policy.weight,
        bound(policy.min),
        bound(policy.max),
        class.allocation,
        class.rate,
        class.bytes.0,
        class.packets,
        class.drops,
        class.backlog.0,
        if class.enforced { "yes" } else { "no" },
    );
    if let Some(because) = &class.not_enforced_because {
        // A text fits into a `String` always.
        let _ = writeln!(text, "because={}", weir_api::plain(because));
    }
    text
}

/// A configured rate as text that is read as the same rate again.
fn exact(rate: BitRate) -> String {
    let short = rate.to_string();
    if short.parse() == Ok(rate) { short } else { format!("{}bit", rate.bits_per_sec()) }
}

/// The change that a write to the file of class `name` asks for.
///
/// # Errors
/// [`WriteError`].
pub(crate) fn change(name: &str, written: &[u8]) -> Result<PolicyChange, WriteError> {
    if written.len() > MAX_WRITE {
        return Err(WriteError::TooLong(written.len()));
    }
    let text = std::str::from_utf8(written).map_err(|_| WriteError::NotText)?;
    let settings = text.split_whitespace().map(setting).collect::<Result<Vec<Setting>, WriteError>>()?;
    if settings.is_empty() {
        return Err(SettingError::Syntax.into());
    }
    Ok(PolicyChange::of(name, &settings)?)
}

fn setting(word: &str) -> Result<Setting, WriteError> {
    let key = word.split_once('=').map(|(key, _)| key);
    match READ_ONLY.into_iter().find(|read_only| key == Some(read_only)) {
        Some(read_only) => Err(WriteError::ReadOnly(read_only)),
        None => Ok(word.parse()?),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_share::{Policy, Weight};

    use super::*;

    #[test]
    fn content_has_the_policy_first_and_then_the_use() {
        let web = weir_fake_agent::classes().remove(0);
        let expected = "\
weight=2
min=20mbit
max=50mbit
allocation=40mbit
rate=39.84mbit
bytes=398400000
packets=39840
drops=0
backlog=0
state=active
enforced=yes
";
        assert_eq!(of(&web), expected);
    }

    #[test]
    fn content_of_a_class_that_is_not_enforced_says_why_in_one_line() {
        let mut class = weir_fake_agent::classes().remove(0);
        class.enforced = false;
        class.not_enforced_because = Some("veth7 is gone\nenforced=yes".to_owned());
        let text = of(&class);
        assert!(text.contains("enforced=no\nbecause=veth7 is gone"), "{text}");
        assert_eq!(text.lines().count(), 12, "{text}");
    }

    #[test]
    fn write_has_settings_between_any_white_space() {
        let change = change("web", b"weight=3\nmin=5mbit max=none\n").unwrap();
        let expected = PolicyChange {
            name: "web".to_owned(),
            weight: Some(Some(Weight::new(3).unwrap())),
            min: Some(Some(BitRate::mbit(5))),
            max: Some(None),
            ..PolicyChange::default()
        };
        assert_eq!(change, expected);
    }

    #[test]
    fn each_wrong_write_is_refused_for_its_own_reason() {
        let refused = |written: &[u8]| change("web", written).unwrap_err();
        assert_eq!(refused(b"\n"), WriteError::Setting(SettingError::Syntax));
        assert_eq!(refused(b"weight"), WriteError::Setting(SettingError::Syntax));
        assert_eq!(refused(b"rate=3mbit"), WriteError::ReadOnly("rate"));
        assert_eq!(refused(b"colour=3"), WriteError::Setting(SettingError::UnknownKey("colour".to_owned())));
        assert_eq!(refused(b"weight=\xff"), WriteError::NotText);
        assert_eq!(refused(&[b' '; 4097]), WriteError::TooLong(4097));
        assert!(matches!(refused(b"weight=0"), WriteError::Setting(SettingError::Weight(_))));
        assert!(matches!(refused(b"weight=2 min=0"), WriteError::Setting(SettingError::Policy(_))));
        assert!(matches!(refused(b"weight=2 weight=3"), WriteError::Change(ChangeError::Twice { .. })));
        let contradiction = refused(b"min=3mbit max=2mbit");
        assert!(matches!(contradiction, WriteError::Change(ChangeError::Contradiction { .. })));
    }

    proptest! {
        #[test]
        fn policy_that_is_read_and_written_back_is_the_same(
            weight in 1..=1_000_000u32,
            min in prop::option::of(8_000..=BitRate::MAX.0),
            above in prop::option::of(0..1_000_000_000u64),
        ) {
            let max = above.map(|above| BitRate((min.unwrap_or(8_000) + above).min(BitRate::MAX.0)));
            let min = min.map(BitRate);
            prop_assume!(Policy::new(Weight::ONE, min, max).is_ok());
            let mut class = weir_fake_agent::classes().remove(0);
            class.policy.weight = Weight::new(weight).unwrap();
            (class.policy.min, class.policy.max) = (min, max);
            let text = of(&class);
            let policy: Vec<&str> = text.lines().take(3).collect();
            let change = change("web", policy.join("\n").as_bytes()).unwrap();
            prop_assert_eq!(change.weight, Some(Some(class.policy.weight)));
            prop_assert_eq!((change.min, change.max), (Some(min), Some(max)));
        }
    }
}
