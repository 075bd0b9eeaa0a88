//! A blob from its registry: asked for again from where it was cut, verified, published.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header;
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Downloads, Held, Job, Kept, Progress, Right, Sink,
    backoff::Backoff,
    pulse::MIN_RATE,
    readable,
    tell::{tell_ready, tell_size},
};
use crate::{
    clock::holds,
    coordination::SiteEvent,
    now_utc, peer,
    stats::count,
    store::StoreError,
    upstream::{Answer, Ask, Fault},
};

/// How often a registry is asked in a row without a byte if no one waits.
const TRIES: u32 = 3;

/// So long peers are not asked for a blob of which one of them sent something else.
const SUSPECT: Duration = Duration::from_secs(600);

/// The most blobs of which that is remembered.
const MAX_SUSPECTS: usize = 4096;

/// Of whom a blob is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// Of the other nodes that have it, and else of its registry.
    Any,
    /// Of the node that brings it.
    Peer(&'a str),
}

/// An answer that has begun, and whether another node gave it.
pub(super) type Found = (Answer, bool);

/// Facts about the bytes of a download, beside its scope.
#[derive(Debug, Clone, Copy, Default)]
struct Came {
    /// The last of them from another node, which keeps them too.
    is_copy: bool,
    /// Some of them from other nodes.
    of_peers: bool,
    /// A registry gave some to one without credentials, or a node said that everybody may have them.
    is_public: bool,
}

/// How bringing a blob ended.
#[derive(Debug)]
pub(super) enum Brought {
    /// It is here, or passed on.
    Here,
    /// Another node has taken it over.
    TakenOver,
    /// It cannot be kept, for this; an answer may have begun already.
    NoRoom(Fault, Option<Box<Found>>),
}

/// Why a try ended, and whether bytes came.
struct Cut {
    fault: Fault,
    came: bool,
    /// Another node has the lease now.
    is_taken_over: bool,
}

impl Cut {
    fn before_a_byte(fault: Fault) -> Cut {
        Cut { fault, came: false, is_taken_over: false }
    }
}

impl Downloads {
    /// Asks until all of it is here, then verifies and publishes it.
    ///
    /// * `found`: an answer that has begun.
    pub(super) async fn bring(
        &self,
        job: &Job,
        right: Right,
        origin: Origin<'_>,
        sink: &mut Option<Sink>,
        mut found: Option<Box<Found>>,
    ) -> Result<Brought, Fault> {
        // Also of what came before a cut.
        let mut came = Came::default();
        let size = match job.size {
            Some(size) => Some(size),
            None => self.size_of_part(job).await,
        };
        if let (Some(size), None) = (size, &*sink) {
            match self.begin(job, right, size, false).await {
                Ok(begun) => *sink = Some(begun),
                Err(why) => return Ok(Brought::NoRoom(why, found)),
            }
        }
        let mut backoff = Backoff::begin(Instant::now());
        let mut has_restarted = false;
        loop {
            let from = sink.as_ref().map_or(0, Sink::written);
            let ask = Ask { from, ..job.ask.clone() };
            let asked = match found.take() {
                Some(found) => Ok(*found),
                None => self.ask(job, origin, &ask).await,
            };
            let told = job.size.or_else(|| sink.as_ref().and_then(Sink::size));
            let attempt = match asked.map(|found| (extent(&found.0, &ask, told), found)) {
                Err(fault) => Err(Cut::before_a_byte(fault)),
                Ok((Err(fault), (_, true))) => {
                    // The registry is asked instead, and knows better.
                    self.doubt(job).await;
                    Err(Cut::before_a_byte(job.outage(fault.to_string())))
                }
                Ok((Err(fault), (answer, false))) => {
                    let is_other = job.size.is_none() && extent(&answer, &ask, None).is_ok();
                    if is_other && !has_restarted && matches!(sink, Some(Sink::Keep(_))) {
                        // The bytes that are here began as something else. No manifest tells the size.
                        tracing::info!("{fault}: its download begins again");
                        has_restarted = true;
                        if let Some(sink) = sink.take() {
                            sink.discard().await;
                        }
                        continue;
                    }
                    Err(Cut::before_a_byte(fault))
                }
                Ok((Ok((start, total)), (answer, is_peers))) => {
                    came.is_copy = is_peers;
                    came.of_peers |= is_peers;
                    let is_for_all = match is_peers {
                        true => peer::says_public(answer.response.headers()),
                        false => job.scope.is_public(),
                    };
                    came.is_public |= is_for_all;
                    let taken = match sink.take() {
                        Some(sink) => sink,
                        None => match self.begin(job, right, total, true).await {
                            Ok(begun) => begun,
                            Err(why) => return Ok(Brought::NoRoom(why, Some(Box::new((answer, is_peers))))),
                        },
                    };
                    self.take(job, (answer, is_peers), (start, total), taken, sink).await
                }
            };
            let cut = match attempt {
                Ok(()) => {
                    let Some(done) = self.finish(job, sink, came).await? else {
                        return Ok(Brought::TakenOver);
                    };
                    match done {
                        Err(StoreError::Mismatch { .. }) if came.of_peers && self.doubt(job).await => {
                            // No reader has seen any of it: the registry's content will differ.
                            came = Came::default();
                            continue;
                        }
                        done => return done.map(|()| Brought::Here).map_err(|e| job.kept(&e)),
                    }
                }
                Err(Cut { is_taken_over: true, .. }) => return Ok(Brought::TakenOver),
                Err(cut) => cut,
            };
            if let Origin::Peer(_) = origin {
                // Whether it is there still its lease tells.
                return Err(cut.fault);
            }
            if cut.came {
                backoff.renew(Instant::now());
            }
            let Some(pause) = self.pause(job, &cut.fault, &mut backoff) else {
                if let (Fault::Wrong { .. }, Some(sink)) = (&cut.fault, sink.take()) {
                    sink.discard().await;
                }
                return Err(cut.fault);
            };
            if cut.came {
                // A registry that sends a byte and cuts, again and again, is slow too.
                self.beat(job, 0, pause)?;
            }
            tracing::info!("{}; trying again", cut.fault);
            sleep(pause).await;
        }
    }

