//! A stand-in for the API server of a cluster: lists in pages, watches with bookmarks, and the faults of real ones.
//!
//! It serves plain HTTP on loopback, one thread for each connection.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The interval between two bookmarks of a watch. A real server sends one each minute.
const BOOKMARK_EVERY: Duration = Duration::from_millis(300);

/// The behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// As it should be.
    #[default]
    Well,
    /// It closes each connection without an answer.
    Away,
    /// It answers after this time.
    Slow(Duration),
    /// Answers are cut in the middle.
    Garbled,
    /// A list of more than one object has 20 MiB of an annotation.
    Huge,
    /// It refuses each request with this status.
    Refusing(u16),
    /// Each watch ends with 410 at once.
    Expired,
    /// Each watch ends at once, without a change.
    Short,
}

#[derive(Default)]
struct State {
    /// `pods` and `namespaces`: objects by key.
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    /// Version, resource, type and object of each change.
    changes: Vec<(u64, &'static str, &'static str, Value)>,
    version: u64,
    /// Watches from an earlier version have expired.
    oldest: u64,
    node: Value,
    events: Vec<Value>,
    requests: Vec<Request>,
    manner: Manner,
}

/// A request that the server got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
}

/// The server; it ends when this is dropped.
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod of a node with annotations, as the server keeps it.
#[must_use]
pub fn pod(node: &str, namespace: &str, name: &str, annotations: &[(&str, &str)]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-{namespace}-{name}"),
            "annotations": map(annotations),
        },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "example" }] },
        "status": { "phase": "Running" },
    })
}

/// A namespace with annotations.
#[must_use]
pub fn namespace(name: &str, annotations: &[(&str, &str)]) -> Value {
    json!({ "metadata": { "name": name, "annotations": map(annotations) } })
}

fn map(annotations: &[(&str, &str)]) -> BTreeMap<String, String> {
    annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn key(object: &Value) -> String {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

impl ApiServer {
    /// Starts a server on a free port of loopback. The connections to it are those of the calling thread's network
    /// namespace.
    ///
    /// # Panics
    /// Without a port.
    #[must_use]
    pub fn start() -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = State { version: 1, node: json!({ "status": {} }), ..State::default() };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), is_over: false.into() });
        let of_listener = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if of_listener.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = of_listener.clone();
                // A client that goes away is no fault of a test.
                thread::spawn(move || stream.and_then(|stream| shared.answer(stream)));
            }
        });
        ApiServer { address, shared }
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts an object in the place of an earlier one: `pods` or `namespaces`.
    pub fn put(&self, resource: &'static str, object: Value) {
        self.change(|state| {
            let is_new = !state.objects.entry(resource).or_default().contains_key(&key(&object));
            state.record(resource, if is_new { "ADDED" } else { "MODIFIED" }, object);
        });
    }

    /// Removes an object.
    pub fn delete(&self, resource: &'static str, namespace: &str, name: &str) {
        self.change(|state| {
            let key = format!("{namespace}/{name}");
            if let Some(object) = state.objects.entry(resource).or_default().remove(&key) {
                state.record(resource, "DELETED", object);
            }
        });
    }

    /// Behaves so from now on. Open watches end.
    pub fn behave(&self, manner: Manner) {
        self.change(|state| state.manner = manner);
    }

    /// Forgets the past: a watch from an earlier version gets 410.
    pub fn compact(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
        });
    }

    /// The extended resources in the node's status: capacity and what can be allocated.
    #[must_use]
    pub fn node_status(&self) -> Value {
        self.shared.state().node["status"].clone()
    }

    /// Changes the node as a kubelet does that registers it again.
    pub fn set_node(&self, node: Value) {
        self.change(|state| state.node = node);
    }

    /// The events that were created.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        self.shared.state().events.clone()
    }

    /// The requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changed.notify_all();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        // The listener wakes.
        drop(TcpStream::connect(self.address));
    }
}

impl State {
    fn record(&mut self, resource: &'static str, kind: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if kind != "DELETED" {
            self.objects.entry(resource).or_default().insert(key(&object), object.clone());
        }
        self.changes.push((self.version, resource, kind, object));
    }
}

/// The values of a query.
fn query(path: &str) -> BTreeMap<String, String> {
    let (_, query) = path.split_once('?').unwrap_or((path, ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.replace("%3D", "="))
    };
    query.split('&').map(pair).collect()
}

/// Whether a field selector by node takes an object.
fn is_of_node(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let node = query.get("fieldSelector").and_then(|text| text.strip_prefix("spec.nodeName="));
    node.is_none_or(|node| object["spec"]["nodeName"] == *node)
}

fn reply(stream: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} status\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn refusal(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "message": message })
}

