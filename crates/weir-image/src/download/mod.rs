//! Downloads: one per blob, by nobody's connection, read by all who want it while it comes.

mod fetch;
mod follow;

use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::{sync::watch, time::sleep};

use crate::{
    Digest, Moment, Source,
    coordination::{Claim, Coordination, LEASE, Lease, News, until_lost},
    pace::Pace,
    peer::Peers,
    settings::Timing,
    stats::{Stats, count},
    store::{PartWriter, Store, StoreError},
    upstream::{Ask, Fault, Upstreams, chain, outage},
};
use fetch::Origin;
use follow::Followed;

/// The end of a blob, which nobody gets before all of it is verified, bytes: little, as nothing comes
/// while it is on its way, and more than what ends a compressed layer.
const HELD_BACK: u64 = 4 << 10;

/// Blobs up to so many bytes, configurations mostly, are verified before anybody gets a byte of them, so that no
/// client notices one that is wrong. 64 at once at 1 Mbit/s, the least rate that pulls may have, come within 9 s.
const HELD_WHOLE: u64 = 16 << 10;

/// How far a download is.
#[derive(Debug, Clone)]
pub(crate) enum Progress {
    /// The registry has not answered.
    Asking,
    /// It comes.
    Flowing {
        /// To be read up to `ready`.
        file: Arc<File>,
        /// All of it, bytes.
        size: u64,
        /// What may be read, bytes; all of it only when it is verified.
        ready: u64,
    },
    /// It will not.
    Failed(Fault),
}

/// A download under way, as one who waits sees it.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) progress: watch::Receiver<Progress>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Running {
    progress: watch::Receiver<Progress>,
    waiting: Arc<AtomicUsize>,
}

impl Running {
    fn waiter(&self) -> Waiter {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiter { progress: self.progress.clone(), waiting: Arc::clone(&self.waiting) }
    }
}

/// A blob to bring.
struct Job {
    digest: Digest,
    /// Bytes, if a manifest says.
    size: Option<u64>,
    ask: Ask,
    /// Those who wait are told by it.
    sender: watch::Sender<Progress>,
    waiting: Arc<AtomicUsize>,
    /// Another node sent something else.
    is_peers_fault: AtomicBool,
}

impl Job {
    fn outage(&self, why: impl Into<String>) -> Fault {
        outage(&self.ask, why)
    }

    /// What the store refuses, as those who wait are told.
    fn kept(&self, error: &StoreError) -> Fault {
        let what = format!("{}/{}", self.ask.source, self.ask.path);
        match error {
            StoreError::Mismatch { .. } | StoreError::Length { .. } => {
                Fault::Wrong { what, why: error.to_string() }
            }
            other => Fault::Store { what, why: chain(other) },
        }
    }
}

/// In whose name a blob is brought.
#[derive(Debug, Clone, Copy)]
struct Right {
    fence: u64,
    /// Nobody could be asked for a lease: what other nodes write is left alone.
    is_alone: bool,
}

/// All downloads.
#[derive(Debug)]
pub(crate) struct Downloads {
    pub(crate) store: Store,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) peers: Option<Arc<Peers>>,
    pub(crate) timing: Timing,
    pub(crate) stats: Arc<Stats>,
    /// Of what comes from registries, all together.
    pace: Arc<Pace>,
    running: Mutex<HashMap<Digest, Running>>,
    failed: Mutex<HashMap<(Source, Digest), (Fault, Moment)>>,
    /// Of which peers sent something else: not asked of them for a while.
    suspects: Mutex<HashMap<Digest, Moment>>,
}

impl Downloads {
    pub(crate) fn new(
        store: Store,
        upstreams: Arc<Upstreams>,
        coordination: Arc<dyn Coordination>,
        peers: Option<Arc<Peers>>,
        timing: Timing,
        stats: Arc<Stats>,
        pace: Arc<Pace>,
    ) -> Downloads {
        Downloads {
            store,
            upstreams,
            coordination,
            peers,
            timing,
            stats,
            pace,
            running: Mutex::default(),
            failed: Mutex::default(),
            suspects: Mutex::default(),
        }
    }

