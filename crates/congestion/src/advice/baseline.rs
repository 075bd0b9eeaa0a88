use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::confidence::{Mean, wilson};

/// A percentile of a size may become longer by at most this: a tenth.
pub(super) const FAR: f64 = 1.1;
/// The part of flows beyond the percentile that is guarded: the 99th.
pub(super) const MAY_BE_LATE: f64 = 0.01;
/// Normal quantile of what is taken for certain about the tail, at each of a handful of looks.
const CERTAIN: f64 = 2.0;
/// Drawn flows that may be late at once: half of what 4,000 flows in a row may have.
const AT_ONCE: f64 = 20.0;

/// The bucket of a trial that an earlier version stored.
fn full() -> f64 {
    AT_ONCE
}
/// Each flow allows this part of a late one more.
const EARNED: f64 = MAY_BE_LATE / 2.0;
/// The tail is looked at again after this number of flows more.
const LOOK_AGAIN: f64 = 1.25;
/// Times are told apart to a 64th of an octave, 1.1 %.
const STEPS: f64 = 64.0;

/// Completion times, told apart to 1.1 %, in bounded memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Times {
    count: u64,
    cells: BTreeMap<u16, u32>,
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
impl Times {
    /// The least cell whose times are all as long as this, microseconds.
    fn cell(took_us: f64) -> u16 {
        // 2^40 us are 12 days.
        (took_us.max(1.0).log2().min(40.0) * STEPS) as u16
    }

    fn add(&mut self, took_us: f64) {
        self.count += 1;
        let cell = self.cells.entry(Times::cell(took_us)).or_default();
        *cell = cell.saturating_add(1);
    }

    /// How many are in this cell or beyond it.
    fn from(&self, cell: u16) -> u64 {
        self.cells.range(cell..).map(|(_, count)| u64::from(*count)).sum()
    }

    /// The last cell with at least this number of flows in it or beyond it.
    fn last(&self, mut is_so: impl FnMut(u64) -> bool) -> u16 {
        let mut beyond = 0;
        let mut cells = self.cells.iter().rev();
        let found = cells.find(|(_, count)| {
            beyond += u64::from(**count);
            is_so(beyond)
        });
        found.map_or(0, |(cell, _)| *cell)
    }
}

/// Flows of a size: how long they take without the trial, and how many may be late in it.
///
/// The rule: of all flows, with the trial, at most 1 % take more than 1.1 times the 99th percentile
/// without it. Flows in turns without a trial tell that percentile within bounds only. So a flow is
/// *late* if it takes more than 1.1 times the least that the percentile may be. Flows in turns without
/// a trial are charged with as many late ones as there are at most. Where about one flow in a hundred meets a
/// time-out the two are far apart, and nothing may be tried until it is known on which side the
/// percentile is.
///
/// That holds for all flows since the beginning. A bucket of late flows bounds each burst of them. It holds at most 20, and each
/// flow adds a half of 1 %. So of any flows in a row, drawn ones make at most 20 and half a percent late, which is 1 % of
/// 4,000. A drawn flow is charged as a late one from its beginning on, until it ends.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    /// Before the trial and in turns without it.
    #[serde(rename = "calm")]
    control: Times,
    /// In turns in which some try something, whatever they used.
    #[serde(rename = "open")]
    treatment: Times,
    /// Logarithms of microseconds, before the trial.
    pub(super) log: Mean,
    /// None for a size that is not judged by itself.
    tail: Option<Tail>,
    /// Drawn flows that may end late now.
    #[serde(default = "full")]
    bucket: f64,
}

/// The longest times without the trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Tail {
    /// Flows when it was looked at.
    of: u64,
    /// From this cell on flows are late.
    late: u16,
    /// At most this part of the flows in turns without a trial is late.
    most_late: f64,
    /// A flow that takes longer than this is far too late for an algorithm, microseconds: a tenth
    /// more than the 99th percentile, as measured.
    far_us: f64,
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
impl Baseline {
    pub(super) fn flows(&self) -> u64 {
        self.control.count + self.treatment.count
    }

    /// Flows without the trial.
    pub(super) fn control(&self) -> u64 {
        self.control.count
    }

    pub(super) fn is_judged(&self) -> bool {
        self.tail.is_some()
    }

    /// A flow of before the trial.
    pub(super) fn add_before(&mut self, took_us: f64) {
        self.log.add(took_us.ln());
        self.control.add(took_us);
    }

