use serde::{Deserialize, Serialize};

use super::{
    confidence::Effect,
    seen::{MAY_BE_LATE, Seen, Usual},
    verdict::{Decision, Drop, Settled},
};
use crate::{Action, size};

/// Flows of a size that must have been seen before others try anything: of so many, 32 are late.
pub const BASELINE: usize = 4_000;
/// And at the most, where so many were not enough to tell which are late.
const MOST_BASELINE: usize = 16_000;
/// Sizes of which fewer flows are than this part of all are not judged by themselves.
const JUDGED: f64 = 0.02;
/// All bounds of a network hold together with this probability, less 1.
const ALPHA: f64 = 0.05;
/// Effects below this do not matter: 3 %.
const MATTERS: f64 = 0.03;
/// The mean of no size may become longer by more than 12 %.
const LONGER: f64 = 0.113;
/// A part of flows that are far too late, as estimated of enough of them, that is too much.
const TAIL_WORSE: f64 = 0.011;
/// In a trial of what is to become the rule this part of flows use it in the end.
const HALF: f64 = 0.5;
/// Flows of each size that use an algorithm before it is known well enough to be used by more.
const SCREENED: u64 = 600;
/// And before it is judged when half of the flows use it.
const PROVEN: u64 = 8_000;
/// Flows of all sizes after which an algorithm of which nothing can be told is no better.
const PATIENCE: u64 = 400_000;
/// Flows that are watched after a rule was changed.
const WATCHED: u64 = 10 * BASELINE as u64;

/// How a part of time is used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Turn {
    /// All flows use what the rules say.
    Calm,
    /// Of the flows that begin, this part tries the algorithm.
    Open {
        /// Which, in the order of [`Trial::arms`].
        arm: usize,
        /// The part of the flows, each by itself.
        share: f64,
    },
}

/// An algorithm that is tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// What its flows use.
    pub action: Action,
    /// Why it is tried no more, if so.
    pub dropped: Option<Drop>,
    /// The part of the flows that use it while it is its turn.
    pub share: f64,
    /// What it does to all, as was found when half of the flows used it.
    pub raised: Option<Effect>,
    own: Seen,
    /// Flows that do not use it, in its turns.
    beside: Seen,
    /// Flows in nobody's turns, since the share is what it is.
    calm: Seen,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Stage {
    /// It is looked at what is usual.
    Baseline,
    /// Few flows try algorithms.
    Trying,
    /// More and more use this one.
    Raising(usize),
    /// It is the rule now.
    Watching { arm: usize, after: Box<Seen> },
    /// Nothing more is tried.
    Settled(Settled),
}

