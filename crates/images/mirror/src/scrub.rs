//! Scrub: blobs on the disk are hashed again, slowly and the longest unchecked first, or at once on
//! request.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::broadcast::error::RecvError,
    task::{JoinError, spawn_blocking},
    time::sleep,
};
use weir_units::{BitRate, Bytes};

use crate::{
    Digest, Mirror, Utc,
    coordination::SiteEvent,
    now_utc,
    pace::Pace,
    stats::count,
    store::{Begun, ScrubBatch, StoreError},
};

/// Read between two looks at the rate, bytes.
const STRETCH: u64 = 1 << 20;

/// How far a scrub is that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbing {
    /// Blobs that were looked at,
    pub blobs: u64,
    /// of this number.
    pub of_blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of all.
    pub of_bytes: u64,
    /// The blobs with wrong content, which were removed.
    pub corrupt: Vec<Digest>,
    /// Those whose file was taken away by another program.
    pub missing: Vec<Digest>,
    /// It is over:
    pub is_over: bool,
    /// and something could not be read, for this.
    pub error: Option<String>,
}

/// The scrub in progress.
#[derive(Debug)]
pub(crate) struct Scrubs {
    /// Of the scrub in the background.
    pace: Pace,
    asked: Mutex<Option<Scrubbing>>,
}

/// Bytes a second, as a rate; none for zero.
fn rate(of: Bytes) -> Option<BitRate> {
    (of.0 > 0).then(|| BitRate(of.0.saturating_mul(8)))
}

impl Scrubs {
    pub(crate) fn new(rate_s: Bytes) -> Scrubs {
        Scrubs { pace: Pace::new(rate(rate_s)), asked: Mutex::default() }
    }

    fn asked(&self) -> MutexGuard<'_, Option<Scrubbing>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, rate_s: Bytes) {
        self.pace.set(rate(rate_s));
    }
}

/// The result of a check.
enum Seen {
    Right,
    /// Taken away.
    Wrong,
    /// It left meanwhile.
    Left,
    /// Its file was taken away by another program.
    Missing,
}

impl Seen {
    fn of(is_right: bool) -> Seen {
        if is_right { Seen::Right } else { Seen::Wrong }
    }
}

/// The end of the scrub that was asked for: noted where it is dropped, so also if the scrub's task panics.
struct Ending {
    mirror: Mirror,
    result: Result<(), String>,
}

impl Ending {
    fn of(mirror: &Mirror) -> Ending {
        let stopped = "the scrub stopped before its end: ask for it again".to_owned();
        Ending { mirror: mirror.clone(), result: Err(stopped) }
    }

    /// Ends the scrub with its result.
    fn done(mut self, result: Result<(), String>) {
        self.result = result;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(scrub) = &mut *self.mirror.scrubs().asked() {
            scrub.is_over = true;
            if let Err(why) = &self.result {
                scrub.error = Some(why.clone());
            }
        }
    }
}

impl Mirror {
    /// Begins to check all blobs that are here; if that is under way already, it goes on.
    /// [`Mirror::scrubbing`] tells how far it is.
    ///
    /// * `rate_s`: bytes a second at most; none: as fast as the disk.
    /// * `runtime`: where the mirror is served.
    pub fn scrub(&self, rate_s: Option<Bytes>, runtime: &Handle) {
        let mut asked = self.scrubs().asked();
        if asked.as_ref().is_some_and(|scrub| !scrub.is_over) {
            return;
        }
        *asked = Some(Scrubbing::default());
        drop(asked);
        let (mirror, pace) = (self.clone(), Pace::new(rate_s.and_then(rate)));
        let ending = Ending::of(self);
        runtime.spawn(async move {
            let result = mirror.scrub_all(&pace).await;
            ending.done(result);
        });
    }

    /// How far the scrub is that was asked for last.
    #[must_use]
    pub fn scrubbing(&self) -> Option<Scrubbing> {
        self.scrubs().asked().clone()
    }

