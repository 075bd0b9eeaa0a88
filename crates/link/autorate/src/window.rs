//! Sums over the last moments.

use std::{collections::VecDeque, time::Duration};

use weir_units::Instant;

/// A sum over a time that ends now.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    over: Duration,
    parts: VecDeque<(Instant, u64)>,
    since: Option<Instant>,
}

impl Window {
    pub(crate) fn new(over: Duration) -> Window {
        Window { over, parts: VecDeque::new(), since: None }
    }

    /// Adds the count of the time since the last call.
    pub(crate) fn add(&mut self, now: Instant, count: u64) {
        if self.since.is_none() {
            // The count before the first call is of an unknown time.
            self.since = Some(now);
            return;
        }
        self.parts.push_back((now, count));
        while self.parts.len() > 1 && self.parts.front().is_some_and(|(at, _)| now.since(*at) >= self.over) {
            self.since = self.parts.pop_front().map(|(at, _)| at);
        }
    }

    /// Forgets all before this moment.
    pub(crate) fn clear(&mut self, now: Instant) {
        self.parts.clear();
        self.since = Some(now);
    }

    pub(crate) fn sum(&self, now: Instant) -> u64 {
        self.parts.iter().filter(|(at, _)| now.since(*at) < self.over).map(|(_, count)| count).sum()
    }

    /// The count per second. `None` before the window has half of its time.
    pub(crate) fn rate(&self, now: Instant) -> Option<f64> {
        let time = now.since(self.since?);
        let sum: u64 = self.parts.iter().map(|(_, count)| count).sum();
        (time >= self.over / 2).then(|| sum as f64 / time.as_secs_f64())
    }
}
