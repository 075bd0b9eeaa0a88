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
    /// All of the blob, bytes, as the client was told.
    size: u64,
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
                Progress::Flowing { size, .. } if size != self.size => {
                    let told = self.size;
                    let why = format!("another source says {size} bytes, and the client was told {told}");
                    return Err(io::Error::other(why));
                }
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
///
/// * `size`: all of the blob, bytes, as the client is told.
pub(super) fn of_download(
    waiter: Waiter,
    size: u64,
    range: Range<u64>,
    time_limit: Duration,
    stats: Arc<Stats>,
) -> Body {
    waiter.reach(range.start);
    let following = Following { waiter, size, rest: range, time_limit, stats };
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

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, sync::Mutex};

    use hyper::{Response, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::{super::wire::Wire, piece::PIECE, *};
    use crate::{
        Digest, Image,
        digest::Algorithm,
        download::Running,
        now_utc,
        store::{Budget, PolicyKind, Store},
    };

    /// A client of a download, and 100 bytes that came.
    fn client() -> (tokio::sync::watch::Sender<Progress>, Body, impl Fn(u64, u64) -> Progress) {
        let source = "acme/app".parse::<Image>().unwrap().source;
        let (running, sender) = Running::begin(&source);
        let body = of_download(running.waiter(), 100, 0..100, Duration::from_millis(200), Arc::default());
        let flowing = |size, ready| {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&vec![7; usize::try_from(ready).unwrap()], 0).unwrap();
            Progress::Flowing { held: Held::File(Arc::new(file)), size, ready }
        };
        (sender, body, flowing)
    }

    /// Its end would be the middle of something else, which is not verified yet.
    #[tokio::test]
    async fn client_that_was_told_another_size_gets_no_end() {
        for (size, ready) in [(200, 150), (90, 90)] {
            let (sender, mut body, flowing) = client();
            sender.send_replace(flowing(100, 60));
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.remaining(), 60);
            sender.send_replace(flowing(size, ready));
            let why = body.frame().await.unwrap().unwrap_err();
            assert!(why.to_string().contains("another source"), "{why}");
        }
    }

    #[tokio::test]
    async fn client_waits_for_a_file_that_begins_again() {
        let (sender, mut body, flowing) = client();
        sender.send_replace(flowing(100, 60));
        body.frame().await.unwrap().unwrap();
        for ready in [0, 30, 60, 100] {
            sender.send_replace(flowing(100, ready));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let rest = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(rest.remaining(), 40);
        assert!(body.frame().await.is_none());
    }

    /// The end of the main thread's stack in this process's memory. Nothing is after it: reads fail with EIO there.
    fn end_of_memory() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
        let range = stack.split_once(' ').unwrap().0;
        u64::from_str_radix(range.split_once('-').unwrap().1, 16).unwrap()
    }

    /// The head and the body that a client gets of this answer, until its connection ends.
    async fn received(body: Body, length: u64) -> (String, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let queue = Queue::default();
        let wire = Wire::new(stream, queue.clone(), Duration::from_secs(30));
        let body = Mutex::new(Some(body));
        let answer = service_fn(|_| {
            let body = body.lock().unwrap().take().expect("one request");
            let sent = sending(body, Busy::mark(&Arc::default()), queue.clone());
            async move { Response::builder().header("content-length", length).body(sent) }
        });
        let serving =
            http1::Builder::new().max_buf_size(64 << 10).serve_connection(TokioIo::new(wire), answer);
        let asking = async {
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut got = Vec::new();
            let _ = client.read_to_end(&mut got).await;
            got
        };
        let both = async { tokio::join!(serving, asking).1 };
        let got = timeout(Duration::from_secs(30), both).await.expect("it ends");
        let head = got.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        (String::from_utf8(got[..head].to_vec()).unwrap(), got[head..].to_vec())
    }

    #[tokio::test]
    async fn read_error_inside_a_body_cuts_it_and_the_next_request_gets_all() {
        let (dir, now) = (tempfile::tempdir().unwrap(), now_utc());
        let store = Store::share(dir.path(), "a", Budget::of(64 << 20), PolicyKind::Lru, now).unwrap().0;
        let bytes: Vec<u8> = (0..3 * PIECE).map(|n| (n % 251) as u8).collect();
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        store.put(&digest, &bytes, 1, now).unwrap();
        let blob = store.open_blob(&digest, now).unwrap().unwrap();
        let bad = blob.over(File::open("/proc/self/mem").unwrap());
        let (piece, end) = (PIECE as u64, end_of_memory());
        let body = of_blob(bad, end - piece..end + piece, Arc::default());
        let (head, got) = received(body, 2 * piece).await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("content-length: {}", 2 * piece)));
        assert_eq!(got.len(), PIECE, "all before the error, and no byte after it");
        let again = store.open_blob(&digest, now_utc()).unwrap().expect("it stays");
        assert!(!again.is_verified() && store.verify(&again, now_utc()).unwrap());
        let (_, got) = received(of_blob(again, 0..3 * piece, Arc::default()), 3 * piece).await;
        assert!(got == bytes, "{} bytes", got.len());
    }
}
