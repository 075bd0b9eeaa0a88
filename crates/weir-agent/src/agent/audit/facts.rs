//! The values that the audit follows, as text.

use std::collections::{BTreeMap, BTreeSet};

use weir_agree::{Agreement, Name};
use weir_api::{ChangeKind, Origin, TokenView};
use weir_cc::Rule;
use weir_units::BitRate;

use super::line::Facts;
use crate::{
    agent::{
        agree::in_words,
        by_hand::SetLayers,
        class_table::{ClassEntry, ClassTable},
        maker::Maker,
    },
    config::Layer,
};

/// The longest value and the longest name, in characters. Longer ones are cut.
const MAX_TEXT: usize = 512;

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn put(facts: &mut Facts, what: ChangeKind, name: &str, value: &str) {
    facts.insert((what, cut(name)), cut(value));
}

/// A rate that reads as exactly this one.
fn exact(rate: BitRate) -> String {
    let text = rate.to_string();
    if text.parse() == Ok(rate) { text } else { format!("{}bit", rate.0) }
}

/// A policy set by hand, as `weir set` takes it.
fn by_hand(layer: &Layer) -> String {
    let weight = layer.weight.map(|weight| format!("weight={weight}"));
    let [min, max] = [("min", layer.min), ("max", layer.max)]
        .map(|(key, rate)| rate.map(|rate| format!("{key}={}", exact(rate))));
    [weight, min, max].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Default => "built in",
        Origin::Defaults => "defaults",
        Origin::Label => "label",
        Origin::Config => "configuration",
        Origin::Set => "by hand",
        Origin::Agreement => "agreement",
    }
}

/// A policy in force with its origins: `weight=3 (label) max=5mbit (by hand)`.
pub(super) fn in_force(entry: &ClassEntry) -> String {
    let (policy, [weight, min, max]) = (&entry.effective.policy, entry.effective.origins);
    let mut text = format!("weight={} ({})", policy.weight(), origin(weight));
    for (key, rate, from) in [("min", policy.min(), min), ("max", policy.max(), max)] {
        if let Some(rate) = rate {
            text += &format!(" {key}={} ({})", exact(rate), origin(from));
        }
    }
    if let Some(id) = &entry.agreement {
        text += &format!(", agreement {id}");
    }
    if entry.minor.is_none() {
        text += ", absent";
    }
    text
}

/// The policies in force of one direction.
pub(super) fn classes(facts: &mut Facts, what: &ChangeKind, table: &ClassTable) {
    for (key, entry) in table.entries() {
        put(facts, what.clone(), key.as_str(), &in_force(entry));
    }
}

/// The policies set by hand of one direction.
pub(super) fn set_by_hand(facts: &mut Facts, what: &ChangeKind, set: &SetLayers) {
    for (name, layer) in set {
        put(facts, what.clone(), name, &by_hand(layer));
    }
}

/// A capacity, which is one by hand or the configured one.
pub(super) fn capacity(facts: &mut Facts, name: &str, rate: BitRate, is_by_hand: bool) {
    let from = if is_by_hand { "by hand" } else { "configuration" };
    put(facts, ChangeKind::Capacity, name, &format!("{} ({from})", exact(rate)));
}

/// An agreement with the user who made it.
pub(super) fn agreement(facts: &mut Facts, agreement: &Agreement, owner: Option<&Maker>) {
    let id: &Name = &agreement.id;
    let state = serde_json::to_value(agreement.state);
    let state = state.as_ref().ok().and_then(|state| state.as_str()).unwrap_or_default();
    let by = owner.map_or(String::new(), |maker| format!(", made by {maker}"));
    put(facts, ChangeKind::Agreement, id.as_str(), &format!("{state}: {}{by}", in_words(agreement)));
}

/// A rule of congestion control that was set at run time.
pub(super) fn rule(facts: &mut Facts, rule: &Rule) {
    let value = format!("{} ({})", rule.action(), rule.origin);
    put(facts, ChangeKind::Congestion, &rule.to_string(), &value);
}

/// A token of the API over TCP, without its secret.
pub(super) fn token(facts: &mut Facts, token: &TokenView) {
    let party = token.party.as_ref().map_or(String::new(), |party| format!(" party={party}"));
    let expires = token.expires_ms.map_or(String::new(), |ms| format!(" expires_ms={ms}"));
    put(facts, ChangeKind::Token, &token.name, &format!("scope={}{party}{expires}", token.scope));
}

/// The pins of the image cache.
pub(super) fn pins(facts: &mut Facts, pins: &BTreeSet<String>) {
    for pin in pins {
        put(facts, ChangeKind::Pin, pin, "stays");
    }
}

/// The keys of a configuration with their values.
pub(super) fn configuration(facts: &mut Facts, keys: &BTreeMap<String, String>) {
    for (key, value) in keys {
        put(facts, ChangeKind::Configuration, key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_by_hand_is_written_as_exactly_as_it_is_set() {
        let layer =
            Layer { weight: "3".parse().ok(), min: Some(BitRate(5_000_001)), max: Some(BitRate::mbit(9)) };
        assert_eq!(by_hand(&layer), "weight=3 min=5000001bit max=9mbit");
        assert_eq!(cut(&"ä".repeat(600)).chars().count(), MAX_TEXT + 3);
    }
}
