//! Policies written as labels on containers.

use std::collections::{BTreeMap, BTreeSet};

use weir_share::{Policy, PolicyError, Weight, WeightError};
use weir_units::{BitRate, ParseRateError};

/// The wishes of the labels `weir.weight`, `weir.min` and `weir.max`, and of those of what arrives
/// (`weir.down.max`). A label that is missing or
/// wrong counts as absent, so that the next origin of a policy shows through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LabelPolicy {
    /// Relative share.
    pub weight: Option<Weight>,
    /// Floor, bit/s; at most [`LabelPolicy::max`] if both are given.
    pub min: Option<BitRate>,
    /// Ceiling, bit/s.
    pub max: Option<BitRate>,
    /// The same of what arrives.
    pub down: DownLabels,
}

/// The wishes of the labels `weir.down.weight`, `weir.down.min` and `weir.down.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownLabels {
    /// Relative share.
    pub weight: Option<Weight>,
    /// Floor, bit/s; at most [`DownLabels::max`] if both are given.
    pub min: Option<BitRate>,
    /// Ceiling, bit/s.
    pub max: Option<BitRate>,
}

/// A label that was ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label {}={} is ignored: {why}", brief(label), brief(value))]
pub struct BadLabel {
    /// Its key.
    pub label: String,
    /// Its value.
    pub value: String,
    /// The fault.
    pub why: LabelError,
}

/// The beginning of a label's text, on one line.
#[must_use]
pub fn brief(text: &str) -> String {
    let more = if text.chars().nth(128).is_some() { "..." } else { "" };
    text.chars().take(128).flat_map(char::escape_debug).chain(more.chars()).collect()
}

/// A fault of a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Not a weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// Not a rate.
    #[error(transparent)]
    Rate(#[from] ParseRateError),
    /// A rate that cannot be a floor or a ceiling, or contradicts the other.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Not a name.
    #[error(
        "a group's name begins with a letter or digit and goes on with at most {} of those and of `-`, `_`, `.`",
        GROUP_LEN - 1
    )]
    Group,
    /// A key that begins with `weir.` and that weir does not know.
    #[error("weir knows weir.weight, weir.min, weir.max, these after weir.down, and weir.group")]
    Unknown,
}

/// Longest name of a group, bytes.
const GROUP_LEN: usize = 64;

/// The labels of a container that come from its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromImage {
    /// These keys: the image has the same value.
    Keys(BTreeSet<String>),
    /// It is not known, and why.
    Unknown(String),
}

impl Default for FromImage {
    fn default() -> FromImage {
        FromImage::Keys(BTreeSet::new())
    }
}

impl FromImage {
    /// Compares a container's labels with those of its image.
    #[must_use]
    pub fn compare(own: &BTreeMap<String, String>, image: &BTreeMap<String, String>) -> FromImage {
        let same = own.iter().filter(|(key, value)| is_ours(key) && image.get(*key) == Some(value));
        FromImage::Keys(same.map(|(key, _)| key.clone()).collect())
    }

    /// Whether the label may come from the image.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        match self {
            FromImage::Keys(keys) => keys.contains(key),
            FromImage::Unknown(_) => true,
        }
    }
}

/// The keys that weir knows, behind `weir.`.
pub(crate) const WISHES: [&str; 7] = ["weight", "min", "max", "down.weight", "down.min", "down.max", "group"];

/// Whether a label's key is weir's.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("weir.")
}

/// Whether weir knows a label's key.
pub(crate) fn is_wish(key: &str) -> bool {
    key.strip_prefix("weir.").is_some_and(|key| WISHES.contains(&key))
}

