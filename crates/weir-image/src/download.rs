//! Downloads: one per blob, by nobody's connection, read by all who want it while it comes.

use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::{
    Digest, Moment, Source,
    coordination::{Claim, Coordination, LEASE, Lease},
    settings::Timing,
    stats::{Stats, count},
    store::{PartWriter, Store, StoreError},
    upstream::{Answer, Ask, Fault, Upstreams, chain, outage},
};

/// The end of a blob, which nobody gets before all of it is verified, bytes.
const HELD_BACK: u64 = 64 << 10;

/// How often a registry is asked in a row without a byte.
const TRIES: u32 = 3;

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

/// All downloads.
#[derive(Debug)]
pub(crate) struct Downloads {
    pub(crate) store: Store,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) timing: Timing,
    pub(crate) stats: Arc<Stats>,
    running: Mutex<HashMap<Digest, Running>>,
    failed: Mutex<HashMap<(Source, Digest), (Fault, Moment)>>,
}

/// Why a try ended, and whether bytes came.
struct Cut {
    fault: Fault,
    came: bool,
}

impl Downloads {
    pub(crate) fn new(
        store: Store,
        upstreams: Arc<Upstreams>,
        coordination: Arc<dyn Coordination>,
        timing: Timing,
        stats: Arc<Stats>,
    ) -> Downloads {
        Downloads {
            store,
            upstreams,
            coordination,
            timing,
            stats,
            running: Mutex::default(),
            failed: Mutex::default(),
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
        if let Some(one) = running.get(digest) {
            count(&self.stats.blob_joined, 1);
            return Ok(Some(one.waiter()));
        }
        if self.store.has(digest) {
            return Ok(None);
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
            let work =
                async move { worker.run(&of, size, ask, &sender, &waiting).await.map_err(|f| (f, sender)) };
            // A task of its own: whatever happens to it, the digest is free again.
            let result = tokio::spawn(work).await;
            if let Ok(Err((fault, sender))) = result {
                tracing::warn!("{fault}");
                if matches!(fault, Fault::Wrong { .. }) {
                    count(&this.stats.wrong, 1);
                }
                let until = Moment::now().after(this.timing.negative);
                let mut failed = this.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.insert(key, (fault.clone(), until));
                drop(failed);
                this.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
                sender.send_replace(Progress::Failed(fault));
            } else {
                this.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
            }
        });
        Ok(Some(waiter))
    }

    async fn run(
        &self,
        digest: &Digest,
        size: Option<u64>,
        mut ask: Ask,
        sender: &watch::Sender<Progress>,
        waiting: &AtomicUsize,
    ) -> Result<(), Fault> {
        let Some(lease) = self.lease(digest).await else {
            // Whoever had the lease has published it.
            return self.published(digest, sender, &ask);
        };
        let holding = lease.clone();
        let renewal = Arc::clone(&self.coordination);
        let held = async move {
            loop {
                sleep(LEASE / 3).await;
                if renewal.renew(&holding, Moment::now()).await == Ok(false) {
                    break;
                }
            }
        };
        let result = tokio::select! {
            result = self.fetch(digest, size, &mut ask, lease.fence, sender, waiting) => result,
            () = held => Err(outage(&ask, "the lease of its download was lost")),
        };
        let _ = self.coordination.release(&lease).await;
        result
    }

    /// The lease of a digest, when it is to be had; none if the blob is there instead. Who cannot
    /// ask for one goes on alone: twice the same download is better than none.
    async fn lease(&self, digest: &Digest) -> Option<Lease> {
        loop {
            match self.coordination.acquire(digest, Moment::now()).await {
                Ok(Claim::Granted(lease)) => return Some(lease),
                Ok(Claim::Held { .. }) if self.store.has(digest) => return None,
                Ok(Claim::Held { .. }) => sleep(self.timing.retry).await,
                Err(e) => {
                    tracing::warn!("{e}: {digest} is downloaded all the same");
                    return Some(Lease { digest: digest.clone(), fence: Moment::now().0 });
                }
            }
        }
    }

    fn published(&self, digest: &Digest, sender: &watch::Sender<Progress>, ask: &Ask) -> Result<(), Fault> {
        let opened = self.store.open_blob(digest, Moment::now()).map_err(|e| kept(ask, &e))?;
        let opened = opened.ok_or_else(|| outage(ask, "it was there, and is gone again"))?;
        let (file, size) = (Arc::clone(opened.file()), opened.size());
        sender.send_replace(Progress::Flowing { file, size, ready: size });
        Ok(())
    }

