//! A blob from its registry: asked for again from where it was cut, verified, published.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{Downloads, Job, Progress, Right, readable};
use crate::{
    Moment,
    coordination::News,
    stats::count,
    store::{PartWriter, Store, StoreError},
    upstream::{Answer, Ask, Fault, chain},
};

/// How often a registry is asked in a row without a byte.
const TRIES: u32 = 3;

/// So long peers are not asked for a blob of which one of them sent something else.
const SUSPECT: Duration = Duration::from_secs(600);

/// Of whom a blob is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// Of the other nodes that have it, and else of its registry.
    Any,
    /// Of the node that brings it.
    Peer(&'a str),
}

/// Why a try ended, and whether bytes came.
struct Cut {
    fault: Fault,
    came: bool,
    /// Another node has the lease now.
    is_taken_over: bool,
}

impl Downloads {
    /// Asks until all of it is here, then verifies and publishes it. `false`: another
    /// node has taken it over.
    pub(super) async fn bring(
        &self,
        job: &Job,
        right: Right,
        origin: Origin<'_>,
        writer: &mut Option<PartWriter>,
    ) -> Result<bool, Fault> {
        let mut is_copy = false;
        // Also of what came before a cut.
        let mut of_peers = false;
        if let (Some(size), None) = (job.size, &*writer) {
            *writer = Some(self.begin(job, right, size, false).await?);
        }
        let mut tries = 0;
        loop {
            let from = writer.as_ref().map_or(0, PartWriter::written);
            let ask = Ask { from, ..job.ask.clone() };
            if ask.from > 0 {
                count(&self.stats.resumed, 1);
            }
            let attempt = self.attempt(job, right, origin, &ask, writer, &mut is_copy).await;
            of_peers |= is_copy;
            let cut = match attempt {
                Ok(()) => {
                    let Some(done) = self.finish(job, writer, is_copy).await? else { return Ok(false) };
                    match done {
                        Err(StoreError::Mismatch { .. }) if of_peers && self.doubt(job).await => {
                            // Nobody has seen any of it: the registry's will be another.
                            of_peers = false;
                            continue;
                        }
                        done => return done.map(|()| true).map_err(|e| job.kept(&e)),
                    }
                }
                Err(Cut { is_taken_over: true, .. }) => return Ok(false),
                Err(cut) => cut,
            };
            if let Origin::Peer(_) = origin {
                // Whether it is there still its lease tells.
                return Err(cut.fault);
            }
            tries = if cut.came { 1 } else { tries + 1 };
            let is_worth_it = matches!(cut.fault, Fault::Outage { .. }) && writer.is_some() || {
                // Without a writer somebody waits for the first byte: once more, at once.
                matches!(cut.fault, Fault::Outage { .. }) && tries < 2
            };
            if !is_worth_it || tries >= TRIES {
                if let (Fault::Wrong { .. }, Some(writer)) = (&cut.fault, writer.take()) {
                    writer.discard();
                }
                return Err(cut.fault);
            }
            tracing::info!("{}; trying again", cut.fault);
            sleep(self.timing.retry * 2u32.pow(tries - 1)).await;
        }
    }

    /// Verifies and publishes it, and tells those who wait. None: another node has taken it over.
    async fn finish(
        &self,
        job: &Job,
        writer: &mut Option<PartWriter>,
        is_copy: bool,
    ) -> Result<Option<Result<(), StoreError>>, Fault> {
        let Some(writer) = writer.take() else { return Err(job.outage("nothing came")) };
        let size = writer.written();
        let done = tokio::task::spawn_blocking(move || writer.finish_copy(is_copy, Moment::now())).await;
        match done.map_err(|e| job.outage(e.to_string()))? {
            Err(StoreError::TakenOver(_)) => Ok(None),
            Err(e) => Ok(Some(Err(e))),
            Ok(()) => {
                job.sender.send_modify(|progress| {
                    if let Progress::Flowing { ready, .. } = progress {
                        *ready = size;
                    }
                });
                Ok(Some(Ok(())))
            }
        }
    }

