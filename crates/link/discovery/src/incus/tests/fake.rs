//! The API of Incus on a unix socket, as good or bad as a test wants it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::broadcast,
    task::{JoinHandle, JoinSet},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

/// How a request is answered, if not well.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// With these bytes, raw.
    Raw(Vec<u8>),
    /// Never.
    Hang,
}

/// The instances of the daemon, and the requests that it had.
#[derive(Debug, Default)]
pub(super) struct World {
    /// By name.
    pub(super) instances: BTreeMap<String, Value>,
    /// Faults, by the beginning of the path.
    pub(super) faults: BTreeMap<&'static str, Fault>,
    /// The paths asked for, in order.
    pub(super) asked: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

/// The daemon. Its world outlives its restarts.
pub(super) struct Fake {
    dir: TempDir,
    world: Shared,
    messages: broadcast::Sender<Message>,
    server: Option<JoinHandle<()>>,
    pongs: Arc<AtomicUsize>,
}

impl Fake {
    /// One that runs.
    pub(super) fn started() -> Fake {
        let dir = TempDir::new().expect("can make a directory");
        let messages = broadcast::channel(4096).0;
        let mut fake = Fake { dir, world: Arc::default(), messages, server: None, pongs: Arc::default() };
        fake.start();
        fake
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("unix.socket")
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panics while it changes the world")
    }

    /// Listens anew.
    pub(super) fn start(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).expect("can listen");
        let (world, messages, pongs) = (self.world.clone(), self.messages.clone(), self.pongs.clone());
        self.server = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, world.clone(), messages.subscribe(), pongs.clone()));
            }
        }));
    }

    /// Cuts all connections; the socket's file stays.
    pub(super) async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Adds or changes an instance without a word.
    pub(super) fn put(&self, instance: Value) {
        let name = instance["name"].as_str().expect("has a name").to_owned();
        self.world().instances.insert(name, instance);
    }

    /// Tells of an action.
    pub(super) fn tell(&self, action: &str) {
        let metadata = json!({"action": action, "source": "/1.0/instances/any", "context": {"n": 1}});
        let event =
            json!({"type": "lifecycle", "project": "default", "location": "none", "metadata": metadata});
        self.say(Message::text(event.to_string()));
    }

    /// Puts a message into the stream of events.
    pub(super) fn say(&self, message: Message) {
        // The client may have gone.
        let _ = self.messages.send(message);
    }

    /// How often paths that begin like this were asked for.
    pub(super) fn asked(&self, path: &str) -> usize {
        self.world().asked.iter().filter(|asked| asked.starts_with(path)).count()
    }

    /// How many pings were answered.
    pub(super) fn pongs(&self) -> usize {
        self.pongs.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.take().inspect(JoinHandle::abort);
    }
}

/// The daemon's form of a running container with these keys.
pub(super) fn container(name: &str, keys: Value) -> Value {
    json!({
        "name": name, "project": "default", "location": "none", "type": "container",
        "status": "Running", "status_code": 103,
        "config": {}, "expanded_config": keys, "devices": {"eth0": {"type": "nic"}}, "profiles": ["default"],
    })
}

/// The same, with a value changed.
pub(super) fn with(mut instance: Value, key: &str, value: Value) -> Value {
    instance[key] = value;
    instance
}

async fn serve(
    mut stream: UnixStream,
    world: Shared,
    messages: broadcast::Receiver<Message>,
    pongs: Arc<AtomicUsize>,
) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (fault, body) = {
        let mut world = world.lock().expect("no test panics while it changes the world");
        world.asked.push(path.clone());
        let fault = world.faults.iter().find(|(part, _)| path.starts_with(**part));
        (fault.map(|(_, fault)| fault.clone()), answer(&path, &world))
    };
    let raw = match fault {
        Some(Fault::Hang) => {
            // Until the other side gives up.
            let _ = stream.read_u8().await;
            return;
        }
        Some(Fault::Raw(bytes)) => bytes,
        None if path.starts_with("/1.0/events?") => return stream_events(stream, messages, pongs).await,
        None => body,
    };
    let _ = stream.write_all(&raw).await;
}

fn answer(path: &str, world: &World) -> Vec<u8> {
    let metadata = match path {
        "/1.0" => json!({"config": {}, "environment": {"server": "incus", "server_name": "here"}}),
        "/1.0/instances?recursion=1&all-projects=true" => Value::from_iter(world.instances.values().cloned()),
        _ => return http(404, r#"{"type":"error","error":"Not Found","error_code":404}"#),
    };
    let body = json!({"type": "sync", "status": "Success", "status_code": 200, "metadata": metadata});
    http(200, &body.to_string())
}

/// An answer with a body.
pub(super) fn http(status: u16, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("HTTP/1.1 {status} Any\r\nContent-Length: {len}\r\n\r\n{body}").into_bytes()
}

async fn stream_events(
    mut stream: UnixStream,
    mut messages: broadcast::Receiver<Message>,
    pongs: Arc<AtomicUsize>,
) {
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).await;
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    loop {
        tokio::select! {
            Ok(message) = messages.recv() => {
                let _ = socket.send(message).await;
            }
            answer = socket.next() => match answer {
                Some(Ok(Message::Pong(_))) => {
                    pongs.fetch_add(1, Ordering::Relaxed);
                }
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}