    /// Asks the registry until all of it is here, then verifies and publishes it.
    async fn fetch(
        &self,
        digest: &Digest,
        size: Option<u64>,
        ask: &mut Ask,
        fence: u64,
        sender: &watch::Sender<Progress>,
        waiting: &AtomicUsize,
    ) -> Result<(), Fault> {
        let mut writer = None;
        if let Some(size) = size {
            writer = Some(self.begin(digest, size, fence, ask, sender, false).await?);
        }
        let mut tries = 0;
        loop {
            ask.from = writer.as_ref().map_or(0, PartWriter::written);
            if ask.from > 0 {
                count(&self.stats.resumed, 1);
            }
            let cut = match self.attempt(digest, size, ask, fence, &mut writer, sender, waiting).await {
                Ok(()) => break,
                Err(cut) => cut,
            };
            tries = if cut.came { 1 } else { tries + 1 };
            let is_worth_it = matches!(cut.fault, Fault::Outage { .. }) && writer.is_some() || {
                // Without a writer somebody waits for the first byte: once more, at once.
                matches!(cut.fault, Fault::Outage { .. }) && tries < 2
            };
            if !is_worth_it || tries >= TRIES {
                if let (Fault::Wrong { .. }, Some(writer)) = (&cut.fault, writer) {
                    writer.discard();
                }
                return Err(cut.fault);
            }
            tracing::info!("{}; trying again", cut.fault);
            sleep(self.timing.retry * 2u32.pow(tries - 1)).await;
        }
        let Some(writer) = writer else { return Err(outage(ask, "nothing came")) };
        let size = writer.written();
        let done = tokio::task::spawn_blocking(move || writer.finish(Moment::now())).await;
        done.map_err(|e| outage(ask, e.to_string()))?.map_err(|e| kept(ask, &e))?;
        sender.send_modify(|progress| {
            if let Progress::Flowing { ready, .. } = progress {
                *ready = size;
            }
        });
        Ok(())
    }

    /// Sets room aside. `tell`: whether those who wait are told the size.
    async fn begin(
        &self,
        digest: &Digest,
        size: u64,
        fence: u64,
        ask: &Ask,
        sender: &watch::Sender<Progress>,
        tell: bool,
    ) -> Result<PartWriter, Fault> {
        let (store, digest) = (self.store.clone(), digest.clone());
        let begun = tokio::task::spawn_blocking(move || store.begin(&digest, size, fence, Moment::now()));
        let writer = begun.await.map_err(|e| outage(ask, e.to_string()))?.map_err(|e| kept(ask, &e))?;
        // What an earlier process left can be sent at once.
        if tell || writer.written() > 0 {
            self.tell(&writer, size, ask, sender)?;
        }
        Ok(writer)
    }

    fn tell(
        &self,
        writer: &PartWriter,
        size: u64,
        ask: &Ask,
        sender: &watch::Sender<Progress>,
    ) -> Result<(), Fault> {
        if matches!(*sender.borrow(), Progress::Asking) {
            let file = Arc::new(writer.reader().map_err(|e| kept(ask, &e))?);
            let ready = readable(writer.written(), size);
            sender.send_replace(Progress::Flowing { file, size, ready });
        }
        Ok(())
    }