/// Reads the labels that begin with `weir.`: the policy, the group, and those that are no good,
/// each of which counts as not given. A floor above the ceiling is no good; the ceiling stays,
/// which protects the others.
#[must_use]
pub fn parse(labels: &BTreeMap<String, String>) -> (LabelPolicy, Option<String>, Vec<BadLabel>) {
    let mut policy = LabelPolicy::default();
    let mut group = None;
    let mut bad = Vec::new();
    // In the order of the keys, so that the ceiling is known when the floor comes.
    for (label, value) in labels.iter().filter(|(label, _)| is_ours(label)) {
        let read = match label.as_str() {
            "weir.weight" => value.parse().map(|weight| policy.weight = Some(weight)).map_err(Into::into),
            "weir.max" => rate(value, |max| (None, max)).map(|max| policy.max = max),
            "weir.min" => rate(value, |min| (min, policy.max)).map(|min| policy.min = min),
            "weir.down.weight" => {
                value.parse().map(|weight| policy.down.weight = Some(weight)).map_err(Into::into)
            }
            "weir.down.max" => rate(value, |max| (None, max)).map(|max| policy.down.max = max),
            "weir.down.min" => rate(value, |min| (min, policy.down.max)).map(|min| policy.down.min = min),
            "weir.group" if is_group(value) => {
                group = Some(value.clone());
                Ok(())
            }
            "weir.group" => Err(LabelError::Group),
            _ => Err(LabelError::Unknown),
        };
        if let Err(why) = read {
            bad.push(BadLabel { label: label.clone(), value: value.clone(), why });
        }
    }
    (policy, group, bad)
}

/// A rate, or `none`, that makes a policy as the floor and ceiling that `place` puts it.
///
/// # Errors
/// [`LabelError`].
pub fn rate(
    text: &str,
    place: impl Fn(Option<BitRate>) -> (Option<BitRate>, Option<BitRate>),
) -> Result<Option<BitRate>, LabelError> {
    if text.trim() == "none" {
        return Ok(None);
    }
    let rate = Some(text.parse()?);
    let (min, max) = place(rate);
    Policy::new(Weight::ONE, min, max)?;
    Ok(rate)
}

