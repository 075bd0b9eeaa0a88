//! Downloads: one per blob, bound to no client's connection, read by all who want the blob while it
//! comes.

mod backoff;
mod fetch;
mod follow;
mod pulse;
mod readers;
mod recheck;
mod sink;
mod tell;
mod window;

use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use hyper::Method;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::{
    Digest, Source, Utc,
    clock::holds,
    coordination::{AcquireResult, Coordination, LEASE, Lease, SiteEvent, until_lost},
    now_utc,
    pace::Pace,
    peer::Peers,
    scope::Scope,
    settings::Timing,
    stats::{Stats, count},
    store::{Opened, Store, StoreError},
    upstream::{Ask, Fault, Identity, Upstreams, outage},
};
use fetch::{Brought, Found, Origin};
use follow::Followed;
use pulse::Pulse;
use readers::Readers;
use sink::{Kept, Passing, Sink};

pub(crate) use readers::{Running, Waiter};
pub(crate) use window::Window;

/// The end of a blob that no client gets before all of it is verified, bytes. It is small, as
/// nothing comes while it is on its way, and larger than the end of a compressed layer.
const HELD_BACK: u64 = 4 << 10;

/// Blobs up to so many bytes, configurations mostly, are verified before a client gets a byte of them, so that
/// no one notices a wrong one. 64 at once at 1 Mbit/s, the least rate that pulls may have, come within 9 s.
const HELD_WHOLE: u64 = 16 << 10;

/// The most failures that are remembered.
const MAX_FAILED: usize = 4096;

/// How far a download is.
#[derive(Debug, Clone)]
pub(crate) enum Progress {
    /// The registry has not answered.
    Asking,
    /// It comes.
    Flowing {
        /// To be read up to `ready`.
        held: Held,
        /// All of it, bytes. Another source may say another number: who was told the former gets no more.
        size: u64,
        /// The bytes that may be read; all of them only after verification. They become fewer where another file
        /// takes the place of this one.
        ready: u64,
    },
    /// It will not.
    Failed(Fault),
}

impl Progress {
    /// Whether all of it may be read, or nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Progress::Asking => false,
            Progress::Flowing { size, ready, .. } => ready >= size,
            Progress::Failed(_) => true,
        }
    }
}

/// Where there is what has come of a blob.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    /// All of it, from its first byte.
    File(Arc<File>),
    /// All of it, in the store; it is not evicted while this lives.
    Blob(Opened),
    /// The stretch that its readers are at.
    Window(Arc<Window>),
}

/// A blob to bring.
struct Job {
    digest: Digest,
    /// Bytes that come are shared with askers of the same scope only.
    scope: Scope,
    /// Bytes, if a manifest says.
    size: Option<u64>,
    ask: Ask,
    /// Those who wait are told by it.
    sender: watch::Sender<Progress>,
    readers: Arc<Readers>,
    /// Another node or this one's disk may have made it wrong: the registry is asked again at once.
    is_excused: AtomicBool,
    /// Readers have got bytes of a file that another has replaced since.
    has_shown: AtomicBool,
    /// How fast its registry sends.
    pulse: Mutex<Pulse>,
}

impl Job {
    fn new(
        digest: Digest,
        scope: Scope,
        size: Option<u64>,
        ask: Ask,
        sender: watch::Sender<Progress>,
        readers: Arc<Readers>,
    ) -> Job {
        let (is_excused, has_shown, pulse) = Default::default();
        Job { digest, scope, size, ask, sender, readers, is_excused, has_shown, pulse }
    }

    /// Whether readers may have got some of its bytes.
    fn has_shown_bytes(&self) -> bool {
        self.has_shown.load(Ordering::Relaxed)
            || !matches!(&*self.sender.borrow(), Progress::Asking | Progress::Flowing { ready: 0, .. })
    }

    fn outage(&self, why: impl Into<String>) -> Fault {
        outage(&self.ask, why)
    }

    /// A refusal of the store, for the clients that wait.
    fn kept(&self, error: &StoreError) -> Fault {
        let what = format!("{}/{}", self.ask.source, self.ask.path);
        match error {
            StoreError::Mismatch { .. } | StoreError::Length { .. } => {
                Fault::Wrong { what, why: error.to_string() }
            }
            other => Fault::Store { what, why: weir_units::chain(other) },
        }
    }
}

