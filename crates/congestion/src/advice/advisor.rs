use std::collections::{BTreeMap, VecDeque};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_units::{Bytes, Instant};

use super::{
    confidence::Effect,
    trial::{BASELINE, Trial, Turn},
    verdict::{Decision, Settled},
};
use crate::{Action, Algorithm, FlowRecord, Rule, RuleError, Rules, size};

/// Networks with a trial at most.
pub const MAX_TRIALS: usize = 16;
/// Algorithms that are tried beside the rule's, at most.
pub const MAX_TRIED: usize = 6;
/// At most this part of the flows tries others, before a rule is about to be changed.
pub const MAX_SHARE: f64 = 0.25;
/// Turns that are remembered, for flows that end after them.
const REMEMBERED: usize = 4096;

/// `[advice]`: whose flows try what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceSettings {
    /// The networks, each with a trial of its own.
    pub to: Vec<IpNet>,
    /// At most this part of the flows that begin tries others; 0: none.
    #[serde(default = "share")]
    pub share: f64,
    /// The algorithms tried beside those of the rules: `start`, and `after` and `then` if it
    /// changes.
    #[serde(default = "usual_candidates", rename = "try")]
    pub candidates: Vec<Rule>,
    /// How long a turn is, seconds: several times what most flows take.
    #[serde(default = "turn_s")]
    pub turn_s: u64,
}

fn share() -> f64 {
    0.1
}

fn turn_s() -> u64 {
    10
}

/// CUBIC, BBR, and weir's own rule.
fn usual_candidates() -> Vec<Rule> {
    let start = |name: &str| Rule { start: name.parse().ok(), ..Rule::default() };
    vec![start("cubic"), start("bbr"), Rule::default()]
}

/// The section contradicts itself, or means nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdviceError {
    /// None, or too many.
    #[error("to names {0} networks: 1 to {MAX_TRIALS} can have a trial")]
    Networks(usize),
    /// One that is no destination, or twice.
    #[error("to = {0}: {1}")]
    Network(IpNet, String),
    /// No part of the flows.
    #[error("share = {0} is not between 0 and {MAX_SHARE}")]
    Share(f64),
    /// None, or too many.
    #[error("try names {0} algorithms: 1 to {MAX_TRIED} can be tried")]
    Candidates(usize),
    /// One that is no action.
    #[error("try: {0}")]
    Candidate(#[from] RuleError),
    /// One that says whose connections.
    #[error("try: {0} says whose connections, but it is for those of the networks of `to`")]
    Asks(String),
    /// Too short or too long.
    #[error("turn_s = {0} is not between 1 and 3600")]
    Turn(u64),
}

impl AdviceSettings {
    /// Tests the parts.
    ///
    /// # Errors
    /// [`AdviceError`].
    pub fn check(&self) -> Result<(), AdviceError> {
        if !(1..=MAX_TRIALS).contains(&self.to.len()) {
            return Err(AdviceError::Networks(self.to.len()));
        }
        for (i, to) in self.to.iter().enumerate() {
            rule_for(*to, None).check().map_err(|e| AdviceError::Network(*to, e.to_string()))?;
            if self.to[..i].contains(to) {
                return Err(AdviceError::Network(*to, "is there twice".to_owned()));
            }
        }
        if !(0.0..=MAX_SHARE).contains(&self.share) {
            return Err(AdviceError::Share(self.share));
        }
        if !(1..=MAX_TRIED).contains(&self.candidates.len()) {
            return Err(AdviceError::Candidates(self.candidates.len()));
        }
        for rule in &self.candidates {
            rule.check()?;
            if rule.asks() != Rule::default().asks() {
                return Err(AdviceError::Asks(rule.to_string()));
            }
        }
        if !(1..=3600).contains(&self.turn_s) {
            return Err(AdviceError::Turn(self.turn_s));
        }
        Ok(())
    }

    fn actions(&self) -> Vec<Action> {
        self.candidates.iter().map(Rule::action).collect()
    }
}

/// The rule by which all connections to a network do this.
#[must_use]
pub fn rule_for(to: IpNet, action: Option<&Action>) -> Rule {
    let mut rule = Rule { to: Some(to), ..Rule::default() };
    if let Some(Action { start, change }) = action {
        rule.start = Some(start.clone());
        rule.after = change.as_ref().map(|change| change.after);
        rule.then = change.as_ref().map(|change| change.to.clone());
        rule.window = change.as_ref().and_then(|change| change.window);
    }
    rule
}

