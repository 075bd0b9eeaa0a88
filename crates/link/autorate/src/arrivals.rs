//! From the counts of what arrives to the signals of a tick.

use std::time::Duration;

use weir_units::Bytes;

use crate::Signals;

/// The time after which senders obey a drop, where no one measures it.
const OBEYS_AFTER: Duration = Duration::from_millis(100);

/// Counts that only grow, and what is at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArrivalCounts {
    /// Bytes of all packets that arrived.
    pub arrived: u64,
    /// Packets that told how late they came.
    pub delays: u64,
    /// The least delay above its flow's base in the last 60 ms.
    pub queue: Option<Duration>,
}

/// Turns counts of what arrives into signals. All that arrives was carried by the link.
#[derive(Debug, Clone, Default)]
pub struct ArrivalMeter {
    last: Option<ArrivalCounts>,
}

impl ArrivalMeter {
    /// The signals since the last call. `None` at the first one, and after counts that began again.
    pub fn signals(&mut self, counts: &ArrivalCounts, is_busy: bool) -> Option<Signals> {
        let last = self.last.replace(*counts)?;
        let arrived = Bytes(counts.arrived.checked_sub(last.arrived)?);
        Some(Signals {
            queue: counts.queue,
            base: OBEYS_AFTER,
            samples: counts.delays.checked_sub(last.delays)?,
            acked: Some(arrived),
            sent: arrived,
            on_the_way: None,
            is_busy,
            unanswered: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_arrives_was_carried() {
        let mut meter = ArrivalMeter::default();
        let first = ArrivalCounts { arrived: 5_000, delays: 7, queue: None };
        assert_eq!(meter.signals(&first, true), None, "counts of an unknown time");
        let queue = Some(Duration::from_millis(12));
        let signals = meter.signals(&ArrivalCounts { arrived: 8_000, delays: 9, queue }, true).unwrap();
        assert_eq!((signals.acked, signals.sent), (Some(Bytes(3_000)), Bytes(3_000)));
        assert_eq!((signals.queue, signals.samples, signals.unanswered), (queue, 2, None));
        assert_eq!(meter.signals(&ArrivalCounts::default(), true), None, "they began again");
        assert!(meter.signals(&first, true).is_some());
    }
}