    async fn scrub_all(&self, pace: &Pace) -> Result<(), String> {
        let tell = |change: &dyn Fn(&mut Scrubbing)| {
            if let Some(scrub) = &mut *self.scrubs().asked() {
                change(scrub);
            }
        };
        let all = self.unchecked(ScrubBatch::All, Utc::MAX).await.map_err(|e| weir_units::chain(&e))?;
        tell(&|scrub| {
            scrub.of_blobs = all.len() as u64;
            scrub.of_bytes = all.iter().map(|(_, size)| size).sum();
        });
        for (digest, size) in all {
            let begun = self.scrubbing().map_or(0, |scrub| scrub.bytes);
            let read = |bytes: u64| tell(&|scrub| scrub.bytes = begun + bytes.min(size));
            match self.scrub_one(&digest, pace, &read).await {
                Ok(Seen::Right | Seen::Left) => {}
                Ok(Seen::Wrong) => tell(&|scrub| scrub.corrupt.push(digest.clone())),
                Ok(Seen::Missing) => {
                    tell(&|scrub| {
                        scrub.missing.push(digest.clone());
                        scrub.of_blobs -= 1;
                        scrub.of_bytes -= size;
                    });
                    continue;
                }
                // The others are looked at all the same.
                Err(e) => tell(&|scrub| scrub.error = Some(weir_units::chain(&e))),
            }
            tell(&|scrub| {
                scrub.blobs += 1;
                scrub.bytes = begun + size;
            });
        }
        Ok(())
    }

    async fn unchecked(&self, lot: ScrubBatch, before: Utc) -> Result<Vec<(Digest, u64)>, StoreError> {
        let store = self.store().clone();
        let looked = spawn_blocking(move || store.unchecked(lot, before, now_utc())).await;
        looked.unwrap_or_else(|e| Err(self.stopped(e)))
    }

    /// The thread that looked at the disk panicked, or the mirror is stopping.
    fn stopped(&self, e: JoinError) -> StoreError {
        StoreError::Io { what: "check", path: self.store().root().to_owned(), source: io::Error::other(e) }
    }

    /// Hashes a blob as the disk has it; what is wrong is taken away.
    async fn scrub_one(
        &self,
        digest: &Digest,
        pace: &Pace,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<Seen, StoreError> {
        let store = self.store().clone();
        let (of, opening) = (digest.clone(), store.clone());
        let opened = spawn_blocking(move || opening.check(&of)).await;
        let mut check = match opened.unwrap_or_else(|e| Err(self.stopped(e)))? {
            Begun::Check(check) => *check,
            Begun::Left => return Ok(Seen::Left),
            Begun::Missing => return Ok(Seen::Missing),
        };
        let mut bytes = 0;
        loop {
            let stretch = move || {
                let stepped = check.stretch(STRETCH);
                (check, stepped)
            };
            let (back, stepped) = spawn_blocking(stretch).await.map_err(|e| self.stopped(e))?;
            check = back;
            let store = store.clone();
            let (got, is_end) = match stepped {
                Ok(got) => got,
                Err(e) => {
                    let ended = spawn_blocking(move || {
                        let before = store.corrupt();
                        store.unreadable(&check, e).map(|()| store.corrupt() == before)
                    });
                    return ended.await.unwrap_or_else(|e| Err(self.stopped(e))).map(Seen::of);
                }
            };
            count(&self.stats().scrubbed_bytes, got);
            bytes += got;
            read(bytes);
            pace.pass_all(got).await;
            if is_end {
                count(&self.stats().scrubbed_blobs, 1);
                let ended = spawn_blocking(move || store.checked(check, now_utc())).await;
                return ended.unwrap_or_else(|e| Err(self.stopped(e))).map(Seen::of);
            }
        }
    }

    /// Checks blobs when it is their time, for as long as the mirror is served.
    pub(crate) async fn scrub_in_background(&self) {
        let (pace, every) = (&self.scrubs().pace, self.settings().scrub_days);
        let every = Duration::from_secs(u64::from(every) * 24 * 3600);
        loop {
            let round = Instant::now();
            let before = now_utc().before(every);
            let due = match pace.rate() {
                Some(_) => self.unchecked(ScrubBatch::Own, before).await,
                None => Ok(Vec::new()),
            };
            let due = due.unwrap_or_else(|e| {
                tracing::warn!("scrub: {}", weir_units::chain(&e));
                Vec::new()
            });
            for (digest, _) in due {
                // Another node may have come, or gone; or the operator wants none of this any more.
                if round.elapsed() > self.timing().scrub || pace.rate().is_none() {
                    break;
                }
                if let Err(e) = self.scrub_one(&digest, pace, &|_| {}).await {
                    tracing::warn!("scrub: {}", weir_units::chain(&e));
                }
            }
            sleep(self.timing().scrub.saturating_sub(round.elapsed()).max(Duration::from_millis(50))).await;
        }
    }

    /// Looks again at what other nodes got from here and found to be wrong.
    pub(crate) async fn hear_doubts(&self) {
        let mut events = self.coordination().events();
        loop {
            match events.recv().await {
                Ok(SiteEvent::Suspect(digest)) => {
                    // An error is that the mirror is stopping.
                    let _ = self.ask_store(move |store| store.doubt(&digest)).await;
                }
                // Events of other kinds, or more than could be read: the next scrub finds what was lost.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }
}
