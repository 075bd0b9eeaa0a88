//! A blob that is passed on without being kept: in memory is the stretch of it that its readers are at.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout};

use super::readers::Readers;

/// The most that a window holds, bytes: more than twice what a connection gives at once.
const WINDOW: usize = 1 << 20;

/// For so long a window keeps the first byte, for readers who come at about the same time.
const GATHER: Duration = Duration::from_millis(100);

/// So long all together the slowest reader holds up others who are half a window ahead.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Stretch {
    start: u64,
    pieces: VecDeque<Bytes>,
    length: usize,
}

/// A stretch of a blob that moves on with its readers.
#[derive(Debug)]
pub(crate) struct Window {
    stretch: Mutex<Stretch>,
    begun: Instant,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { stretch: Mutex::default(), begun: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Stretch> {
        self.stretch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes from the beginning of a range, which has come already. `None`: the window has moved on.
    pub(crate) fn take(&self, range: Range<u64>) -> Option<Bytes> {
        let stretch = self.lock();
        let mut at = stretch.start;
        if range.start < at {
            return None;
        }
        for piece in &stretch.pieces {
            let end = at + piece.len() as u64;
            if range.start < end {
                let from = usize::try_from(range.start - at).ok()?;
                let to = usize::try_from(range.end.min(end) - at).ok()?;
                return Some(piece.slice(from..to));
            }
            at = end;
        }
        None
    }

    /// The end of what has come.
    pub(super) fn end(&self) -> u64 {
        let stretch = self.lock();
        stretch.start + stretch.length as u64
    }

    /// Takes the next bytes in, as soon as the readers have made room. The stream goes at the pace of the slowest
    /// reader; one that holds up others for too long is left behind.
    ///
    /// * `waited`: how long the slowest has held up others so far.
    /// * `close`: called before the first byte leaves. From then on no one joins, unless a reader is before the
    ///   place that it is given; it answers whether that is so.
    pub(super) async fn push(
        &self,
        piece: Bytes,
        readers: &Readers,
        waited: &mut Duration,
        close: impl Fn(u64) -> bool,
    ) {
        while let Some((start, end)) = self.leaving(piece.len()) {
            let moved = readers.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if start == 0 {
                sleep_until(self.begun + GATHER).await;
            }
            let (slowest, fastest) = readers.span(start).unwrap_or((u64::MAX, u64::MAX));
            let is_overdue = *waited > GRACE;
            if (is_overdue || slowest >= end) && (start > 0 || close(if is_overdue { 0 } else { end })) {
                if slowest < end {
                    tracing::info!("a reader at byte {slowest} is left behind: others are at {fastest}");
                    *waited = Duration::ZERO;
                }
                self.shift();
            } else if fastest > slowest.saturating_add(WINDOW as u64 / 2) {
                let begun = Instant::now();
                let _ = timeout(GRACE, moved).await;
                *waited += begun.elapsed();
            } else {
                moved.await;
            }
        }
        let mut stretch = self.lock();
        stretch.length += piece.len();
        stretch.pieces.push_back(piece);
    }

    /// The first piece, if it has to leave before `length` bytes more have room: where it begins and ends.
    fn leaving(&self, length: usize) -> Option<(u64, u64)> {
        let stretch = self.lock();
        let first = stretch.pieces.front().filter(|_| stretch.length + length > WINDOW)?;
        Some((stretch.start, stretch.start + first.len() as u64))
    }

    fn shift(&self) {
        let mut stretch = self.lock();
        if let Some(piece) = stretch.pieces.pop_front() {
            stretch.start += piece.len() as u64;
            stretch.length -= piece.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::readers::Running, *};

    const PIECE: usize = 64 << 10;

    async fn push(window: &Window, running: &Running, pieces: u64) {
        let mut waited = Duration::ZERO;
        for n in 0..pieces {
            let piece = Bytes::from(vec![n as u8; PIECE]);
            window.push(piece, &running.readers, &mut waited, |_| true).await;
            assert!(window.lock().length <= WINDOW);
        }
    }

    fn source() -> crate::Source {
        "docker.io/library/app".parse::<crate::Image>().unwrap().source
    }

    #[tokio::test]
    async fn window_moves_on_with_the_slowest_reader_and_holds_no_more() {
        let (window, (running, _sender)) = (Window::new(), Running::begin(&source()));
        let (one, other) = (running.waiter(), running.waiter());
        let all = 50 * PIECE as u64;
        let read = async {
            for at in (0..all).step_by(1000) {
                while window.end() <= at {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let got = window.take(at..all).expect("it is there");
                assert_eq!(got[0], (at / PIECE as u64) as u8);
                one.reach(at);
                other.reach(at.saturating_sub(PIECE as u64));
            }
            drop((one, other));
        };
        tokio::join!(push(&window, &running, 50), read);
        assert_eq!(window.end(), all);
        assert!(window.take(0..1).is_none());
    }

    #[tokio::test]
    async fn slow_reader_is_awaited_alone_and_not_long_with_others() {
        let (window, (running, _sender)) = (Window::new(), Running::begin(&source()));
        let still = running.waiter();
        let pushing = push(&window, &running, 40);
        tokio::pin!(pushing);
        assert!(timeout(Duration::from_millis(300), &mut pushing).await.is_err(), "it is the only one");
        let (other, begun) = (running.waiter(), Instant::now());
        let read = async {
            for at in (0..40 * PIECE as u64).step_by(PIECE) {
                while window.end() <= at {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(window.take(at..at + 1).is_some());
                other.reach(at + PIECE as u64);
            }
        };
        tokio::join!(pushing, read);
        assert!(begun.elapsed() < GRACE * 3, "{:?}", begun.elapsed());
        assert!(window.take(0..1).is_none(), "what stands still is left behind");
        drop(still);
    }
}
