use serde::{Deserialize, Serialize};

use super::confidence::{Mean, Proportion};
use crate::size;

/// Late is what takes longer than this part of the flows of its size do without the trial, or is far too
/// late.
pub(super) const LATE: f64 = 0.992;
/// With at most this part late, the 99th percentile is at most what the 99.2nd was.
pub(super) const MAY_BE_LATE: f64 = 0.01;
/// Far too late is what takes so many times the 99th percentile: with more than 1 % of them, the
/// 99th percentile is more than a tenth longer.
pub(super) const FAR: f64 = 1.1;

/// What was seen of flows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Logarithms of completion times less the mean of their size.
    pub(super) pooled: Mean,
    /// By size: the same, and how many were far too late.
    pub(super) sizes: [(Mean, Proportion); size::COUNT],
}

impl Seen {
    pub(super) fn add(&mut self, size: usize, residual: f64, is_far: bool) {
        self.pooled.add(residual);
        self.sizes[size].0.add(residual);
        self.sizes[size].1.add(is_far);
    }

    /// Forgets means, which are compared within one share of flows, not what was far too late.
    pub(super) fn forget_means(&mut self) {
        self.pooled = Mean::default();
        self.sizes.iter_mut().for_each(|(mean, _)| *mean = Mean::default());
    }
}

/// Flows of a size, without the trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Usual {
    pub(super) flows: u64,
    /// Their times, until there are enough; begun anew after a restart.
    #[serde(skip)]
    pub(super) sample: Vec<f64>,
    /// Logarithm of microseconds; meaningful if `late_us` is given.
    pub(super) mean_log: f64,
    /// None for a size that is not judged by itself.
    pub(super) bounds_us: Option<Bounds>,
    /// All that were late since the sample was taken, of whatever flows.
    pub(super) late: u64,
}

/// Times from which on flows are late.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Bounds {
    pub(super) late: f64,
    pub(super) far: f64,
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
impl Usual {
    /// There is enough of a sample: from now on it is known which flows are late, if the size is
    /// judged by itself.
    pub(super) fn settle(&mut self, is_judged: bool) {
        let mut sample = std::mem::take(&mut self.sample);
        self.flows = 0;
        self.bounds_us = None;
        if !is_judged || sample.is_empty() {
            return;
        }
        sample.sort_by(f64::total_cmp);
        let at = |part: f64| sample[((sample.len() as f64 * part) as usize).min(sample.len() - 1)];
        let far = at(1.0 - MAY_BE_LATE) * FAR;
        // Where the tail is steep, the 99.2nd percentile may be far beyond the 99th.
        let bounds = Bounds { late: at(LATE).min(far), far };
        self.late = sample.iter().filter(|took| **took > bounds.late).count() as u64;
        self.bounds_us = Some(bounds);
        self.mean_log = sample.iter().map(|took| took.ln()).sum::<f64>() / sample.len() as f64;
        // Of those outside the sample it is not known how many were late.
        self.flows = sample.len() as u64;
    }

    /// How many more may be late.
    pub(super) fn budget(&self) -> f64 {
        MAY_BE_LATE * self.flows as f64 - self.late as f64
    }
}
