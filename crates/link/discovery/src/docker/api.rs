//! Requests to Docker's API over its unix socket, and the questions about containers.
//!
//! A client of our own, because generated ones read every field of an answer into closed
//! enumerations: one container with a value from a newer Docker would hide all of them. Here only
//! what is used is read, and an answer is bounded in size and time.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufReader},
    path::PathBuf,
    sync::Mutex,
    time::Duration,
};

use http_body_util::{BodyExt, Empty};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::Unavailable;
use crate::{
    http::{self, within},
    labels,
};

/// The largest answer about one container or image, bytes. The labels of an image are its author's.
const LARGEST: usize = 16 << 20;
/// The longest line of the stream of events, bytes. An event has all labels of its container.
const LONGEST_LINE: usize = 4 << 20;
/// The most labels that begin with `weir.` and that weir does not know, of a container, and the longest key and value,
/// bytes.
const MAX_LABELS: usize = 256;
const MAX_TEXT: usize = 512;
/// The most pieces of an answer that wait to be read.
const MAX_PIECES: usize = 4;

/// A daemon that has answered, and the version of the API that it speaks.
#[derive(Debug)]
pub(super) struct Api {
    socket: PathBuf,
    time_limit: Duration,
    /// `/v1.41`; empty if the daemon does not say.
    version: String,
    /// The labels that are weir's of images that were asked about, by id: an image never changes.
    images: Mutex<BTreeMap<String, Labels>>,
}

/// Labels by key.
pub(super) type Labels = BTreeMap<String, String>;

/// Why the labels of a container's image are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    #[error("the runtime does not name its image")]
    Unnamed,
    #[error(transparent)]
    NoAnswer(#[from] Unavailable),
}

impl ImageError {
    /// The answer that is missing, if the runtime may give it later. An image that is not there does not come back.
    pub(super) fn passing(&self) -> Option<&Unavailable> {
        match self {
            ImageError::Unnamed | ImageError::NoAnswer(Unavailable::Refused { status: 404, .. }) => None,
            ImageError::NoAnswer(why) => Some(why),
        }
    }
}

/// The most images that are remembered.
const IMAGES: usize = 256;

/// The answer of `GET /containers/ID/json`, as far as it is used.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Inspected {
    pub(super) id: String,
    /// The id of its image.
    #[serde(default)]
    pub(super) image: String,
    pub(super) name: String,
    pub(super) state: State,
    pub(super) config: Config,
    pub(super) host_config: HostConfig,
    pub(super) network_settings: NetworkSettings,
}

impl Inspected {
    /// Whether it has labels that are weir's.
    pub(super) fn has_our_labels(&self) -> bool {
        !self.config.labels.is_empty()
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    /// True of a paused one too, and of one that waits to be restarted.
    pub(super) running: bool,
    /// 0 if it has no process.
    #[serde(default)]
    pub(super) pid: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Config {
    /// Those that are weir's.
    #[serde(default, deserialize_with = "ours")]
    pub(super) labels: Labels,
}

/// Reads labels, and keeps those that are weir's. A value that is too long is cut, so that it makes no sense. The labels
/// that weir knows are always kept: an image may have any number of others.
fn ours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Labels;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("labels")
        }