/// In whose name a blob is brought.
#[derive(Debug, Clone, Copy)]
struct Right {
    fence: u64,
    /// No keeper could be asked for a lease: files of other nodes are left alone.
    is_alone: bool,
}

impl Right {
    fn alone() -> Right {
        Right { fence: now_utc().unix_millis(), is_alone: true }
    }
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
    running: Mutex<HashMap<(Scope, Digest), Running>>,
    /// Blobs of the store that are hashed again.
    rechecking: Mutex<HashMap<Digest, Running>>,
    failed: Mutex<HashMap<(Source, Digest), (Fault, Utc)>>,
    /// Of which peers sent something else: not asked of them for a while.
    suspects: Mutex<HashMap<Digest, Utc>>,
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
            rechecking: Mutex::default(),
            failed: Mutex::default(),
            suspects: Mutex::default(),
        }
    }

    /// Joins the download of a blob that the store did not have under this name a moment ago, or begins it.
    ///
    /// * `scope`: the download that is joined has the same.
    /// * `size`: bytes, if a manifest says.
    ///
    /// # Errors
    /// A fault of a moment ago, without another try.
    pub(crate) fn join(
        self: &Arc<Self>,
        scope: Scope,
        digest: &Digest,
        size: Option<u64>,
        ask: Ask,
        now: Utc,
    ) -> Result<Waiter, Fault> {
        let name = (scope.clone(), digest.clone());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = running.get(&name) {
            count(&self.stats.blob_joined, 1);
            return Ok(one.waiter());
        }
        let key = (ask.source.clone(), digest.clone());
        {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.retain(|_, (_, until)| holds(*until, now, self.timing.negative));
            if let Some((fault, _)) = failed.get(&key) {
                return Err(fault.clone());
            }
        }
        count(&self.stats.blob_misses, 1);
        let (one, sender) = Running::begin(&ask.source);
        let (waiter, readers) = (one.waiter(), Arc::clone(&one.readers));
        running.insert(name.clone(), one);
        drop(running);
        let (this, digest) = (Arc::clone(self), digest.clone());
        tokio::spawn(async move {
            let (worker, of, those) = (Arc::clone(&this), digest.clone(), Arc::clone(&readers));
            let work = async move {
                let job = Job::new(of, scope, size, ask, sender, those);
                let done = worker.run(&job).await;
                done.map_err(|fault| (fault, job.is_excused.into_inner(), job.sender))
            };
            // A task of its own: whatever happens to it, the digest is free again.
            let result = tokio::spawn(work).await;
            if let Ok(Err((fault, is_excused, sender))) = result {
                tracing::warn!("{fault}");
                if matches!(fault, Fault::Wrong { .. }) {
                    count(&this.stats.wrong, 1);
                }
                let until = now_utc().after(this.timing.negative);
                let mut failed = this.failed.lock().unwrap_or_else(PoisonError::into_inner);
                // A client that comes again a moment later may find a place.
                let is_remembered = !is_excused && !matches!(fault, Fault::Busy { .. });
                if is_remembered && failed.len() < MAX_FAILED {
                    failed.insert(key, (fault.clone(), until));
                }
                drop(failed);
                this.close(&name, &readers, 0);
                sender.send_replace(Progress::Failed(fault));
            } else {
                this.close(&name, &readers, 0);
            }
        });
        Ok(waiter)
    }

    fn rechecking(&self) -> MutexGuard<'_, HashMap<Digest, Running>> {
        self.rechecking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A download that is under way.
    pub(crate) fn watch(&self, scope: Scope, digest: &Digest) -> Option<Waiter> {
        let name = (scope, digest.clone());
        self.running.lock().unwrap_or_else(PoisonError::into_inner).get(&name).map(Running::waiter)
    }

    /// No one joins a download any more, unless one of its readers is before `end`. Answers whether no one does.
    fn close(&self, name: &(Scope, Digest), readers: &Arc<Readers>, end: u64) -> bool {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.span(0).is_some_and(|(slowest, _)| slowest < end) {
            return false;
        }
        // Another download may have begun since.
        if running.get(name).is_some_and(|one| Arc::ptr_eq(&one.readers, readers)) {
            running.remove(name);
        }
        true
    }

    /// Brings a blob, or has another node bring it, until it is here.
    async fn run(&self, job: &Job) -> Result<(), Fault> {
        let mut sink = None;
        let done = self.run_into(job, &mut sink).await;
        if let Some(sink) = sink {
            // A reader that hears of the failure finds the part where the next download continues it.
            sink.leave().await;
        }
        done
    }

    async fn run_into(&self, job: &Job, sink: &mut Option<Sink>) -> Result<(), Fault> {
        // In a directory of its own a node goes on with one writer, from any source.
        let mut in_vain = None::<Instant>;
        loop {
            let is_stranger = |by: &str| self.peers.as_ref().is_some_and(|peers| !peers.is_of_site(by));
            let claim = match self.coordination.acquire(&job.scope.lease(&job.digest), now_utc()).await {
                Ok(AcquireResult::Held { by }) if is_stranger(&by) => Followed::Alone,
                Ok(AcquireResult::Held { by }) if self.peers.is_some() => {
                    let (right, before) = (Right::alone(), sink.as_ref().map_or(0, Sink::written));
                    match self.bring(job, right, Origin::Peer(&by), sink, None).await {
                        Ok(Brought::Here) => return Ok(()),
                        Ok(Brought::NoRoom(why, found)) => {
                            return self.pass(job, Origin::Peer(&by), why, found).await;
                        }
                        // Its own disk: waiting for the other changes nothing.
                        Err(fault @ Fault::Store { .. }) => return Err(fault),
                        // Readers have a wrong beginning, which no right end may follow.
                        Err(fault @ Fault::Wrong { .. }) if job.has_shown_bytes() => return Err(fault),
                        _ => {}
                    }
                    if sink.as_ref().map_or(0, Sink::written) > before {
                        in_vain = None;
                    }
                    // It has not begun, or is gone, which its lease tells; or only this node misses it.
                    if in_vain.get_or_insert_with(Instant::now).elapsed() < LEASE * 2 {
                        sleep(self.timing.retry).await;
                        continue;
                    }
                    Followed::Alone
                }
                Ok(AcquireResult::Held { by }) => self.follow(job, &by).await?,
                Ok(AcquireResult::Granted(lease)) => Followed::Free(lease),
                Err(_) => Followed::Alone,
            };
            let brought = match claim {
                Followed::Here => return Ok(()),
                Followed::Free(lease) => {
                    let brought = self.lead(job, &lease, sink).await;
                    let _ = self.coordination.release(&lease).await;
                    if let Ok(Brought::TakenOver) = brought {
                        if self.store.is_shared()
                            && let Some(sink) = sink.take()
                        {
                            sink.leave().await;
                        }
                        count(&self.stats.leases_lost, 1);
                        tracing::info!("the lease of {} was lost: another may have it", job.digest);
                    } else if let Ok(Brought::Here) = brought {
                        let _ =
                            self.coordination.publish_event(&SiteEvent::Published(job.digest.clone())).await;
                    }
                    brought?
                }
                // Twice the same download is better than none.
                Followed::Alone => self.bring(job, Right::alone(), Origin::Any, sink, None).await?,
            };
            match brought {
                Brought::Here => return Ok(()),
                Brought::TakenOver => {}
                Brought::NoRoom(why, found) => return self.pass(job, Origin::Any, why, found).await,
            }
        }
    }

    /// Brings a blob while its lease holds.
    async fn lead(&self, job: &Job, lease: &Lease, sink: &mut Option<Sink>) -> Result<Brought, Fault> {
        // The holder before may have published it just now.
        if self.is_proved(job).await || self.is_found_public(job).await {
            return self.published(job).await.map(|()| Brought::Here);
        }
        let right = Right { fence: lease.fence, is_alone: false };
        tokio::select! {
            done = self.bring(job, right, Origin::Any, sink, None) => done,
            () = until_lost(&*self.coordination, lease) => Ok(Brought::TakenOver),
        }
    }

    /// Passes a blob on that cannot be kept, without a lease: what it brings is for this node's clients alone.
    ///
    /// * `why`: why it cannot be kept.
    /// * `found`: an answer that has begun.
    async fn pass(
        &self,
        job: &Job,
        origin: Origin<'_>,
        why: Fault,
        found: Option<Box<Found>>,
    ) -> Result<(), Fault> {
        tracing::info!("{why}: it is passed on");
        count(&self.stats.passed, 1);
        let store = self.store.clone();
        // An error is that the mirror is stopping.
        let _ = spawn_blocking(move || store.count_refused()).await;
        let mut sink = Some(Sink::Pass(Passing::begin(job.digest.algorithm())));
        if let Origin::Peer(_) = origin {
            let brought = self.bring(job, Right::alone(), origin, &mut sink, found).await;
            return match brought {
                Ok(Brought::Here) => Ok(()),
                Err(fault @ Fault::Wrong { .. }) if job.has_shown_bytes() => Err(fault),
                _ => self.passed(job, &mut sink, None, why).await,
            };
        }
        self.passed(job, &mut sink, found, why).await
    }

    async fn passed(
        &self,
        job: &Job,
        sink: &mut Option<Sink>,
        found: Option<Box<Found>>,
        why: Fault,
    ) -> Result<(), Fault> {
        match self.bring(job, Right::alone(), Origin::Any, sink, found).await? {
            Brought::Here => Ok(()),
            Brought::TakenOver | Brought::NoRoom(..) => Err(why),
        }
    }

    /// Whether the store has it, and may serve it to all who wait: in a public scope they ask under several names.
    async fn is_proved(&self, job: &Job) -> bool {
        let (store, source, digest) = (self.store.clone(), job.ask.source.clone(), job.digest.clone());
        let is_public = job.scope.is_public();
        let looked =
            move || if is_public { store.is_for_all(&digest) } else { store.is_proved(&source, &digest) };
        spawn_blocking(looked).await.is_ok_and(|is| is)
    }

    /// Whether the store has it of another source that gives it to everybody.
    ///
    /// A source that has delivered all bytes is asked without credentials. Its answer can be believed: it has
    /// the bytes, and could give them away itself.
    async fn is_found_public(&self, job: &Job) -> bool {
        let (store, digest) = (self.store.clone(), job.digest.clone());
        let first = spawn_blocking(move || store.first_source(&digest)).await;
        let Ok(Some(source)) = first else { return false };
        let (identity, method) = (Identity::Anonymous, Method::HEAD);
        if source == job.ask.source || !self.upstreams.is_public_way(&source, &identity) {
            return false;
        }
        let ask = Ask { source: source.clone(), identity, method, from: 0, ..job.ask.clone() };
        count(&self.stats.upstream_requests, 1);
        let asked = timeout(self.timing.first_byte / 3, self.upstreams.ask(&ask, now_utc())).await;
        if !asked.is_ok_and(|answer| answer.is_ok()) {
            return false;
        }
        self.prove(job, &source, true).await;
        self.is_proved(job).await
    }

    /// Notes who has delivered a blob that is here.
    async fn prove(&self, job: &Job, source: &Source, is_public: bool) {
        let (store, source, digest) = (self.store.clone(), source.clone(), job.digest.clone());
        if let Ok(Err(e)) = spawn_blocking(move || store.prove(&source, &digest, is_public)).await {
            tracing::warn!("{}: its source has to deliver it again", weir_units::chain(&e));
        }
    }

    /// It is in the store: those who wait get it from there.
    async fn published(&self, job: &Job) -> Result<(), Fault> {
        let (store, digest) = (self.store.clone(), job.digest.clone());
        let opening = spawn_blocking(move || {
            let now = now_utc();
            let opened = store.open_blob(&digest, now)?;
            // Another node may have brought it: nothing of it is served before it is proved.
            let is_good = opened.as_ref().map_or(Ok(false), |o| Ok(o.is_verified() || store.verify(o, now)?));
            is_good.map(|is_good| opened.filter(|_| is_good))
        });
        let opened = opening.await.map_err(|e| job.outage(e.to_string()))?.map_err(|e| job.kept(&e))?;
        let opened = opened.ok_or_else(|| job.outage("it was there, and is gone again"))?;
        let (size, held) = (opened.size(), Held::Blob(opened));
        job.sender.send_replace(Progress::Flowing { held, size, ready: size });
        Ok(())
    }
}

/// The part of it that may be read before it is verified.
fn readable(written: u64, size: u64) -> u64 {
    let held = if size <= HELD_WHOLE { size } else { HELD_BACK };
    written.min(size - held)
}
