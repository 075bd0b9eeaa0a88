//! A Docker API on a unix socket, as good or bad as a test wants it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::broadcast,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// How a request is answered, if not well.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// With these bytes, raw.
    Raw(&'static [u8]),
    /// With status 200 and this text.
    Body(&'static str),
    /// With this status and Docker's form of an error.
    Status(u16),
    /// Well, after a while.
    Slow(Duration),
    /// Never.
    Hang,
}

/// The containers of the daemon, and the requests that it had.
#[derive(Debug, Default)]
pub(super) struct World {
    /// The inspection of each running container, by id.
    pub(super) containers: BTreeMap<String, Value>,
    /// The inspections of images, by id.
    pub(super) images: BTreeMap<String, Value>,
    /// Faults, by a part of the path.
    pub(super) faults: BTreeMap<&'static str, Fault>,
    /// The paths asked for, in order.
    pub(super) asked: Vec<String>,
}

/// The daemon. Its world outlives its restarts.
pub(super) struct Fake {
    dir: TempDir,
    world: Arc<Mutex<World>>,
    events: broadcast::Sender<String>,
    server: Option<JoinHandle<()>>,
    open: Arc<AtomicUsize>,
}

impl Fake {
    /// One that is not running yet.
    pub(super) fn stopped() -> Fake {
        let dir = TempDir::new().expect("can make a directory");
        let (world, open) = (Arc::default(), Arc::default());
        Fake { dir, world, events: broadcast::channel(64).0, server: None, open }
    }

    /// One that runs.
    pub(super) fn started() -> Fake {
        let mut fake = Fake::stopped();
        fake.start();
        fake
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panics while it changes the world")
    }

    /// Listens anew.
    pub(super) fn start(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).expect("can listen");
        let (world, events, open) = (self.world.clone(), self.events.clone(), self.open.clone());
        self.server = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (world, events, open) = (world.clone(), events.subscribe(), open.clone());
                open.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    serve(stream, world, events).await;
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }));
    }

    /// Cuts all connections; the socket's file stays, as after a crash.
    pub(super) async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Adds or changes a container and tells of it.
    pub(super) fn put(&self, container: Value) {
        let id = container["Id"].as_str().expect("has an id").to_owned();
        self.world().containers.insert(id.clone(), container);
        self.tell("container", &id);
    }

    pub(super) fn remove(&self, id: &str) {
        self.world().containers.remove(id);
        self.tell("container", id);
    }

    /// Tells of a change to a container, through an event about it or about a network.
    pub(super) fn tell(&self, kind: &str, id: &str) {
        let actor = match kind {
            "container" => json!({"ID": id, "Attributes": {"name": "any"}}),
            _ => json!({"ID": "net", "Attributes": {"container": id}}),
        };
        self.say(&format!("{}\n", json!({"Type": kind, "Action": "any", "Actor": actor})));
    }

    /// Puts text into the stream of events.
    pub(super) fn say(&self, text: &str) {
        // The client may have gone.
        let _ = self.events.send(text.to_owned());
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How often paths with this part were asked for.
    pub(super) fn asked(&self, part: &str) -> usize {
        self.world().asked.iter().filter(|path| path.contains(part)).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.take().inspect(JoinHandle::abort);
    }
}

/// Docker's inspection of a running container with its own namespace. The number in its id, `c7`,
/// is its process id and names its namespace.
pub(super) fn container(id: &str, name: &str) -> Value {
    let pid: u32 = id[1..].parse().expect("ids are c and a number");
    json!({
        "Id": id,
        "Image": "sha256:plain",
        "Name": format!("/{name}"),
        "State": {"Status": "running", "Running": true, "Paused": false, "Restarting": false, "Pid": pid},
        "Config": {"Labels": {}, "Image": "any"},
        "HostConfig": {"NetworkMode": "default", "PidMode": ""},
        "NetworkSettings": {
            "SandboxKey": format!("/sandbox/{pid}"),
            "Networks": {
                "bridge": {"IPAddress": format!("172.17.0.{pid}"), "GlobalIPv6Address": ""},
            },
        },
    })
}

/// The same, with a value changed.
pub(super) fn with(mut container: Value, pointer: &str, value: Value) -> Value {
    *container.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is there")) = value;
    container
}

async fn serve(mut stream: UnixStream, world: Arc<Mutex<World>>, events: broadcast::Receiver<String>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let fault = {
        let mut world = world.lock().expect("no test panics while it changes the world");
        world.asked.push(path.clone());
        world.faults.iter().find(|(part, _)| path.contains(**part)).map(|(_, fault)| fault.clone())
    };
    let raw = match fault {
        Some(Fault::Hang) => {
            // Until the other side gives up.
            let _ = stream.read_u8().await;
            return;
        }
        Some(Fault::Raw(bytes)) => bytes.to_vec(),
        Some(Fault::Body(text)) => answer(200, text),
        Some(Fault::Status(status)) => answer(status, r#"{"message":"no thanks"}"#),
        Some(Fault::Slow(time)) => {
            sleep(time).await;
            good(&path, &world)
        }
        None if path.contains("/events") => return stream_events(stream, events).await,
        None => good(&path, &world),
    };
    let _ = stream.write_all(&raw).await;
}

fn good(path: &str, world: &Mutex<World>) -> Vec<u8> {
    let world = world.lock().expect("no test panics while it changes the world");
    if path == "/_ping" {
        return answer(200, "OK");
    }
    let path = path.strip_prefix("/v1.41").unwrap_or("/not-the-version-that-ping-told");
    if let Some(image) = path.strip_prefix("/images/").and_then(|rest| rest.strip_suffix("/json")) {
        let image = image.replace("%3A", ":");
        let plain = json!({"Id": image, "Config": {"Labels": null}});
        return answer(200, &world.images.get(&image).unwrap_or(&plain).to_string());
    }
    match path.strip_prefix("/containers/").and_then(|rest| rest.strip_suffix("json")) {
        Some("") => {
            // As many fields as a client that takes them seriously would stumble over.
            let listed = world.containers.iter().map(|(id, container)| {
                json!({"Id": id, "State": "from-the-future", "Labels": container["Config"]["Labels"]})
            });
            answer(200, &Value::from_iter(listed).to_string())
        }
        Some(id) => match world.containers.get(id.trim_end_matches('/')) {
            Some(container) => answer(200, &container.to_string()),
            None => answer(404, r#"{"message":"No such container"}"#),
        },
        None => answer(400, r#"{"message":"bad path"}"#),
    }
}

fn answer(status: u16, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("HTTP/1.1 {status} Any\r\nApi-Version: 1.41\r\nContent-Length: {len}\r\n\r\n{body}").into_bytes()
}

async fn stream_events(mut stream: UnixStream, mut events: broadcast::Receiver<String>) {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut sent = stream.write_all(head.as_bytes()).await;
    while sent.is_ok() {
        let text = tokio::select! {
            Ok(text) = events.recv() => text,
            _ = stream.read_u8() => return,
        };
        sent = stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await;
    }
}

/// Where a namespace of tests is: `/sandbox/7`.
pub(super) fn sandbox_number(path: &Path) -> Option<u64> {
    path.strip_prefix("/sandbox").ok()?.to_str()?.parse().ok()
}
