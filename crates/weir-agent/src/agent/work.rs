//! Counts of the work of schedulers since the agent's start.

use std::{iter::Sum, ops::AddAssign};

/// The work of schedulers, also of those that have gone: `/metrics` has the counts, which never fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    /// Writes to the kernel's schedulers.
    pub(super) writes: u64,
    /// Foreign changes undone.
    pub(super) repairs: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.writes += other.writes;
        self.repairs += other.repairs;
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(all: I) -> Work {
        let mut sum = Work::default();
        all.for_each(|work| sum += work);
        sum
    }
}
