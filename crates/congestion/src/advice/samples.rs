use serde::{Deserialize, Serialize};

use super::confidence::{Mean, Proportion, TurnMean};
use crate::size;

/// The observations of flows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Samples {
    /// Logarithms of completion times less the mean of their size.
    pub(super) pooled: Mean,
    /// The same for each turn, to compare those of different turns.
    pub(super) turns: TurnMean,
    /// By size: the same as `pooled`, and how many were far too late.
    pub(super) sizes: [(Mean, Proportion); size::COUNT],
}

impl Samples {
    pub(super) fn add(&mut self, size: usize, residual: f64, is_far: bool) {
        self.pooled.add(residual);
        self.turns.add(residual);
        self.sizes[size].0.add(residual);
        self.sizes[size].1.add(is_far);
    }

    /// Forgets means, which are compared within one share of flows, not what was far too late.
    pub(super) fn forget_means(&mut self) {
        (self.pooled, self.turns) = Default::default();
        self.sizes.iter_mut().for_each(|(mean, _)| *mean = Mean::default());
    }
}
