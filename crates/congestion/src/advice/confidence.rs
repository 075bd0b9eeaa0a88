//! Bounds that hold at every moment at once: one may look after each flow, and stop when it suits.

use serde::{Deserialize, Serialize};

/// How often something came true, of independent trials.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Proportion {
    trials: u64,
    hits: u64,
}

/// The mixing density, Beta(1, 30): rare events are expected. Bounds hold with any, and are
/// narrowest where it was right.
const PRIOR: (f64, f64) = (1.0, 30.0);

#[allow(clippy::cast_precision_loss)]
impl Proportion {
    /// Counts one more.
    pub fn add(&mut self, hit: bool) {
        self.trials += 1;
        self.hits += u64::from(hit);
    }

    /// How many were counted.
    #[must_use]
    pub fn trials(&self) -> u64 {
        self.trials
    }

    /// The part that came true, beside `weight` earlier ones with the part `prior`.
    #[must_use]
    pub fn estimate(&self, prior: f64, weight: f64) -> f64 {
        (self.hits as f64 + prior * weight) / (self.trials as f64 + weight)
    }

    /// Lower and upper bound of the probability, both right at all times together with
    /// probability `1 - alpha`: all p for which the mixture martingale
    /// B(a + s, b + n - s) / (B(a, b) p^s (1 - p)^(n - s)) stays below 1 / alpha (Robbins 1970;
    /// Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences",
    /// section 3.2).
    #[must_use]
    pub fn bounds(&self, alpha: f64) -> (f64, f64) {
        let (n, s) = (self.trials as f64, self.hits as f64);
        if self.trials == 0 {
            return (0.0, 1.0);
        }
        let (a, b) = PRIOR;
        let mixed = ln_beta(a + s, b + n - s) - ln_beta(a, b);
        let out = |p: f64| mixed - s * p.ln() - (n - s) * (-p).ln_1p() >= -alpha.ln();
        let mean = s / n;
        // The martingale falls up to the mean and grows from there.
        let edge = |mut inside: f64, mut outside: f64| {
            for _ in 0..50 {
                let middle = f64::midpoint(inside, outside);
                if out(middle) { outside = middle } else { inside = middle }
            }
            outside
        };
        let least = if self.hits == 0 { 0.0 } else { edge(mean, 0.0) };
        let most = if self.hits == self.trials { 1.0 } else { edge(mean, 1.0) };
        (least, most)
    }
}

/// Bounds of the probability of what came true `hits` times of `trials`, at one look: `z` standard
/// deviations, as Wilson's score interval has them (1927). Unlike [`Proportion::bounds`] it is not to be
/// looked at until it suits.
#[allow(clippy::cast_precision_loss)]
pub(super) fn wilson(hits: u64, trials: u64, z: f64) -> (f64, f64) {
    let (n, p) = (trials as f64, hits as f64 / trials as f64);
    let middle = p + z * z / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    ((middle - half) / scale, (middle + half) / scale)
}

fn ln_beta(a: f64, b: f64) -> f64 {
    libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b)
}

/// The mean of independent values.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mean {
    count: u64,
    mean: f64,
    /// Of squared distances from the mean.
    sum: f64,
}

/// Values before a bound is believed: it is one of the limit.
const ENOUGH: u64 = 100;
/// Values at which bounds are narrowest for what may be had.
const NARROWEST_AT: f64 = 5_000.0;