/// Whether a label may name a group like this.
#[must_use]
pub fn is_group(name: &str) -> bool {
    name.len() <= GROUP_LEN
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn mbit(n: u64) -> Option<BitRate> {
        Some(BitRate::mbit(n))
    }

    #[test]
    fn good_labels_make_a_policy_and_a_group() {
        let (policy, group, bad) = parse(&labels(&[
            ("weir.weight", "3"),
            ("weir.min", "20mbit"),
            ("weir.max", "50Mbps"),
            ("weir.group", "tenant-a"),
            ("weir.down.weight", "2"),
            ("weir.down.min", "1mbit"),
            ("weir.down.max", "4mbit"),
            ("com.docker.compose.project", "shop"),
            ("weirdness", "11"),
        ]));
        assert_eq!(bad, []);
        assert_eq!(group.as_deref(), Some("tenant-a"));
        assert_eq!(policy.weight.map(Weight::get), Some(3));
        assert_eq!((policy.min, policy.max), (mbit(20), mbit(50)));
        assert_eq!(policy.down.weight.map(Weight::get), Some(2));
        assert_eq!((policy.down.min, policy.down.max), (mbit(1), mbit(4)));
    }

    #[test]
    fn a_compose_project_is_not_a_group() {
        let (policy, group, bad) = parse(&labels(&[("com.docker.compose.project", "shop")]));
        assert_eq!((policy, group, bad), (LabelPolicy::default(), None, vec![]));
    }

    #[test]
    fn a_bad_label_is_named_with_its_value_and_the_others_hold() {
        use LabelError as E;
        let long = "g".repeat(65);
        type Right = fn(&LabelError) -> bool;
        let cases: &[(&str, &str, Right)] = &[
            ("weir.weight", "abc", |why| matches!(why, E::Weight(_))),
            ("weir.weight", "0", |why| matches!(why, E::Weight(_))),
            ("weir.weight", "-1", |why| matches!(why, E::Weight(_))),
            ("weir.weight", "1.5", |why| matches!(why, E::Weight(_))),
            ("weir.weight", "", |why| matches!(why, E::Weight(_))),
            ("weir.min", "fast", |why| matches!(why, E::Rate(ParseRateError::Syntax(_)))),
            ("weir.min", "", |why| matches!(why, E::Rate(ParseRateError::Syntax(_)))),
            ("weir.min", "-5mbit", |why| matches!(why, E::Rate(ParseRateError::Negative(_)))),
            ("weir.min", "0", |why| matches!(why, E::Policy(PolicyError::MinZero))),
            ("weir.max", "0mbit", |why| matches!(why, E::Policy(PolicyError::MaxZero))),
            ("weir.max", "1kbit", |why| matches!(why, E::Policy(PolicyError::TooSmall(_)))),
            ("weir.max", "99999999gbit", |why| matches!(why, E::Rate(ParseRateError::TooLarge(_)))),
            ("weir.group", "", |why| *why == E::Group),
            ("weir.group", "a b", |why| *why == E::Group),
            ("weir.group", "../etc", |why| *why == E::Group),
            ("weir.group", &long, |why| *why == E::Group),
            ("weir.wieght", "3", |why| *why == E::Unknown),
            ("weir.", "3", |why| *why == E::Unknown),
        ];
        for (label, value, right) in cases {
            let mut all = labels(&[("weir.weight", "7"), ("weir.max", "50mbit"), ("weir.group", "a")]);
            all.insert((*label).to_owned(), (*value).to_owned());
            let (policy, group, bad) = parse(&all);
            let [only] = &bad[..] else { panic!("{label}={value}: {bad:?}") };
            assert_eq!((only.label.as_str(), only.value.as_str()), (*label, *value));
            assert!(right(&only.why), "{label}={value}: {:?}", only.why);
            assert!(only.to_string().starts_with(&format!("label {label}={value} is ignored: ")), "{only}");
            let kept = |key: &str| *label != key;
            assert_eq!(policy.weight.map(Weight::get), kept("weir.weight").then_some(7));
            assert_eq!(policy.max, mbit(50).filter(|_| kept("weir.max")));
            assert_eq!(policy.min, None);
            assert_eq!(group.is_some(), kept("weir.group"));
        }
    }

    #[test]
    fn a_minimum_above_the_maximum_is_ignored_and_the_maximum_holds() {
        let (policy, _, bad) = parse(&labels(&[("weir.min", "30mbit"), ("weir.max", "20mbit")]));
        assert_eq!((policy.min, policy.max), (None, mbit(20)));
        let (policy, _, bad_down) =
            parse(&labels(&[("weir.max", "9mbit"), ("weir.down.min", "3mbit"), ("weir.down.max", "2mbit")]));
        assert_eq!((policy.down.min, policy.down.max, bad_down.len()), (None, mbit(2), 1));
        let why = PolicyError::MinAboveMax { min: BitRate::mbit(30), max: BitRate::mbit(20) };
        assert_eq!(
            bad,
            [BadLabel { label: "weir.min".into(), value: "30mbit".into(), why: LabelError::Policy(why) }]
        );
    }

    #[test]
    fn none_takes_a_rate_away_without_complaint() {
        let (policy, _, bad) = parse(&labels(&[("weir.min", "none"), ("weir.max", " none ")]));
        assert_eq!((policy, bad), (LabelPolicy::default(), vec![]));
    }

    proptest! {
        #[test]
        fn whatever_labels_say_what_is_left_is_a_policy(
            weight in "\\PC{0,6}|[0-9]{1,8}",
            min in "\\PC{0,8}|[0-9]{1,14}(kbit|mbit)?",
            max in "\\PC{0,8}|[0-9]{1,14}(kbit|mbit)?",
        ) {
            let (policy, group, _) = parse(&labels(&[
                ("weir.weight", &weight), ("weir.min", &min), ("weir.max", &max),
            ]));
            prop_assert!(Policy::new(policy.weight.unwrap_or_default(), policy.min, policy.max).is_ok());
            prop_assert_eq!(group, None);
        }
    }
}
