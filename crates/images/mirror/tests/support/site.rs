//! Nodes of a site, each with a runtime of its own that can be stopped at any moment, as by a kill.

use std::{
    fs::Permissions,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{
    runtime::{Builder, Handle},
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot,
    },
};
use weir_image::{
    Digest, Mirror, PopSettings, PopStore, Settings, Timing,
    coordination::{Coordination, Embedded},
    now_utc,
    store::{Budget, PolicyKind, Store, StoreError},
};

use super::memory::{InMemoryCoordination, InMemoryNode};
use super::{Got, Puller, Registry, counted, settings, timing};

/// A repository of the registry.
pub(crate) const APP: &str = "library/app";

/// An address of this machine's own that no other test has: nodes are told theirs before they listen.
fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 100 + high, low, NEXT.fetch_add(1, Ordering::Relaxed)], 5051))
}

/// A registry, and the nodes of a site that has one cache.
pub(crate) struct Cluster {
    pub(crate) registry: Registry,
    pub(crate) site: InMemoryCoordination,
    /// The nodes' means of coordination, unless a test gives them another.
    pub(crate) nodes_in_memory: Vec<InMemoryNode>,
    pub(crate) settings: Vec<Settings>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) dir: tempfile::TempDir,
}

impl Cluster {
    /// Settings for this number of nodes, before any of them runs.
    pub(crate) async fn plan(store: PopStore, nodes: usize, budget: u64) -> Cluster {
        let registry = Registry::start().await;
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        write_secret(&secret, "sixteen characters or more\n");
        let (site, mut nodes_in_memory, mut planned) =
            (InMemoryCoordination::default(), Vec::new(), Vec::new());
        for n in 0..nodes {
            let (root, name, listen) = match store {
                PopStore::SharedDir => (dir.path().join("store"), format!("node{n}"), None),
                PopStore::Peer => {
                    let listen = address();
                    (dir.path().join(format!("store{n}")), listen.to_string(), Some(listen))
                }
            };
            let mut given = settings(&root, vec![registry.settings("docker.io")]);
            given.budget = weir_units::Bytes(budget);
            given.pop = Some(PopSettings {
                name: "test".to_owned(),
                node: Some(format!("node{n}")),
                store,
                redis: "redis://10.0.0.5".to_owned(),
                redis_password_file: None,
                listen,
                secret_file: listen.map(|_| secret.clone()),
                networks: Vec::new(),
            });
            nodes_in_memory.push(site.node(&name));
            planned.push(given);
        }
        Cluster { registry, site, nodes_in_memory, settings: planned, nodes: Vec::new(), dir }
    }

    /// By what the nodes are known to each other.
    pub(crate) fn name(&self, node: usize) -> String {
        self.settings[node].pop.as_ref().unwrap().address().unwrap()
    }

