//! Judges an algorithm by the flows seen.

use super::{
    baseline::MAY_BE_LATE,
    confidence::Effect,
    samples::Samples,
    trial::{Arm, BASELINE, HALF, SCREENED, Stage, Trial},
    verdict::{Decision, Drop, Settled},
};
use crate::size;

/// All bounds of a network hold together with this probability, less 1.
const ALPHA: f64 = 0.05;
/// Effects below this do not matter: 3 %.
const MATTERS: f64 = 0.03;
/// The mean of no size may become longer by more than 12 %.
const LONGER: f64 = 0.113;
/// A part of flows that are far too late, as estimated of enough of them, that is too much.
const TAIL_WORSE: f64 = 0.011;
/// Flows of each size before an algorithm is judged that half of the flows use.
const PROVEN: u64 = 8_000;
/// Flows of all sizes after which an algorithm of which nothing can be told is no better.
const UNDECIDED_FLOWS: u64 = 400_000;
/// Flows that are watched after a rule was changed.
const WATCHED: u64 = 10 * BASELINE as u64;

impl Trial {
    /// The probability with which each of the bounds may fail.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn alpha(&self) -> f64 {
        // Of an algorithm and size: late by itself and beside it, two means; of an algorithm: two.
        let looks = self.arms.len().max(1) * (4 * self.judged().count().max(1) + 2);
        ALPHA / looks as f64
    }

    /// The effect of an algorithm on flows that use it, of one size or of all.
    pub(super) fn own_effect(&self, arm: &Arm, at: Option<usize>) -> Effect {
        let alpha = self.alpha();
        match at {
            Some(at) => Effect::between(&arm.own.sizes[at].0, &arm.beside.sizes[at].0, alpha),
            None => Effect::between(&arm.own.pooled, &arm.beside.pooled, alpha),
        }
    }

    /// Its effect on the others, while its share of flows use it.
    pub(super) fn neighbours_effect(&self, arm: &Arm, at: Option<usize>) -> Effect {
        let alpha = self.alpha();
        match at {
            Some(at) => Effect::between(&arm.beside.sizes[at].0, &arm.control.sizes[at].0, alpha),
            None => Effect::between_turns(&arm.beside.turns, &arm.control.turns, alpha),
        }
    }

    /// Its effect if all use it: that on its own flows, and that of all on each other, in
    /// proportion to their number.
    pub(super) fn effect_on_all(&self, arm: &Arm, at: Option<usize>) -> Effect {
        let own = self.own_effect(arm, at);
        if arm.share == 0.0 {
            // No flow uses it now, so nothing is known of what flows that use it do to others.
            return Effect { within: f64::INFINITY, ..own };
        }
        own.plus(self.neighbours_effect(arm, at), 1.0 / arm.share.max(1e-3))
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
            // It is recommended, and becomes the rule if that is asked for again.
            Some(_) if !self.apply => {}
            Some(arm) => {
                let (action, why) = (self.arms[arm].action.clone(), self.reason(arm));
                decisions.push(Decision::Change { action, why });
                self.stage = Stage::Watching { arm, after: Box::default() };
            }
            None => {
                self.stage = Stage::Settled(Settled::Best);
                let why = "nothing that was tried is better".to_owned();
                decisions.push(Decision::Keep { action: self.first().clone(), why });
            }
        }
    }

    pub(super) fn judge_all(&mut self, decisions: &mut Vec<Decision>) {
        for i in 0..self.arms.len() {
            let arm = &self.arms[i];
            if arm.dropped.is_some() || arm.raised.is_some() {
                continue;
            }
            let effect = self.effect_on_all(arm, None);
            let is_no_better = self.is_full(arm)
                && (effect.least() > -MATTERS
                    || arm.own.pooled.count() > UNDECIDED_FLOWS && effect.estimate > -MATTERS);
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
        } else if self.arms.iter().any(|arm| arm.dropped.is_none() && arm.raised.is_some()) {
            // The last of them may have been raised before a rule was asked for again.
            self.conclude(decisions);
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
    pub(super) fn judge_raised(&mut self, i: usize, decisions: &mut Vec<Decision>) {
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
            let part = |seen: &Samples| seen.sizes[at].1.estimate(MAY_BE_LATE, 100.0);
            part(&arm.own) + (part(&arm.beside) - part(&arm.control)) * (1.0 - arm.share) / arm.share
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
            || arm.own.pooled.count() > UNDECIDED_FLOWS && effect.estimate > -MATTERS;
        if let Some(why) = harm.or_else(|| is_no_better.then_some(Drop::NoBetterForAll { effect })) {
            self.drop_arm(i, why, decisions);
        } else if effect.most() < 0.0 && effect.estimate < -MATTERS {
            self.arms[i].raised = Some(effect);
            self.conclude(decisions);
        }
    }

    /// It is the rule: is it as good as it seemed?
    pub(super) fn judge_change(&mut self, i: usize, after: &Samples, decisions: &mut Vec<Decision>) {
        let alpha = self.alpha();
        let part = |at: usize| after.sizes[at].1.bounds(alpha).0;
        // Its cost counts here too.
        let tail = self.judged().find(|at| part(*at) > MAY_BE_LATE || self.baselines[*at].budget() < 0.0);
        let effect = Effect::between_turns(&after.turns, &self.control.turns, alpha);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Action;

    /// A trial whose one algorithm is in use by this part of the flows. Flows beside its own take three times as
    /// long as without it.
    fn trial(share: f64) -> Trial {
        let now = Action { start: "cubic".parse().unwrap(), change: None };
        let mut trial = Trial::new(now, vec![Action { start: "reno".parse().unwrap(), change: None }], 0.25);
        let arm = &mut trial.arms[0];
        arm.share = share;
        for nth in 0..200_u32 {
            let noise = f64::from(nth % 7) * 1e-3;
            arm.own.add(0, noise, false);
            for (samples, value) in [(&mut arm.beside, 1.1 + noise), (&mut arm.control, noise)] {
                samples.add(0, value, false);
                samples.turns.end_turn();
            }
        }
        trial
    }

    #[test]
    fn a_lower_bound_of_what_is_tried_holds_for_a_trial_that_goes_on() {
        let mut trial = trial(0.25);
        trial.set_most_share(0.05);
        trial.set_share(0);
        assert!(trial.arms[0].share <= 0.05, "{}", trial.arms[0].share);
    }

    #[test]
    fn no_rule_changes_while_advice_is_only_to_recommend() {
        let mut trial = trial(0.25);
        trial.arms.push(Arm {
            action: Action { start: "bbr".parse().unwrap(), change: None },
            ..trial.arms[0].clone()
        });
        trial.stage = Stage::Trying;
        trial.arms[0].raised = Some(Effect { estimate: -0.2, within: 0.05 });
        let dropped = |trial: &mut Trial| {
            let mut decisions = Vec::new();
            trial.drop_arm(1, Drop::TooDear, &mut decisions);
            decisions
        };
        let is_change = |decision: &Decision| matches!(decision, Decision::Change { .. });
        trial.set_apply(false);
        assert!(!dropped(&mut trial).iter().any(is_change), "{:?}", trial.stage);
        let mut later = Vec::new();
        trial.judge_all(&mut later);
        assert!(later.is_empty(), "{later:?}");
        trial.set_apply(true);
        trial.judge_all(&mut later);
        assert!(later.iter().any(is_change), "{later:?}");
    }

    #[test]
    fn effect_on_all_of_what_no_flow_uses_is_not_known() {
        let tried = trial(0.25);
        assert!(tried.effect_on_all(&tried.arms[0], None).within.is_finite());
        let untried = trial(0.0);
        let effect = untried.effect_on_all(&untried.arms[0], None);
        assert!(effect.within.is_infinite() && effect.estimate.abs() < 2.0, "{effect:?}");
        assert_eq!(effect.to_string(), "unknown");
    }
}
