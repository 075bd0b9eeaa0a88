use serde::{Deserialize, Serialize};

use super::{
    baseline::{Baseline, MAY_BE_LATE},
    confidence::{Effect, Proportion},
    flight::Flight,
    samples::Samples,
    verdict::{Decision, Drop, OnTheEdge, Settled},
};
use crate::{Action, size};

/// Flows of a size that must have been seen before others try anything.
pub const BASELINE: usize = 4_000;
/// Flows of a size after which nothing will be tried if nothing could be: where the part that is late is
/// known to a 30th.
const ON_THE_EDGE: u64 = 500_000;
/// Sizes of which fewer flows are than this part of all are not judged by themselves.
const JUDGED: f64 = 0.02;
/// In a trial of what is to become the rule this part of flows use it in the end.
pub(super) const HALF: f64 = 0.5;
/// Flows of each size that use an algorithm before it is known well enough to be used by more.
pub(super) const SCREENED: u64 = 600;

/// How a part of time is used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Turn {
    /// All flows use what the rules say.
    #[serde(rename = "Calm")]
    Control,
    /// Of the flows that begin, this part tries the algorithm.
    #[serde(rename = "Open")]
    Treatment {
        /// The arm, in the order of [`Trial::arms`].
        arm: usize,
        /// The part of the flows, each by itself.
        share: f64,
    },
}

/// An algorithm that is tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// The action of its flows.
    pub action: Action,
    /// Why it is tried no more, if so.
    pub dropped: Option<Drop>,
    /// The part of the flows that use it while it is its turn.
    pub share: f64,
    /// Its effect on all, found when half of the flows used it.
    pub raised: Option<Effect>,
    pub(super) own: Samples,
    /// Flows that do not use it, in its turns.
    pub(super) beside: Samples,
    /// Flows in turns without a trial, since the last change of the share.
    #[serde(rename = "calm")]
    pub(super) control: Samples,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The baseline is measured.
    Baseline,
    /// Few flows try algorithms.
    Trying,
    /// More and more use this one.
    Raising(usize),
    /// It is the rule now.
    Watching { arm: usize, after: Box<Samples> },
    /// Nothing more is tried.
    Settled(Settled),
}

/// Finds the best of some algorithms for the flows to one network, by a randomized trial whose
/// tests hold at every look.
///
/// Time is cut into turns, each of one algorithm or of none, drawn by lot. In an algorithm's turn a
/// part of the flows use it, each drawn by lot. Its effect is the difference between those and the
/// others of the same turns. Its effect on neighbours is the difference between these and flows in
/// turns without a trial. Times are compared as logarithms, within sizes.
///
/// A budget of late flows of each size bounds the cost (`baseline.rs`): of all flows, with and without
/// the trial, 1 % may take more than 1.1 times the usual 99th percentile. An algorithm's part of
/// the flows is such that half of what is left covers a turn in which all that use it are late.
/// Where it is not known that there is something left, nothing is tried; where that is not known
/// after 500,000 flows of a size, nothing will be.
///
/// A second budget bounds each burst: [`Trial::room`] more flows may be drawn, even if all that are drawn and under way end
/// late. The kernel draws no flow beyond that. From the first flow on that would have been, the rest of the turn is no part of
/// the trial. Turns without a trial end early in the same way, as flows are drawn in them too, by
/// [`Trial::share`]. So the flows compared are of the same parts of bursts.
///
/// An algorithm that is better while few use it can be worse if all do. An algorithm that harms no
/// flow is therefore raised, one after the other, to half of the flows. Its effect on all is that
/// on its own flows, and that on the others in proportion to their number. The best of those
/// becomes the rule. An algorithm that is worse for its first flows and better if all use it is not
/// found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    now: Action,
    pub(super) arms: Vec<Arm>,
    pub(super) most_share: f64,
    /// Whether what is best becomes the rule.
    pub(super) apply: bool,
    pub(super) stage: Stage,
    /// The one that has not ended.
    turn: Option<Turn>,
    turns: u64,
    #[serde(rename = "usual")]
    pub(super) baselines: [Baseline; size::COUNT],
    /// Flows in turns without a trial.
    #[serde(rename = "calm")]
    pub(super) control: Samples,
    /// The part of the flows that is drawn in turns without a trial.
    #[serde(default)]
    placebo: f64,
    #[serde(default)]
    flight: Flight,
}