    /// How soon a registry is asked again after a fault; none: it is not.
    fn pause(&self, job: &Job, fault: &Fault, backoff: &mut Backoff) -> Option<Duration> {
        let asked = match fault {
            Fault::Limited { retry, .. } => Some(*retry),
            _ if fault.is_outage() => None,
            _ => return None,
        };
        let is_asking = matches!(&*job.sender.borrow(), Progress::Asking);
        let limit = match (job.readers.is_empty(), is_asking) {
            (true, _) => self.timing.retry * 2u32.pow(TRIES - 1),
            // A client that waits for the first byte is told why before it gives up.
            (false, true) => self.timing.first_byte * 4 / 5,
            (false, false) => self.timing.away,
        };
        let chance = f64::from(RandomState::new().hash_one(&job.digest) as u32) / f64::from(u32::MAX);
        backoff.pause(self.timing.retry, asked, limit, Instant::now(), chance)
    }

    /// Counts bytes that came after a wait for the registry.
    ///
    /// # Errors
    /// [`Fault::Slow`]: others may have the place and the room of a download that is too slow.
    fn beat(&self, job: &Job, bytes: u64, waited: Duration) -> Result<(), Fault> {
        let window = self.timing.slow;
        let mut pulse = job.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        pulse.beat(bytes, waited, window).map_or(Ok(()), |rate| {
            let what = format!("{}/{}", job.ask.source, job.ask.path);
            Err(Fault::Slow { what, rate, least: MIN_RATE, window })
        })
    }

    /// The size of a blob of which an earlier download has left a part.
    async fn size_of_part(&self, job: &Job) -> Option<u64> {
        let (store, digest, mark) = (self.store.clone(), job.digest.clone(), job.scope.mark());
        spawn_blocking(move || store.size_of_part(&digest, mark)).await.ok().flatten()
    }

    /// Verifies and publishes it, and tells those who wait. None: another node has taken it over.
    async fn finish(
        &self,
        job: &Job,
        sink: &mut Option<Sink>,
        came: Came,
    ) -> Result<Option<Result<(), StoreError>>, Fault> {
        let Some(sink) = sink.take() else { return Err(job.outage("nothing came")) };
        let size = sink.written();
        let done = match sink {
            Sink::Pass(passing) => passing.finish(&job.digest).map(|()| None),
            Sink::Keep(kept) => {
                let part = kept.into_part().ok_or_else(|| job.outage("nothing came"))?;
                let done = spawn_blocking(move || part.finish_copy(came.is_copy, now_utc())).await;
                done.map_err(|e| job.outage(e.to_string()))?
            }
        };
        match done {
            Err(StoreError::TakenOver(_)) => Ok(None),
            Err(e) => Ok(Some(Err(e))),
            Ok(opened) => {
                self.prove(job, &job.ask.source, came.is_public).await;
                job.sender.send_modify(|progress| {
                    if let Progress::Flowing { held, ready, .. } = progress {
                        *ready = size;
                        // Until they have read it, it is not evicted.
                        if let Some(opened) = opened {
                            *held = Held::Blob(opened);
                        }
                    }
                });
                Ok(Some(Ok(())))
            }
        }
    }

