//! Bodies of answers: bytes, a file, a file that is still being written.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    download::{Progress, Waiter},
    stats::{Stats, count},
    store::Opened,
};

/// An answer's body.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Read at once, bytes: two of them are all that a client's answer holds of a blob in memory.
const PIECE: u64 = 256 << 10;

pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn read(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let length = usize::try_from((range.end - range.start).min(PIECE)).unwrap_or(0);
    let mut piece = vec![0; length];
    file.read_exact_at(&mut piece, range.start)?;
    Ok(piece.into())
}

fn ahead(file: &Arc<File>, range: Range<u64>) -> Option<JoinHandle<io::Result<Bytes>>> {
    let file = Arc::clone(file);
    (!range.is_empty()).then(|| tokio::task::spawn_blocking(move || read(&file, range)))
}

struct Reading {
    /// Not evicted while it is read.
    blob: Opened,
    rest: Range<u64>,
    next: Option<JoinHandle<io::Result<Bytes>>>,
    stats: Arc<Stats>,
}

/// Of a complete blob: the next piece is read while one is sent.
pub(super) fn of_blob(blob: Opened, range: Range<u64>, stats: Arc<Stats>) -> Body {
    let next = ahead(blob.file(), range.clone());
    let reading = Reading { blob, rest: range, next, stats };
    let pieces = stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading?;
        let piece = match reading.next.take()?.await {
            Ok(Ok(piece)) => piece,
            // The length was promised: the connection is cut, and the client comes again.
            Ok(Err(e)) => return Some((Err(e), None)),
            Err(e) => return Some((Err(io::Error::other(e)), None)),
        };
        reading.rest.start += piece.len() as u64;
        reading.next = ahead(reading.blob.file(), reading.rest.clone());
        count(&reading.stats.served_bytes, piece.len() as u64);
        Some((Ok(Frame::data(piece)), Some(reading)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

struct Following {
    waiter: Waiter,
    file: Arc<File>,
    rest: Range<u64>,
    patience: Duration,
    stats: Arc<Stats>,
}

impl Following {
    async fn next(&mut self) -> io::Result<Bytes> {
        let at = self.rest.start;
        let ready = loop {
            let seen = self.waiter.progress.borrow_and_update().clone();
            match seen {
                Progress::Flowing { ready, .. } if ready > at => break ready,
                Progress::Failed(fault) => return Err(io::Error::other(fault)),
                _ => {}
            }
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the download makes no progress");
            let changed = timeout(self.patience, self.waiter.progress.changed()).await.map_err(late)?;
            changed.map_err(|_| io::Error::other("the download ended"))?;
        };
        let (file, range) = (Arc::clone(&self.file), at..ready.min(self.rest.end));
        let piece =
            tokio::task::spawn_blocking(move || read(&file, range)).await.map_err(io::Error::other)??;
        self.rest.start += piece.len() as u64;
        Ok(piece)
    }
}

/// Of a blob that is on its way: what is there is sent, the rest when it comes.
pub(super) fn of_download(
    waiter: Waiter,
    file: Arc<File>,
    range: Range<u64>,
    patience: Duration,
    stats: Arc<Stats>,
) -> Body {
    let following = Following { waiter, file, rest: range, patience, stats };
    let pieces = stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        if following.rest.is_empty() {
            return None;
        }
        match following.next().await {
            Ok(piece) => {
                count(&following.stats.served_bytes, piece.len() as u64);
                Some((Ok(Frame::data(piece)), Some(following)))
            }
            Err(e) => {
                tracing::info!("a client is cut off: {e}");
                Some((Err(e), None))
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Marks a connection as busy while it lives.
pub(super) struct Busy(Arc<AtomicUsize>);

impl Busy {
    pub(super) fn mark(requests: &Arc<AtomicUsize>) -> Busy {
        requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(requests))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body, which holds `busy` until it is sent or given up.
pub(super) fn holding(body: Body, busy: Busy) -> Body {
    body.map_frame(move |frame| {
        let _held = &busy;
        frame
    })
    .boxed_unsync()
}