impl Trial {
    /// A trial of `arms` beside `now`, which flows use; at most the part `most_share` of them tries
    /// others before a rule is about to be changed.
    #[must_use]
    pub fn new(now: Action, arms: Vec<Action>, most_share: f64) -> Trial {
        let arm = |action| Arm {
            action,
            dropped: None,
            share: 0.0,
            raised: None,
            own: Samples::default(),
            beside: Samples::default(),
            control: Samples::default(),
        };
        let arms: Vec<Arm> = arms.into_iter().filter(|action| *action != now).map(arm).collect();
        Trial {
            now,
            arms,
            most_share: most_share.clamp(0.0, HALF),
            apply: false,
            stage: Stage::Baseline,
            turn: None,
            turns: 0,
            baselines: Default::default(),
            control: Samples::default(),
            placebo: 0.0,
            flight: Flight::default(),
        }
    }

    /// The action of flows now: that at the beginning, or the one that it has made the rule.
    #[must_use]
    pub fn now(&self) -> &Action {
        match &self.stage {
            Stage::Watching { arm, .. } => &self.arms[*arm].action,
            Stage::Settled(Settled::Changed { to, .. }) => to,
            _ => &self.now,
        }
    }

    /// The action of flows at the beginning.
    #[must_use]
    pub fn first(&self) -> &Action {
        &self.now
    }

    /// The candidates.
    #[must_use]
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Whether what is best becomes the rule.
    #[must_use]
    pub fn applies(&self) -> bool {
        self.apply
    }

    /// Has what is best become the rule, from the next turn on, or not.
    pub fn set_apply(&mut self, apply: bool) {
        self.apply = apply;
        if let (false, Stage::Raising(_)) = (apply, &self.stage) {
            self.stage = Stage::Trying;
        }
    }

    /// At most this part of the flows tries others from the next turn on.
    pub(super) fn set_most_share(&mut self, share: f64) {
        self.most_share = share.clamp(0.0, HALF);
    }

    /// The rule that the trial had changed is taken back by hand; nothing more is tried.
    pub fn take_back(&mut self) {
        self.stage = Stage::Settled(Settled::TakenBack { why: "taken back by hand".to_owned() });
    }

    /// Why nothing more is tried, if so.
    #[must_use]
    pub fn settled(&self) -> Option<&Settled> {
        match &self.stage {
            Stage::Settled(settled) => Some(settled),
            _ => None,
        }
    }

