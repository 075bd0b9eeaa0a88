//! The pipeline's rings and nothing else: the most that this machine gives the pipeline.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant as Clock},
};

use anyhow::Result;
use weir_htb::ring;

use super::wire::{BATCH, Backlog, Done, enqueue_stage, of_two};
use crate::user_htb::{cores::side_by_side, scenario::PlayTiming};

/// A word for each packet goes there and comes back, a batch at a time.
pub(super) fn ring(backlog: &Backlog) -> Result<PlayTiming> {
    let packets = backlog.frames.len();
    let mean = backlog.frames.iter().map(|frame| u64::from(frame.on_wire())).sum::<u64>() / packets as u64;
    // As large as the pipeline's.
    let (mut there, mut arrives) = ring::ring(2 * packets);
    let (mut back, mut returns) = ring::ring(packets);
    there.push_all(backlog.handles().map(u64::from));
    let done = AtomicBool::new(false);
    let enqueuing = || {
        let mut words = [0; BATCH];
        enqueue_stage(&done, || {
            let came = returns.pop_all(&mut words);
            there.push_all(words[..came].iter().copied());
            came as u64
        })
    };
    let dequeuing = || {
        let _done = Done(&done);
        let (mut wire, mut words, mut turns) = (backlog.wire(1), [0; BATCH], 0);
        let mut idle = Duration::ZERO;
        loop {
            let came = arrives.pop_all(&mut words);
            back.push_all(words[..came].iter().copied());
            if !wire.count(came as u64, came as u64 * mean) {
                return (wire, idle);
            }
            if came == 0 {
                let start = Clock::now();
                wire.wait(&mut turns);
                idle += start.elapsed();
            }
        }
    };
    let ((did, _, enqueue_had), ((wire, idle), seconds, had)) = side_by_side(enqueuing, dequeuing)?;
    Ok(of_two(&wire, did, idle, (seconds, had.min(enqueue_had))))
}