/// Which of some algorithms is best for the flows to one network: a randomized trial whose tests
/// hold whenever one looks.
///
/// Time is cut into turns, each nobody's or one algorithm's, drawn by lot. In an algorithm's turn a
/// part of the flows use it, each drawn by lot; so its effect is what sets those apart from the
/// others of the same turns, and what it does to its neighbours is what sets these apart from flows
/// in nobody's turns. Times are compared as logarithms, within sizes.
///
/// What it may cost is bounded by a budget of late flows of each size: of all flows that came, with and
/// without the trial, 1 % may be late, and 0.8 % are without it. An algorithm's part of the flows is
/// such that half of what is left covers a turn in which all that use it are late. So the 99th
/// percentile stays below what the 99.2nd was.
///
/// What is better while few use it can be worse if all do. So what harms nobody is raised, one after
/// the other, to half of the flows; what it does to all is its effect on its own flows, and that on
/// the others in proportion to how many they are. The best of those becomes the rule. What is worse
/// for the first that use it and better if all do is not found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    now: Action,
    arms: Vec<Arm>,
    most_share: f64,
    /// Whether what is best becomes the rule.
    apply: bool,
    stage: Stage,
    turns: u64,
    /// Flows of a size that are looked at for what is usual.
    wanted: usize,
    usual: [Usual; size::COUNT],
    /// Flows in nobody's turns.
    calm: Seen,
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
            own: Seen::default(),
            beside: Seen::default(),
            calm: Seen::default(),
        };
        let arms: Vec<Arm> = arms.into_iter().filter(|action| *action != now).map(arm).collect();
        Trial {
            now,
            arms,
            most_share: most_share.clamp(0.0, HALF),
            apply: false,
            stage: Stage::Baseline,
            turns: 0,
            wanted: BASELINE,
            usual: Default::default(),
            calm: Seen::default(),
        }
    }

    /// What flows use now: what they used when it began, or what it has made the rule.
    #[must_use]
    pub fn now(&self) -> &Action {
        match &self.stage {
            Stage::Watching { arm, .. } => &self.arms[*arm].action,
            Stage::Settled(Settled::Changed { to, .. }) => to,
            _ => &self.now,
        }
    }

    /// What flows used when it began.
    #[must_use]
    pub fn first(&self) -> &Action {
        &self.now
    }

    /// What is tried.
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

    /// A flow has ended that began in this turn; `tried` if it used the turn's algorithm.
    /// It took `took_us` microseconds and sent `sent` bytes.
    #[allow(clippy::cast_precision_loss)]
    pub fn observe(&mut self, turn: Turn, tried: bool, sent: u64, took_us: u64) {
        let (at, took) = (size::of(sent), took_us.max(1) as f64);
        let usual = &mut self.usual[at];
        if self.stage == Stage::Baseline {
            usual.flows += 1;
            if usual.sample.len() < self.wanted {
                usual.sample.push(took);
            }
            return;
        }
        let Some(bounds) = usual.bounds_us else { return };
        usual.flows += 1;
        usual.late += u64::from(took > bounds.late);
        let (residual, is_far) = (took.ln() - usual.mean_log, took > bounds.far);
        match (turn, &mut self.stage) {
            (Turn::Calm, Stage::Watching { after, .. }) => after.add(at, residual, is_far),
            (Turn::Calm, _) => {
                self.calm.add(at, residual, is_far);
                for arm in self.arms.iter_mut().filter(|arm| arm.dropped.is_none()) {
                    arm.calm.add(at, residual, is_far);
                }
            }
            // A flow of the share before says nothing of this one.
            (Turn::Open { arm, share }, Stage::Trying | Stage::Raising(_)) => {
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
        match self.stage.clone() {
            Stage::Baseline => self.see_what_is_usual(),
            Stage::Trying => self.judge_all(&mut decisions),
            Stage::Raising(arm) => self.judge_raised(arm, &mut decisions),
            Stage::Watching { arm, after } => self.judge_change(arm, &after, &mut decisions),
            Stage::Settled(_) => {}
        }
        self.follow_change();
        let open: Vec<usize> = match self.stage {
            Stage::Trying => (0..self.arms.len()).filter(|i| self.is_tried(&self.arms[*i])).collect(),
            Stage::Raising(arm) => vec![arm],
            _ => Vec::new(),
        };
        for arm in &open {
            self.set_share(*arm);
        }
        // The remainder's bias is 2^-60.
        let drawn = usize::try_from(random % (open.len() as u64 + 1)).unwrap_or(0);
        let turn = match drawn.checked_sub(1).map(|i| open[i]) {
            Some(arm) if self.arms[arm].share > 0.0 => Turn::Open { arm, share: self.arms[arm].share },
            _ => Turn::Calm,
        };
        (turn, decisions)
    }

    /// Sizes that are judged by themselves.
    pub(super) fn judged(&self) -> impl Iterator<Item = usize> + '_ {
        (0..size::COUNT).filter(|at| self.usual[*at].bounds_us.is_some())
    }

    /// How many flows were seen of what is usual, of how many at the least.
    pub(super) fn baseline(&self) -> (u64, u64) {
        (self.usual.iter().map(|usual| usual.flows).sum(), self.wanted as u64)
    }

    /// What each of the bounds may fail with.
    #[allow(clippy::cast_precision_loss)]
    fn alpha(&self) -> f64 {
        // Of an algorithm and size: late by itself and beside it, two means; of an algorithm: two.
        let looks = self.arms.len().max(1) * (4 * self.judged().count().max(1) + 2);
        ALPHA / looks as f64
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn see_what_is_usual(&mut self) {
        let all: u64 = self.usual.iter().map(|usual| usual.flows).sum();
        let is_judged = |usual: &Usual| usual.flows as f64 >= JUDGED * all as f64;
        let enough = self.wanted;
        let is_short = |usual: &Usual| is_judged(usual) && usual.sample.len() < enough;
        if all < enough as u64 || self.usual.iter().any(is_short) {
            return;
        }
        for usual in &mut self.usual {
            let is_judged = is_judged(usual);
            usual.settle(is_judged);
        }
        self.turns = 1 + self.turns * enough as u64 / all.max(1);
        self.calm = Seen::default();
        for arm in &mut self.arms {
            (arm.own, arm.beside, arm.calm) = Default::default();
            arm.share = 0.0;
        }
        self.stage = Stage::Trying;
    }

    /// What is usual is not what it was, or not what it seemed: begin anew.
    fn follow_change(&mut self) {
        if !matches!(self.stage, Stage::Trying | Stage::Raising(_)) {
            return;
        }
        let alpha = self.alpha();
        let has_changed = |at: usize| self.calm.sizes[at].1.bounds(alpha).0 > MAY_BE_LATE;
        // Nothing can be tried as too many are late without it.
        let is_stuck = |at: usize| {
            let usual = &self.usual[at];
            usual.flows > 2 * self.wanted as u64 && usual.budget() <= 0.0
        };
        if self.judged().any(|at| has_changed(at) || is_stuck(at)) {
            self.wanted = (self.wanted * 2).min(MOST_BASELINE);
            self.stage = Stage::Baseline;
            (self.usual, self.turns) = Default::default();
        }
    }

    /// The most that can use something in a turn without harm, even if all of them are late.
    #[allow(clippy::cast_precision_loss)]
    fn harmless(&self) -> f64 {
        let of = |at: usize| {
            let usual = &self.usual[at];
            let of_a_turn = usual.flows as f64 / self.turns as f64;
            usual.budget().max(0.0) / 2.0 / of_a_turn
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
    fn set_share(&mut self, i: usize) {
        let (harmless, most) = (self.harmless(), self.most_share());
        // What is raised is looked at before the next step is taken.
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
            (arm.beside, arm.calm) = Default::default();
        }
    }

    fn has_seen(&self, seen: &Seen, flows: u64) -> bool {
        self.judged().all(|at| seen.sizes[at].0.count() >= flows)
    }

    /// What an algorithm does to flows that use it, of one size or of all.
    pub(super) fn own_effect(&self, arm: &Arm, at: Option<usize>) -> Effect {
        let alpha = self.alpha();
        match at {
            Some(at) => Effect::between(&arm.own.sizes[at].0, &arm.beside.sizes[at].0, alpha),
            None => Effect::between(&arm.own.pooled, &arm.beside.pooled, alpha),
        }
    }

    /// What it does to the others, while its share of flows use it.
    pub(super) fn neighbours_effect(&self, arm: &Arm, at: Option<usize>) -> Effect {
        let alpha = self.alpha();
        match at {
            Some(at) => Effect::between(&arm.beside.sizes[at].0, &arm.calm.sizes[at].0, alpha),
            None => Effect::between(&arm.beside.pooled, &arm.calm.pooled, alpha),
        }
    }

    /// What it does if all use it: what it does to its own, and what all do to each other, in
    /// proportion to how many they are.
    pub(super) fn effect_on_all(&self, arm: &Arm, at: Option<usize>) -> Effect {
        self.own_effect(arm, at).plus(self.neighbours_effect(arm, at), 1.0 / arm.share.max(1e-3))
    }

    /// Why an algorithm is to be dropped, if so: whatever the share, it does harm.
    fn harm(&self, arm: &Arm) -> Option<Drop> {
        let alpha = self.alpha();
        for size in self.judged() {
            let (far, _) = arm.own.sizes[size].1.bounds(alpha);
            if far > MAY_BE_LATE {
                return Some(Drop::Tail { size, far });
            }
            let (far, _) = arm.beside.sizes[size].1.bounds(alpha);
            if far > MAY_BE_LATE {
                return Some(Drop::NeighboursTail { size, far });
            }
            let effect = self.own_effect(arm, Some(size));
            if effect.least() > LONGER {
                return Some(Drop::Slower { size, effect });
            }
        }
        None
    }

    fn drop_arm(&mut self, arm: usize, why: Drop, decisions: &mut Vec<Decision>) {
        let action = self.arms[arm].action.clone();
        decisions.push(Decision::Dropped { action, why: why.to_string() });
        self.arms[arm].dropped = Some(why);
        self.conclude(decisions);
    }

    /// Goes on with those that are left, or with the best.
    fn conclude(&mut self, decisions: &mut Vec<Decision>) {
        self.stage = Stage::Trying;
        let left = |arm: &&Arm| arm.dropped.is_none();
        if self.arms.iter().filter(left).any(|arm| arm.raised.is_none()) {
            return;
        }
        let estimate = |i: &usize| self.arms[*i].raised.map_or(0.0, |effect| effect.estimate);
        let raised = (0..self.arms.len()).filter(|i| self.arms[*i].dropped.is_none());
        match raised.min_by(|a, b| estimate(a).total_cmp(&estimate(b))) {
            Some(arm) => {
                let (action, why) = (self.arms[arm].action.clone(), self.reason(arm));
                decisions.push(Decision::Change { action, why });
                self.stage = Stage::Watching { arm, after: Box::default() };
            }
            None => {
                self.stage = Stage::Settled(Settled::Best);
                decisions.push(Decision::Keep { action: self.now.clone() });
            }
        }
    }

    fn judge_all(&mut self, decisions: &mut Vec<Decision>) {
        for i in 0..self.arms.len() {
            let arm = &self.arms[i];
            if arm.dropped.is_some() || arm.raised.is_some() {
                continue;
            }
            let effect = self.effect_on_all(arm, None);
            let is_no_better = self.is_full(arm)
                && (effect.least() > -MATTERS
                    || arm.own.pooled.count() > PATIENCE && effect.estimate > -MATTERS);
            let why = self.harm(arm).or_else(|| is_no_better.then_some(Drop::NoBetter { effect }));
            if let Some(why) = why {
                self.drop_arm(i, why, decisions);
            }
        }
        if !self.apply || !matches!(self.stage, Stage::Trying) {
            return;
        }
        let is_next = |arm: &Arm| {
            arm.dropped.is_none()
                && arm.raised.is_none()
                && self.is_full(arm)
                && self.has_seen(&arm.own, SCREENED)
        };
        if let Some(arm) = self.arms.iter().position(is_next) {
            let action = self.arms[arm].action.clone();
            decisions.push(Decision::Raising { action, why: self.reason(arm) });
            self.stage = Stage::Raising(arm);
        }
    }

    /// As many flows use it as may before a rule is about to be changed.
    fn is_full(&self, arm: &Arm) -> bool {
        arm.share >= self.most_share
    }

    /// The algorithm that would be best as far as can be told while few use it.
    #[must_use]
    pub fn leader(&self) -> Option<&Arm> {
        let is_better = |arm: &&Arm| {
            let effect = self.effect_on_all(arm, None);
            arm.dropped.is_none()
                && effect.most() < 0.0
                && effect.estimate < -MATTERS
                && self.has_seen(&arm.own, SCREENED)
                && self.judged().all(|at| self.own_effect(arm, Some(at)).estimate < LONGER)
        };
        let estimate = |arm: &&Arm| self.effect_on_all(arm, None).estimate;
        let better = self.arms.iter().filter(is_better);
        better.min_by(|a, b| estimate(a).total_cmp(&estimate(b)))
    }

    /// More and more use it: what does it do to all?
    fn judge_raised(&mut self, i: usize, decisions: &mut Vec<Decision>) {
        let arm = &self.arms[i];
        if let Some(why) = self.harm(arm) {
            return self.drop_arm(i, why, decisions);
        }
        if arm.share < HALF / 2.0 || !self.has_seen(&arm.own, PROVEN) {
            let has_had_its_turn = self.judged().all(|at| arm.own.sizes[at].1.trials() >= PROVEN / 2);
            if has_had_its_turn && self.harmless() < HALF / 2.0 {
                self.drop_arm(i, Drop::TooDear, decisions);
            }
            return;
        }
        // The part that is far too late if all use it.
        let far = |at: usize| {
            let part = |seen: &Seen| seen.sizes[at].1.estimate(MAY_BE_LATE, 100.0);
            part(&arm.own) + (part(&arm.beside) - part(&arm.calm)) * (1.0 - arm.share) / arm.share
        };
        let tail = self.judged().map(|size| Drop::TailOfAll { size, far: far(size) });
        let slower = self
            .judged()
            .map(|size| Drop::SlowerForAll { size, effect: self.effect_on_all(arm, Some(size)) });
        let harm = tail.chain(slower).find(|why| match why {
            Drop::TailOfAll { far, .. } => *far > TAIL_WORSE,
            Drop::SlowerForAll { effect, .. } => effect.estimate > LONGER,
            _ => false,
        });
        let effect = self.effect_on_all(arm, None);
        let is_no_better = effect.least() > -MATTERS
            || effect.estimate > 0.0
            || arm.own.pooled.count() > PATIENCE && effect.estimate > -MATTERS;
        if let Some(why) = harm.or_else(|| is_no_better.then_some(Drop::NoBetterForAll { effect })) {
            self.drop_arm(i, why, decisions);
        } else if effect.most() < 0.0 && effect.estimate < -MATTERS {
            self.arms[i].raised = Some(effect);
            self.conclude(decisions);
        }
    }

    /// It is the rule: is it as good as it seemed?
    fn judge_change(&mut self, i: usize, after: &Seen, decisions: &mut Vec<Decision>) {
        let alpha = self.alpha();
        let part = |at: usize| after.sizes[at].1.bounds(alpha).0;
        let tail = self.judged().find(|at| part(*at) > MAY_BE_LATE);
        let effect = Effect::between(&after.pooled, &self.calm.pooled, alpha);
        let slower = (effect.least() > 0.0).then_some(Drop::NoBetterForAll { effect });
        if let Some(why) = tail.map(|size| Drop::TailOfAll { size, far: part(size) }).or(slower) {
            let why = why.to_string();
            let action = self.arms[i].action.clone();
            self.stage = Stage::Settled(Settled::TakenBack { why: why.clone() });
            decisions.push(Decision::TakeBack { action, why });
        } else if after.pooled.count() >= WATCHED {
            self.stage = Stage::Settled(Settled::Changed { to: self.arms[i].action.clone(), effect });
        }
    }

    /// Why an algorithm is better, in words with figures.
    fn reason(&self, i: usize) -> String {
        let arm = &self.arms[i];
        let mut text = format!(
            "its flows take {} longer than those beside them; these take {} longer than without it, when {:.2} % of flows use it",
            self.own_effect(arm, None),
            self.neighbours_effect(arm, None),
            arm.share * 100.0
        );
        for at in self.judged() {
            text += &format!("; {}: {}", size::label(at), self.own_effect(arm, Some(at)));
        }
        text
    }
}
