//! Congestion control's part of the database: rules set at run time, and trials.

use std::collections::BTreeMap;

use ipnet::IpNet;
use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use weir_cc::{Origin, Rule, Trial};

use super::{Store, StoreError, Text};
use crate::agent::set_rules::SetRules;

/// Rules as JSON, by the connections they apply to.
const RULES: Text = TableDefinition::new("congestion-rules");
/// Trials as JSON, by network.
const TRIALS: Text = TableDefinition::new("congestion-trials");

pub(super) fn prepare(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(RULES)?;
    tx.open_table(TRIALS)?;
    Ok(())
}

/// A rule with its origin. Rows of rules in force have the rules that these replaced.
#[derive(Serialize, Deserialize)]
struct Row {
    rule: Rule,
    origin: Origin,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<Row>,
}

impl From<&Rule> for Row {
    fn from(rule: &Rule) -> Row {
        Row { rule: rule.clone(), origin: rule.origin, replaced: Vec::new() }
    }
}

impl From<Row> for Rule {
    fn from(Row { rule, origin, .. }: Row) -> Rule {
        Rule { origin, ..rule }
    }
}

impl Store {
    /// The rules set at run time. An unreadable rule is left out and logged.
    pub(crate) fn congestion_rules(&self) -> Result<SetRules, StoreError> {
        self.read("read the rules of congestion control of", |tx| {
            let mut rules = SetRules::default();
            for row in tx.open_table(RULES)?.iter()? {
                let (about, text) = row?;
                match serde_json::from_slice::<Row>(text.value().as_bytes()) {
                    Ok(mut row) => {
                        let replaced = std::mem::take(&mut row.replaced);
                        rules.restore(row.into(), replaced.into_iter().map(Rule::from).collect());
                    }
                    Err(e) => tracing::warn!("ignoring the stored rule for {}: {e}", about.value()),
                }
            }
            Ok(rules)
        })
    }

    /// Replaces all rules set at run time.
    pub(crate) fn save_congestion_rules(&self, rules: &SetRules) -> Result<(), StoreError> {
        let rows = rules.in_force().iter().map(|rule| {
            let row = Row { replaced: rules.replaced_by(rule).map(Row::from).collect(), ..Row::from(rule) };
            (rule.to_string(), serde_json::to_string(&row).unwrap_or_default())
        });
        let rows = rows.collect();
        self.write("write the rules of congestion control of", |change| change.replace(RULES, &rows))
    }

    /// The trials, by network. An unreadable trial starts again.
    pub(crate) fn congestion_trials(&self) -> Result<BTreeMap<IpNet, Trial>, StoreError> {
        self.read("read the trials of", |tx| {
            let mut trials = BTreeMap::new();
            for row in tx.open_table(TRIALS)?.iter()? {
                let (to, text) = row?;
                match (to.value().parse(), serde_json::from_slice(text.value().as_bytes())) {
                    (Ok(to), Ok(trial)) => drop(trials.insert(to, trial)),
                    _ => tracing::warn!("the trial of {} begins again: it cannot be read", to.value()),
                }
            }
            Ok(trials)
        })
    }

    /// Replaces all trials.
    pub(crate) fn save_congestion_trials(&self, trials: &BTreeMap<IpNet, Trial>) -> Result<(), StoreError> {
        let rows = trials
            .iter()
            .map(|(to, trial)| (to.to_string(), serde_json::to_string(trial).unwrap_or_default()));
        let rows = rows.collect();
        self.write("write the trials of", |change| change.replace(TRIALS, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_trials_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let action = |name: &str| Rule { start: name.parse().ok(), ..Rule::default() }.action();
        let set =
            Rule { port: Some(443), start: "reno".parse().ok(), origin: Origin::Set, ..Rule::default() };
        let advised = Rule {
            to: "10.0.0.0/8".parse().ok(),
            start: "bbr".parse().ok(),
            origin: Origin::Advice,
            ..Rule::default()
        };
        let rules = |all: Vec<(Rule, Vec<Rule>)>| {
            let mut rules = SetRules::default();
            all.into_iter().for_each(|(rule, replaced)| rules.restore(rule, replaced));
            rules
        };
        let before = Rule { start: "reno".parse().ok(), origin: Origin::Set, ..advised.clone() };
        let earlier = Rule { start: "cubic".parse().ok(), ..advised.clone() };
        let all = rules(vec![(set, vec![]), (advised, vec![before, earlier])]);
        let mut trial = Trial::new(action("cubic"), vec![action("bbr")], 0.1);
        trial.next(1);
        let trials = BTreeMap::from([("10.0.0.0/8".parse().unwrap(), trial)]);
        {
            let store = Store::open(dir.path()).unwrap();
            store.save_congestion_rules(&rules(vec![(Rule::default(), vec![])])).unwrap();
            store.save_congestion_rules(&all).unwrap();
            store.save_congestion_trials(&trials).unwrap();
        }
        let store = Store::open(dir.path()).unwrap();
        // The rules are sorted by their connections.
        assert_eq!(store.congestion_rules().unwrap(), all);
        assert_eq!(store.congestion_trials().unwrap(), trials);
    }
}
