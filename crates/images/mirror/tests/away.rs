//! A registry that is away for a while, or wants no requests for a while: who waits gets all of it, once.

mod support;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use support::{
    Puller, Registry, RegistryFault, TestImage, digest, pair,
    site::{Node, files, on_disk},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use weir_image::{Settings, Timing};

const APP: &str = "library/app";
const SIZE: usize = 6 << 20;

/// The way to a registry, which can be closed: connections are cut, and new ones are refused.
struct Gate {
    address: SocketAddr,
    to: SocketAddr,
    /// Bytes of the registry's answers.
    carried: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(near: TcpStream, to: SocketAddr, carried: Arc<AtomicU64>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let ((mut asks, mut answers), (mut answered, mut asked)) = (near.into_split(), far.into_split());
    let forth = async { tokio::io::copy(&mut asks, &mut asked).await };
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(got @ 1..) = answered.read(&mut buffer).await {
            if answers.write_all(&buffer[..got]).await.is_err() {
                return;
            }
            carried.fetch_add(got as u64, Ordering::Relaxed);
        }
        let _ = answers.shutdown().await;
    };
    let _ = tokio::join!(forth, back);
}

impl Gate {
    async fn to(to: SocketAddr) -> Gate {
        let mut gate = Gate {
            address: "127.0.0.1:0".parse().unwrap(),
            to,
            carried: Arc::default(),
            task: tokio::spawn(async {}),
        };
        gate.open().await;
        gate
    }

