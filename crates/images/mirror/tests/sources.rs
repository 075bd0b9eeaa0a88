//! A blob is served under a name only if the registry behind that name has delivered its bytes.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use support::{
    Got, Registry, RegistryFault, Served, TestImage, digest, noise, serve, settings,
    site::{APP, Cluster, Node, files},
    timing,
};
use weir_image::{Digest, PopStore, UpstreamSettings};

/// The owner shows this to the private registry.
const LOGIN: (&str, &str) = ("authorization", "Basic dXNlcjpwYXNz");
/// The repository of the attacker, as its registry and the mirror call it.
const THIEF: &str = "evil.example/thief/x";

/// A private registry, called `docker.io`, and one of an attacker.
struct Scene {
    owner: Registry,
    evil: Registry,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn set() -> Scene {
        let (owner, evil) = (Registry::start().await, Registry::start().await);
        *owner.state.login.lock().unwrap() = Some("dXNlcjpwYXNz".to_owned());
        Scene { owner, evil, dir: tempfile::tempdir().unwrap() }
    }

    fn upstreams(&self) -> Vec<UpstreamSettings> {
        vec![self.owner.settings("docker.io"), self.evil.settings("evil.example")]
    }

    async fn serve(&self) -> Served {
        serve(settings(&self.dir.path().join("store"), self.upstreams())).await
    }

    fn bytes(&self, blob: &Digest) -> Bytes {
        self.owner.state.blobs.lock().unwrap()[&blob.to_string()].clone()
    }

    /// The attacker's registry says that it has this blob, of these bytes, also in an image of its own.
    fn claim(&self, blob: &Digest, bytes: Bytes) {
        claim(&self.evil, blob, bytes);
    }
}

fn claim(evil: &Registry, blob: &Digest, bytes: Bytes) {
    let made = evil.image("thief/x", "1", 77, &[bytes.len()]);
    let mut manifests = evil.state.manifests.lock().unwrap();
    let (kind, text) = manifests[&format!("thief/x/{}", made.manifest)].clone();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let text = Bytes::from(text.replace(&made.layers[0].to_string(), &blob.to_string()));
    for reference in ["1".to_owned(), digest(&text).to_string()] {
        manifests.insert(format!("thief/x/{reference}"), (kind.clone(), text.clone()));
    }
    drop(manifests);
    evil.state.blobs.lock().unwrap().insert(blob.to_string(), bytes);
}

/// The owner takes an image with the credentials.
async fn take(puller: &support::Puller, made: &TestImage) {
    let manifest = puller.request("GET", &format!("/v2/{APP}/manifests/1"), &[LOGIN]).await;
    assert_eq!(digest(manifest.bytes()), made.manifest);
    for blob in made.layers.iter().chain([&made.config]) {
        let got = puller.request("GET", &format!("/v2/{APP}/blobs/{blob}"), &[LOGIN]).await;
        assert_eq!(digest(got.bytes()), *blob);
    }
}

/// Whether any piece of the secret came.
fn leaks(got: &Got, secret: &Bytes) -> bool {
    let body = got.body.clone().unwrap_or_default();
    got.status < 300 && secret.chunks(64).any(|piece| body.windows(piece.len()).any(|w| w == piece))
}

#[tokio::test]
async fn private_blob_under_a_name_of_the_attacker_is_not_served() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 1, &[60_000]);
    take(&support::Puller(served.address), &made).await;
    for (n, blob) in [&made.layers[0], &made.config].into_iter().enumerate() {
        let secret = scene.bytes(blob);
        // Its HEAD and its manifest say that it has the blob. Its bytes are others, of the same number.
        scene.claim(blob, noise(900 + n as u64, secret.len()));
        assert_eq!(served.get(&format!("/v2/{THIEF}/manifests/1")).await.status, 200);
        for range in [&[][..], &[("range", "bytes=100-4000")], &[("range", "bytes=-9")]] {
            let got = served.request("GET", &format!("/v2/{THIEF}/blobs/{blob}"), range).await;
            assert!(!leaks(&got, &secret), "{blob}: {got:?}");
        }
        tokio::time::sleep(timing().negative * 2).await;
    }
    // The owner has them from the store.
    let asked = scene.owner.log().len();
    take(&support::Puller(served.address), &made).await;
    assert_eq!(scene.owner.log().len(), asked);
}

