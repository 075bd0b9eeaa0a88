//! The rules of congestion control that were set at run time, with those that advice replaced.

use weir_cc::{Origin, Rule};

/// The most replaced rules that are kept for the same connections.
const MAX_REPLACED: usize = 8;

/// Rules set at run time. One rule at most is in force for the same connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SetRules {
    in_force: Vec<Rule>,
    /// The rules that advice replaced, oldest first. The last one for the same connections is in force again if the
    /// advised rule is taken back.
    replaced: Vec<Rule>,
}

impl SetRules {
    pub(crate) fn in_force(&self) -> &[Rule] {
        &self.in_force
    }

    /// The rules that the rule in force for these connections replaced, oldest first.
    pub(crate) fn replaced_by<'a>(&'a self, about: &'a Rule) -> impl Iterator<Item = &'a Rule> {
        self.replaced.iter().filter(|rule| rule.is_about_the_same_as(about))
    }

    /// Restores a stored rule, with those that it replaced.
    pub(crate) fn restore(&mut self, rule: Rule, replaced: Vec<Rule>) {
        self.in_force.push(rule);
        self.replaced.extend(replaced);
    }

    /// Puts a rule in force. An advised rule keeps the one that it replaces.
    pub(super) fn set(&mut self, rule: Rule) {
        let before = self.in_force.iter().position(|other| other.is_about_the_same_as(&rule));
        let before = before.map(|at| self.in_force.remove(at));
        match before {
            Some(before) if rule.origin == Origin::Advice => self.keep(before),
            _ => self.forget(&rule),
        }
        self.in_force.push(rule);
    }

    /// Keeps a replaced rule. The oldest advised one makes room for it.
    fn keep(&mut self, rule: Rule) {
        if self.replaced_by(&rule).count() >= MAX_REPLACED {
            let is_oldest =
                |other: &Rule| other.origin == Origin::Advice && other.is_about_the_same_as(&rule);
            let oldest = self.replaced.iter().position(is_oldest);
            oldest.map(|at| self.replaced.remove(at));
        }
        self.replaced.push(rule);
    }

    fn forget(&mut self, about: &Rule) {
        self.replaced.retain(|other| !other.is_about_the_same_as(about));
    }

    /// Removes the rule for these connections, and the ones that it replaced. Returns whether there was one.
    pub(super) fn unset(&mut self, about: &Rule) -> bool {
        let before = self.in_force.len();
        self.in_force.retain(|other| !other.is_about_the_same_as(about));
        self.forget(about);
        self.in_force.len() < before
    }

    /// Takes back the advised rule for these connections. Returns the rule of before, which is in force again, or
    /// `None` in it if there was none. Without an advised rule the answer is `None`.
    pub(super) fn take_back(&mut self, about: &Rule) -> Option<Option<Rule>> {
        let is_advised = |rule: &Rule| rule.origin == Origin::Advice && rule.is_about_the_same_as(about);
        let advised = self.in_force.iter().position(is_advised)?;
        self.in_force.remove(advised);
        let before = self.replaced.iter().rposition(|rule| rule.is_about_the_same_as(about));
        let before = before.map(|at| self.replaced.remove(at));
        self.in_force.extend(before.clone());
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(start: &str, origin: Origin) -> Rule {
        Rule { to: "10.98.0.0/16".parse().ok(), start: start.parse().ok(), origin, ..Rule::default() }
    }

    #[test]
    fn rule_that_advice_replaced_is_in_force_again_when_it_is_taken_back() {
        let (set, first) = (rule("reno", Origin::Set), rule("cubic", Origin::Advice));
        let other = Rule { port: Some(443), ..rule("cubic", Origin::Set) };
        let mut rules = SetRules::default();
        rules.set(other.clone());
        rules.set(set.clone());
        rules.set(first.clone());
        rules.set(rule("bbr", Origin::Advice));
        assert_eq!(rules.in_force(), [other.clone(), rule("bbr", Origin::Advice)]);
        assert_eq!(rules.take_back(&rule("bbr", Origin::Config)), Some(Some(first)));
        assert_eq!(rules.take_back(&set), Some(Some(set.clone())));
        assert_eq!(rules.in_force(), [other.clone(), set.clone()]);
        // A rule of a person is no advice.
        assert_eq!(rules.take_back(&set), None);
        assert_eq!(rules.in_force(), [other, set]);
    }

    #[test]
    fn rule_that_a_person_sets_or_unsets_forgets_those_of_before() {
        let mut rules = SetRules::default();
        rules.set(rule("reno", Origin::Set));
        rules.set(rule("cubic", Origin::Advice));
        let mut unset = rules.clone();
        assert!(unset.unset(&rule("reno", Origin::Set)) && unset == SetRules::default());
        assert!(!unset.unset(&rule("reno", Origin::Set)));
        rules.set(rule("vegas", Origin::Set));
        assert_eq!(rules.replaced_by(&rule("vegas", Origin::Set)).count(), 0);
        rules.set(rule("cubic", Origin::Advice));
        assert_eq!(rules.take_back(&rule("vegas", Origin::Set)), Some(Some(rule("vegas", Origin::Set))));
        // Without a rule of before the configuration or the system decides.
        let mut rules = SetRules::default();
        rules.set(rule("cubic", Origin::Advice));
        assert_eq!(rules.take_back(&rule("cubic", Origin::Set)), Some(None));
        assert_eq!(rules, SetRules::default());
    }

    #[test]
    fn kept_rules_are_bounded_and_the_one_of_a_person_stays() {
        let mut rules = SetRules::default();
        rules.set(rule("reno", Origin::Set));
        for n in 0..100 {
            rules.set(rule(if n % 2 == 0 { "cubic" } else { "bbr" }, Origin::Advice));
        }
        let about = rule("reno", Origin::Set);
        let kept: Vec<&Rule> = rules.replaced_by(&about).collect();
        assert_eq!((kept.len(), kept[0]), (MAX_REPLACED, &about));
    }
}
