//! Rules of congestion control at run time: set by hand, or found by trials.

use std::time::Duration;

use ipnet::IpNet;
use weir_api::{
    AdviceRequest, AdviceVerb, CongestionRule as RuleView, CongestionView, Error, ErrorCode, EventKind,
};
use weir_bpf::CongestionTrial;
use weir_cc::{AdviceView, Advisor, Algorithm, Decision, Origin, Rule, Trial, rule_for};
use weir_datapath::congestion::{shapes, system_default};
use weir_units::chain;

use super::{Agent, CongestionControl, congestion, set_rules::SetRules};
use crate::{agent::store::Store, config::Config};

/// The interval between two writes of the trials.
const STORED_EVERY: Duration = Duration::from_secs(60);

fn refused(message: String) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

/// Checks that this kernel has the candidates.
pub(super) fn checked(config: &Config) -> Result<(), String> {
    let Some(advice) = &config.advice else { return Ok(()) };
    for rule in &advice.candidates {
        congestion::checked(std::slice::from_ref(rule)).map_err(|e| format!("[advice] try: {e}"))?;
    }
    Ok(())
}

/// Restores the stored rules and trials. A rule set by hand that is no longer possible is left out and
/// reported.
pub(super) fn open(config: &Config, store: &Store) -> anyhow::Result<(CongestionControl, Vec<String>)> {
    let rules = congestion::checked(&config.congestion).map_err(anyhow::Error::msg)?;
    checked(config).map_err(anyhow::Error::msg)?;
    let (stored, mut set, mut left_out) = (store.congestion_rules()?, SetRules::default(), Vec::new());
    for rule in stored.in_force() {
        let mut with = set.clone();
        with.restore(rule.clone(), stored.replaced_by(rule).cloned().collect());
        match congestion::together(&config.congestion, with.in_force()) {
            Ok(_) => set = with,
            Err(why) => left_out.push(format!("a rule that was set at run time is left out: {why}")),
        }
    }
    let rules = congestion::together(&config.congestion, set.in_force()).unwrap_or(rules);
    let advisor = Advisor::new(config.advice.clone(), store.congestion_trials()?, fastrand::u32(..1 << 30));
    Ok((CongestionControl::new(rules, set, advisor), left_out))
}

impl Agent {
    /// Sets a rule at run time. It replaces an earlier rule for the same connections.
    pub(super) fn set_rule(&mut self, rule: Rule, origin: Origin) -> Result<RuleView, Error> {
        let rule = Rule { origin, ..rule };
        self.is_named_once(&rule)?;
        let mut set = self.congestion.set.clone();
        set.set(rule.clone());
        self.put_rules(set).map_err(|why| refused(format!("cannot set a rule: {why}")))?;
        let rules = self.congestion.rules.as_slice();
        let number = rules.iter().position(|other| other.is_about_the_same_as(&rule));
        let view = number.and_then(|i| self.congestion.rule(i + 1));
        self.event(EventKind::RuleSet, None, format!("{rule}: {}, by {origin}", rule.action()));
        view.ok_or_else(|| refused(format!("the rule for {rule} is gone")))
    }

    /// Removes a rule that was set at run time.
    pub(super) fn unset_rule(&mut self, about: &Rule) -> Result<CongestionView, Error> {
        let mut set = self.congestion.set.clone();
        if !set.unset(about) {
            let is_configured =
                self.congestion.rules.as_slice().iter().any(|r| r.is_about_the_same_as(about));
            let why = if is_configured {
                "it is the configuration's: change it there"
            } else {
                "`weir cc ls` lists them"
            };
            let message = format!("no rule for {about} was set at run time; {why}");
            return Err(Error::new(ErrorCode::UnknownName, message));
        }
        if let Some(to) = about.to.filter(|to| rule_for(*to, None).is_about_the_same_as(about)) {
            self.congestion.advisor.take_back(to);
        }
        self.put_rules(set).map_err(|why| refused(format!("cannot take back a rule: {why}")))?;
        self.event(EventKind::RuleUnset, None, format!("{about}"));
        Ok(self.congestion.view())
    }

    /// Refuses a rule that names a class by its other name. A class has two names, and rules that
    /// differ only in them apply to the same connections.
    fn is_named_once(&self, rule: &Rule) -> Result<(), Error> {
        let known = |rule: &Rule| {
            let container = rule.container.as_ref();
            container.map(|name| self.classes.find(name).map_or_else(|_| name.clone(), ToString::to_string))
        };
        let is_same = |other: &&Rule| {
            !other.is_about_the_same_as(rule)
                && known(other) == known(rule)
                && Rule { container: rule.container.clone(), ..(*other).clone() }.is_about_the_same_as(rule)
        };
        match self.congestion.rules.as_slice().iter().find(is_same) {
            None => Ok(()),
            Some(other) => Err(refused(format!(
                "cannot set a rule for {rule}: there is one for {other}, which is about the same connections"
            ))),
        }
    }