#[tokio::test]
async fn private_manifest_asked_for_as_a_blob_is_not_served() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 2, &[1000]);
    take(&support::Puller(served.address), &made).await;
    scene.claim(&made.manifest, noise(901, 300));
    for name in [APP, THIEF] {
        let got = served.get(&format!("/v2/{name}/blobs/{}", made.manifest)).await;
        assert!(got.status == 404 || got.body.is_err(), "{name}: {got:?}");
    }
    let got = served.get(&format!("/v2/{THIEF}/manifests/{}", made.manifest)).await;
    assert_eq!(got.status, 404, "{got:?}");
    // The owner does not get it as a blob either: its registry has no such blob.
    let at = format!("/v2/{APP}/blobs/{}", made.manifest);
    assert_eq!(served.request("GET", &at, &[LOGIN]).await.status, 404);
}

#[tokio::test]
async fn part_of_a_private_blob_is_not_completed_by_another_source() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 3, &[400_000]);
    let secret = scene.bytes(&made.layers[0]);
    let at = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    served.request("GET", &format!("/v2/{APP}/manifests/1"), &[LOGIN]).await;
    scene.owner.trouble(RegistryFault::Cut(390_000));
    for _ in 0..400 {
        scene.owner.trouble(RegistryFault::Status(500));
    }
    let got = served.request("GET", &at, &[LOGIN]).await;
    assert!(got.status == 404 || got.body.is_err(), "it was cut");
    let root = served.mirror.store().root().to_owned();
    assert_eq!(files(&root, &["part"]).len(), 1, "the beginning is kept");
    // The attacker knows the end only.
    let mut guess = vec![0; secret.len()];
    guess[300_000..].copy_from_slice(&secret[300_000..]);
    scene.claim(&made.layers[0], guess.into());
    tokio::time::sleep(timing().negative * 2).await;
    let got = served.get(&format!("/v2/{THIEF}/blobs/{}", made.layers[0])).await;
    let body = got.body.clone().unwrap_or_default();
    assert!(got.status >= 300 || !body.starts_with(&secret[..64]), "{} bytes", body.len());
}

#[tokio::test]
async fn download_of_a_private_blob_is_not_joined_by_another_source() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 4, &[1_000_000]);
    let secret = scene.bytes(&made.layers[0]);
    let at = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    served.request("GET", &format!("/v2/{APP}/manifests/1"), &[LOGIN]).await;
    scene.owner.trouble(RegistryFault::Slow(Duration::from_millis(60)));
    let (address, path) = (served.address, at.clone());
    let owner = tokio::spawn(async move { support::Puller(address).request("GET", &path, &[LOGIN]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    scene.claim(&made.layers[0], noise(902, secret.len()));
    let got = served.get(&format!("/v2/{THIEF}/blobs/{}", made.layers[0])).await;
    assert!(!leaks(&got, &secret), "{} {}", got.status, got.body.unwrap_or_default().len());
    assert_eq!(digest(owner.await.unwrap().bytes()), made.layers[0], "the owner is not disturbed");
}

/// Each source has a download of its own, so one that says nothing holds up no other.
#[tokio::test]
async fn slow_source_of_the_attacker_does_not_hold_up_the_owner() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 11, &[300_000]);
    scene.claim(&made.layers[0], noise(905, 300_000));
    scene.evil.trouble(RegistryFault::Drip(1, Duration::from_millis(300)));
    let (address, path) = (served.address, format!("/v2/{THIEF}/blobs/{}", made.layers[0]));
    let thief = tokio::spawn(async move { support::Puller(address).get(&path).await });
    let begun = Instant::now();
    while scene.evil.asked("GET /v2/thief/x/blobs/") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the attacker is not asked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let puller = support::Puller(served.address);
    tokio::time::timeout(timing().first_byte, take(&puller, &made)).await.expect("the owner is held up");
    thief.abort();
}

#[tokio::test]
async fn source_that_delivers_all_bytes_has_the_blob_and_the_disk_has_one_copy() {
    let scene = Scene::set().await;
    let served = scene.serve().await;
    let made = scene.owner.image(APP, "1", 5, &[300_000]);
    take(&support::Puller(served.address), &made).await;
    let other = scene.owner.image("other/app", "1", 5, &[300_000]);
    let blob = format!("/v2/other/app/blobs/{}", made.layers[0]);
    for (times, at) in [(1, &blob), (1, &blob)] {
        served.request("GET", "/v2/other/app/manifests/1", &[LOGIN]).await;
        assert_eq!(digest(served.request("GET", at, &[LOGIN]).await.bytes()), other.layers[0]);
        assert_eq!(scene.owner.asked_whole("other/app", &made.layers[0]), times);
    }
    let root = served.mirror.store().root().to_owned();
    let all: u64 = files(&root, &["blobs", "part"]).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert!((300_000..302_000).contains(&all), "{all} bytes");
    assert_eq!(scene.owner.asked_whole(APP, &made.layers[0]), 1);
}

