//! Rates that are not exceeded: that of downloads from registries, and that of reading blobs to check
//! them.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Turn, Notify},
    time::{Instant as Clock, sleep},
};
use weir_units::{BitRate, Bytes, Instant};

/// The burst: this much, or the rate over [`BURST_TIME`] if that is more.
const BURST: Bytes = Bytes(64 << 10);
/// A taker that wakes late by this much loses nothing.
const BURST_TIME: Duration = Duration::from_millis(20);
/// The turn of a taker: at the lowest rate each of 64 takers has a turn every 4 s.
const PIECE: usize = 8 << 10;

/// A token bucket, kept as one instant: when it will be full again.
///
/// Invariant: in any time t at one rate no more than the burst and rate x t passes.
#[derive(Debug)]
struct Bucket {
    /// None: whatever comes passes.
    rate: Option<BitRate>,
    full_at: Instant,
}

fn burst(rate: BitRate) -> Duration {
    rate.time_to_send(BURST).max(BURST_TIME)
}

impl Bucket {
    /// Takes `len`, no more than [`BURST`], or answers how long to wait before asking again.
    fn take(&mut self, len: Bytes, now: Instant) -> Option<Duration> {
        let rate = self.rate?;
        let full_at = self.full_at.max(now) + rate.time_to_send(len);
        let wait = full_at.since(now).saturating_sub(burst(rate));
        if wait > Duration::ZERO {
            return Some(wait);
        }
        self.full_at = full_at;
        None
    }

    /// Another rate from now on; what is lacking of the burst is lacking still, as far as the new one has it.
    fn set(&mut self, rate: Option<BitRate>, now: Instant) {
        let lacking = self.full_at.since(now);
        self.full_at = match (self.rate, rate) {
            (Some(old), Some(new)) => now + new.time_to_send(old.bytes_in(lacking)).min(burst(new)),
            _ => now,
        };
        self.rate = rate;
    }
}

/// A [`Bucket`] for all who share a rate: they take turns, small piece by small piece, so that none waits
/// for another's large one.
#[derive(Debug)]
pub(crate) struct Pace {
    bucket: Mutex<Bucket>,
    turn: Turn<()>,
    changed: Notify,
    begin: Clock,
}

impl Pace {
    pub(crate) fn new(rate: Option<BitRate>) -> Pace {
        Pace {
            bucket: Mutex::new(Bucket { rate, full_at: Instant::default() }),
            turn: Turn::new(()),
            changed: Notify::new(),
            begin: Clock::now(),
        }
    }

    fn bucket(&self) -> (MutexGuard<'_, Bucket>, Instant) {
        let bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        (bucket, Instant(self.begin.elapsed()))
    }

    pub(crate) fn rate(&self) -> Option<BitRate> {
        self.bucket().0.rate
    }

    /// Another rate, also for those who wait.
    pub(crate) fn set(&self, rate: Option<BitRate>) {
        let (mut bucket, now) = self.bucket();
        bucket.set(rate, now);
        drop(bucket);
        self.changed.notify_waiters();
    }

    /// Waits until some of `len` bytes may pass, and answers how many: all of them if nothing is bounded.
    pub(crate) async fn pass(&self, len: usize) -> usize {
        if self.rate().is_none() {
            return len;
        }
        let piece = len.min(PIECE);
        // Held while waiting: who came first goes first.
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let wait = {
                let (mut bucket, now) = self.bucket();
                bucket.take(Bytes(piece as u64), now)
            };
            let Some(wait) = wait else { return piece };
            tokio::select! {
                () = sleep(wait) => {}
                () = changed => {}
            }
        }
    }

    /// Waits until `len` bytes may pass.
    pub(crate) async fn pass_all(&self, mut len: u64) {
        while len > 0 {
            len -= self.pass(usize::try_from(len).unwrap_or(usize::MAX)).await as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what there is in pieces for `time`, woken `late`; answers how much that was.
    fn drain(bucket: &mut Bucket, now: &mut Instant, time: Duration, late: Duration) -> u64 {
        let (end, mut passed) = (*now + time, 0);
        while *now <= end {
            match bucket.take(Bytes(PIECE as u64), *now) {
                None => passed += PIECE as u64,
                Some(wait) => *now = *now + wait + late,
            }
        }
        passed
    }

    #[test]
    fn no_more_than_the_burst_and_the_rate_passes_and_hardly_less() {
        for rate in [BitRate::mbit(1), BitRate::mbit(50), BitRate::gbit(2)] {
            for late in [Duration::ZERO, Duration::from_millis(3)] {
                let mut bucket = Bucket { rate: Some(rate), full_at: Instant::default() };
                // Idle for an hour: nothing is saved up beyond the burst.
                let mut now = Instant(Duration::from_secs(3600));
                let begin = now;
                let passed = drain(&mut bucket, &mut now, Duration::from_secs(10), late);
                let most = rate.bytes_in(now.since(begin)).0 + rate.bytes_in(burst(rate)).0;
                assert!(passed <= most + 1, "{rate}: {passed} of {most}");
                assert!(passed as f64 >= 0.99 * rate.bytes_in(now.since(begin)).0 as f64, "{rate}: {passed}");
            }
        }
    }

    #[test]
    fn another_rate_holds_from_its_moment_on() {
        let mut bucket = Bucket { rate: None, full_at: Instant::default() };
        let mut now = Instant(Duration::from_secs(1));
        assert_eq!(bucket.take(Bytes(PIECE as u64), now), None, "nothing is bounded yet");
        bucket.set(Some(BitRate::gbit(1)), now);
        drain(&mut bucket, &mut now, Duration::from_secs(1), Duration::ZERO);
        bucket.set(Some(BitRate::mbit(8)), now);
        let passed = drain(&mut bucket, &mut now, Duration::from_secs(2), Duration::ZERO);
        assert!((1_900_000..2_000_000 + BURST.0 + PIECE as u64).contains(&passed), "{passed}");
        bucket.set(None, now);
        assert_eq!(bucket.take(BURST, now), None);
    }

    #[tokio::test]
    async fn who_waits_at_one_rate_passes_at_the_next() {
        let pace = std::sync::Arc::new(Pace::new(Some(BitRate(8))));
        let waiting = tokio::spawn({
            let pace = std::sync::Arc::clone(&pace);
            async move { pace.pass_all(1 << 20).await }
        });
        sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished(), "a byte a second");
        pace.set(None);
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    }
}
