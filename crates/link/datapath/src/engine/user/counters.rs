//! Computes the backlog of a tap queue and its losses, from the packets that entered in the kernel and
//! those read here. Pure.

use weir_bpf::Entered;

use super::forwarder::QueueReport;

/// Counters of the class that has a tap queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    /// Packets that have left.
    pub(super) packets: u64,
    /// Packets that the queue had no room for.
    pub(super) drops: u64,
    /// Bytes that wait, read or not.
    pub(super) backlog: u64,
}

/// Follows a tap queue. The kernel counts before it queues, so a difference is a loss only if nothing
/// comes any more and nothing waits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueCounters {
    entered: Entered,
    seen: QueueReport,
    lost: Entered,
    /// Drops and packets before the class had the tap queue.
    before: (u64, u64),
}

impl QueueCounters {
    /// A tap queue whose queue is new; `entered`: before it was.
    pub(super) fn new(entered: Entered) -> QueueCounters {
        QueueCounters { entered, lost: entered, before: (entered.packets, 0), ..QueueCounters::default() }
    }

    /// Another class has the tap queue now.
    pub(super) fn begin(&mut self) {
        self.before = (self.lost.packets + self.seen.failed, self.seen.segments);
    }

    /// Takes both sides' counts, in this order.
    pub(super) fn look(&mut self, seen: QueueReport, entered: Entered) -> Counted {
        let missing = Entered {
            bytes: entered.bytes.wrapping_sub(seen.bytes),
            packets: entered.packets.wrapping_sub(seen.frames),
        };
        if self.entered == entered && self.seen.frames == seen.frames && seen.held == 0 {
            self.lost = missing;
        }
        (self.entered, self.seen) = (entered, seen);
        // The kernel may have split what the tap does not take whole: then more was read than entered.
        let waits = missing.bytes.wrapping_sub(self.lost.bytes).cast_signed().max(0).cast_unsigned();
        Counted {
            packets: seen.segments - self.before.1,
            drops: (self.lost.packets + seen.failed).saturating_sub(self.before.0),
            backlog: waits + u64::from(seen.held),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1514;

    fn entered(packets: u64) -> Entered {
        Entered { bytes: packets * FRAME, packets }
    }

    fn read(frames: u64, held: u32) -> QueueReport {
        QueueReport { frames, bytes: frames * FRAME, segments: frames - u64::from(held > 0), held, failed: 0 }
    }

    #[test]
    fn unread_packets_wait_until_none_comes_and_count_as_lost() {
        let mut counters = QueueCounters::new(entered(100));
        let waiting = Counted { packets: 4, drops: 0, backlog: 3 * FRAME };
        assert_eq!(counters.look(read(5, 1514), entered(107)), waiting);
        assert_eq!(
            counters.look(read(5, 1514), entered(107)),
            waiting,
            "one is held: the queue is not empty"
        );
        assert_eq!(counters.look(read(6, 0), entered(107)), Counted { packets: 6, drops: 0, backlog: FRAME });
        assert_eq!(counters.look(read(6, 0), entered(107)), Counted { packets: 6, drops: 1, backlog: 0 });
        assert_eq!(
            counters.look(read(7, 1514), entered(108)),
            Counted { packets: 6, drops: 1, backlog: FRAME }
        );
    }

    #[test]
    fn the_next_class_of_a_lane_begins_at_nothing() {
        let mut counters = QueueCounters::new(Entered::default());
        counters.look(read(3, 0), entered(5));
        assert_eq!(counters.look(read(3, 0), entered(5)).drops, 2);
        counters.begin();
        assert_eq!(counters.look(read(4, 0), entered(6)), Counted { packets: 1, drops: 0, backlog: 0 });
    }
}