#[allow(clippy::cast_precision_loss)]
impl Mean {
    /// Counts one more.
    pub fn add(&mut self, value: f64) {
        // Welford 1962.
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.sum += before * (value - self.mean);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Half the width of an interval around the mean that holds the true one at all times together
    /// with probability `1 - alpha`, in the limit: an asymptotic confidence sequence
    /// (Waudby-Smith et al. 2024, "Time-uniform central limit theory and asymptotic confidence
    /// sequences", Theorem 2.2). Infinite for fewer than 100.
    #[must_use]
    pub(crate) fn half_width(&self, alpha: f64) -> f64 {
        if self.count < ENOUGH {
            return f64::INFINITY;
        }
        let n = self.count as f64;
        half_width(n, self.sum / (n - 1.0), NARROWEST_AT, alpha)
    }
}

/// Of the mean of `n` independent values with this variance; narrowest after `narrowest_at` of them.
fn half_width(n: f64, variance: f64, narrowest_at: f64, alpha: f64) -> f64 {
    let rho2 = (-2.0 * alpha.ln() + (1.0 - 2.0 * alpha.ln()).ln()) / narrowest_at;
    let grown = n * rho2 + 1.0;
    (variance * 2.0 * grown / (n * n * rho2) * (grown.sqrt() / alpha).ln()).sqrt()
}

/// The mean of values that come in turns: those of one turn have something in common, the weather of
/// their time, so that only turns are independent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnMean {
    turns: u64,
    /// Over turns, with `n` values that sum up to `s` in each: n, s, n^2, n s, s^2.
    sums: [f64; 5],
    /// Of the turn that has not ended: n and s.
    last: [f64; 2],
}

/// Turns before a bound is believed.
const ENOUGH_TURNS: u64 = 50;
/// Turns at which bounds are narrowest for what may be had.
const NARROWEST_AT_TURNS: f64 = 500.0;

#[allow(clippy::cast_precision_loss)]
impl TurnMean {
    /// Counts one more value of this turn.
    pub fn add(&mut self, value: f64) {
        self.last[0] += 1.0;
        self.last[1] += value;
    }

    /// The turn has ended; one without values does not count.
    pub(crate) fn end_turn(&mut self) {
        let [n, s] = std::mem::take(&mut self.last);
        if n > 0.0 {
            self.turns += 1;
            for (sum, of_turn) in self.sums.iter_mut().zip([n, s, n * n, n * s, s * s]) {
                *sum += of_turn;
            }
        }
    }

    /// Turns with values, that have ended.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// The mean of all values in turns that have ended; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let [n, s, ..] = self.sums;
        if n > 0.0 { s / n } else { 0.0 }
    }

    /// As [`Mean::half_width`], with the variance of a mean over turns of unequal size (the ratio
    /// estimator, Cochran 1977, section 6.4). Infinite for fewer than 50 turns.
    #[must_use]
    pub(crate) fn half_width(&self, alpha: f64) -> f64 {
        if self.turns < ENOUGH_TURNS {
            return f64::INFINITY;
        }
        let ([n, _, nn, ns, ss], mean, turns) = (self.sums, self.mean(), self.turns as f64);
        let off = (ss - 2.0 * mean * ns + mean * mean * nn).max(0.0);
        let variance = off / (turns - 1.0) * (turns / n) * (turns / n);
        half_width(turns, variance, NARROWEST_AT_TURNS, alpha)
    }
}

/// A difference, and how far from it the true one may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Effect {
    /// As measured, natural logarithm of a ratio of times.
    pub estimate: f64,
    /// Half the width of its interval; infinite if anything is possible.
    #[serde(with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub within: f64,
}

