//! A client's connection: sends parts of files by `sendfile`, and ends if its client takes nothing.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::sendfile;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use super::piece::{Part, Piece, is_hole};

/// The parts of files that a connection was given and has not sent yet, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue(Arc<Mutex<VecDeque<Part>>>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes written for a piece: for a part of a file, which waits here from now on, a hole.
    pub(super) fn admit(&self, piece: Piece) -> Bytes {
        match piece {
            Piece::Bytes(bytes) => bytes,
            Piece::Part(part) => {
                let hole = part.hole();
                self.lock().push_back(part);
                Bytes::from_static(hole)
            }
        }
    }
}

/// A connection that ends if its client takes nothing for `limit`.
pub(super) struct Wire {
    stream: TcpStream,
    queue: Queue,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, queue: Queue, limit: Duration) -> Wire {
        Wire { stream, queue, limit, waiting: None }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }

    /// Sends of the first part in the queue what the client takes, at most `length` bytes.
    fn poll_send(&self, cx: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        let mut queue = self.queue.lock();
        let Some(part) = queue.front_mut() else {
            return Poll::Ready(Err(io::Error::other("a part of no file is to be sent")));
        };
        let Part { file, range, .. } = part;
        let left = usize::try_from(range.end - range.start).map_or(length, |left| left.min(length));
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let send = || Ok(sendfile(&self.stream, &**file, Some(&mut range.start), left)?);
            match self.stream.try_io(Interest::WRITABLE, send) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(sent) => {
                    if range.is_empty() {
                        queue.pop_front();
                    }
                    return Poll::Ready(Ok(sent));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    part.unreadable(&e);
                    return Poll::Ready(Err(e));
                }
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Bytes up to the first hole, or that hole.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = bufs.iter().position(|buf| is_hole(buf)).unwrap_or(bufs.len());
        let result = match bufs.first() {
            Some(hole) if bytes == 0 => self.poll_send(cx, hole.len()),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, &bufs[..bytes]),
        };
        self.watch(cx, result)
    }

    /// hyper keeps pieces as they are only where this is so.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, fs::File, os::unix::fs::FileExt};

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::{Response, body::Frame, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        time::{sleep, timeout},
    };

    use super::{super::piece::PIECE, *};

    const LONG: Duration = Duration::from_secs(30);

    /// The input of a client that asks twice over one connection: pieces of a file of this stated
    /// size, and other bytes, of one file first, then of the other.
    async fn read(files: [&Arc<File>; 2], size: u64, limit: Duration, late: Duration) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let queue = Queue::default();
        let wire = Wire::new(stream, queue.clone(), limit);
        let files = Mutex::new(files.into_iter().cloned());
        let answer = service_fn(|_| {
            let (file, queue) = (files.lock().unwrap().next().unwrap(), queue.clone());
            let pieces = (0..size).step_by(PIECE).flat_map(move |at| {
                let range = at..(at + PIECE as u64).min(size);
                let tag = Piece::Bytes(Bytes::from(format!("<{at}>")));
                [tag, Piece::Part(Part { file: Arc::clone(&file), range, blob: None })]
            });
            let frames = pieces.map(move |piece| Ok::<_, Infallible>(Frame::data(queue.admit(piece))));
            async { Ok::<_, Infallible>(Response::new(StreamBody::new(stream::iter(frames)))) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(wire), answer);
        let asking = async {
            for then in ["keep-alive", "close"] {
                let request = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {then}\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
            }
            sleep(late).await;
            let mut got = Vec::new();
            let _ = client.read_to_end(&mut got).await;
            got
        };
        let (_, got) = timeout(LONG, async { tokio::join!(serving, asking) }).await.expect("it ends");
        got
    }

    /// The bodies of answers in chunks, as far as they go.
    fn bodies(mut got: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what);
        while let Some(head) = find(got, b"\r\n\r\n") {
            got = &got[head + 4..];
            let mut body = Vec::new();
            while let Some(line) = find(got, b"\r\n") {
                let length = usize::from_str_radix(std::str::from_utf8(&got[..line]).unwrap(), 16).unwrap();
                let data = &got[line + 2..];
                body.extend(&data[..length.min(data.len())]);
                got = data.get(length + 2..).unwrap_or_default();
                if length == 0 {
                    break;
                }
            }
            all.push(body);
        }
        all
    }

    fn sample(length: usize) -> (Arc<File>, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8 + 1).collect();
        file.write_all_at(&bytes, 0).unwrap();
        (Arc::new(file), bytes)
    }

    fn expected(bytes: &[u8]) -> Vec<u8> {
        let pieces = bytes.chunks(PIECE).enumerate();
        pieces.flat_map(|(n, piece)| [format!("<{}>", n * PIECE).as_bytes(), piece].concat()).collect()
    }

    #[tokio::test]
    async fn parts_of_files_and_bytes_come_in_their_order_also_to_a_slow_client() {
        let (file, bytes) = sample(20 * PIECE + 7);
        let got = bodies(&read([&file; 2], bytes.len() as u64, LONG, Duration::from_millis(300)).await);
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|body| *body == expected(&bytes)), "bytes were changed");
    }

    #[tokio::test]
    async fn a_file_that_is_too_short_ends_the_connection_and_no_byte_is_made_up() {
        let (file, bytes) = sample(4 * PIECE);
        let (short, _) = sample(2 * PIECE - 5);
        let got = bodies(&read([&file, &short], bytes.len() as u64, LONG, Duration::ZERO).await);
        assert!(got[0] == expected(&bytes), "bytes were changed");
        assert!(got[1] == expected(&bytes)[..got[1].len()] && got[1].len() < 2 * PIECE + 20);
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_left() {
        // More than the kernel keeps for a client.
        let (file, bytes) = sample(256 * PIECE);
        let (limit, late) = (Duration::from_millis(200), Duration::from_secs(2));
        let got = bodies(&read([&file; 2], bytes.len() as u64, limit, late).await);
        assert!(got[0].len() < bytes.len(), "{} bytes", got[0].len());
        assert!(expected(&bytes).starts_with(&got[0]));
    }
}
