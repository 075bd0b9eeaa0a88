//! Requests over HTTP to the unix socket of a runtime. An answer is bounded in size and time.

use std::{path::Path, time::Duration};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{net::UnixStream, time::timeout};

use crate::runtime::Unavailable;

/// The largest answer that is read as a whole, bytes: some ten thousand containers in a list.
const LARGEST: usize = 32 << 20;

/// The body of an error: Docker calls the text a message, and Incus an error.
#[derive(Deserialize)]
struct Refusal {
    #[serde(alias = "error")]
    message: String,
}

/// Sends a request, on a connection of its own; the answer's head, if it is a good one.
pub(crate) async fn send(
    socket: &Path,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, Unavailable> {
    let path = request.uri().to_string();
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|why| Unavailable::NoConnection { socket: socket.to_owned(), kind: why.kind() })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|why| Unavailable::broken(&path, why))?;
    // It ends with the answer, or when no caller waits for one. A fault of the connection is a
    // fault of the answer too, and reported there.
    tokio::spawn(connection.with_upgrades());
    let answer = sender.send_request(request).await.map_err(|why| Unavailable::broken(&path, why))?;
    let status = answer.status();
    if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    let body = body(answer, &path).await?;
    let said = match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal) => refusal.message,
        Err(_) => String::from_utf8_lossy(&body).chars().take(200).collect(),
    };
    Err(Unavailable::Refused { request: path, status: status.as_u16(), said })
}

/// The body of an answer.
pub(crate) async fn body(answer: Response<Incoming>, path: &str) -> Result<Bytes, Unavailable> {
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    Ok(body.map_err(|why| Unavailable::broken(path, why))?.to_bytes())
}

/// Gives a request this much time.
pub(crate) async fn within<T>(
    time_limit: Duration,
    request: &str,
    work: impl Future<Output = Result<T, Unavailable>>,
) -> Result<T, Unavailable> {
    let late = Unavailable::TimedOut { request: request.to_owned(), after: time_limit };
    timeout(time_limit, work).await.unwrap_or(Err(late))
}