/// The kernel's form of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The network.
    pub to: IpNet,
    /// By which records name the turn; never 0.
    pub turn: u32,
    /// The part of the connections that begin that is drawn.
    pub share: f64,
    /// Whether those try the action. In a turn without a trial they follow the rules.
    pub tries: bool,
    /// The algorithm that they use.
    pub action: Action,
    /// The number of the network's counter of drawn connections.
    pub slot: usize,
}

/// An algorithm of a trial, in figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArmView {
    /// The algorithm.
    pub action: String,
    /// The part of the flows that use it in its turns.
    pub share: f64,
    /// Why it is tried no more, if so.
    pub dropped: Option<String>,
    /// Of its flows, over those beside them, as a ratio of times, all sizes together.
    pub own: Interval,
    /// Of the flows beside its own, over those in turns without a trial.
    pub neighbours: Interval,
    /// If all used it, as far as can be told.
    pub all: Interval,
    /// Of its flows, by size.
    pub sizes: Vec<SizeView>,
}

/// A size of flows in a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeView {
    /// Flows below it, and not below the one before; none for the largest.
    pub below: Option<Bytes>,
    /// Times of its flows over those beside them.
    pub own: Interval,
}

/// How much longer something takes, 0.1 for 10 % longer: as measured, and between what bounds it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// As measured.
    pub estimate: f64,
    /// It is this at least; none if nothing is known.
    pub least: Option<f64>,
    /// The upper bound.
    pub most: Option<f64>,
}

impl From<Effect> for Interval {
    fn from(effect: Effect) -> Interval {
        // JSON has no infinity: a ratio beyond all numbers is the largest one.
        let ratio = |at: f64| at.exp_m1().min(f64::MAX);
        let bound = |at: f64| at.is_finite().then(|| ratio(at));
        Interval {
            estimate: ratio(effect.estimate),
            least: bound(effect.least()),
            most: bound(effect.most()),
        }
    }
}

/// A network's trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdviceView {
    /// The network.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub to: IpNet,
    /// `baseline`, `trying`, `raising`, `watching` or `settled`.
    pub stage: String,
    /// The algorithm of its connections by the rules.
    pub now: String,
    /// Whether what is best becomes the rule.
    pub apply: bool,
    /// The advice, or the reason for its absence: one sentence.
    pub verdict: String,
    /// The rule that would be better; none if none is known to be.
    pub recommended: Option<Rule>,
    /// The candidates.
    pub arms: Vec<ArmView>,
}

/// The trials of a node: which turn it is in each network, and what comes of flows.
#[derive(Debug, Clone, Default)]
pub struct Advisor {
    settings: Option<AdviceSettings>,
    trials: BTreeMap<IpNet, Trial>,
    /// Turns that are remembered: number, network, what it was.
    turns: VecDeque<(u32, IpNet, Turn)>,
    last: u32,
    began: Option<Instant>,
    assignments: Vec<Assignment>,
    /// Connections drawn since the kernel's programs were loaded, by slot.
    drawn: [u64; MAX_TRIALS],
}

impl Advisor {
    /// Trials as they were stored; they go on with the first turn. `last` is a number of which
    /// earlier turns are not, so that flows of before a restart are not taken for later ones'.
    #[must_use]
    pub fn new(settings: Option<AdviceSettings>, stored: BTreeMap<IpNet, Trial>, last: u32) -> Advisor {
        let mut trials = stored;
        trials.values_mut().for_each(Trial::lose_flight);
        Advisor { trials, last, ..Advisor::default() }.configured(settings)
    }

    fn configured(mut self, settings: Option<AdviceSettings>) -> Advisor {
        self.set(settings);
        self
    }

    /// Other settings: trials of networks that are not among them are forgotten, as are those that
    /// would try something else.
    pub fn set(&mut self, settings: Option<AdviceSettings>) {
        let settings = settings.filter(|settings| settings.share > 0.0);
        if self.settings != settings {
            self.began = None;
        }
        let (to, actions) =
            settings.as_ref().map_or((Vec::new(), Vec::new()), |s| (s.to.clone(), s.actions()));
        let fits = |trial: &Trial| {
            let mut known = actions.iter().filter(|action| trial.first() != *action);
            trial.arms().len() == known.clone().count()
                && known.all(|action| trial.arms().iter().any(|arm| arm.action == *action))
        };
        self.trials.retain(|network, trial| to.contains(network) && fits(trial));
        if let Some(settings) = &settings {
            self.trials.values_mut().for_each(|trial| trial.set_most_share(settings.share));
        }
        self.settings = settings;
    }