    /// One request to the registry, its answer written until it ends.
    #[allow(clippy::too_many_arguments)]
    async fn attempt(
        &self,
        digest: &Digest,
        size: Option<u64>,
        ask: &Ask,
        fence: u64,
        writer: &mut Option<PartWriter>,
        sender: &watch::Sender<Progress>,
        waiting: &AtomicUsize,
    ) -> Result<(), Cut> {
        let cut = |fault| Cut { fault, came: false };
        count(&self.stats.upstream_requests, 1);
        let mut answer = self.upstreams.ask(ask, Moment::now()).await.map_err(|fault| {
            if matches!(fault, Fault::Limited { .. }) {
                count(&self.stats.upstream_limited, 1);
            }
            cut(fault)
        })?;
        let (start, total) = extent(&answer, ask, size).map_err(cut)?;
        let mut part = match writer.take() {
            Some(part) => part,
            None => self.begin(digest, total, fence, ask, sender, true).await.map_err(cut)?,
        };
        let before = part.written();
        if let Err(fault) = self.tell(&part, total, ask, sender) {
            *writer = Some(part);
            return Err(cut(fault));
        }
        let (chunks, mut inbox) = mpsc::channel::<Bytes>(16);
        let told = sender.clone();
        let writing = tokio::task::spawn_blocking(move || {
            while let Some(chunk) = inbox.blocking_recv() {
                if let Err(e) = part.write(&chunk) {
                    return (part, Err(e));
                }
                let reached = readable(part.written(), total);
                told.send_modify(|progress| {
                    if let Progress::Flowing { ready, .. } = progress {
                        *ready = reached.max(*ready);
                    }
                });
            }
            (part, Ok(()))
        });
        // What a registry without ranges sends once more.
        let skip = before.saturating_sub(start);
        let read = self.read(&mut answer, ask, skip, before, total, chunks, waiting).await;
        let (part, wrote) = writing.await.map_err(|e| cut(outage(ask, e.to_string())))?;
        let reached = part.written();
        *writer = Some(part);
        count(&self.stats.upstream_bytes, reached - before);
        let came = reached > before;
        wrote.map_err(|e| Cut { fault: kept(ask, &e), came })?;
        read.map_err(|fault| Cut { fault, came })?;
        if reached < total {
            let why = format!("it ended after {reached} of {total} bytes");
            return Err(Cut { fault: outage(ask, why), came });
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    async fn read(
        &self,
        answer: &mut Answer,
        ask: &Ask,
        mut skip: u64,
        before: u64,
        total: u64,
        chunks: mpsc::Sender<Bytes>,
        waiting: &AtomicUsize,
    ) -> Result<(), Fault> {
        let mut got = before;
        let mut alone_since: Option<Instant> = None;
        loop {
            let frame = timeout(self.timing.stall, answer.response.body_mut().frame()).await;
            let frame =
                frame.map_err(|_| outage(ask, format!("nothing came for {:?}", self.timing.stall)))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|e| outage(ask, format!("it was cut: {}", chain(&e))))?;
            let Ok(mut chunk) = frame.into_data() else { continue };
            let dropped = skip.min(chunk.len() as u64);
            skip -= dropped;
            let chunk = chunk.split_off(usize::try_from(dropped).unwrap_or(usize::MAX));
            if chunk.is_empty() {
                continue;
            }
            got += chunk.len() as u64;
            if chunks.send(chunk).await.is_err() {
                // The disk refuses; it says why itself.
                return Ok(());
            }
            if waiting.load(Ordering::Relaxed) > 0 {
                alone_since = None;
            } else if got < total / 2
                && alone_since.get_or_insert_with(Instant::now).elapsed() > self.timing.orphan
            {
                // Not an outage: it is not tried again. What there is stays, to be continued.
                let why = "nobody waits for it any more".to_owned();
                return Err(Fault::Store { what: format!("{}/{}", ask.source, ask.path), why });
            }
        }
    }
}

/// What of it may be read before it is verified.
fn readable(written: u64, size: u64) -> u64 {
    written.min(size.saturating_sub(HELD_BACK))
}

/// Where an answer begins, and how long all of it is.
fn extent(answer: &Answer, ask: &Ask, size: Option<u64>) -> Result<(u64, u64), Fault> {
    let wrong = |why: String| Fault::Wrong { what: format!("{}/{}", ask.source, ask.path), why };
    let headers = answer.response.headers();
    let text = |name| headers.get(name).and_then(|v: &header::HeaderValue| v.to_str().ok());
    if let Some(encoding) = text(header::CONTENT_ENCODING).filter(|e| *e != "identity") {
        return Err(wrong(format!("it is encoded as {encoding}, which was not asked for")));
    }
    let (start, total) = if answer.response.status() == 206 {
        let range = text(header::CONTENT_RANGE).unwrap_or_default();
        let parsed = range.strip_prefix("bytes ").and_then(|r| {
            let (span, total) = r.split_once('/')?;
            Some((span.split_once('-')?.0.parse::<u64>().ok()?, total.parse::<u64>().ok()?))
        });
        let (start, total) = parsed.ok_or_else(|| wrong(format!("its range is `{range}`")))?;
        if start > ask.from {
            return Err(wrong(format!("asked from byte {}, it begins at {start}", ask.from)));
        }
        (start, Some(total))
    } else {
        (0, text(header::CONTENT_LENGTH).and_then(|l| l.parse().ok()))
    };
    match (total, size) {
        (Some(total), Some(size)) if total != size => {
            Err(wrong(format!("it has {total} bytes, its manifest says {size}")))
        }
        (Some(total), _) => Ok((start, total)),
        (None, Some(size)) => Ok((start, size)),
        (None, None) => Err(wrong("it does not say how long it is".to_owned())),
    }
}

/// The store's refusal, as those who wait are told.
fn kept(ask: &Ask, error: &StoreError) -> Fault {
    let what = format!("{}/{}", ask.source, ask.path);
    match error {
        StoreError::Mismatch { .. } | StoreError::Length { .. } => {
            Fault::Wrong { what, why: error.to_string() }
        }
        other => Fault::Store { what, why: chain(other) },
    }
}
