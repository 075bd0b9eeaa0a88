//! gRPC over a unix socket: one call after another, and streams of answers.

use std::{future::Future, path::Path, pin::Pin};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use weir_units::chain;

use super::Unavailable;

/// The largest answer that is read, bytes. containerd sends no message above 16 MiB unless it is configured to.
const LARGEST: usize = 32 << 20;
/// The largest message of a stream, bytes. containerd sends none above 16 MiB.
const LARGEST_OF_STREAM: usize = 16 << 20;
/// The bytes before a message: whether it is compressed, and its length.
const HEADER: usize = 5;

/// A message without fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

type Pending = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// A connection. Calls by its copies go over it at the same time.
#[derive(Clone)]
pub(super) struct Client {
    sender: http2::SendRequest<Full<Bytes>>,
}

impl Client {
    pub(super) async fn connect(socket: &Path) -> Result<Client, Unavailable> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|source| Unavailable::NoConnection { socket: socket.to_owned(), source })?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) =
            handshake.map_err(|e| Unavailable::Broken { method: "an HTTP/2 connection", why: chain(&e) })?;
        // It ends with its sender. A fault of the connection is a fault of the answer too, and reported there.
        tokio::spawn(connection);
        Ok(Client { sender })
    }

    /// One call, and the message that it answers.
    pub(super) async fn call<A: Message + Default>(
        &mut self,
        method: &'static str,
        namespace: &str,
        question: &impl Message,
    ) -> Result<A, Unavailable> {
        let bytes = self.whole(method, namespace, question).await?;
        let mut messages = split(&bytes);
        match (messages.next(), messages.next()) {
            (Some(Ok(message)), None) => {
                A::decode(message).map_err(|e| Unavailable::Broken { method, why: e.to_string() })
            }
            _ => {
                let why = format!("{} bytes that are not one message", bytes.len());
                Err(Unavailable::Broken { method, why })
            }
        }
    }

    /// One call, and all messages that it answers.
    pub(super) async fn call_all<A: Message + Default>(
        &mut self,
        method: &'static str,
        namespace: &str,
        question: &impl Message,
    ) -> Result<Vec<A>, Unavailable> {
        let bytes = self.whole(method, namespace, question).await?;
        let broken = |why: String| Unavailable::Broken { method, why };
        let decode = |message: Result<&[u8], String>| {
            A::decode(message.map_err(broken)?).map_err(|e| broken(e.to_string()))
        };
        split(&bytes).map(decode).collect()
    }

    /// One call whose answers come without end.
    pub(super) async fn follow(
        &mut self,
        method: &'static str,
        question: &impl Message,
    ) -> Result<Stream, Unavailable> {
        let answer = self.send(method, "", question).await?;
        Ok(Stream { method, state: State::Asked(answer), buffer: Vec::new() })
    }

    async fn whole(
        &mut self,
        method: &'static str,
        namespace: &str,
        question: &impl Message,
    ) -> Result<Bytes, Unavailable> {
        let broken = |why: String| Unavailable::Broken { method, why };
        let answer = self.send(method, namespace, question).await?.await.map_err(|e| broken(chain(&e)))?;
        refusal(method, answer.headers())?;
        let read = Limited::new(answer.into_body(), LARGEST).collect().await;
        let read = read.map_err(|e| {
            if e.is::<LengthLimitError>() { Unavailable::TooLarge { method } } else { broken(e.to_string()) }
        })?;
        read.trailers().map_or(Ok(()), |trailers| refusal(method, trailers))?;
        Ok(read.to_bytes())
    }

    async fn send(
        &mut self,
        method: &'static str,
        namespace: &str,
        question: &impl Message,
    ) -> Result<Pending, Unavailable> {
        let broken = |why: String| Unavailable::Broken { method, why };
        let mut body = vec![0; HEADER];
        question.encode(&mut body).map_err(|e| broken(e.to_string()))?;
        let length = u32::try_from(body.len() - HEADER).map_err(|e| broken(e.to_string()))?;
        body[1..HEADER].copy_from_slice(&length.to_be_bytes());
        let mut request = Request::post(format!("http://containerd/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if !namespace.is_empty() {
            request = request.header("containerd-namespace", namespace);
        }
        let request = request.body(Full::new(body.into())).map_err(|e| broken(e.to_string()))?;
        self.sender.ready().await.map_err(|e| broken(chain(&e)))?;
        Ok(Box::pin(self.sender.send_request(request)))
    }
}

