//! A Docker API of images and containers without a Docker: it refuses and removes as dockerd 20.10 does
//! (`daemon/images/image_delete.go`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// An image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeImage {
    /// Its layers, the lowest first: a digest and a size.
    pub layers: Vec<(String, u64)>,
    /// Its names with tags.
    pub names: BTreeSet<String>,
    /// Its names with digests.
    pub digests: BTreeSet<String>,
    /// Whether its history is empty, as after a squash by another builder.
    pub has_no_history: bool,
}

/// A hook that is run before a request is answered: it may change the store, as another client would.
pub type Before = Box<dyn FnMut(&mut Store, &str) + Send>;

/// The images and containers of the daemon.
#[derive(Default)]
pub struct Store {
    /// By id.
    pub images: BTreeMap<String, FakeImage>,
    /// The image of each container, by the container's name, which is its id too.
    pub containers: BTreeMap<String, String>,
    /// Images that were removed, in order.
    pub removed: Vec<String>,
    /// Removals that were refused as a container had the image.
    pub refused: u64,
    /// The requests so far: `GET /images/json`.
    pub asked: Vec<String>,
    /// The answer to each request with this part, instead of the right one.
    pub faults: BTreeMap<&'static str, (u16, &'static str)>,
    /// Run before each request that changes the store, with its method and path.
    pub before_change: Option<Before>,
    listeners: Vec<mpsc::Sender<String>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("images", &self.images).field("containers", &self.containers).finish()
    }
}

/// The repository of a name: without its tag or digest.
fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let end = name.rfind('/').map_or(0, |at| at + 1);
    name[end..].find(':').map_or(name, |at| &name[..end + at])
}

impl FakeImage {
    fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.1).sum()
    }

    /// Docker's `isSingleReference`: at most one tag, and digests of its repository only.
    fn has_one_reference(&self) -> bool {
        if self.names.len() + self.digests.len() <= 1 {
            return true;
        }
        let mut repositories: BTreeSet<&str> = self.digests.iter().map(|digest| repository(digest)).collect();
        repositories.extend(self.names.iter().map(|name| repository(name)));
        self.names.len() <= 1 && repositories.len() == 1
    }
}

impl Store {
    /// Adds an image, or gives it one more name; the name leaves another image that has it.
    pub fn pull(&mut self, id: &str, name: &str, layers: &[(String, u64)]) {
        for image in self.images.values_mut() {
            image.names.remove(name);
        }
        let image = self.images.entry(id.to_owned()).or_default();
        image.layers = layers.to_vec();
        image.names.insert(name.to_owned());
        image.digests.insert(format!("{}@{id}", repository(name)));
        self.tell("image", "pull", name, json!({"name": repository(name)}));
    }

    /// Makes a container.
    pub fn create(&mut self, container: &str, image: &str) {
        assert!(self.images.contains_key(image), "{container} wants {image}, which is not here");
        self.containers.insert(container.to_owned(), image.to_owned());
        let name = self.images[image].names.first().cloned().unwrap_or_else(|| image.to_owned());
        self.tell("container", "create", container, json!({"image": name, "name": container}));
    }

    /// Removes a container.
    pub fn destroy(&mut self, container: &str) {
        self.containers.remove(container);
        self.tell("container", "destroy", container, json!({"name": container}));
    }