    /// Joins the download of a blob, or begins it. `None`: it is in the store.
    ///
    /// * `size`: bytes, if a manifest says.
    ///
    /// # Errors
    /// What went wrong a moment ago, without trying again.
    pub(crate) fn join(
        self: &Arc<Self>,
        digest: &Digest,
        size: Option<u64>,
        ask: Ask,
        now: Moment,
    ) -> Result<Option<Waiter>, Fault> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // First the store: a blob is in it for a while before its download is out of `running`.
        if self.store.has(digest) {
            return Ok(None);
        }
        if let Some(one) = running.get(digest) {
            count(&self.stats.blob_joined, 1);
            return Ok(Some(one.waiter()));
        }
        let key = (ask.source.clone(), digest.clone());
        {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.retain(|_, (_, until)| now < *until);
            if let Some((fault, _)) = failed.get(&key) {
                return Err(fault.clone());
            }
        }
        count(&self.stats.blob_misses, 1);
        let (sender, progress) = watch::channel(Progress::Asking);
        let one = Running { progress, waiting: Arc::default() };
        let (waiter, waiting) = (one.waiter(), Arc::clone(&one.waiting));
        running.insert(digest.clone(), one);
        drop(running);
        let (this, digest) = (Arc::clone(self), digest.clone());
        tokio::spawn(async move {
            let (worker, of) = (Arc::clone(&this), digest.clone());
            let work = async move {
                let job =
                    Job { digest: of, size, ask, sender, waiting, is_peers_fault: AtomicBool::new(false) };
                let done = worker.run(&job).await;
                done.map_err(|fault| (fault, job.is_peers_fault.into_inner(), job.sender))
            };
            // A task of its own: whatever happens to it, the digest is free again.
            let result = tokio::spawn(work).await;
            if let Ok(Err((fault, is_peers, sender))) = result {
                tracing::warn!("{fault}");
                if matches!(fault, Fault::Wrong { .. }) {
                    count(&this.stats.wrong, 1);
                }
                let until = Moment::now().after(this.timing.negative);
                let mut failed = this.failed.lock().unwrap_or_else(PoisonError::into_inner);
                // Who comes again a moment later may find a place.
                if !is_peers && !matches!(fault, Fault::Busy { .. }) {
                    failed.insert(key, (fault.clone(), until));
                }
                drop(failed);
                this.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
                sender.send_replace(Progress::Failed(fault));
            } else {
                this.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
            }
        });
        Ok(Some(waiter))
    }

    /// A download that is under way.
    pub(crate) fn watch(&self, digest: &Digest) -> Option<Waiter> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).get(digest).map(Running::waiter)
    }

    /// Brings a blob, or has another node bring it, until it is here.
    async fn run(&self, job: &Job) -> Result<(), Fault> {
        // Of a directory of its own a node goes on with one writer, whoever it gets the rest from.
        let (mut writer, mut in_vain) = (None, None::<Instant>);
        loop {
            let claim = match self.coordination.acquire(&job.digest, Moment::now()).await {
                Ok(Claim::Held { by }) if self.peers.is_some() => {
                    let right = Right { fence: Moment::now().0, is_alone: true };
                    match self.bring(job, right, Origin::Peer(&by), &mut writer).await {
                        Ok(true) => return Ok(()),
                        // Its own disk: waiting for the other changes nothing.
                        Err(fault @ Fault::Store { .. }) => return Err(fault),
                        // It has not begun, or is gone, which its lease tells; or only this node misses it.
                        _ if in_vain.get_or_insert_with(Instant::now).elapsed() < LEASE * 2 => {
                            sleep(self.timing.retry).await;
                            continue;
                        }
                        _ => Followed::Alone,
                    }
                }
                Ok(Claim::Held { by }) => self.follow(job, &by).await?,
                Ok(Claim::Granted(lease)) => Followed::Free(lease),
                Err(_) => Followed::Alone,
            };
            let lease = match claim {
                Followed::Here => return Ok(()),
                Followed::Free(lease) => lease,
                Followed::Alone => {
                    // Twice the same download is better than none.
                    let right = Right { fence: Moment::now().0, is_alone: true };
                    if self.bring(job, right, Origin::Any, &mut writer).await? {
                        return Ok(());
                    }
                    continue;
                }
            };
            let done = self.lead(job, &lease, &mut writer).await;
            let _ = self.coordination.release(&lease).await;
            if done? {
                let _ = self.coordination.tell(&News::Published(job.digest.clone())).await;
                return Ok(());
            }
            writer = writer.filter(|_| !self.store.is_shared());
            count(&self.stats.leases_lost, 1);
            tracing::info!("the lease of {} was lost: another may have it", job.digest);
        }
    }

    /// Brings a blob while its lease holds. `false`: it was lost on the way.
    async fn lead(&self, job: &Job, lease: &Lease, writer: &mut Option<PartWriter>) -> Result<bool, Fault> {
        // Whoever had the lease before may have published it just now.
        if self.store.has(&job.digest) {
            return self.published(job).await.map(|()| true);
        }
        tokio::select! {
            done = self.bring(job, Right { fence: lease.fence, is_alone: false }, Origin::Any, writer) => done,
            () = until_lost(&*self.coordination, lease) => Ok(false),
        }
    }

    /// It is in the store: those who wait get it from there.
    async fn published(&self, job: &Job) -> Result<(), Fault> {
        let (store, digest) = (self.store.clone(), job.digest.clone());
        let opening = tokio::task::spawn_blocking(move || {
            let now = Moment::now();
            let opened = store.open_blob(&digest, now)?;
            // Another node may have brought it: nothing of it is served before it is proved.
            let is_good = opened.as_ref().map_or(Ok(false), |o| Ok(o.is_verified() || store.verify(o, now)?));
            is_good.map(|is_good| opened.filter(|_| is_good))
        });
        let opened = opening.await.map_err(|e| job.outage(e.to_string()))?.map_err(|e| job.kept(&e))?;
        let opened = opened.ok_or_else(|| job.outage("it was there, and is gone again"))?;
        let (file, size) = (Arc::clone(opened.file()), opened.size());
        job.sender.send_replace(Progress::Flowing { file, size, ready: size });
        Ok(())
    }
}

/// What of it may be read before it is verified.
fn readable(written: u64, size: u64) -> u64 {
    let held = if size <= HELD_WHOLE { size } else { HELD_BACK };
    written.min(size - held)
}