    /// The content of other nodes was wrong: they are told, and not asked for it for a while.
    /// Returns whether it can be fetched again: no reader has got any of it.
    async fn doubt(&self, job: &Job) -> bool {
        tracing::warn!("{} came from another node, and is something else: that looks again", job.digest);
        count(&self.stats.wrong, 1);
        let until = now_utc().after(SUSPECT);
        {
            let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
            if suspects.len() < MAX_SUSPECTS {
                suspects.insert(job.digest.clone(), until);
            }
        }
        let _ = self.coordination.publish_event(&SiteEvent::Suspect(job.digest.clone())).await;
        job.is_excused.store(true, Ordering::Relaxed);
        !job.has_shown_bytes()
    }

    fn is_suspect(&self, job: &Job) -> bool {
        let now = now_utc();
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.retain(|_, until| holds(*until, now, SUSPECT));
        suspects.contains_key(&job.digest)
    }

    /// Sets room aside, for which it waits for a moment.
    ///
    /// * `tell`: whether those who wait are told the size.
    async fn begin(&self, job: &Job, right: Right, size: u64, tell: bool) -> Result<Sink, Fault> {
        let begun = Instant::now();
        let part = loop {
            let (store, digest, mark) = (self.store.clone(), job.digest.clone(), job.scope.mark());
            let beginning = spawn_blocking(move || {
                store.begin_in(mark, &digest, size, right.fence, !right.is_alone, now_utc())
            });
            match beginning.await.map_err(|e| job.outage(e.to_string()))? {
                // Others' readers may end, and their blobs make room.
                Err(StoreError::NoRoom { .. }) if begun.elapsed() < self.timing.first_byte / 5 => {
                    sleep(self.timing.retry).await;
                }
                part => break part.map_err(|e| job.kept(&e))?,
            }
        };
        if part.written() > 0 {
            // The disk may have changed it: a failure is not the registry's, and the next try comes at once.
            job.is_excused.store(true, Ordering::Relaxed);
            count(&self.stats.resumed, 1);
        }
        let is_to_be_told = tell || part.written() > 0;
        let sink = Sink::Keep(Kept::new(part));
        if is_to_be_told {
            // A part of an earlier process can be sent at once.
            tell_size(job, &sink, size);
        }
        Ok(sink)
    }

    /// Asks another node, or the registry. Tells which it was.
    async fn ask(&self, job: &Job, origin: Origin<'_>, ask: &Ask) -> Result<(Answer, bool), Fault> {
        if let Some(peers) = self.peers.as_ref().filter(|_| !self.is_suspect(job)) {
            let what = format!("blobs/{}", job.digest);
            let found = match origin {
                Origin::Any => peers.find(&ask.source, &what, ask.from).await,
                Origin::Peer(by) => {
                    let of = (&ask.source, job.scope.is_public());
                    peers.follow(by, of, &what, ask.from, self.timing.first_byte).await
                }
            };
            if let Some(response) = found {
                return Ok((Answer::of_peer(response), true));
            }
        }
        if let Origin::Peer(by) = origin {
            return Err(job.outage(format!("{by} does not bring it")));
        }
        if ask.from > 0 {
            count(&self.stats.resumed, 1);
        }
        count(&self.stats.upstream_requests, 1);
        let answer = self.upstreams.ask(ask, now_utc()).await.inspect_err(|fault| {
            if matches!(fault, Fault::Limited { .. }) {
                count(&self.stats.upstream_limited, 1);
            }
        })?;
        Ok((answer, false))
    }