    async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (to, carried) = (self.to, Arc::clone(&self.carried));
        self.task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                open.spawn(carry(near, to, Arc::clone(&carried)));
            }
        });
    }

    async fn close(&mut self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn settings(directory: &Path, registry: &Registry, by: SocketAddr) -> Settings {
    let mut upstream = registry.settings("docker.io");
    upstream.url = Some(format!("http://{by}"));
    support::settings(directory, vec![upstream])
}

/// Waits until a node has `bytes` of a download on its disk.
async fn reaches(root: &Path, bytes: usize) {
    let begun = Instant::now();
    while on_disk(root, &["part"]) < bytes as u64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Twenty clients of one blob, whose registry goes away at a third of it.
async fn away(by: Duration) {
    let registry = Registry::start().await;
    let mut gate = Gate::to(registry.address).await;
    let dir = tempfile::tempdir().unwrap();
    let given = settings(&dir.path().join("store"), &registry, gate.address);
    let node = Node::alone(&given, Duration::ZERO, Timing::default());
    let made = registry.image(APP, "1", 1, &[SIZE]);
    node.puller().get(&format!("/v2/{APP}/manifests/1")).await;
    let before = gate.carried.load(Ordering::Relaxed);
    registry.trouble(RegistryFault::Slow(Duration::from_millis(20)));
    let pull = |n: u64| {
        let (puller, blob) = (Puller(node.address), made.layers[0].clone());
        async move {
            tokio::time::sleep(Duration::from_millis(20 * n)).await;
            puller.timed(APP, &blob).await
        }
    };
    let pulls = tokio::spawn(join_all((0..20).map(pull)));
    reaches(&given.directory, SIZE / 3).await;
    gate.close().await;
    tokio::time::sleep(by).await;
    gate.open().await;
    let pulled = pulls.await.unwrap();
    let cut = pulled.iter().filter(|one| one.got.status != 200 || one.got.body.is_err()).count();
    assert_eq!(cut, 0, "of 20 clients, away for {by:?}");
    assert!(pulled.iter().all(|one| digest(one.got.bytes()) == made.layers[0]));
    let bytes = gate.carried.load(Ordering::Relaxed) - before;
    let gap = pulled.iter().map(|one| one.gap).max().unwrap();
    let times = bytes as f64 / SIZE as f64;
    println!("away for {by:?}: 20 of 20 clients right, {times:.4} times the bytes, the longest gap {gap:?}");
    assert!((1.0..1.005).contains(&times), "{times} times the bytes");
}

/// `WEIR_AWAY`, seconds separated by commas, or as long as a normal run has time for.
#[tokio::test]
async fn a_registry_that_goes_away_and_comes_back_cuts_no_client() {
    let given = std::env::var("WEIR_AWAY").unwrap_or_else(|_| "2".to_owned());
    let times = given.split(',').map(|text| Duration::from_secs(text.parse().expect("WEIR_AWAY is seconds")));
    join_all(times.map(away)).await;
}

#[tokio::test]
async fn a_registry_that_says_when_it_is_back_is_asked_then() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 2, &[100_000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    registry.trouble(RegistryFault::Unavailable(1));
    let begun = Instant::now();
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 2);
}

#[tokio::test]
async fn a_repository_that_is_to_be_left_alone_holds_up_no_other() {
    let (registry, served, _dir) = pair().await;
    let one = registry.image("acme/one", "1", 3, &[1000, 2000]);
    let other = registry.image("acme/other", "1", 4, &[1000]);
    for name in ["acme/one", "acme/other"] {
        served.get(&format!("/v2/{name}/manifests/1")).await;
    }
    for trouble in [RegistryFault::Limited(60), RegistryFault::Unavailable(60)] {
        let blob = if let RegistryFault::Limited(_) = trouble { &one.layers[0] } else { &other.layers[0] };
        let name = if let RegistryFault::Limited(_) = trouble { "acme/one" } else { "acme/other" };
        registry.trouble(trouble);
        let begun = Instant::now();
        assert_eq!(served.blob(name, blob).await.status, 404);
        assert!(begun.elapsed() < Duration::from_secs(2), "there is no time to wait for it");
        // Of this repository nothing more is asked for, of a third one everything.
        let asked = registry.log().len();
        let again = if name == "acme/one" { &one.layers[1] } else { &other.config };
        assert_eq!(served.blob(name, again).await.status, 404);
        assert_eq!(registry.log().len(), asked);
        let tag = asked.to_string();
        registry.image("acme/third", &tag, asked as u64, &[500]);
        served.pull("acme/third", &tag).await.unwrap();
    }
}

/// A node that was killed in the middle of a blob.
async fn killed(registry: &Registry, dir: &Path, with_manifest: bool) -> (Settings, TestImage) {
    let given = settings(&dir.join("store"), registry, registry.address);
    let made = registry.image(APP, "1", 5, &[SIZE]);
    let mut node = Node::alone(&given, Duration::ZERO, support::timing());
    if with_manifest {
        node.puller().get(&format!("/v2/{APP}/manifests/1")).await;
    }
    registry.trouble(RegistryFault::Slow(Duration::from_millis(10)));
    let (puller, blob) = (node.puller(), made.layers[0].clone());
    let pull = tokio::spawn(async move { puller.timed(APP, &blob).await });
    reaches(&given.directory, SIZE / 2).await;
    node.kill();
    drop(node);
    assert!(pull.await.unwrap().got.body.is_err());
    (given, made)
}

#[tokio::test]
async fn a_blob_without_a_known_manifest_is_resumed_after_a_kill() {
    let (registry, dir) = (Registry::start().await, tempfile::tempdir().unwrap());
    let (given, made) = killed(&registry, dir.path(), false).await;
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    assert_eq!(digest(node.puller().blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1, "the rest is asked for by range");
    let came = node.counted("upstream_bytes");
    assert!(came <= SIZE as u64 / 2, "{came} of {SIZE} bytes");
}

#[tokio::test]
async fn a_part_that_the_disk_changed_cuts_its_client_once_and_is_fetched_anew() {
    let (registry, dir) = (Registry::start().await, tempfile::tempdir().unwrap());
    let (given, made) = killed(&registry, dir.path(), true).await;
    let part = files(&given.directory, &["part"]).pop().unwrap();
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    let wrong = node.puller().blob(APP, &made.layers[0]).await;
    assert!(wrong.body.is_err(), "{} wrong bytes came", wrong.body.unwrap().len());
    // At once: the registry is not to blame.
    assert_eq!(digest(node.puller().blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
}
