//! Probes, as other programs than weir send them.

use std::collections::VecDeque;

const EACH_MS: u64 = 50;

/// A probe each 50 ms: it waits in the queue before the link.
#[derive(Default)]
pub(crate) struct Probes {
    /// When it was sent, and the packets that must leave before it.
    waiting: VecDeque<(u64, u64)>,
    /// When its answer comes, and how long it waited.
    answers: VecDeque<(u64, u32)>,
}

impl Probes {
    /// A probe joins the queue behind all `pushed` packets that ever joined it, if it is time for one.
    pub(crate) fn begin(&mut self, ms: u64, pushed: u64) {
        if ms.is_multiple_of(EACH_MS) {
            self.waiting.push_back((ms, pushed));
        }
    }

    /// The waits that are known at this time.
    pub(crate) fn heard(&mut self, ms: u64) -> Vec<u32> {
        let known = self.answers.partition_point(|(at, _)| *at <= ms);
        self.answers.drain(..known).map(|(_, waited)| waited).collect()
    }

    /// The queue has passed `left` packets. An answer needs `after` more milliseconds.
    pub(crate) fn pass(&mut self, ms: u64, left: u64, after: u32) {
        while self.waiting.front().is_some_and(|(_, ahead)| *ahead <= left) {
            let Some((sent, _)) = self.waiting.pop_front() else { break };
            self.answers.push_back((ms + u64::from(after), (ms - sent) as u32));
        }
    }
}
