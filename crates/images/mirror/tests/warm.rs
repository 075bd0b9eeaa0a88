//! Images that are fetched before anyone asks: each warm ends, on one thread as in the agent.

mod support;

use std::time::{Duration, Instant};

use support::{
    Registry, RegistryFault,
    site::{APP, Cluster, Node, world},
};
use tokio::time::timeout;
use weir_image::PopStore;

/// The longest that a warm takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A look at a warm that comes later than this after the one before does so because the machine stood still.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// `WEIR_WARMS`, or as many as a normal run has time for.
fn warms() -> u64 {
    std::env::var("WEIR_WARMS").map_or(30, |text| text.parse().expect("WEIR_WARMS is a number"))
}

/// Where in the kernel each thread of this process waits, and how often.
fn waits() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read =
        |task: std::fs::DirEntry, name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
    let mut found: Vec<String> = tasks.map(|task| read(task, "wchan")).collect();
    found.sort();
    found.chunk_by(|a, b| a == b).map(|same| format!("{} of {}, ", same.len(), same[0])).collect()
}

/// Warms images of 5 to 15 blobs, one after the other, on the nodes in turn. A frozen node cannot be stopped:
/// it is left to the end of the process.
async fn warm_all(registry: &Registry, nodes: Vec<Node>) -> Vec<Node> {
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    for n in 0..warms() {
        let asked = Instant::now();
        let sizes: Vec<usize> =
            (0..4 + n % 11).map(|layer| 1000 + (n + 7 * layer) as usize % 9 * 2000).collect();
        let made = registry.image(APP, &n.to_string(), n, &sizes);
        let node = &nodes[n as usize % nodes.len()];
        let image = format!("docker.io/{APP}:{n}").parse().unwrap();
        let id = node.mirror.warm(&image, "linux/amd64", &node.runtime);
        // Without the time for which the whole machine stood still.
        let (mut waited, mut looked) = (Duration::ZERO, Instant::now());
        let seen = loop {
            let seen = node.mirror.warming(id).unwrap();
            if seen.is_over {
                break seen;
            }
            waited += looked.elapsed().min(LONGEST_LOOK);
            looked = Instant::now();
            if waited > LIMIT {
                let waits = waits();
                let answers = timeout(Duration::from_secs(2), node.puller().get("/v2/")).await.is_ok();
                let all = asked.elapsed();
                std::mem::forget(nodes);
                panic!(
                    "warm {n} does not end: {seen:?} after {all:?}; its node answers others: {answers}; \
                     threads wait in {waits}"
                );
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        longest = longest.max(asked.elapsed());
        assert_eq!(seen.error, None, "warm {n}");
        assert_eq!(seen.done, seen.total, "warm {n}");
        assert!(
            made.layers.iter().chain([&made.config]).all(|blob| node.mirror.store().has(blob)),
            "warm {n}"
        );
        // The mirror answers others too.
        if n % 10 == 9 {
            assert_eq!(node.puller().get("/v2/").await.status, 200);
        }
        registry.state.blobs.lock().unwrap().clear();
    }
    let (all, nodes_there) = (begun.elapsed(), nodes.len());
    println!("{} warms on {nodes_there} nodes in {all:?}, the longest in {longest:?}", warms());
    nodes
}

#[tokio::test]
async fn warms_of_a_node_alone_all_end() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    warm_all(&registry, vec![node]).await;
}

async fn warm_on_a_site(store: PopStore) {
    let mut world: Cluster = world(store, 5, 64 << 20).await;
    let nodes = std::mem::take(&mut world.nodes);
    world.nodes = warm_all(&world.registry, nodes).await;
}

#[tokio::test]
async fn warms_on_a_site_of_five_peers_all_end() {
    warm_on_a_site(PopStore::Peer).await;
}

#[tokio::test]
async fn warms_on_a_site_with_one_directory_all_end() {
    warm_on_a_site(PopStore::SharedDir).await;
}

#[tokio::test]
async fn warm_of_a_node_that_stops_ends_with_an_error() {
    let registry = Registry::start().await;
    registry.image(APP, "1", 1, &[100 << 10]);
    registry.trouble(RegistryFault::Silence);
    let dir = tempfile::tempdir().unwrap();
    let given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let mut node = Node::alone(&given, Duration::ZERO, support::timing());
    let image = format!("docker.io/{APP}:1").parse().unwrap();
    let id = node.mirror.warm(&image, "linux/amd64", &node.runtime);
    while node.mirror.warming(id).unwrap().total == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.kill();
    let seen = node.mirror.warming(id).unwrap();
    assert!(seen.is_over && seen.error.is_some_and(|why| why.contains("warm it again")));
}

/// A registry writes what it likes: here two layers of all bytes that there can be.
#[tokio::test]
async fn sizes_that_cannot_be_added_end_a_warm_with_the_registrys_fault() {
    let (registry, served, _dir) = support::pair().await;
    let made = registry.image(APP, "1", 70, &[10, 20]);
    let (tag, name) = (format!("{APP}/1"), format!("{APP}/{}", made.manifest));
    let (kind, bytes) = registry.state.manifests.lock().unwrap()[&tag].clone();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let most = u64::MAX.to_string();
    let text = text
        .replace("\"size\":10", &format!("\"size\":{most}"))
        .replace("\"size\":20", &format!("\"size\":{most}"));
    assert_eq!(text.matches(&most).count(), 2, "{text}");
    registry.state.manifests.lock().unwrap().remove(&name);
    let digest = support::digest(text.as_bytes());
    for key in [tag, format!("{APP}/{digest}")] {
        registry.state.manifests.lock().unwrap().insert(key, (kind.clone(), text.clone().into()));
    }
    let image = format!("docker.io/{APP}:1").parse().unwrap();
    let id = served.mirror.warm(&image, "linux/amd64", &tokio::runtime::Handle::current());
    let waiting = async {
        loop {
            match served.mirror.warming(id).unwrap() {
                seen if seen.is_over => return seen,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let seen = timeout(LIMIT, waiting).await.unwrap();
    assert!(
        seen.total == u64::MAX && seen.error.as_ref().is_some_and(|why| why.contains("announced")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn image_of_an_index_in_an_index_is_warmed_and_listed_whole() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    let made = registry.image(APP, "one", 1, &[400_000, 30_000]);
    let size = |tag: &str| registry.state.manifests.lock().unwrap()[&format!("{APP}/{tag}")].1.len();
    let (inner, length) = registry.index(APP, "inner", &[(&made.manifest, size("one"), Some("amd64"))]);
    let arm = registry.image(APP, "arm", 2, &[1000]);
    let outer = [(&inner, length, None), (&arm.manifest, size("arm"), Some("arm64"))];
    registry.index(APP, "1", &outer);
    let warm = async |platform| {
        let image = format!("docker.io/{APP}:1").parse().unwrap();
        let id = node.mirror.warm(&image, platform, &node.runtime);
        timeout(LIMIT, async {
            loop {
                let seen = node.mirror.warming(id).unwrap();
                if seen.is_over {
                    break seen;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap()
    };
    let seen = warm("linux/amd64").await;
    assert_eq!((seen.error, seen.done), (None, seen.total));
    assert!(made.layers.iter().chain([&made.config]).all(|blob| node.mirror.store().has(blob)));
    let listed = node.mirror.store().images();
    let present = listed[0].present;
    assert_eq!((listed.len(), &*listed[0].image), (1, &*format!("docker.io/{APP}:1")));
    assert!(present > 430_000 && present == listed[0].total, "{listed:?}");
    assert_eq!(listed[0].platforms, ["linux/amd64"]);
    let why = warm("linux/s390x").await.error.unwrap();
    assert!(why.contains("but for linux/arm64, linux/amd64"), "{why}");
}