    /// The size of all layers, each counted once, as `GET /system/df` tells it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let mut sizes = BTreeMap::new();
        for image in self.images.values() {
            // A layer is the same only above the same layers.
            let mut chain = DefaultHasher::new();
            for (diff, bytes) in &image.layers {
                diff.hash(&mut chain);
                sizes.insert(chain.finish(), *bytes);
            }
        }
        sizes.values().sum()
    }

    fn tell(&mut self, kind: &str, action: &str, id: &str, attributes: Value) {
        let event = json!({"Type": kind, "Action": action, "Actor": {"ID": id, "Attributes": attributes}});
        self.listeners.retain(|listener| listener.send(format!("{event}\n")).is_ok());
    }

    fn is_used(&self, id: &str) -> bool {
        self.containers.values().any(|image| image == id)
    }

    /// The id of an image by id or name.
    fn find(&self, reference: &str) -> Option<String> {
        let has = |image: &FakeImage| image.names.contains(reference) || image.digests.contains(reference);
        let found = self.images.iter().find(|(id, image)| *id == reference || has(image));
        found.map(|(id, _)| id.clone())
    }

    /// `DELETE /images/REFERENCE` without force.
    fn delete(&mut self, reference: &str) -> (u16, Value) {
        let Some(id) = self.find(reference) else {
            return (404, json!({"message": format!("No such image: {reference}")}));
        };
        let is_used = self.is_used(&id);
        let is_single = self.images[&id].has_one_reference();
        let mut refuse = |why: &str| {
            self.refused += 1;
            (
                409,
                json!({"message": format!("conflict: unable to delete {reference} (must be forced) - {why}")}),
            )
        };
        let image = self.images.get_mut(&id).expect("it was found");
        if reference == id {
            if !is_single {
                return refuse("image is referenced in multiple repositories");
            }
            if is_used {
                return refuse("image is being used by a container");
            }
        } else {
            if is_single && is_used {
                return refuse("a container is using its referenced image");
            }
            image.names.remove(reference);
            image.digests.remove(reference);
            let has_tag = image.names.iter().any(|name| repository(name) == repository(reference));
            if !has_tag {
                image.digests.retain(|digest| repository(digest) != repository(reference));
            }
            if image.names.len() + image.digests.len() > 0 {
                return (200, json!([{"Untagged": reference}]));
            }
        }
        self.images.remove(&id);
        self.removed.push(id.clone());
        self.tell("image", "delete", &id, json!({"name": id}));
        (200, json!([{"Untagged": reference}, {"Deleted": id}]))
    }

    fn listed(&self, id: &str, image: &FakeImage) -> Value {
        json!({
            "Id": id, "ParentId": "", "RepoTags": image.names, "RepoDigests": image.digests, "Created": 1,
            "Size": image.bytes(), "SharedSize": -1, "VirtualSize": image.bytes(), "Labels": null, "Containers": -1,
        })
    }

    fn answer(&mut self, method: &str, path: &str, query: &BTreeMap<String, String>) -> (u16, Value) {
        let not_found = |what: &str| (404, json!({"message": format!("no such image: {what}")}));
        match (method, path) {
            ("GET", "/images/json") => {
                (200, self.images.iter().map(|(id, image)| self.listed(id, image)).collect())
            }
            ("GET", "/containers/json") => {
                let listed = self.containers.iter().map(|(id, image)| {
                    json!({"Id": id, "Names": [format!("/{id}")], "ImageID": image, "State": "exited"})
                });
                (200, listed.collect())
            }
            ("GET", "/system/df") => (200, json!({"LayersSize": self.bytes(), "Volumes": null})),
            ("GET", path) if path.starts_with("/images/") => {
                let (name, what) = path["/images/".len()..].rsplit_once('/').unwrap_or_default();
                let Some(id) = self.find(name) else { return not_found(name) };
                let image = &self.images[&id];
                let diffs: Vec<&String> = image.layers.iter().map(|layer| &layer.0).collect();
                let entry = |layer: &(String, u64)| json!({"Id": "<missing>", "Created": 1, "CreatedBy": "COPY . . # buildkit", "Size": layer.1});
                match what {
                    "json" => (200, json!({"Id": id, "RootFS": {"Type": "layers", "Layers": diffs}})),
                    "history" if image.has_no_history => (200, json!([])),
                    "history" => {
                        let command = json!({"CreatedBy": "CMD [\"app\"]", "Size": 0});
                        (200, [command].into_iter().chain(image.layers.iter().rev().map(entry)).collect())
                    }
                    _ => not_found(what),
                }
            }
            ("DELETE", path) if path.starts_with("/images/") => self.delete(&path["/images/".len()..]),
            ("POST", path) if path.ends_with("/tag") => {
                let name = &path["/images/".len()..path.len() - "/tag".len()];
                let Some(id) = self.find(name) else { return not_found(name) };
                let tag = format!("{}:{}", query["repo"], query["tag"]);
                for image in self.images.values_mut() {
                    image.names.remove(&tag);
                }
                self.images.get_mut(&id).expect("it was found").names.insert(tag);
                (201, Value::Null)
            }
            _ => (400, json!({"message": format!("bad request {method} {path}")})),
        }
    }
}

/// The daemon. It answers on a socket of its own until the test's process ends.
#[derive(Debug)]
pub struct FakeDocker {
    dir: TempDir,
    store: Arc<Mutex<Store>>,
}

impl FakeDocker {
    /// Starts one without images.
    ///
    /// # Panics
    /// The system refuses a socket.
    #[must_use]
    pub fn start() -> FakeDocker {
        let dir = TempDir::new().expect("can make a directory");
        let store = Arc::<Mutex<Store>>::default();
        let listener = UnixListener::bind(dir.path().join("docker.sock")).expect("can listen");
        let served = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = served.clone();
                // An error is that the client has gone.
                thread::spawn(move || drop(serve(stream, &store)));
            }
        });
        FakeDocker { dir, store }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    /// Its images and containers.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn serve(mut stream: UnixStream, store: &Mutex<Store>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = decode(path.strip_prefix("/v1.41").unwrap_or(path));
    let query: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), decode(v)))
        .collect();
    if path == "/events" {
        let (sender, events) = mpsc::channel();
        lock(store).listeners.push(sender);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        for event in events {
            write!(stream, "{:x}\r\n{event}\r\n", event.len())?;
        }
        return Ok(());
    }
    let (status, body) = {
        let mut store = lock(store);
        store.asked.push(format!("{method} {path}"));
        if method != "GET"
            && let Some(mut before) = store.before_change.take()
        {
            before(&mut store, &format!("{method} {path}"));
            store.before_change.get_or_insert(before);
        }
        let fault = store.faults.iter().find(|(part, _)| path.contains(**part)).map(|(_, fault)| *fault);
        match fault {
            Some((status, text)) => (status, json!({ "message": text })),
            None if path == "/_ping" => (200, json!("OK")),
            None => store.answer(method, &path, &query),
        }
    };
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} Any\r\nApi-Version: 1.41\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
