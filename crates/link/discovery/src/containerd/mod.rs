//! Asks containerd over its socket: for the images of its containers, and for the containers that run.
//!
//! Calls over gRPC, of which only the fields that are used are read. A client of our own, as the generated one wants
//! a compiler of protocol buffers wherever weir is built.

mod container;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod grpc;
mod image_labels;
mod task;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use prost::Message;
use tokio::time::timeout;

use self::grpc::{Client, Nothing};
pub use self::watch::{Options, SOCKET, watch};

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
    /// It answered with an error.
    #[error("containerd does not answer {method}: status {status}, {said}")]
    Refused {
        /// Which call.
        method: &'static str,
        /// gRPC's number of the error.
        status: String,
        /// Its reason.
        said: String,
    },
    /// Its answer is larger than weir reads.
    #[error("containerd's answer to {method} is too large")]
    TooLarge {
        /// Which call.
        method: &'static str,
    },
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

    /// Whether containerd knows no such thing (gRPC's status 5).
    fn is_unknown(&self) -> bool {
        matches!(self, Unavailable::Refused { status, .. } if status == "5")
    }

    /// Whether an answer is larger than containerd sends (gRPC's status 8) or weir reads.
    fn is_too_large(&self) -> bool {
        match self {
            Unavailable::TooLarge { .. } => true,
            Unavailable::Refused { status, .. } => status == "8",
            _ => false,
        }
    }

    /// Whether the shim of a container did not answer containerd (gRPC's status 2, 4 or 14).
    fn is_shims(&self) -> bool {
        matches!(self, Unavailable::Refused { status, .. } if ["2", "4", "14"].contains(&status.as_str()))
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
    #[prost(int64, tag = "3")]
    size: i64,
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
    let mut client = Client::connect(socket).await?;
    let mut digests = BTreeSet::new();
    for namespace in namespaces(&mut client).await? {
        let containers: List<Container> =
            client.call("containerd.services.containers.v1.Containers/List", &namespace, &Nothing {}).await?;
        if containers.entries.is_empty() {
            continue;
        }
        let images: List<Image> =
            client.call("containerd.services.images.v1.Images/List", &namespace, &Nothing {}).await?;
        let targets: BTreeMap<String, Descriptor> =
            images.entries.into_iter().filter_map(|image| Some((image.name, image.target?))).collect();
        let used = containers.entries.iter().filter_map(|container| targets.get(&container.image));
        digests.extend(used.map(|target| target.digest.clone()));
    }
    Ok(digests)
}

/// The names of containerd's namespaces.
async fn namespaces(client: &mut Client) -> Result<Vec<String>, Unavailable> {
    let list: List<Namespace> =
        client.call("containerd.services.namespaces.v1.Namespaces/List", "default", &Nothing {}).await?;
    Ok(list.entries.into_iter().map(|namespace| namespace.name).collect())
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
        let target = Some(Descriptor { digest: "sha256:a".to_owned(), size: 5 });
        assert_eq!(read, [Image { name: "app:1".to_owned(), target }]);
    }
}