#[tokio::test]
async fn public_blob_is_downloaded_once_for_all_names() {
    let (registry, served, _dir) = support::pair().await;
    let made = registry.image(APP, "1", 6, &[200_000]);
    registry.image("acme/other", "1", 6, &[200_000]);
    served.pull(APP, "1").await.unwrap();
    served.pull("acme/other", "1").await.unwrap();
    assert_eq!(registry.asked("GET /v2/acme/other/blobs/"), 0, "{:?}", registry.log());
    // Two names at once, while it comes.
    registry.image(APP, "2", 7, &[500_000]);
    let again = registry.image("acme/other", "2", 7, &[500_000]);
    registry.trouble(RegistryFault::Slow(Duration::from_millis(30)));
    let pulls = [APP, "acme/other"].map(|name| served.pull(name, "2"));
    assert!(futures_util::future::join_all(pulls).await.iter().all(Result::is_ok));
    let asked = |name| registry.asked_whole(name, &again.layers[0]);
    assert_eq!(asked(APP) + asked("acme/other"), 1, "{:?}", registry.log());
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
}

#[tokio::test]
async fn sources_of_a_blob_outlive_a_restart_and_an_old_store_has_none() {
    let scene = Scene::set().await;
    let given = settings(&scene.dir.path().join("store"), scene.upstreams());
    let made = scene.owner.image(APP, "1", 8, &[150_000]);
    let secret = scene.bytes(&made.layers[0]);
    let begin = || Node::alone(&given, Duration::ZERO, timing());
    let mut node = begin();
    take(&node.puller(), &made).await;
    node.kill();
    drop(node);
    let asked = || scene.owner.asked_whole(APP, &made.layers[0]);
    let mut node = begin();
    take(&node.puller(), &made).await;
    assert_eq!(asked(), 1, "it is known who delivered it");
    scene.claim(&made.layers[0], noise(903, secret.len()));
    let got = node.puller().get(&format!("/v2/{THIEF}/blobs/{}", made.layers[0])).await;
    assert!(!leaks(&got, &secret), "{got:?}");
    node.kill();
    drop(node);
    // A store of the version before: no one knows where its blobs came from.
    let _ = std::fs::remove_dir_all(given.directory.join("sources"));
    std::fs::write(given.directory.join("version"), "weir image store 1\n").unwrap();
    let node = begin();
    tokio::time::sleep(timing().negative * 2).await;
    let got = node.puller().get(&format!("/v2/{THIEF}/blobs/{}", made.layers[0])).await;
    assert!(!leaks(&got, &secret), "{got:?}");
    take(&node.puller(), &made).await;
    assert_eq!(asked(), 2, "its registry delivers it again");
    take(&node.puller(), &made).await;
    assert_eq!(asked(), 2);
}

#[tokio::test]
async fn private_blob_of_a_peer_under_a_name_of_the_attacker_is_not_served() {
    for store in [PopStore::Peer, PopStore::SharedDir] {
        let mut world = Cluster::plan(store, 2, 64 << 20).await;
        let evil = Registry::start().await;
        for given in &mut world.settings {
            given.upstreams.push(evil.settings("evil.example"));
        }
        world.begin_in_memory().await;
        *world.registry.state.login.lock().unwrap() = Some("dXNlcjpwYXNz".to_owned());
        let made = world.registry.image(APP, "1", 9, &[200_000]);
        take(&world.nodes[0].puller(), &made).await;
        let secret = world.registry.state.blobs.lock().unwrap()[&made.layers[0].to_string()].clone();
        claim(&evil, &made.layers[0], noise(904, secret.len()));
        let got = world.nodes[1].puller().get(&format!("/v2/{THIEF}/blobs/{}", made.layers[0])).await;
        assert!(!leaks(&got, &secret), "{store:?}: {} {}", got.status, got.body.unwrap_or_default().len());
        // The owner has it from the other node.
        take(&world.nodes[1].puller(), &made).await;
        assert_eq!(world.whole(&made.layers[0]), 1, "{store:?}: {:?}", world.registry.log());
    }
}

/// The mirror logs in where it need not. It asks without credentials once, and saves a download.
#[tokio::test]
async fn public_blob_that_came_with_credentials_is_downloaded_once() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("token");
    std::fs::write(&secret, "secret").unwrap();
    let mut upstream = registry.settings("docker.io");
    (upstream.username, upstream.password_file) = (Some("bot".to_owned()), Some(secret));
    upstream.share = vec!["*".to_owned()];
    let served = serve(settings(&dir.path().join("store"), vec![upstream])).await;
    let made = registry.image(APP, "1", 10, &[200_000]);
    registry.image("acme/other", "1", 10, &[200_000]);
    served.pull(APP, "1").await.unwrap();
    served.pull("acme/other", "1").await.unwrap();
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
    assert_eq!(registry.asked("GET /v2/acme/other/blobs/"), 0, "{:?}", registry.log());
}