    /// What came of other nodes was something else: they are told, and not asked for it for a while.
    /// Answers whether it can be brought anew: nobody has got any of it.
    async fn doubt(&self, job: &Job) -> bool {
        tracing::warn!("{} came from another node, and is something else: that looks again", job.digest);
        count(&self.stats.wrong, 1);
        let until = Moment::now().after(SUSPECT);
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).insert(job.digest.clone(), until);
        let _ = self.coordination.tell(&News::Suspect(job.digest.clone())).await;
        job.is_peers_fault.store(true, Ordering::Relaxed);
        matches!(&*job.sender.borrow(), Progress::Asking | Progress::Flowing { ready: 0, .. })
    }

    fn is_suspect(&self, job: &Job) -> bool {
        let now = Moment::now();
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.retain(|_, until| now < *until);
        suspects.contains_key(&job.digest)
    }

    /// Sets room aside. `tell`: whether those who wait are told the size.
    async fn begin(&self, job: &Job, right: Right, size: u64, tell: bool) -> Result<PartWriter, Fault> {
        let (store, digest) = (self.store.clone(), job.digest.clone());
        let begun = tokio::task::spawn_blocking(move || {
            let begin = if right.is_alone { Store::begin_alone } else { Store::begin };
            begin(&store, &digest, size, right.fence, Moment::now())
        });
        let writer = begun.await.map_err(|e| job.outage(e.to_string()))?.map_err(|e| job.kept(&e))?;
        // What an earlier process left can be sent at once.
        if tell || writer.written() > 0 {
            tell_size(job, &writer, size)?;
        }
        Ok(writer)
    }

    /// Asks another node, or the registry. Tells which it was.
    async fn ask(&self, job: &Job, origin: Origin<'_>, ask: &Ask) -> Result<(Answer, bool), Fault> {
        if let Some(peers) = self.peers.as_ref().filter(|_| !self.is_suspect(job)) {
            let what = format!("blobs/{}", job.digest);
            let found = match origin {
                Origin::Any => peers.find(&ask.source, &what, ask.from).await,
                Origin::Peer(by) => {
                    peers.follow(by, &ask.source, &what, ask.from, self.timing.first_byte).await
                }
            };
            if let Some(response) = found {
                return Ok((Answer::of_peer(response), true));
            }
        }
        if let Origin::Peer(by) = origin {
            return Err(job.outage(format!("{by} does not bring it")));
        }
        count(&self.stats.upstream_requests, 1);
        let answer = self.upstreams.ask(ask, Moment::now()).await.inspect_err(|fault| {
            if matches!(fault, Fault::Limited { .. }) {
                count(&self.stats.upstream_limited, 1);
            }
        })?;
        Ok((answer, false))
    }

    /// One request to whoever has it, its answer written until it ends.
    async fn attempt(
        &self,
        job: &Job,
        right: Right,
        origin: Origin<'_>,
        ask: &Ask,
        writer: &mut Option<PartWriter>,
        is_copy: &mut bool,
    ) -> Result<(), Cut> {
        let cut = |fault| Cut { fault, came: false, is_taken_over: false };
        let (mut answer, is_peers) = self.ask(job, origin, ask).await.map_err(cut)?;
        *is_copy = is_peers;
        let (start, total) = extent(&answer, ask, job.size).map_err(cut)?;
        let mut part = match writer.take() {
            Some(part) => part,
            None => self.begin(job, right, total, true).await.map_err(cut)?,
        };
        let before = part.written();
        if let Err(fault) = tell_size(job, &part, total) {
            *writer = Some(part);
            return Err(cut(fault));
        }
        let (chunks, mut inbox) = mpsc::channel::<Bytes>(4);
        let told = job.sender.clone();
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
        let read = self.read(job, &mut answer, is_peers, skip..before, total, chunks).await;
        let (part, wrote) = writing.await.map_err(|e| cut(job.outage(e.to_string())))?;
        let reached = part.written();
        *writer = Some(part);
        let bytes = if is_peers { &self.stats.peer_bytes } else { &self.stats.upstream_bytes };
        count(bytes, reached - before);
        let came = reached > before;
        let end = |fault, is_taken_over| Cut { fault, came, is_taken_over };
        wrote.map_err(|e| end(job.kept(&e), matches!(e, StoreError::TakenOver(_))))?;
        read.map_err(|fault| end(fault, false))?;
        if reached < total {
            let why = format!("it ended after {reached} of {total} bytes");
            return Err(end(job.outage(why), false));
        }
        Ok(())
    }

    async fn read(
        &self,
        job: &Job,
        answer: &mut Answer,
        is_peers: bool,
        Range { start: mut skip, end: before }: Range<u64>,
        total: u64,
        chunks: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        let mut got = before;
        let mut alone_since: Option<Instant> = None;
        loop {
            let frame = timeout(self.timing.stall, answer.response.body_mut().frame()).await;
            let frame = frame.map_err(|_| job.outage(format!("nothing came for {:?}", self.timing.stall)))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|e| job.outage(format!("it was cut: {}", chain(&e))))?;
            let Ok(mut chunk) = frame.into_data() else { continue };
            let dropped = skip.min(chunk.len() as u64);
            skip -= dropped;
            let mut chunk = chunk.split_off(usize::try_from(dropped).unwrap_or(usize::MAX));
            while !chunk.is_empty() {
                // Passed on as it may pass: of many who share a small rate each makes progress.
                let piece = if is_peers { chunk.len() } else { self.pace.pass(chunk.len()).await };
                got += piece as u64;
                if chunks.send(chunk.split_to(piece)).await.is_err() {
                    // The disk refuses; it says why itself.
                    return Ok(());
                }
            }
            if job.waiting.load(Ordering::Relaxed) > 0 {
                alone_since = None;
            } else if got < total / 2
                && alone_since.get_or_insert_with(Instant::now).elapsed() > self.timing.orphan
            {
                // Not an outage: it is not tried again. What there is stays, to be continued.
                let why = "nobody waits for it any more".to_owned();
                return Err(Fault::Store { what: format!("{}/{}", job.ask.source, job.ask.path), why });
            }
        }
    }
}

/// Tells those who wait how much it is, and from where to read it.
fn tell_size(job: &Job, writer: &PartWriter, size: u64) -> Result<(), Fault> {
    let file = Arc::new(writer.reader().map_err(|e| job.kept(&e))?);
    let written = readable(writer.written(), size);
    job.sender.send_modify(|progress| {
        // Of an earlier part there may have been more.
        let ready = match progress {
            Progress::Flowing { ready, .. } => written.max(*ready),
            _ => written,
        };
        *progress = Progress::Flowing { file, size, ready };
    });
    Ok(())
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
