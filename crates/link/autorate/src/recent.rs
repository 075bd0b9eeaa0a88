//! The rates that a link carried in the last minutes.

use std::{collections::VecDeque, time::Duration};

use weir_units::Instant;

/// One rate is kept of each second.
const EVERY: Duration = Duration::from_secs(1);
/// Five minutes.
const KEPT: usize = 300;

/// The rates of the last minutes in which the rate was known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent {
    rates: VecDeque<f64>,
    /// The present second: its begin, the sum of its rates and their number.
    second: Option<(Instant, f64, u32)>,
}

impl Recent {
    pub(crate) fn add(&mut self, now: Instant, rate: f64) {
        let Some((begin, sum, count)) = self.second else {
            self.second = Some((now, rate, 1));
            return;
        };
        if now.since(begin) < EVERY {
            self.second = Some((begin, sum + rate, count + 1));
            return;
        }
        self.rates.push_back(sum / f64::from(count));
        if self.rates.len() > KEPT {
            self.rates.pop_front();
        }
        self.second = Some((now, rate, 1));
    }

    /// The rate that one of five seconds did not reach. `None` before the first second has ended.
    pub(crate) fn low(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.rates.iter().copied().collect();
        let place = rates.len() / 5;
        (!rates.is_empty()).then(|| *rates.select_nth_unstable_by(place, f64::total_cmp).1)
    }
}
