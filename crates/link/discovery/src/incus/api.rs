//! Requests to the API of Incus and LXD over its unix socket.
//!
//! Events come by a WebSocket alone. Its handshake is a request of HTTP as the others are.

use std::{collections::BTreeMap, path::Path, time::Duration};

use futures_util::StreamExt;
use http_body_util::Empty;
use hyper::{
    Request, StatusCode,
    header::{CONNECTION, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{Options, Unavailable};
use crate::http::{self, within};

/// One level of recursion: with two the daemon asks each container for its state.
const LIST: &str = "/1.0/instances?recursion=1&all-projects=true";
const SERVER: &str = "/1.0";
const EVENTS: &str = "/1.0/events?type=lifecycle&all-projects=true";

/// The largest event that is read, bytes.
const LARGEST_EVENT: usize = 1 << 20;

/// The key and answer of RFC 6455, section 1.3. A fresh key tells the server from a cache, which a unix socket has not.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Status of an instance that does not run. Others are Running, Frozen, Ready and those between.
const STOPPED: u16 = 102;

/// The name of the project whose instances have no project in front of their names.
const DEFAULT_PROJECT: &str = "default";

/// The daemon's form of an answer.
#[derive(Deserialize)]
struct Answer<T> {
    metadata: T,
}

/// An instance, as far as it is used.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    name: String,
    #[serde(default)]
    project: String,
    /// The member of the cluster that it is on.
    #[serde(default)]
    location: String,
    #[serde(default)]
    status_code: u16,
    #[serde(default, rename = "type")]
    kind: String,
    /// Its keys, with those of its profiles.
    #[serde(default)]
    expanded_config: Option<BTreeMap<String, String>>,
}

/// The answer about the daemon itself.
#[derive(Deserialize)]
struct Server {
    environment: Environment,
}

#[derive(Deserialize)]
struct Environment {
    #[serde(default)]
    server_name: String,
}

impl Instance {
    /// Whether it is on the member of this name, or on a node without a cluster.
    pub(super) fn is_on(&self, member: &str) -> bool {
        matches!(self.location.as_str(), "" | "none") || self.location == member
    }

    pub(super) fn runs(&self) -> bool {
        self.status_code != STOPPED
    }

    pub(super) fn is_machine(&self) -> bool {
        self.kind == "virtual-machine"
    }

    /// Its name among those of all projects, as liblxc has it.
    pub(super) fn full_name(&self) -> String {
        match self.project.as_str() {
            "" | DEFAULT_PROJECT => self.name.clone(),
            project => format!("{project}_{}", self.name),
        }
    }

    /// Its keys `user.weir.*`, without `user.`.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let label = |(key, value): (&String, &String)| {
            let key = key.strip_prefix("user.").filter(|key| key.starts_with("weir."))?;
            Some((key.to_owned(), value.clone()))
        };
        self.expanded_config.iter().flatten().filter_map(label).collect()
    }

    /// The host's ends of its interfaces.
    pub(super) fn interfaces(&self) -> Vec<String> {
        let is_end = |key: &str| key.starts_with("volatile.") && key.ends_with(".host_name");
        let ends = self.expanded_config.iter().flatten().filter(|(key, _)| is_end(key));
        ends.map(|(_, name)| name.clone()).filter(|name| !name.is_empty()).collect()
    }
}

/// The daemon's name in its cluster.
pub(super) async fn member(options: &Options) -> Result<String, Unavailable> {
    let server: Server = get(&options.socket, SERVER, options.time_limit).await?;
    Ok(server.environment.server_name)
}

/// All instances of all projects.
pub(super) async fn list(options: &Options) -> Result<Vec<Instance>, Unavailable> {
    let Options { socket, time_limit, .. } = options;
    get(socket, LIST, *time_limit).await
}

async fn get<T: DeserializeOwned>(socket: &Path, path: &str, time_limit: Duration) -> Result<T, Unavailable> {
    let read = async {
        let request = Request::get(path).header(HOST, "incus").body(Empty::new());
        let request = request.map_err(|why| Unavailable::broken(path, why))?;
        http::body(http::send(socket, request).await?, path).await
    };
    let body = within(time_limit, path, read).await?;
    let answer: Answer<T> = serde_json::from_slice(&body).map_err(|why| Unavailable::garbled(path, why))?;
    Ok(answer.metadata)
}

/// The stream of events.
pub(super) struct Events(WebSocketStream<TokioIo<Upgraded>>);

impl Events {
    pub(super) async fn open(options: &Options) -> Result<Events, Unavailable> {
        within(options.time_limit, EVENTS, Events::connect(&options.socket)).await
    }

    async fn connect(socket: &Path) -> Result<Events, Unavailable> {
        let request = Request::get(EVENTS)
            .header(HOST, "incus")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, KEY)
            .body(Empty::new())
            .map_err(|why| Unavailable::broken(EVENTS, why))?;
        let answer = http::send(socket, request).await?;
        let is_accepted = answer.headers().get(SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| accept == ACCEPT);
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !is_accepted {
            return Err(Unavailable::garbled(EVENTS, "it is no WebSocket"));
        }
        let stream = hyper::upgrade::on(answer).await.map_err(|why| Unavailable::broken(EVENTS, why))?;
        let config = WebSocketConfig::default()
            .read_buffer_size(16 << 10)
            .max_message_size(Some(LARGEST_EVENT))
            .max_frame_size(Some(LARGEST_EVENT));
        let stream = TokioIo::new(stream);
        Ok(Events(WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await))
    }

    /// Waits for a change of instances, and answers pings. Nothing is lost if this is dropped before it is ready.
    pub(super) async fn change(&mut self) -> Result<(), Unavailable> {
        loop {
            let message = match self.0.next().await {
                Some(Ok(message)) => message,
                Some(Err(why)) => return Err(Unavailable::broken(EVENTS, why)),
                None => return Err(Unavailable::broken(EVENTS, "the stream ended")),
            };
            if let Message::Text(text) = message {
                let event: Event =
                    serde_json::from_str(&text).map_err(|why| Unavailable::garbled(EVENTS, why))?;
                if event.is_change() {
                    return Ok(());
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    metadata: Action,
}

#[derive(Deserialize, Default)]
struct Action {
    #[serde(default)]
    action: String,
}

impl Event {
    /// Whether an instance, profile or project changes: `instance-updated`. Others are about its parts
    /// (`instance-snapshot-created`), or change nothing (`instance-exec`).
    fn is_change(&self) -> bool {
        const KINDS: [&str; 5] = ["instance-", "container-", "virtual-machine-", "profile-", "project-"];
        let action = self.metadata.action.as_str();
        let verb = KINDS.iter().find_map(|kind| action.strip_prefix(kind));
        verb.is_some_and(|verb| !verb.contains('-') && !matches!(verb, "exec" | "console"))
    }
}