    /// A flow in a turn without a trial, or in one with. How it compares: the logarithm over the
    /// mean, and whether it is far too late. None of a size that is not judged. One that tried something is
    /// charged to the bucket if it is late.
    pub(super) fn add(&mut self, took_us: f64, is_control: bool, has_tried: bool) -> Option<(f64, bool)> {
        let tail = self.tail?;
        let charge = if has_tried && Times::cell(took_us) >= tail.late { 1.0 } else { 0.0 };
        self.bucket = (self.bucket + EARNED).min(AT_ONCE) - charge;
        if is_control { &mut self.control } else { &mut self.treatment }.add(took_us);
        Some((took_us.ln() - self.log.mean(), took_us > tail.far_us))
    }

    /// Fills the bucket, before anything is tried.
    pub(super) fn fill(&mut self) {
        self.bucket = AT_ONCE;
    }

    /// Charges flows of which it is not known how they end.
    pub(super) fn charge(&mut self, flows: u64) {
        self.bucket -= flows as f64;
    }

    /// Drawn flows that may be under way now, even if all of them end late.
    pub(super) fn room(&self) -> u64 {
        self.bucket.min(self.budget()).max(0.0) as u64
    }

    /// Looks at the tail after enough new flows. Returns whether it did.
    pub(super) fn look(&mut self) -> bool {
        let count = self.control.count;
        let is_new = self.tail.is_none_or(|tail| count as f64 >= tail.of as f64 * LOOK_AGAIN);
        if is_new && count > 0 {
            let baseline = self.control.last(|beyond| beyond as f64 >= MAY_BE_LATE * count as f64);
            let least = self.control.last(|beyond| wilson(beyond, count, CERTAIN).0 >= MAY_BE_LATE);
            // Cells are rounded so that late is less than a tenth longer.
            let late = least + (FAR.log2() * STEPS) as u16;
            let far_us = FAR * ((f64::from(baseline) + 0.5) / STEPS).exp2();
            let most_late = wilson(self.control.from(late), count, CERTAIN).1;
            self.tail = Some(Tail { of: count, late, most_late, far_us });
        }
        is_new
    }

    /// Flows that may be late beside those that are and would be; below 0 if there are too many.
    pub(super) fn budget(&self) -> f64 {
        let Some(tail) = self.tail else { return f64::INFINITY };
        MAY_BE_LATE * self.flows() as f64
            - tail.most_late * self.control.count as f64
            - self.treatment.from(tail.late) as f64
    }

    /// The largest part of the flows without the trial that is late, as far as is known.
    pub(super) fn most_late(&self) -> f64 {
        self.tail.map_or(0.0, |tail| tail.most_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This number of flows, of which this number of 10,000 meet a time-out of 200 ms; the others
    /// take about 10 ms.
    fn with_time_outs(flows: u32, part: u32) -> Baseline {
        let mut baseline = Baseline::default();
        for i in 0..flows {
            let is_late = i % 10_000 * part % 10_000 < part;
            baseline.add_before(10e3 + f64::from(i % 100) + if is_late { 200e3 } else { 0.0 });
        }
        assert!(baseline.look());
        baseline
    }

    #[test]
    fn nothing_may_be_tried_where_one_flow_in_a_hundred_meets_a_time_out() {
        for part in [90, 98, 102] {
            let baseline = with_time_outs(10_000, part);
            assert!(baseline.budget() <= 0.0, "{part}: {}", baseline.budget());
        }
        // Far from it on either side something may, and the more flows there were the nearer.
        for (flows, part) in [(10_000, 40), (10_000, 300), (200_000, 90), (200_000, 110)] {
            let baseline = with_time_outs(flows, part);
            assert!(baseline.budget() > 0.0, "{part} of {flows}: {}", baseline.budget());
        }
    }

    #[test]
    fn what_is_late_in_turns_is_charged_and_what_is_usual_is_not() {
        let mut baseline = with_time_outs(10_000, 20);
        let before = baseline.budget();
        assert!((0..100).all(|_| baseline.add(210e3, false, false).is_some()));
        assert!((baseline.budget() - (before - 99.0)).abs() < 1e-6, "{} of {before}", baseline.budget());
        assert!((0..1000).all(|_| baseline.add(10e3, false, false).is_some()));
        assert!((baseline.budget() - (before - 89.0)).abs() < 1e-6, "{} of {before}", baseline.budget());
    }

    #[test]
    fn times_are_told_apart_to_a_hundredth() {
        for took in [1.0, 17.0, 999.0, 123_456.0, 1e12] {
            let cell = Times::cell(took);
            assert!((f64::from(cell) / STEPS).exp2() <= took * 1.000_001, "{took}");
            assert!(((f64::from(cell) + 1.0) / STEPS).exp2() > took, "{took}");
        }
        assert_eq!(Times::cell(f64::MAX), 2560);
    }
}
