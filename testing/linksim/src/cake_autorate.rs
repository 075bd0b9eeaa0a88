//! The rules that cake-autorate's documentation gives for one direction, for comparison.
//!
//! Its pingers send 20 probes a second. A probe is late if it waits more than 30 ms above a baseline. Three late ones
//! of the last six are congestion.

use std::collections::VecDeque;

const LATE_MS: f64 = 30.0;
/// The cut is the deepest from this mean wait on.
const DEEPEST_MS: f64 = 60.0;

/// Rates are in Mbit/s, times in ms.
pub(crate) struct CakeAutorate {
    least: f64,
    base: f64,
    most: f64,
    rate: f64,
    baseline: f64,
    last: VecDeque<f64>,
    cut_at: u64,
    grown_at: u64,
    load: f64,
}

impl CakeAutorate {
    pub(crate) fn new(least: f64, base: f64, most: f64) -> CakeAutorate {
        let last = VecDeque::new();
        CakeAutorate { least, base, most, rate: base, baseline: 0.0, last, cut_at: 0, grown_at: 0, load: 0.0 }
    }

    /// The rate after the probes of 50 ms in which `sent` left.
    pub(crate) fn tick(&mut self, now: u64, sent: f64, probes: &[u32]) -> f64 {
        self.load = 0.5 * self.load + 0.5 * sent / self.rate;
        for wait in probes {
            let wait = f64::from(*wait);
            self.last.push_back(wait - self.baseline);
            if self.last.len() > 6 {
                self.last.pop_front();
            }
            let gain = if wait > self.baseline { 0.001 } else { 0.9 };
            self.baseline += gain * (wait - self.baseline);
        }
        let late = self.last.iter().filter(|wait| **wait > LATE_MS).count();
        if late >= 3 {
            if now >= self.cut_at + 300 {
                let mean = self.last.iter().sum::<f64>() / self.last.len() as f64;
                let depth = ((mean - LATE_MS) / (DEEPEST_MS - LATE_MS)).clamp(0.0, 1.0);
                self.rate *= 0.99 - depth * (0.99 - 0.75);
                self.cut_at = now;
            }
        } else if self.load > 0.75 {
            if now >= self.grown_at.max(self.cut_at) + 200 {
                self.rate *= 1.04;
                self.grown_at = now;
            }
        } else {
            // One per cent a second towards the base.
            self.rate *= if self.rate > self.base { 1.0 - 0.0005 } else { 1.0 + 0.0005 };
        }
        self.rate = self.rate.clamp(self.least, self.most);
        self.rate
    }
}
