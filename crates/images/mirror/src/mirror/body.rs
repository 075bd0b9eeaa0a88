//! Bodies of answers: bytes, a file, a file that is still being written.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::time::timeout;

use super::{
    piece::{self, Piece},
    wire::Queue,
};
use crate::{
    download::{Held, Progress, Waiter},
    stats::{Stats, count},
    store::Opened,
};

/// An answer's body.
pub(super) type Body = UnsyncBoxBody<Piece, io::Error>;

pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(Piece::Bytes(bytes.into())).map_err(|never| match never {}).boxed_unsync()
}

struct Reading {
    /// Not evicted while it is read.
    blob: Opened,
    rest: Range<u64>,
    stats: Arc<Stats>,
}

/// Of a complete blob.
pub(super) fn of_blob(blob: Opened, range: Range<u64>, stats: Arc<Stats>) -> Body {
    let reading = Reading { blob, rest: range, stats };
    let pieces = stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading.filter(|reading| !reading.rest.is_empty())?;
        match piece::take(reading.blob.file(), Some(reading.blob.clone()), reading.rest.clone()).await {
            Ok(piece) => {
                reading.rest.start += piece.remaining() as u64;
                count(&reading.stats.served_bytes, piece.remaining() as u64);
                Some((Ok(Frame::data(piece)), Some(reading)))
            }
            // The length was promised: the connection is cut, and the client comes again.
            Err(e) => Some((Err(e), None)),
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

struct Following {
    waiter: Waiter,
    rest: Range<u64>,
    time_limit: Duration,
    stats: Arc<Stats>,
}

impl Following {
    async fn next(&mut self) -> io::Result<Piece> {
        let at = self.rest.start;
        let (held, ready) = loop {
            let seen = self.waiter.progress.borrow_and_update().clone();
            match seen {
                // Of a part that was taken over it is another file.
                Progress::Flowing { held, ready, .. } if ready > at => break (held, ready),
                Progress::Failed(fault) => return Err(io::Error::other(fault)),
                _ => {}
            }
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the download makes no progress");
            let changed = timeout(self.time_limit, self.waiter.progress.changed()).await.map_err(late)?;
            changed.map_err(|_| io::Error::other("the download ended"))?;
        };
        let wanted = at..ready.min(self.rest.end);
        let piece = match held {
            Held::File(file) => piece::take(&file, None, wanted).await?,
            Held::Blob(blob) => piece::take(blob.file(), Some(blob.clone()), wanted).await?,
            Held::Window(window) => {
                let bytes =
                    window.take(wanted).ok_or_else(|| io::Error::other("others were too far ahead"))?;
                Piece::Bytes(bytes)
            }
        };
        self.rest.start += piece.remaining() as u64;
        self.waiter.reach(self.rest.start);
        Ok(piece)
    }
}

/// Of a blob that is on its way: what is there is sent, the rest when it comes.
pub(super) fn of_download(
    waiter: Waiter,
    range: Range<u64>,
    time_limit: Duration,
    stats: Arc<Stats>,
) -> Body {
    waiter.reach(range.start);
    let following = Following { waiter, rest: range, time_limit, stats };
    let pieces = stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        if following.rest.is_empty() {
            return None;
        }
        match following.next().await {
            Ok(piece) => {
                count(&following.stats.served_bytes, piece.remaining() as u64);
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

/// The body as a connection sends it, which holds `busy` until it is sent or given up.
pub(super) fn sending(body: Body, busy: Busy, queue: Queue) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_frame(move |frame| {
        let _held = &busy;
        frame.map_data(|piece| queue.admit(piece))
    })
    .boxed_unsync()
}

/// As [`sending`], over a connection that sends bytes only.
pub(super) fn sending_bytes(body: Body, busy: Busy) -> UnsyncBoxBody<Bytes, io::Error> {
    let frames = BodyStream::new(body).map(move |frame| {
        let _held = &busy;
        // No answer has trailers.
        frame?.into_data().map_or(Ok(Bytes::new()), Piece::read).map(Frame::data)
    });
    StreamBody::new(frames).boxed_unsync()
}
