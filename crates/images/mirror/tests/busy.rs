//! Every route answers soon while the mirror does all its other work at once, on one thread as in the agent.

mod support;

use std::time::{Duration, Instant};

use support::{
    Puller, Registry, RegistryFault,
    site::{Node, file_of},
};

/// The longest that an answer may take.
const LIMIT: Duration = Duration::from_secs(2);

/// A download that is slow, and pulls and warms without end.
async fn load(registry: &Registry, node: &Node) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    let slow = registry.image("library/slow", "1", 500, &[8 << 20]);
    let address = node.address;
    registry.trouble(RegistryFault::Slow(Duration::from_millis(30)));
    tasks.push(tokio::spawn(async move {
        Puller(address).blob("library/slow", &slow.layers[0]).await;
    }));
    for n in 0..8 {
        registry.image(&format!("library/load{n}"), "1", 600 + n, &[1 << 20, 300_000, 5000, 2 << 20]);
    }
    tasks.push(tokio::spawn(async move {
        for n in (0..8).cycle() {
            // One that finds no room asks again.
            let _ = Puller(address).pull(&format!("library/load{n}"), "1").await;
        }
    }));
    let (mirror, runtime) = (node.mirror.clone(), node.runtime.clone());
    tasks.push(tokio::spawn(async move {
        for n in (0..8).rev().cycle() {
            let image = format!("library/load{n}:1").parse().unwrap();
            let id = mirror.warm(&image, "linux/amd64", &runtime);
            while mirror.warming(id).is_some_and(|seen| !seen.is_over) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            mirror.scrub(None, &runtime);
        }
    }));
    tasks
}

#[tokio::test]
async fn every_route_answers_soon_while_all_else_is_busy() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.tag_ttl_s = 0;
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    let made = registry.image("library/app", "1", 1, &[40_000]);
    node.puller().pull("library/app", "1").await.unwrap();
    // A large repository: its manifests are looked through under the store's lock.
    for n in 0..60 {
        registry.image("library/many", &n.to_string(), 1000 + n, &[10; 40]);
        node.puller().get(&format!("/v2/library/many/manifests/{n}")).await;
    }
    let tasks = load(&registry, &node).await;
    let app = "/v2/library/app";
    let routes = [
        ("GET", "/v2/".to_owned(), 200),
        ("GET", format!("{app}/manifests/1"), 200),
        ("HEAD", format!("{app}/manifests/1"), 200),
        ("GET", format!("{app}/manifests/{}", made.manifest), 200),
        ("GET", format!("{app}/blobs/{}", made.layers[0]), 200),
        ("HEAD", format!("{app}/blobs/{}", made.layers[0]), 200),
        ("GET", format!("{app}/tags/list"), 404),
        ("GET", format!("{app}/referrers/{}", made.manifest), 404),
        ("GET", format!("{app}/manifests/none"), 404),
        ("GET", format!("{app}/blobs/{}", support::digest(b"none")), 404),
        ("GET", "/v2/weir.invalid/doctor/manifests/x".to_owned(), 200),
        ("POST", format!("{app}/blobs/uploads/"), 405),
        ("GET", "/nothing".to_owned(), 404),
    ];
    let (begun, mut longest, mut rounds) = (Instant::now(), (Duration::ZERO, String::new()), 0);
    while begun.elapsed() < Duration::from_secs(4) {
        for (method, path, status) in &routes {
            let asked = Instant::now();
            let got = node.puller().request(method, path, &[]).await;
            longest = longest.max((asked.elapsed(), format!("{method} {path}")));
            assert_eq!(got.status, *status, "{method} {path}: {got:?}");
        }
        for work in [(|store| drop(store.images())) as fn(&weir_image::store::Store), |store| {
            assert!(store.usage(weir_image::now_utc()).is_ok())
        }] {
            let (asked, store) = (Instant::now(), node.mirror.store().clone());
            node.runtime.spawn_blocking(move || work(&store)).await.unwrap();
            longest = longest.max((asked.elapsed(), "a question of the socket".to_owned()));
        }
        rounds += 1;
    }
    println!("{rounds} rounds of {} routes; the longest: {longest:?}", routes.len());
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(longest.0 < LIMIT, "{longest:?}");
}

/// A file of the store that is a pipe: who opens it waits, as for a disk that does not answer.
struct Stuck(std::path::PathBuf);

impl Stuck {
    fn replace(file: std::path::PathBuf) -> Stuck {
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        Stuck(file)
    }
}

impl Drop for Stuck {
    /// A writer comes: all who wait go on.
    fn drop(&mut self) {
        let _ = std::fs::File::options().read(true).write(true).open(&self.0);
    }
}

#[tokio::test]
async fn routes_without_the_disk_answer_while_the_disk_does_not() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    let made = registry.image("library/app", "1", 1, &[40_000]);
    node.puller().pull("library/app", "1").await.unwrap();
    // A download under way, which ends when its only client has gone.
    let coming = registry.image("library/coming", "1", 2, &[1 << 20]);
    assert_eq!(node.puller().get("/v2/library/coming/manifests/1").await.status, 200);
    registry.trouble(RegistryFault::Drip(4000, Duration::from_millis(50)));
    let path = format!("/v2/library/coming/blobs/{}", coming.layers[0]);
    let client = node.puller().send("GET", &path, &[]).await;
    // The disk stops, with a request in it that has the store's lock.
    let stuck = Stuck::replace(file_of(&given.directory, &made.layers[0]));
    let address = node.address;
    let blob = made.layers[0].clone();
    let waiting = tokio::spawn(async move { Puller(address).blob("library/app", &blob).await.status });
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut late = Vec::new();
    for (method, path, status) in [
        ("GET", "/v2/", 200),
        ("GET", "/v2/library/app/tags/list", 404),
        ("GET", "/v2/weir.invalid/doctor/manifests/x", 200),
        ("POST", "/v2/library/app/blobs/uploads/", 405),
        ("GET", "/nothing", 404),
    ] {
        let puller = node.puller();
        let answer = tokio::time::timeout(LIMIT, puller.request(method, path, &[])).await;
        if answer.as_ref().map(|got| got.status) != Ok(status) {
            late.push(format!("{method} {path}: {answer:?}"));
        }
    }
    let is_waiting = !waiting.is_finished();
    drop(stuck);
    assert!(late.is_empty(), "{late:?}");
    assert!(is_waiting, "the disk was to be awaited");
    // It goes on with the disk: the pipe is no such blob, and its registry is asked again.
    assert_eq!(waiting.await.unwrap(), 200);
}