/// Merges as RFC 7386 has it.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(into.as_object_mut().and_then(|map| map.remove(key))),
            value => merge(&mut into[key], value),
        }
    }
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.trim().split_once(':') {
                Some((key, value)) => headers.insert(key.to_ascii_lowercase(), value.trim().to_owned()),
                None => break,
            };
        }
        let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let authorization = headers.get("authorization").cloned();
        let manner = {
            let mut state = self.state();
            state.requests.push(Request { method: method.clone(), path: path.clone(), authorization });
            state.manner
        };
        match manner {
            Manner::Away => return Ok(()),
            Manner::Slow(time) => thread::sleep(time),
            Manner::Refusing(code) => {
                return reply(&mut stream, code, &refusal(code, "not now").to_string());
            }
            _ => {}
        }
        let (place, _) = path.split_once('?').unwrap_or((&path, ""));
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match (method.as_str(), place) {
            ("GET", "/api/v1/pods") => self.collection(&mut stream, "pods", &path, manner),
            ("GET", "/api/v1/namespaces") => self.collection(&mut stream, "namespaces", &path, manner),
            ("GET", _) if place.starts_with("/api/v1/nodes/") => {
                let node = self.state().node.to_string();
                reply(&mut stream, 200, &node)
            }
            ("PATCH", _) if place.starts_with("/api/v1/nodes/") && place.ends_with("/status") => {
                let node = {
                    let mut state = self.state();
                    merge(&mut state.node, &body);
                    state.node.to_string()
                };
                reply(&mut stream, 200, &node)
            }
            ("POST", _) if place.ends_with("/events") => {
                self.state().events.push(body.clone());
                reply(&mut stream, 201, &body.to_string())
            }
            _ => reply(&mut stream, 403, &refusal(403, "no right to this").to_string()),
        }
    }

    fn collection(
        &self,
        stream: &mut TcpStream,
        resource: &'static str,
        path: &str,
        manner: Manner,
    ) -> std::io::Result<()> {
        let query = query(path);
        if query.contains_key("watch") {
            return self.watch(stream, resource, &query, manner);
        }
        let limit: usize = query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
        let begin: usize = query.get("continue").and_then(|text| text.parse().ok()).unwrap_or(0);
        let text = {
            let state = self.state();
            let objects = state.objects.get(resource).into_iter().flat_map(BTreeMap::values);
            let all: Vec<&Value> = objects.filter(|object| is_of_node(object, &query)).collect();
            let items: Vec<&Value> = all.iter().skip(begin).take(limit).copied().collect();
            let end = begin + items.len();
            let more = if end < all.len() { end.to_string() } else { String::new() };
            let huge =
                if manner == Manner::Huge && items.len() > 1 { "x".repeat(20 << 20) } else { String::new() };
            json!({
                "kind": "List", "items": items, "ignored": huge,
                "metadata": { "resourceVersion": state.version.to_string(), "continue": more },
            })
            .to_string()
        };
        if manner == Manner::Garbled {
            return reply(stream, 200, &text[..text.len() / 2]);
        }
        reply(stream, 200, &text)
    }

    fn watch(
        &self,
        stream: &mut TcpStream,
        resource: &'static str,
        query: &BTreeMap<String, String>,
        manner: Manner,
    ) -> std::io::Result<()> {
        let mut from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")?;
        let line = |kind: &str, object: &Value| format!("{}\n", json!({ "type": kind, "object": object }));
        if manner == Manner::Short {
            return Ok(());
        }
        if manner == Manner::Expired || from < self.state().oldest {
            return stream.write_all(line("ERROR", &refusal(410, "too old resource version")).as_bytes());
        }
        let mut bookmark = Instant::now() + BOOKMARK_EVERY;
        let mut state = self.state();
        loop {
            if self.is_over.load(Ordering::SeqCst) || state.manner != manner {
                return Ok(());
            }
            let mut text = String::new();
            for (_, of, kind, object) in state.changes.iter().filter(|(version, ..)| *version > from) {
                if *of == resource && is_of_node(object, query) {
                    text += &line(kind, object);
                }
            }
            from = state.version;
            if Instant::now() >= bookmark {
                bookmark = Instant::now() + BOOKMARK_EVERY;
                text += &line("BOOKMARK", &json!({ "metadata": { "resourceVersion": from.to_string() } }));
            }
            if manner == Manner::Garbled && !text.is_empty() {
                text.truncate(text.len() / 2);
                text.push('\n');
            }
            drop(state);
            stream.write_all(text.as_bytes())?;
            state = self.state();
            if state.version == from && state.manner == manner {
                let waited = self.changed.wait_timeout(state, Duration::from_millis(50));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