    /// Takes an answer in until it ends.
    async fn take(
        &self,
        job: &Job,
        (mut answer, is_peers): Found,
        (start, total): (u64, u64),
        mut taken: Sink,
        sink: &mut Option<Sink>,
    ) -> Result<(), Cut> {
        let before = taken.written();
        taken.is_of(total);
        tell_size(job, &taken, total);
        let is_kept = matches!(taken, Sink::Keep(_));
        let (chunks, inbox) = mpsc::channel::<Bytes>(4);
        // The bytes that a registry without ranges sends once more.
        let skip = before.saturating_sub(start);
        let from = Answering { is_peers, is_kept, skip, before, total };
        let (read, written) =
            tokio::join!(self.read(job, &mut answer, from, chunks), self.write(job, taken, total, inbox));
        let (taken, wrote) = written.map_err(Cut::before_a_byte)?;
        let reached = taken.written();
        *sink = Some(taken);
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

    /// Writes what comes, and tells those who wait. No thread is held while nothing comes.
    async fn write(
        &self,
        job: &Job,
        mut sink: Sink,
        total: u64,
        mut inbox: mpsc::Receiver<Bytes>,
    ) -> Result<(Sink, Result<(), StoreError>), Fault> {
        let name = (job.scope.clone(), job.digest.clone());
        while let Some(first) = inbox.recv().await {
            let mut batch = vec![first];
            while let Ok(next) = inbox.try_recv() {
                batch.push(next);
            }
            let writing = spawn_blocking(move || {
                let wrote = batch.iter().try_for_each(|chunk| sink.write(chunk));
                (sink, batch, wrote)
            });
            let wrote;
            (sink, batch, wrote) = writing.await.map_err(|e| job.outage(e.to_string()))?;
            if wrote.is_err() {
                return Ok((sink, wrote));
            }
            if let Sink::Pass(passing) = &mut sink {
                for chunk in batch {
                    let close = |end| self.close(&name, &job.readers, end);
                    passing.window.push(chunk, &job.readers, &mut passing.waited, close).await;
                    tell_ready(job, readable(passing.window.end(), total));
                }
            } else {
                tell_ready(job, readable(sink.written(), total));
            }
        }
        Ok((sink, Ok(())))
    }

    async fn read(
        &self,
        job: &Job,
        answer: &mut Answer,
        from: Answering,
        chunks: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        let (mut skip, mut got) = (from.skip, from.before);
        let mut alone_since: Option<Instant> = None;
        loop {
            let asked = Instant::now();
            let frame = timeout(self.timing.stall, answer.response.body_mut().frame()).await;
            let came = match &frame {
                Ok(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
                _ => 0,
            };
            self.beat(job, came as u64, asked.elapsed())?;
            let frame = frame.map_err(|_| job.outage(format!("nothing came for {:?}", self.timing.stall)))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|e| job.outage(format!("it was cut: {}", weir_units::chain(&e))))?;
            let Ok(mut chunk) = frame.into_data() else { continue };
            let dropped = skip.min(chunk.len() as u64);
            skip -= dropped;
            let mut chunk = chunk.split_off(usize::try_from(dropped).unwrap_or(usize::MAX));
            while !chunk.is_empty() {
                // Passed on as it may pass: of many who share a small rate each makes progress.
                let piece = if from.is_peers { chunk.len() } else { self.pace.pass(chunk.len()).await };
                got += piece as u64;
                if chunks.send(chunk.split_to(piece)).await.is_err() {
                    // The disk refuses; it says why itself.
                    return Ok(());
                }
            }
            if !job.readers.is_empty() {
                alone_since = None;
            } else if (got < from.total / 2 || !from.is_kept)
                && alone_since.get_or_insert_with(Instant::now).elapsed() > self.timing.orphan
            {
                // Not an outage: it is not tried again. The bytes that are here stay, to be
                // continued.
                let why = "no client waits for it any more".to_owned();
                return Err(Fault::Store { what: format!("{}/{}", job.ask.source, job.ask.path), why });
            }
        }
    }
}

/// The place of an answer in its blob.
#[derive(Debug, Clone, Copy)]
struct Answering {
    is_peers: bool,
    is_kept: bool,
    /// Bytes of the answer that are here already.
    skip: u64,
    /// Bytes that were here before.
    before: u64,
    /// Of all of it, bytes.
    total: u64,
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
            Err(wrong(format!("it has {total} bytes, and {size} were announced")))
        }
        (Some(total), _) => Ok((start, total)),
        (None, Some(size)) => Ok((start, size)),
        (None, None) => Err(wrong("it does not say how long it is".to_owned())),
    }
}