/// JSON has no infinity, and writes `null` for it.
mod or_infinite {
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(*value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

impl Effect {
    /// Of one mean over another; either's bound may fail with half of `alpha`.
    #[must_use]
    pub fn between(one: &Mean, other: &Mean, alpha: f64) -> Effect {
        Effect {
            estimate: one.mean() - other.mean(),
            within: one.half_width(alpha / 2.0) + other.half_width(alpha / 2.0),
        }
    }

    /// The same of means over turns.
    #[must_use]
    pub(crate) fn between_turns(one: &TurnMean, other: &TurnMean, alpha: f64) -> Effect {
        Effect {
            estimate: one.mean() - other.mean(),
            within: one.half_width(alpha / 2.0) + other.half_width(alpha / 2.0),
        }
    }

    /// It beside `other`, `times` as large.
    #[must_use]
    pub(crate) fn plus(self, other: Effect, times: f64) -> Effect {
        Effect {
            estimate: self.estimate + other.estimate * times,
            within: self.within + other.within * times.abs(),
        }
    }

    /// The least that it may be.
    #[must_use]
    pub fn least(self) -> f64 {
        self.estimate - self.within
    }

    /// The most that it may be.
    #[must_use]
    pub fn most(self) -> f64 {
        self.estimate + self.within
    }
}

impl std::fmt::Display for Effect {
    /// `-34 % (-39 to -28)`; `unknown` if anything is possible.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |ln: f64| ln.exp_m1() * 100.0;
        if self.within.is_finite() {
            let (at, least, most) = (percent(self.estimate), percent(self.least()), percent(self.most()));
            write!(f, "{at:+.1} % ({least:+.1} to {most:+.1})")
        } else {
            f.write_str("unknown")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn uniform(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[test]
    fn effect_of_which_nothing_is_known_is_read_back_from_json() {
        for within in [0.02, f64::INFINITY] {
            let effect = Effect { estimate: -0.1, within };
            let json = serde_json::to_string(&effect).unwrap();
            assert_eq!(serde_json::from_str::<Effect>(&json).unwrap(), effect, "{json}");
        }
    }

    #[test]
    fn bounds_of_a_proportion_hold_at_every_look_more_often_than_promised() {
        let (alpha, runs, mut state) = (0.1, 300, 1);
        for p in [0.008, 0.05, 0.5] {
            let mut wrong = 0;
            for _ in 0..runs {
                let mut seen = Proportion::default();
                let missed = (0..3000).any(|i| {
                    seen.add(uniform(&mut state) < p);
                    let (least, most) = if i % 10 == 0 { seen.bounds(alpha) } else { (0.0, 1.0) };
                    p < least || p > most
                });
                wrong += u32::from(missed);
            }
            assert!(f64::from(wrong) <= alpha * f64::from(runs), "p = {p}: {wrong} of {runs}");
        }
        let mut all = Proportion::default();
        (0..50).for_each(|_| all.add(true));
        let (least, most) = all.bounds(0.05);
        assert!(least > 0.3 && most == 1.0, "{least} {most}");
    }

    #[test]
    fn bounds_of_a_mean_hold_at_every_look_more_often_than_promised() {
        let (alpha, runs, mut state, mut wrong) = (0.1, 300, 2, 0);
        for _ in 0..runs {
            let mut seen = Mean::default();
            // Skewed, as completion times are: the logarithm of a uniform number, mean -1.
            let missed = (0..3000).any(|_| {
                seen.add(uniform(&mut state).max(1e-12).ln());
                (seen.mean() + 1.0).abs() > seen.half_width(alpha)
            });
            wrong += u32::from(missed);
        }
        assert!(f64::from(wrong) <= alpha * f64::from(runs), "{wrong} of {runs}");
    }

    /// Where turns differ, bounds that take their values for independent are wrong nearly always.
    #[test]
    fn bounds_of_a_mean_over_turns_hold_for_correlated_values() {
        let (alpha, runs, mut state) = (0.1, 200, 4);
        let (mut wrong, mut wrong_by_value) = (0, 0);
        for _ in 0..runs {
            let (mut turns, mut values) = (TurnMean::default(), Mean::default());
            let (mut missed, mut missed_by_value) = (false, false);
            for _ in 0..400 {
                let weather = uniform(&mut state) - 0.5;
                for _ in 0..10 + (uniform(&mut state) * 50.0) as u32 {
                    let value = weather + uniform(&mut state) - 0.5;
                    turns.add(value);
                    values.add(value);
                }
                turns.end_turn();
                missed |= turns.mean().abs() > turns.half_width(alpha);
                missed_by_value |= values.mean().abs() > values.half_width(alpha);
            }
            wrong += u32::from(missed);
            wrong_by_value += u32::from(missed_by_value);
        }
        assert!(f64::from(wrong) <= alpha * f64::from(runs), "{wrong} of {runs}");
        assert!(wrong_by_value > runs / 2, "{wrong_by_value} of {runs}");
    }

    #[test]
    fn bounds_shrink_to_what_is_true() {
        let (mut seen, mut mean, mut state) = (Proportion::default(), Mean::default(), 3);
        for _ in 0..100_000 {
            let u = uniform(&mut state);
            seen.add(u < 0.01);
            mean.add(u);
        }
        let (least, most) = seen.bounds(0.001);
        assert!(least > 0.008 && most < 0.0125, "{least} {most}");
        assert!(mean.half_width(0.001) < 0.006, "{}", mean.half_width(0.001));
    }
}
