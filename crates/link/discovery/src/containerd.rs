//! Asks containerd over its socket for the images of its containers.
//!
//! Three lists over gRPC, of which only the fields that are used are read. A client of our own, as
//! the generated one wants a compiler of protocol buffers wherever weir is built.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, body::Bytes, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{net::UnixStream, time::timeout};
use weir_units::chain;

/// The largest answer that is read, bytes: some ten thousand containers in a list.
const LARGEST: usize = 32 << 20;

/// Why containerd could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// No process listens, or not to this user.
    #[error("cannot connect to containerd at {}", socket.display())]
    NoConnection {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The answer did not come in time.
    #[error("containerd did not answer within {0:?}")]
    TimedOut(Duration),
    /// It answered something else.
    #[error("containerd does not answer {method}: {why}")]
    Broken {
        /// Which call.
        method: &'static str,
        /// The answer.
        why: String,
    },
}

impl Unavailable {
    /// Whether there is no containerd here at all: nothing runs in it.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Unavailable::NoConnection { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

// As in containerd's api/services/{namespaces,containers,images}/v1: a list is field 1 of its answer.

#[derive(Clone, PartialEq, Message)]
struct List<T: Message + Default + std::fmt::Debug> {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<T>,
}

#[derive(Clone, PartialEq, Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    /// The name of its image.
    #[prost(string, tag = "3")]
    image: String,
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    target: Option<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, tag = "2")]
    digest: String,
}

/// The images that containers have, also those that do not run, in all of containerd's namespaces:
/// digests of manifests, or of indexes.
///
/// * `time_limit`: bounds all of it.
///
/// # Errors
/// [`Unavailable`].
pub async fn images_in_use(socket: &Path, time_limit: Duration) -> Result<BTreeSet<String>, Unavailable> {
    timeout(time_limit, ask(socket)).await.map_err(|_| Unavailable::TimedOut(time_limit))?
}

async fn ask(socket: &Path) -> Result<BTreeSet<String>, Unavailable> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| Unavailable::NoConnection { socket: socket.to_owned(), source })?;
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) =
        handshake.map_err(|e| Unavailable::Broken { method: "an HTTP/2 connection", why: chain(&e) })?;
    // It ends with its sender; what breaks it breaks the answers too, which is where it is told.
    tokio::spawn(connection);
    let mut digests = BTreeSet::new();
    let namespaces: Vec<Namespace> =
        list(&mut sender, "containerd.services.namespaces.v1.Namespaces/List", "default").await?;
    for namespace in namespaces.iter().map(|n| n.name.as_str()) {
        let containers: Vec<Container> =
            list(&mut sender, "containerd.services.containers.v1.Containers/List", namespace).await?;
        if containers.is_empty() {
            continue;
        }
        let images: Vec<Image> =
            list(&mut sender, "containerd.services.images.v1.Images/List", namespace).await?;
        let targets: BTreeMap<String, Descriptor> =
            images.into_iter().filter_map(|image| Some((image.name, image.target?))).collect();
        let used = containers.iter().filter_map(|container| targets.get(&container.image));
        digests.extend(used.map(|target| target.digest.clone()));
    }
    Ok(digests)
}

/// One call without parameters, and the list that it answers.
async fn list<T: Message + Default + std::fmt::Debug>(
    sender: &mut http2::SendRequest<Full<Bytes>>,
    method: &'static str,
    namespace: &str,
) -> Result<Vec<T>, Unavailable> {
    let broken = |why: String| Unavailable::Broken { method, why };
    let request = Request::post(format!("http://containerd/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("containerd-namespace", namespace)
        // Not compressed, and no bytes.
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .map_err(|e| broken(e.to_string()))?;
    sender.ready().await.map_err(|e| broken(chain(&e)))?;
    let answer = sender.send_request(request).await.map_err(|e| broken(chain(&e)))?;
    // A refusal without an answer has its reason in the headers, else it is behind the answer.
    let refusal = |headers: &hyper::HeaderMap| {
        let text = |name| headers.get(name).and_then(|v: &hyper::header::HeaderValue| v.to_str().ok());
        let status = text("grpc-status").filter(|status| *status != "0")?;
        Some(format!("status {status}, {}", text("grpc-message").unwrap_or("without a reason")))
    };
    if let Some(why) = refusal(answer.headers()) {
        return Err(broken(why));
    }
    let read = Limited::new(answer.into_body(), LARGEST).collect().await;
    let read = read.map_err(|e| broken(e.to_string()))?;
    if let Some(why) = read.trailers().and_then(refusal) {
        return Err(broken(why));
    }
    let bytes = read.to_bytes();
    let message = match bytes.split_first_chunk::<5>() {
        Some(([0, length @ ..], message)) if u32::from_be_bytes(*length) as usize == message.len() => message,
        _ => return Err(broken(format!("{} bytes that are not one message", bytes.len()))),
    };
    let list = List::<T>::decode(message).map_err(|e| broken(e.to_string()))?;
    Ok(list.entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_not_there_or_does_not_answer_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("containerd.sock");
        let time_limit = Duration::from_millis(100);
        let none = images_in_use(&socket, time_limit).await.unwrap_err();
        assert!(none.is_absent(), "{none}");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let silent = images_in_use(&socket, time_limit).await.unwrap_err();
        assert!(matches!(silent, Unavailable::TimedOut(_)), "{silent}");
        drop(listener);
        let refused = images_in_use(&socket, time_limit).await.unwrap_err();
        assert!(matches!(refused, Unavailable::NoConnection { .. }) && !refused.is_absent(), "{refused}");
    }

    #[test]
    fn lists_are_read_whatever_else_is_in_them() {
        // An image with labels, a target of three fields, and a time (fields 1, 2, 3, 7).
        let target = [&b"\x0a\x01t"[..], b"\x12\x08sha256:a", b"\x18\x05"].concat();
        let image =
            [&b"\x0a\x05app:1"[..], b"\x12\x06\x0a\x01k\x12\x01v", b"\x1a\x0f", &target, b"\x3a\x02\x08\x01"];
        let image = image.concat();
        let mut list = vec![0x0a, u8::try_from(image.len()).unwrap()];
        list.extend(image);
        let read = List::<Image>::decode(&*list).unwrap().entries;
        let target = Some(Descriptor { digest: "sha256:a".to_owned() });
        assert_eq!(read, [Image { name: "app:1".to_owned(), target }]);
    }
}