        fn visit_unit<E>(self) -> Result<Labels, E> {
            Ok(Labels::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
            let mut kept = Labels::new();
            while let Some(key) = map.next_key::<String>()? {
                let has_room = kept.len() < MAX_LABELS || labels::is_wish(&key);
                if !labels::is_ours(&key) || key.len() > MAX_TEXT || !has_room {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                let value: String = map.next_value()?;
                let is_long = value.len() > MAX_TEXT;
                kept.insert(key, if is_long { labels::brief(&value) } else { value });
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Reader)
}

/// The answer of `GET /images/ID/json`, as far as it is used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    #[serde(default)]
    config: Option<Config>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostConfig {
    #[serde(default)]
    pub(super) network_mode: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkSettings {
    #[serde(default)]
    pub(super) sandbox_key: String,
    #[serde(default)]
    pub(super) networks: Option<BTreeMap<String, Endpoint>>,
}

/// Empty texts where there is no address.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Endpoint {
    #[serde(rename = "IPAddress", default)]
    pub(super) v4: String,
    #[serde(rename = "GlobalIPv6Address", default)]
    pub(super) v6: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default, rename = "ImageID")]
    image: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Event {
    #[serde(default, rename = "Type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) action: String,
    #[serde(default)]
    pub(super) actor: Actor,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Actor {
    #[serde(rename = "ID")]
    pub(super) id: String,
    pub(super) attributes: BTreeMap<String, String>,
}

impl Api {
    /// Asks the daemon which version it speaks; `time_limit` bounds each answer from now on.
    pub(super) async fn connect(socket: PathBuf, time_limit: Duration) -> Result<Api, Unavailable> {
        let mut api = Api { socket, time_limit, version: String::new(), images: Mutex::default() };
        let answer = within(time_limit, "/_ping", api.ask("/_ping")).await?;
        let version = answer.headers().get("api-version").and_then(|version| version.to_str().ok());
        // It becomes part of paths, so it must look like one.
        if let Some(version) = version.filter(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.')) {
            api.version = format!("/v{version}");
        }
        Ok(api)
    }

    /// The ids of the containers that run, paused ones too.
    pub(super) async fn running(&self) -> Result<Vec<String>, Unavailable> {
        let listed: Vec<Listed> = self.list("/containers/json", self.time_limit).await?;
        Ok(listed.into_iter().map(|container| container.id).collect())
    }

    /// The images that containers have, also those that do not run.
    pub(super) async fn images(&self) -> Result<Vec<String>, Unavailable> {
        let listed: Vec<Listed> = self.list("/containers/json?all=true", self.time_limit).await?;
        Ok(listed.into_iter().map(|container| container.image).collect())
    }

    /// All about one container; none if it is gone.
    pub(super) async fn inspect(&self, id: &str) -> Result<Option<Inspected>, Unavailable> {
        // One that hangs (dockerd holds a lock for each) must not hold up the others for long.
        match self.get(&format!("/containers/{}/json", encode(id)), self.time_limit / 4).await {
            Ok(inspected) => Ok(Some(inspected)),
            Err(Unavailable::Refused { status: 404, .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The labels that are weir's of a container's image.
    pub(super) async fn image_labels(&self, container: &Inspected) -> Result<Labels, ImageError> {
        let id = &container.image;
        if id.is_empty() {
            return Err(ImageError::Unnamed);
        }
        // Podman says so of a container without an image (`--rootfs`).
        if id == "sha256:" {
            return Ok(Labels::new());
        }
        let images = || self.images.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = images().get(id) {
            return Ok(known.clone());
        }
        let image: Image = self.get(&format!("/images/{}/json", encode(id)), self.time_limit / 4).await?;
        let labels = image.config.map(|config| config.labels).unwrap_or_default();
        let mut images = images();
        if images.len() >= IMAGES {
            images.clear();
        }
        images.insert(id.clone(), labels.clone());
        Ok(labels)
    }

    /// The changes to containers since a moment, seconds since the epoch, and those to come.
    pub(super) async fn events(&self, since: u64) -> Result<Events, Unavailable> {
        let filters = r#"{"type":["container","network"],"event":["start","die","destroy","rename","update","connect","disconnect"]}"#;
        self.follow(since, filters).await
    }

    /// The events that pass `filters`, since a moment.
    pub(super) async fn follow(&self, since: u64, filters: &str) -> Result<Events, Unavailable> {
        let path = format!("{}/events?since={since}&filters={}", self.version, encode(filters));
        let answer = within(self.time_limit, "/events", self.ask(&path)).await?;
        Ok(Events { body: answer.into_body(), buffer: Vec::new(), skips: false })
    }

    /// The time limit of an answer.
    pub(super) fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// Asks for one thing.
    pub(super) async fn get<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        time_limit: Duration,
    ) -> Result<T, Unavailable> {
        within(time_limit, path, self.read(path, LARGEST)).await
    }

    /// Asks for a list. Its entries have the labels of containers or images, which are skipped, so time alone bounds it.
    pub(super) async fn list<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        time_limit: Duration,
    ) -> Result<Vec<T>, Unavailable> {
        within(time_limit, path, self.read(path, usize::MAX)).await
    }

    /// Reads an answer of at most `most` bytes as it comes. The parts that are not used take no memory.
    async fn read<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        most: usize,
    ) -> Result<T, Unavailable> {
        let mut body = self.ask(&format!("{}{path}", self.version)).await?.into_body();
        let (sender, pieces) = mpsc::channel(MAX_PIECES);
        let reader = Pieces { pieces, piece: Bytes::new() };
        let read = spawn_blocking(move || serde_json::from_reader(BufReader::new(reader)));
        let mut length: usize = 0;
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|why| Unavailable::broken(path, why))?.into_data() else {
                continue;
            };
            length = length.saturating_add(piece.len());
            if length > most {
                return Err(Unavailable::garbled(path, format!("it is larger than {} MiB", most >> 20)));
            }
            // A reader that is content with less has met a fault.
            if sender.send(piece).await.is_err() {
                break;
            }
        }
        drop(sender);
        let read = read.await.map_err(|why| Unavailable::broken(path, why))?;
        read.map_err(|why| Unavailable::garbled(path, why))
    }

    /// Sends a request without a body; the body of a good answer.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        time_limit: Duration,
    ) -> Result<Bytes, Unavailable> {
        let read = async {
            let answer = self.send(method, &format!("{}{path}", self.version)).await?;
            http::body(answer, path).await
        };
        within(time_limit, path, read).await
    }

    async fn ask(&self, path: &str) -> Result<Response<Incoming>, Unavailable> {
        self.send(Method::GET, path).await
    }

    /// Sends a request; the answer's head, if it is a good one.
    async fn send(&self, method: Method, path: &str) -> Result<Response<Incoming>, Unavailable> {
        let request = Request::builder().method(method).uri(path).header("host", "docker");
        let request = request.body(Empty::new()).map_err(|why| Unavailable::broken(path, why))?;
        http::send(&self.socket, request).await
    }
}

/// An answer that arrives in pieces, for a reader on a thread that may block.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl io::Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(self.piece.len().min(into.len()));
        into[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

/// A stream of changes.
#[derive(Debug)]
pub(super) struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    /// Whether the buffer begins within a line that is too long.
    skips: bool,
}

impl Events {
    /// The id of the next container that changes. Nothing is lost if this is dropped before
    /// it is ready.
    pub(super) async fn next(&mut self) -> Result<String, Unavailable> {
        loop {
            if let Some(id) = self.next_event().await?.container() {
                return Ok(id);
            }
        }
    }

    /// The next event. Nothing is lost if this is dropped before it is ready. An event whose line is too long tells of a
    /// container without an id, as all are listed then.
    pub(super) async fn next_event(&mut self) -> Result<Event, Unavailable> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if std::mem::take(&mut self.skips) {
                    return Ok(Event { kind: "container".to_owned(), ..Event::default() });
                }
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return serde_json::from_slice(&line).map_err(|why| Unavailable::garbled("/events", why));
            }
            if self.buffer.len() > LONGEST_LINE || self.skips {
                self.buffer.clear();
                self.skips = true;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(why)) => return Err(Unavailable::broken("/events", why)),
                None => return Err(Unavailable::broken("/events", "the stream ended")),
            }
        }
    }
}

impl Event {
    /// The container that it is about.
    pub(super) fn container(mut self) -> Option<String> {
        match self.kind.as_str() {
            "container" => Some(self.actor.id),
            "network" => self.actor.attributes.remove("container"),
            _ => None,
        }
    }
}

/// Percent-encodes what may not stand in a path or query as it is (RFC 3986, 2.3).
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