    /// Whether there is anything to do.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.settings.is_some()
    }

    /// The trials, to be stored.
    #[must_use]
    pub fn trials(&self) -> &BTreeMap<IpNet, Trial> {
        &self.trials
    }

    /// The candidate that is tried now.
    #[must_use]
    pub fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// Ends turns whose time has come, true if so: what is tried from now on is in
    /// [`assignments`](Advisor::assignments). `system` is what connections without a rule use.
    pub fn turn(
        &mut self,
        now: Instant,
        rules: &Rules,
        system: &Algorithm,
        mut random: impl FnMut() -> u64,
    ) -> Option<Vec<(IpNet, Decision)>> {
        let Some(settings) = &self.settings else {
            let had = !std::mem::take(&mut self.assignments).is_empty();
            return had.then(Vec::new);
        };
        if self.began.is_some_and(|began| now.since(began).as_secs() < settings.turn_s) {
            return None;
        }
        self.began = Some(now);
        self.assignments.clear();
        let mut decisions = Vec::new();
        for (slot, to) in settings.to.iter().copied().enumerate() {
            let used = rules.of_network(&to).map(Rule::action);
            let used = used.unwrap_or_else(|| Action { start: system.clone(), change: None });
            let fresh = || Trial::new(used.clone(), settings.actions(), settings.share);
            let trial = self.trials.entry(to).or_insert_with(fresh);
            if *trial.now() != used {
                // The rule has changed: the results were about another.
                let apply = trial.applies();
                *trial = fresh();
                trial.set_apply(apply);
            }
            let (turn, decided) = trial.next(random());
            let (action, tries) = match turn {
                Turn::Control => (used, false),
                Turn::Treatment { arm, .. } => (trial.arms()[arm].action.clone(), true),
            };
            decisions.extend(decided.into_iter().map(|decision| (to, decision)));
            self.last = self.last.wrapping_add(1).max(1);
            // A turn counts, also if no flow is drawn in it.
            trial.began(self.last, 0);
            self.turns.push_back((self.last, to, turn));
            if self.turns.len() > REMEMBERED {
                self.turns.pop_front();
            }
            if trial.settled().is_none() {
                let (turn, share) = (self.last, trial.share());
                self.assignments.push(Assignment { to, turn, share, tries, action, slot });
            }
        }
        Some(decisions)
    }

    /// The slots of networks with a trial that has not settled.
    #[must_use]
    pub fn slots(&self) -> Vec<usize> {
        self.assignments.iter().map(|assignment| assignment.slot).collect()
    }

    /// This number of connections was drawn for the network of this slot, since the kernel's programs were loaded.
    pub fn set_drawn(&mut self, slot: usize, total: u64) {
        let Some(before) = self.drawn.get_mut(slot) else { return };
        // Programs that were loaded again count from 0.
        let new = total.checked_sub(*before).unwrap_or(total);
        *before = total;
        let Some(of) = self.assignments.iter().find(|assignment| assignment.slot == slot) else { return };
        if let Some(trial) = self.trials.get_mut(&of.to) {
            trial.began(of.turn, new);
        }
    }

    /// Up to this number of connections may be drawn for the network of this slot, since the kernel's programs were loaded.
    #[must_use]
    pub fn most_drawn(&self, slot: usize) -> u64 {
        let of = self.assignments.iter().find(|assignment| assignment.slot == slot);
        let room = of.and_then(|of| self.trials.get(&of.to)).map_or(0, Trial::room);
        self.drawn.get(slot).map_or(0, |drawn| drawn + room)
    }

    /// A connection has ended that was drawn in this turn.
    pub fn ended(&mut self, turn: u32) {
        let Ok(at) = self.turns.binary_search_by_key(&turn, |(number, ..)| *number) else { return };
        if let Some(trial) = self.trials.get_mut(&self.turns[at].1) {
            trial.ended(turn);
        }
    }

    /// A flow has ended that began in this turn; `tried` if it used what the turn tries.
    pub fn observe(&mut self, turn: u32, tried: bool, flow: &FlowRecord) {
        if flow.sent.0 == 0 {
            return;
        }
        let Ok(at) = self.turns.binary_search_by_key(&turn, |(number, ..)| *number) else { return };
        let (_, to, turn) = self.turns[at];
        if let Some(trial) = self.trials.get_mut(&to) {
            trial.observe(turn, tried, flow.sent.0, flow.took_us);
        }
    }

    /// Has what is best become the rule, or not; of one network or of all. False without one.
    pub fn apply(&mut self, to: Option<IpNet>, apply: bool) -> bool {
        let mut any = false;
        for (_, trial) in self.trials.iter_mut().filter(|(network, _)| to.is_none_or(|to| to == **network)) {
            trial.set_apply(apply);
            any = true;
        }
        any
    }

    /// The rule that a trial had set is taken back by hand.
    pub fn take_back(&mut self, to: IpNet) {
        if let Some(trial) = self.trials.get_mut(&to) {
            trial.take_back();
        }
    }

    /// Forgets what is known: of one network or of all. False without one.
    pub fn again(&mut self, to: Option<IpNet>) -> bool {
        let Some(settings) = &self.settings else { return false };
        let mut any = false;
        for (_, trial) in self.trials.iter_mut().filter(|(network, _)| to.is_none_or(|to| to == **network)) {
            *trial = Trial::new(trial.now().clone(), settings.actions(), settings.share);
            any = true;
        }
        self.began = None;
        any
    }

    /// All trials, in figures and words.
    #[must_use]
    pub fn view(&self) -> Vec<AdviceView> {
        self.trials.iter().map(|(to, trial)| view(*to, trial)).collect()
    }
}