    /// Stores rules, then applies them.
    fn put_rules(&mut self, set: SetRules) -> Result<(), String> {
        let rules = congestion::together(&self.classes.config().congestion, set.in_force())?;
        self.store.save_congestion_rules(&set).map_err(|e| format!("{}; {}", chain(&e), e.outcome()))?;
        self.congestion.set = set;
        self.congestion.set_rules(rules);
        self.discover();
        Ok(())
    }

    /// Ends the trials that are due, and applies their results.
    pub(super) fn advise(&mut self) {
        let advisor = &self.congestion.advisor;
        if !advisor.is_active() && advisor.assignments().is_empty() {
            return;
        }
        let now = self.now();
        let system = system_default().and_then(|name| name.parse::<Algorithm>().ok());
        let Some(system) = system else { return };
        let random = || fastrand::u64(..);
        let control = &mut self.congestion;
        let stages = |advisor: &Advisor| advisor.trials().values().map(Trial::stage).collect::<Vec<_>>();
        let before = stages(&control.advisor);
        let Some(decisions) = control.advisor.turn(now, &control.rules, &system, random) else { return };
        let trials: Vec<CongestionTrial> = control.advisor.assignments().iter().map(shapes::trial).collect();
        let is_news = !decisions.is_empty() || stages(&control.advisor) != before;
        if let Some(Err(e)) = control.hold.as_mut().map(|hold| hold.try_out(&trials)) {
            let effects = control.record_result(Err(chain(&e)));
            self.follow_up(effects);
        }
        for (to, decision) in decisions {
            self.follow_decision(to, decision);
        }
        if is_news || self.congestion.stored.is_none_or(|stored| stored.elapsed() >= STORED_EVERY) {
            self.save_trials();
        }
    }

    pub(super) fn save_trials(&mut self) {
        self.congestion.stored = Some(std::time::Instant::now());
        if let Err(e) = self.store.save_congestion_trials(self.congestion.advisor.trials()) {
            tracing::warn!("{}", chain(&e));
        }
    }

    fn follow_decision(&mut self, to: IpNet, decision: Decision) {
        match decision {
            Decision::Dropped { action, why } => {
                self.event(EventKind::Advice, None, format!("{to}: {action} is tried no more: {why}"));
            }
            Decision::Raising { action, why } => {
                self.event(
                    EventKind::Advice,
                    None,
                    format!("{to}: more and more connections use {action}: {why}"),
                );
            }
            Decision::Keep { action, why } => {
                self.event(EventKind::Advice, None, format!("{to}: keeps {action}: {why}"));
            }
            Decision::Change { action, why } => {
                self.event(EventKind::Advice, None, format!("{to}: {action} becomes the rule: {why}"));
                if let Err(e) = self.set_rule(rule_for(to, Some(&action)), Origin::Advice) {
                    self.event(EventKind::NotEnforced, None, format!("{to}: {action}: {}", e.message));
                    self.congestion.advisor.take_back(to);
                }
            }
            Decision::TakeBack { action, why } => {
                self.event(EventKind::Advice, None, format!("{to}: {action} is taken back: {why}"));
                if let Err(e) = self.unset_advised(to) {
                    self.event(EventKind::NotEnforced, None, format!("{to}: {}", e.message));
                }
            }
        }
    }

    /// Takes back the rule that advice set. The rule that it replaced is in force again.
    fn unset_advised(&mut self, to: IpNet) -> Result<(), Error> {
        let about = rule_for(to, None);
        let mut set = self.congestion.set.clone();
        let Some(before) = set.take_back(&about) else {
            let message = format!("no rule for {to} comes from advice: there is nothing to take back");
            return Err(Error::new(ErrorCode::UnknownName, message));
        };
        self.put_rules(set).map_err(|why| refused(format!("cannot take back a rule: {why}")))?;
        match before {
            None => self.event(EventKind::RuleUnset, None, format!("{about}")),
            Some(rule) => {
                let (action, origin) = (rule.action(), rule.origin);
                self.event(EventKind::RuleSet, None, format!("{rule}: {action}, by {origin}, as before"));
            }
        }
        Ok(())
    }

    pub(super) fn ask_advice(&mut self, request: AdviceRequest) -> Result<Vec<AdviceView>, Error> {
        let AdviceRequest { to, verb } = request;
        let known = match verb {
            AdviceVerb::Apply => self.congestion.advisor.apply(to, true),
            AdviceVerb::Hold => self.congestion.advisor.apply(to, false),
            AdviceVerb::Again => self.congestion.advisor.again(to),
            AdviceVerb::Rollback => {
                let to =
                    to.ok_or_else(|| refused("name the network whose rule is to be taken back".into()))?;
                self.unset_advised(to)?;
                self.congestion.advisor.take_back(to);
                true
            }
        };
        if !known {
            let what = to.map_or("no trial".to_owned(), |to| format!("no trial for {to}"));
            let message =
                format!("there is {what}: [advice] of the configuration names the networks (docs/weir.toml)");
            return Err(Error::new(ErrorCode::UnknownName, message));
        }
        self.save_trials();
        Ok(self.congestion.advisor.view())
    }
}