    /// One word for how far it is.
    #[must_use]
    pub fn stage(&self) -> &'static str {
        match self.stage {
            Stage::Baseline => "baseline",
            Stage::Trying => "trying",
            Stage::Raising(_) => "raising",
            Stage::Watching { .. } => "watching",
            Stage::Settled(_) => "settled",
        }
    }

    /// The part of the flows that is drawn in this turn. In a turn without a trial they use what the rules say.
    #[must_use]
    pub fn share(&self) -> f64 {
        match self.turn {
            Some(Turn::Treatment { share, .. }) => share,
            Some(Turn::Control) => self.placebo,
            None => 0.0,
        }
    }

    /// This number of flows may be drawn beside those that are under way, even if all of them end late.
    #[must_use]
    pub fn room(&self) -> u64 {
        let least = self.judged().map(|at| self.baselines[at].room()).min().unwrap_or(0);
        least.saturating_sub(self.flight.count())
    }

    /// This number of drawn flows began in the turn of this number.
    pub fn began(&mut self, turn: u32, drawn: u64) {
        self.flight.began(turn, drawn);
    }

    /// A drawn flow has ended that began in the turn of this number.
    pub fn ended(&mut self, turn: u32) {
        self.flight.ended(turn);
    }

    /// The flows under way will not be heard of: they are charged as late.
    pub(super) fn lose_flight(&mut self) {
        let flows = std::mem::take(&mut self.flight).count();
        self.baselines.iter_mut().for_each(|baseline| baseline.charge(flows));
    }

    /// A flow has ended that began in this turn; `tried` if it used the turn's algorithm.
    /// It took `took_us` microseconds and sent `sent` bytes.
    #[allow(clippy::cast_precision_loss)]
    pub fn observe(&mut self, turn: Turn, tried: bool, sent: u64, took_us: u64) {
        let (at, took) = (size::of(sent), took_us.max(1) as f64);
        let baseline = &mut self.baselines[at];
        if self.stage == Stage::Baseline {
            return baseline.add_before(took);
        }
        // Turns without a trial have none until it has changed the rule.
        let is_control = turn == Turn::Control && matches!(self.stage, Stage::Trying | Stage::Raising(_));
        let Some((residual, is_far)) = baseline.add(took, is_control, tried) else { return };
        match (turn, &mut self.stage) {
            (Turn::Control, Stage::Watching { after, .. }) => after.add(at, residual, is_far),
            (Turn::Control, _) => {
                self.control.add(at, residual, is_far);
                for arm in self.arms.iter_mut().filter(|arm| arm.dropped.is_none()) {
                    arm.control.add(at, residual, is_far);
                }
            }
            // A flow of the share before says nothing of this one.
            (Turn::Treatment { arm, share }, Stage::Trying | Stage::Raising(_)) => {
                let Some(arm) = self.arms.get_mut(arm).filter(|arm| arm.share.to_bits() == share.to_bits())
                else {
                    return;
                };
                let seen = if tried { &mut arm.own } else { &mut arm.beside };
                seen.add(at, residual, is_far);
            }
            _ => {}
        }
    }

    /// Ends a turn: what is decided, and how the next one is used, given a random number.
    pub fn next(&mut self, random: u64) -> (Turn, Vec<Decision>) {
        let mut decisions = Vec::new();
        self.turns += 1;
        self.end_turn();
        match self.stage.clone() {
            Stage::Baseline => self.see_what_is_usual(),
            Stage::Trying => self.judge_all(&mut decisions),
            Stage::Raising(arm) => self.judge_raised(arm, &mut decisions),
            Stage::Watching { arm, after } => self.judge_change(arm, &after, &mut decisions),
            Stage::Settled(_) => {}
        }
        self.follow_change(&mut decisions);
        let open: Vec<usize> = match self.stage {
            Stage::Trying => (0..self.arms.len()).filter(|i| self.is_tried(&self.arms[*i])).collect(),
            Stage::Raising(arm) => vec![arm],
            _ => Vec::new(),
        };
        for arm in &open {
            self.set_share(*arm);
        }
        self.placebo = open.iter().map(|arm| self.arms[*arm].share).fold(0.0, f64::max);
        // The remainder's bias is 2^-60.
        let drawn = usize::try_from(random % (open.len() as u64 + 1)).unwrap_or(0);
        let turn = match drawn.checked_sub(1).map(|i| open[i]) {
            Some(arm) if self.arms[arm].share > 0.0 => Turn::Treatment { arm, share: self.arms[arm].share },
            _ => Turn::Control,
        };
        self.turn = Some(turn);
        (turn, decisions)
    }

    fn end_turn(&mut self) {
        match self.turn.take() {
            Some(Turn::Control) => {
                if let Stage::Watching { after, .. } = &mut self.stage {
                    after.turns.end_turn();
                }
                self.control.turns.end_turn();
                self.arms.iter_mut().for_each(|arm| arm.control.turns.end_turn());
            }
            Some(Turn::Treatment { arm, .. }) => {
                if let Some(arm) = self.arms.get_mut(arm) {
                    arm.own.turns.end_turn();
                    arm.beside.turns.end_turn();
                }
            }
            None => {}
        }
    }

    /// Sizes that are judged by themselves.
    pub(super) fn judged(&self) -> impl Iterator<Item = usize> + '_ {
        (0..size::COUNT).filter(|at| self.baselines[*at].is_judged())
    }

    /// The number of flows of the baseline.
    pub(super) fn baseline(&self) -> u64 {
        self.baselines.iter().map(Baseline::flows).sum()
    }

    #[allow(clippy::cast_precision_loss)]
    fn see_what_is_usual(&mut self) {
        let all = self.baseline();
        let is_judged = |baseline: &Baseline| baseline.flows() as f64 >= JUDGED * all as f64;
        let is_short = |baseline: &Baseline| is_judged(baseline) && baseline.flows() < BASELINE as u64;
        if all < BASELINE as u64 || self.baselines.iter().any(is_short) {
            return;
        }
        for baseline in self.baselines.iter_mut().filter(|baseline| is_judged(baseline)) {
            baseline.look();
            baseline.fill();
        }
        self.control = Samples::default();
        for arm in &mut self.arms {
            (arm.own, arm.beside, arm.control) = Default::default();
            arm.share = 0.0;
        }
        self.stage = Stage::Trying;
    }

    /// Begins again if the usual times have changed, and not at all where nothing can be tried.
    fn follow_change(&mut self, decisions: &mut Vec<Decision>) {
        if !matches!(self.stage, Stage::Trying | Stage::Raising(_)) {
            return;
        }
        let alpha = self.alpha();
        let judged: Vec<usize> = self.judged().collect();
        if judged.iter().any(|at| self.control.sizes[*at].1.bounds(alpha).0 > MAY_BE_LATE) {
            self.stage = Stage::Baseline;
            (self.baselines, self.turns) = Default::default();
            return;
        }
        for at in judged {
            if self.baselines[at].look() {
                // It is compared with what is known of it now.
                self.control.sizes[at].1 = Proportion::default();
            }
            let most_late = self.baselines[at].most_late();
            if self.baselines[at].control() >= ON_THE_EDGE && most_late >= MAY_BE_LATE {
                let why = OnTheEdge { size: at, most_late };
                decisions.push(Decision::Keep { action: self.now.clone(), why: why.to_string() });
                self.stage = Stage::Settled(Settled::OnTheEdge(why));
                return;
            }
        }
    }

    /// The most that can use something in a turn without harm, even if all of them are late.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn harmless(&self) -> f64 {
        let of = |at: usize| {
            let baseline = &self.baselines[at];
            let of_a_turn = baseline.flows() as f64 / self.turns as f64;
            baseline.budget().max(0.0) / 2.0 / of_a_turn
        };
        self.judged().map(of).fold(1.0, f64::min)
    }

    fn is_tried(&self, arm: &Arm) -> bool {
        arm.dropped.is_none() && arm.raised.is_none()
    }

    fn most_share(&self) -> f64 {
        if matches!(self.stage, Stage::Raising(_)) { HALF } else { self.most_share }
    }

    /// By halves and doubles, as means are compared within one share.
    pub(super) fn set_share(&mut self, i: usize) {
        let (harmless, most) = (self.harmless(), self.most_share());
        // A raised algorithm is looked at before the next step is taken.
        let is_looked_at =
            !matches!(self.stage, Stage::Raising(_)) || self.has_seen(&self.arms[i].own, SCREENED);
        let arm = &self.arms[i];
        let mut share = arm.share;
        if share == 0.0 || share > harmless || share > most {
            // From a 4096th on there is something to be seen.
            share = (0..13).map(|half| most / f64::from(1 << half)).find(|s| *s <= harmless).unwrap_or(0.0);
            if arm.share > 0.0 {
                share = share.min(arm.share);
            }
        } else if share * 2.0 <= harmless && share < most && is_looked_at {
            share = (share * 2.0).min(most);
        }
        if share.to_bits() != arm.share.to_bits() {
            let arm = &mut self.arms[i];
            arm.share = share;
            arm.own.forget_means();
            (arm.beside, arm.control) = Default::default();
        }
    }

    pub(super) fn has_seen(&self, seen: &Samples, flows: u64) -> bool {
        self.judged().all(|at| seen.sizes[at].0.count() >= flows)
    }
}