fn view(to: IpNet, trial: &Trial) -> AdviceView {
    let arms = trial.arms().iter().map(|arm| ArmView {
        action: arm.action.to_string(),
        share: arm.share,
        dropped: arm.dropped.as_ref().map(ToString::to_string),
        own: trial.own_effect(arm, None).into(),
        neighbours: trial.neighbours_effect(arm, None).into(),
        all: arm.raised.unwrap_or_else(|| trial.effect_on_all(arm, None)).into(),
        sizes: trial
            .judged()
            .map(|at| SizeView {
                below: size::BOUNDS.get(at).copied(),
                own: trial.own_effect(arm, Some(at)).into(),
            })
            .collect(),
    });
    let leader = trial.leader();
    let verdict = match (trial.settled(), leader) {
        (Some(Settled::Best), _) => format!("keep {}: nothing that was tried is better", trial.now()),
        (Some(Settled::OnTheEdge(why)), _) => format!("cannot tell, keep {}: {why}", trial.now()),
        (Some(Settled::Changed { to, effect }), _) => {
            format!("changed to {to}: flows take {effect} longer since")
        }
        (Some(Settled::TakenBack { why }), _) => {
            format!("keep {}: the change was taken back, {why}", trial.now())
        }
        (None, Some(arm)) => format!(
            "{} would be better: flows would take {} longer if all used it",
            arm.action,
            trial.effect_on_all(arm, None)
        ),
        (None, None) if trial.stage() == "baseline" => {
            format!(
                "cannot tell: {} flows were seen, {BASELINE} of each size are needed before anything is tried",
                trial.baseline()
            )
        }
        (None, None) if trial.stage() == "watching" => {
            "changed: it is watched whether it is as good as it seemed".to_owned()
        }
        (None, None) => "cannot tell yet: no difference is certain".to_owned(),
    };
    AdviceView {
        to,
        stage: trial.stage().to_owned(),
        now: trial.now().to_string(),
        apply: trial.applies(),
        verdict,
        recommended: leader.map(|arm| rule_for(to, Some(&arm.action))),
        arms: arms.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_any_effect_is_read_back_from_json() {
        for (estimate, within) in
            [(0.0, f64::INFINITY), (0.1, 0.02), (800.0, 1.0), (-800.0, 1.0), (1e9, 1e12), (700.0, 600.0)]
        {
            let interval = Interval::from(Effect { estimate, within });
            let json = serde_json::to_string(&interval).unwrap();
            let read: Interval = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{json}: {e}"));
            assert_eq!(read, interval, "{json}");
        }
    }
}
