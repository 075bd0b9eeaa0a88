//! How long packets wait in a class's queue, as the looks at the queues tell.
//!
//! A queue of `b` bits that is served at the rate `r` holds a new packet for `b / r`. No engine has to stamp packets
//! for this, and it holds for each of them ([record 107](../../../../docs/adr/0107-queue-time-from-backlog.md)).

use std::time::Duration;

use weir_units::{BitRate, Bytes};

/// The upper bounds of the classes of times, in milliseconds. Longer times have one more.
pub(crate) const BOUNDS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/// The queue times of a class at the looks at which it sent or had a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueueTimes {
    /// The number of looks by time, those above all bounds last.
    pub(crate) looks: [u64; BOUNDS_MS.len() + 1],
    /// The sum of the times.
    pub(crate) sum: Duration,
}

/// The queue times of a class.
#[derive(Debug)]
pub struct ClassQueueTimes {
    pub(crate) class: String,
    pub(crate) source: String,
    /// Those of what leaves.
    pub(crate) sent: QueueTimes,
    /// Those of what arrives, if the node shares its download.
    pub(crate) received: Option<QueueTimes>,
}

impl QueueTimes {
    /// Counts a look at a queue that is served at this rate. At a rate of zero nothing is known, and nothing counted.
    pub(super) fn look(&mut self, backlog: Bytes, rate: BitRate) {
        if rate == BitRate::ZERO {
            return;
        }
        let time = rate.time_to_send(backlog);
        let is_within = |ms: &u64| time <= Duration::from_millis(*ms);
        self.looks[BOUNDS_MS.iter().position(is_within).unwrap_or(BOUNDS_MS.len())] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Whether there was no look.
    pub(crate) fn is_empty(&self) -> bool {
        self.looks.iter().all(|count| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_counts_once_at_the_first_bound_that_holds() {
        let mut times = QueueTimes::default();
        assert!(times.is_empty());
        times.look(Bytes(9_000), BitRate::ZERO);
        assert!(times.is_empty(), "a queue that is not served has no time");
        // At 8 Mbit/s a millisecond has 1,000 bytes.
        for bytes in [0, 1_000, 1_001, 1_000_000, 1_000_001] {
            times.look(Bytes(bytes), BitRate::mbit(8));
        }
        assert_eq!(times.looks, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(times.sum, Duration::from_micros(2_002_002));
    }
}