    /// Opens all stores, begins all nodes, and waits until they know of each other.
    pub(crate) async fn begin(&mut self, by: Vec<Arc<dyn Coordination>>) {
        for coordination in &by {
            // Before the mirrors look for the first time.
            let begun = Instant::now();
            while let Err(e) = coordination.register(&Default::default(), now_utc()).await {
                assert!(begun.elapsed() < Duration::from_secs(60), "{e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let stores: Vec<Store> = (0..by.len()).map(|n| self.open(n)).collect();
        for ((store, given), coordination) in stores.into_iter().zip(&self.settings).zip(by) {
            self.nodes.push(Node::over(store, given, coordination));
        }
        let begun = Instant::now();
        while self.nodes.iter().any(|node| node.mirror.site().nodes.len() < self.nodes.len()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the nodes do not find each other");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// As [`Cluster::begin`], coordinated in memory.
    pub(crate) async fn begin_in_memory(&mut self) {
        let by =
            self.nodes_in_memory.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Coordination>).collect();
        self.begin(by).await;
    }

    /// The store of a node.
    pub(crate) fn open(&self, node: usize) -> Store {
        let given = &self.settings[node];
        let budget = Budget { young: Duration::ZERO, ..given.store_budget() };
        let pop = given.pop.as_ref().unwrap();
        match pop.store {
            PopStore::SharedDir => share(&given.directory, &pop.node().unwrap(), budget),
            PopStore::Peer => {
                let begun = Instant::now();
                loop {
                    match Store::open(&given.directory, budget, PolicyKind::Lru, now_utc()) {
                        // Of a node that was killed some thread may do its last work.
                        Err(StoreError::InUse(_)) if begun.elapsed() < Duration::from_secs(30) => {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        opened => break opened.unwrap().0,
                    }
                }
            }
        }
    }

    /// Where a node has its blobs.
    pub(crate) fn root(&self, node: usize) -> &Path {
        &self.settings[node].directory
    }

    /// How often a blob was asked for from its first byte.
    pub(crate) fn whole(&self, blob: &Digest) -> usize {
        self.registry.asked_whole(APP, blob)
    }

    /// Waits until a node has this many bytes of downloads on its disk.
    pub(crate) async fn reaches(&self, node: usize, bytes: u64) {
        let begun = Instant::now();
        while on_disk(self.root(node), &["part"]) < bytes {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Of all nodes.
    pub(crate) fn sum(&self, counter: &str) -> u64 {
        self.nodes.iter().map(|node| node.counted(counter)).sum()
    }
}

/// Writes a file that no other user may open.
pub(crate) fn write_secret(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
}

/// A site that is coordinated in memory.
pub(crate) async fn world(store: PopStore, nodes: usize, budget: u64) -> Cluster {
    let mut world = Cluster::plan(store, nodes, budget).await;
    world.begin_in_memory().await;
    world
}

/// The file of a blob of a store.
pub(crate) fn file_of(root: &Path, blob: &Digest) -> std::path::PathBuf {
    root.join("blobs").join(blob.algorithm().name()).join(&blob.hex()[..2]).join(blob.hex())
}

/// Changes a byte as a disk does that goes bad: no size and no time tells of it.
pub(crate) fn rot(file: &Path, at: usize) {
    let modified = std::fs::metadata(file).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
    std::fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
}

pub(crate) struct Node {
    pub(crate) mirror: Mirror,
    pub(crate) address: SocketAddr,
    /// Of its runtime.
    pub(crate) runtime: Handle,
    running: Option<(oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
    freezer: UnboundedSender<std::sync::mpsc::Receiver<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The store of a node that shares its directory.
pub(crate) fn share(directory: &Path, name: &str, budget: Budget) -> Store {
    let begun = Instant::now();
    loop {
        match Store::share(directory, name, budget, PolicyKind::Lru, now_utc()) {
            // Of a node that was killed some thread may do its last work.
            Err(StoreError::NodeInUse { .. }) if begun.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => break opened.unwrap().0,
        }
    }
}

impl Node {
    /// One that shares the settings' directory.
    pub(crate) fn sharing(name: &str, settings: &Settings, coordination: Arc<dyn Coordination>) -> Node {
        let budget = Budget { young: Duration::ZERO, ..settings.store_budget() };
        Node::over(share(&settings.directory, name, budget), settings, coordination)
    }

    /// One that is no site's. Of a node that was killed some thread may still have the store for a moment.
    pub(crate) fn alone(settings: &Settings, young: Duration, timing: Timing) -> Node {
        let budget = Budget { young, ..settings.store_budget() };
        let begun = Instant::now();
        let store = loop {
            match Store::open(&settings.directory, budget, PolicyKind::Lru, now_utc()) {
                Err(StoreError::InUse(_)) if begun.elapsed() < Duration::from_secs(30) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => break opened.unwrap().0,
            }
        };
        Node::timed(store, settings, Arc::<Embedded>::default(), timing)
    }

    pub(crate) fn over(store: Store, settings: &Settings, coordination: Arc<dyn Coordination>) -> Node {
        Node::timed(store, settings, coordination, timing())
    }

    fn timed(store: Store, settings: &Settings, coordination: Arc<dyn Coordination>, timing: Timing) -> Node {
        let mirror = Mirror::over(settings.clone(), timing, store, coordination).unwrap();
        let listener = mirror.listen().unwrap();
        let (address, serving) = (listener.local_addr().unwrap(), mirror.clone());
        let (stop, stopped) = oneshot::channel();
        let (freezer, mut frozen) = unbounded_channel::<std::sync::mpsc::Receiver<()>>();
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(32).build().unwrap();
        let handle = runtime.handle().clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    served = serving.serve(listener) => served.unwrap(),
                    _ = stopped => {}
                    () = async {
                        while let Some(thaw) = frozen.recv().await {
                            // All that this node does is done by this thread.
                            let _ = thaw.recv();
                        }
                    } => {}
                }
            });
            runtime.shutdown_background();
        });
        Node { mirror, address, runtime: handle, running: Some((stop, thread)), freezer }
    }

    /// Takes it off the network: it accepts what comes, as its kernel does, and says nothing, to anybody.
    /// It goes on where it was when what this answers is dropped.
    pub(crate) fn freeze(&self) -> std::sync::mpsc::Sender<()> {
        let (thaw, frozen) = std::sync::mpsc::channel();
        self.freezer.send(frozen).unwrap();
        thaw
    }

    /// Nothing of it runs any more; what it held, it holds.
    pub(crate) fn kill(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    pub(crate) fn puller(&self) -> Puller {
        Puller(self.address)
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        counted(&self.mirror, name)
    }
}

/// A blob as its client sees it: when its first byte came, and what came.
pub(crate) struct Timed {
    pub(crate) first: Instant,
    /// The longest that nothing came.
    pub(crate) gap: Duration,
    pub(crate) got: Got,
}

impl Puller {
    pub(crate) async fn timed(&self, name: &str, digest: &Digest) -> Timed {
        let mut moved = Instant::now();
        let response = self.send("GET", &format!("/v2/{name}/blobs/{digest}"), &[]).await;
        let (parts, mut body) = response.into_parts();
        let mut all = Vec::new();
        let (mut first, mut end, mut gap) = (None, Ok(()), moved.elapsed());
        while let Some(frame) = body.frame().await {
            gap = gap.max(moved.elapsed());
            moved = Instant::now();
            match frame {
                Ok(frame) => {
                    first.get_or_insert_with(Instant::now);
                    all.extend(frame.into_data().unwrap_or_default());
                }
                Err(e) => {
                    end = Err(e.to_string());
                    break;
                }
            }
        }
        let body = end.map(|()| Bytes::from(all));
        let got = Got { status: parts.status.as_u16(), headers: parts.headers, body };
        Timed { first: first.unwrap_or_else(Instant::now), gap: gap.max(moved.elapsed()), got }
    }
}

/// Bytes of all files below these directories of a store.
pub(crate) fn on_disk(root: &Path, names: &[&str]) -> u64 {
    files(root, names).iter().map(|path| std::fs::metadata(path).map_or(0, |meta| meta.len())).sum()
}

/// All files below these directories of a store.
pub(crate) fn files(root: &Path, names: &[&str]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut dirs: Vec<_> = names.iter().map(|name| root.join(name)).collect();
    while let Some(dir) = dirs.pop() {
        // A blob that is being moved may be gone.
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found
}