/// A refusal without an answer has its reason in the headers. Else it is behind the answer.
fn refusal(method: &'static str, headers: &HeaderMap) -> Result<(), Unavailable> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    match text("grpc-status").filter(|status| status != "0") {
        Some(status) => {
            let said = text("grpc-message").unwrap_or_else(|| "without a reason".to_owned());
            Err(Unavailable::Refused { method, status, said })
        }
        None => Ok(()),
    }
}

/// The first message of some bytes, and how many bytes it takes with its header. `None` if it is not complete.
fn first(bytes: &[u8], largest: usize) -> Result<Option<(&[u8], usize)>, String> {
    let Some(([flag, length @ ..], rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if *flag != 0 || length > largest {
        return Err(format!("a message of {length} bytes with flags {flag}"));
    }
    Ok(rest.get(..length).map(|message| (message, HEADER + length)))
}

/// The messages of an answer. An incomplete one is an error.
fn split(mut bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], String>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        Some(match first(bytes, LARGEST) {
            Ok(Some((message, taken))) => {
                bytes = &bytes[taken..];
                Ok(message)
            }
            Ok(None) => {
                let left = std::mem::take(&mut bytes).len();
                Err(format!("{left} bytes that are not one message"))
            }
            Err(why) => {
                bytes = &[];
                Err(why)
            }
        })
    })
}

enum State {
    /// containerd sends nothing before the first message.
    Asked(Pending),
    Open(Incoming),
}

/// Answers without end.
pub(super) struct Stream {
    method: &'static str,
    state: State,
    buffer: Vec<u8>,
}

impl Stream {
    /// The next message. Nothing is lost if this is dropped before it is ready.
    pub(super) async fn next<A: Message + Default>(&mut self) -> Result<A, Unavailable> {
        let method = self.method;
        let broken = |why: String| Unavailable::Broken { method, why };
        loop {
            if let Some((message, taken)) = first(&self.buffer, LARGEST_OF_STREAM).map_err(broken)? {
                let read = A::decode(message).map_err(|e| broken(e.to_string()));
                self.buffer.drain(..taken);
                return read;
            }
            match &mut self.state {
                State::Asked(answer) => {
                    let answer = answer.await.map_err(|e| broken(chain(&e)))?;
                    refusal(method, answer.headers())?;
                    self.state = State::Open(answer.into_body());
                }
                State::Open(body) => match body.frame().await {
                    Some(Ok(frame)) => {
                        frame.trailers_ref().map_or(Ok(()), |trailers| refusal(method, trailers))?;
                        self.buffer.extend(frame.data_ref().into_iter().flatten());
                    }
                    Some(Err(e)) => return Err(broken(chain(&e))),
                    None => return Err(broken("the stream ended".to_owned())),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_and_what_is_no_message_is_an_error() {
        let two = [&[0, 0, 0, 0, 1, 7][..], &[0, 0, 0, 0, 2, 8, 9]].concat();
        assert_eq!(split(&two).collect::<Vec<_>>(), [Ok(&[7][..]), Ok(&[8, 9][..])]);
        let cut = split(&two[..12]).collect::<Vec<_>>();
        assert!(matches!(cut[..], [Ok([7]), Err(_)]), "{cut:?}");
        assert!(matches!(split(&[1, 0, 0, 0, 0]).collect::<Vec<_>>()[..], [Err(_)]), "it is compressed");
        let huge = first(&[0, 0xff, 0xff, 0xff, 0xff, 1], LARGEST_OF_STREAM);
        assert_eq!(huge, Err("a message of 4294967295 bytes with flags 0".to_owned()));
        assert_eq!(first(&[0, 0, 0], LARGEST), Ok(None));
    }
}
