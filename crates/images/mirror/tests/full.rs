//! A store without room: what cannot be kept is passed on, and the budget holds.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http_body_util::BodyExt;
use support::{
    Puller, Registry, RegistryFault, TestImage, digest,
    site::{Node, on_disk},
};
use weir_image::now_utc;

const APP: &str = "library/app";

/// A megabyte of the issue: a sixteenth of one, or, with `WEIR_FULL=1`, all of it.
fn unit() -> usize {
    if std::env::var("WEIR_FULL").is_ok_and(|text| text == "1") { 1 << 20 } else { 1 << 16 }
}

struct Full {
    registry: Registry,
    node: Node,
    dir: tempfile::TempDir,
}

/// A node with a budget of 64 units that holds what came in the last two minutes.
async fn full() -> Full {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.budget = weir_units::Bytes(64 * unit() as u64);
    let node = Node::alone(&given, Duration::from_secs(120), support::timing());
    Full { registry, node, dir }
}

/// Pulls eight images of 25 units, and looks every 20 ms how much is on the disk.
async fn pull_all(at_once: bool) {
    let Full { registry, node, dir } = full().await;
    let images: Vec<(String, TestImage)> = (0..8)
        .map(|n| (format!("acme/app{n}"), n))
        .map(|(name, n)| (name.clone(), registry.image(&name, "1", 10 + n, &[13 * unit(), 12 * unit()])))
        .collect();
    let (root, budget) = (dir.path().join("store"), 64 * unit() as u64);
    let (most, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let watching = {
        let (most, is_over) = (Arc::clone(&most), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(on_disk(&root, &["blobs", "part", "trash"]), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let address = node.address;
    let pull = async |(name, made): &(String, TestImage)| {
        let puller = Puller(address);
        assert_eq!(puller.get(&format!("/v2/{name}/manifests/1")).await.status, 200);
        let mut refused = 0;
        for blob in made.layers.iter().chain([&made.config]) {
            let got = puller.blob(name, blob).await;
            let is_right = got.status == 200 && got.body.as_ref().is_ok_and(|body| digest(body) == *blob);
            refused += usize::from(!is_right);
        }
        refused
    };
    let refused: usize = if at_once {
        join_all(images.iter().map(pull)).await.into_iter().sum()
    } else {
        let mut sum = 0;
        for image in &images {
            sum += pull(image).await;
        }
        sum
    };
    is_over.store(true, Ordering::Relaxed);
    watching.join().unwrap();
    let most = most.load(Ordering::Relaxed);
    println!("at once: {at_once}: {refused} of 24 refused, most on disk {most} of {budget}");
    assert_eq!(refused, 0, "of 24 blobs");
    assert!(most <= budget, "{most} of {budget} bytes");
    assert!(node.counted("passed_on") > 0, "all of it fits");
    for (name, made) in &images {
        for blob in made.layers.iter().chain([&made.config]) {
            assert_eq!(registry.asked_whole(name, blob), 1, "{name}");
        }
    }
}

#[tokio::test]
async fn eight_images_one_after_the_other_are_all_pulled_within_the_budget() {
    pull_all(false).await;
}

#[tokio::test]
async fn eight_images_at_once_are_all_pulled_within_the_budget() {
    pull_all(true).await;
}

/// A client that only looks what an image is takes no room for it.
#[tokio::test]
async fn manifests_that_are_only_asked_for_evict_nothing() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.budget = weir_units::Bytes(64 * unit() as u64);
    let node = Node::alone(&given, Duration::ZERO, support::timing());
    let here = registry.image(APP, "1", 50, &[27 * unit(), 27 * unit()]);
    node.puller().pull(APP, "1").await.unwrap();
    let names = ["acme/a", "acme/b", "acme/c"];
    let made: Vec<_> = names
        .iter()
        .zip(60..)
        .map(|(name, n)| registry.image(name, "1", n, &[29 * unit(), unit()]))
        .collect();
    for name in names {
        for method in ["HEAD", "GET"] {
            let path = format!("/v2/{name}/manifests/1");
            assert_eq!(node.puller().request(method, &path, &[]).await.status, 200);
        }
    }
    let usage = node.mirror.store().usage(now_utc()).unwrap();
    assert_eq!((usage.counts.evicted, usage.reserved), (0, 0), "{usage:?}");
    // The first blob of an image has room set aside for all of it.
    assert_eq!(digest(node.puller().blob(names[0], &made[0].layers[1]).await.bytes()), made[0].layers[1]);
    let usage = node.mirror.store().usage(now_utc()).unwrap();
    assert!(usage.counts.evicted > 0 && usage.reserved >= 29 * unit() as u64, "{usage:?}");
    assert!(here.layers.iter().any(|layer| !node.mirror.store().has(layer)));
}

/// A node and an image whose layer is larger than the budget.
async fn large() -> (Full, TestImage) {
    let full = full().await;
    let made = full.registry.image(APP, "1", 30, &[200 * unit()]);
    full.node.puller().get(&format!("/v2/{APP}/manifests/1")).await;
    (full, made)
}

#[tokio::test]
async fn a_blob_above_the_budget_is_passed_on_to_all_by_one_request() {
    let (Full { registry, node, dir: _dir }, made) = large().await;
    // So slow at first that all twenty have come.
    registry.trouble(RegistryFault::Slow(Duration::from_millis(2)));
    let pulls = (0..20).map(|_| async { node.puller().timed(APP, &made.layers[0]).await });
    for pulled in join_all(pulls).await {
        assert_eq!(digest(pulled.got.bytes()), made.layers[0]);
    }
    assert_eq!(registry.asked("GET /v2/library/app/blobs"), 1);
    assert_eq!(node.counted("passed_on"), 1);
    assert!(!node.mirror.store().has(&made.layers[0]));
}

#[tokio::test]
async fn ranges_and_heads_of_what_is_passed_on_are_right() {
    let (Full { node, registry, dir: _dir }, made) = large().await;
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let all = registry.state.blobs.lock().unwrap()[&made.layers[0].to_string()].clone();
    let size = all.len();
    let head = node.puller().request("HEAD", &path, &[]).await;
    assert_eq!((head.status, head.headers["content-length"].to_str().unwrap()), (200, &*size.to_string()));
    let middle = size / 2;
    // A range is of GET only.
    let head = node.puller().request("HEAD", &path, &[("range", "bytes=0-9")]).await;
    assert_eq!((head.status, head.headers["content-length"].to_str().unwrap()), (200, &*size.to_string()));
    for (range, wanted) in [
        ("bytes=100-199".to_owned(), 100..200),
        (format!("bytes={middle}-"), middle..size),
        ("bytes=-10".to_owned(), size - 10..size),
    ] {
        let got = node.puller().request("GET", &path, &[("range", &range)]).await;
        assert!(got.status == 206 && got.bytes()[..] == all[wanted], "{range}");
    }
}

#[tokio::test]
async fn what_is_passed_on_and_wrong_never_reaches_its_end() {
    let (Full { node, registry, dir: _dir }, made) = large().await;
    registry.trouble(RegistryFault::Lie);
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let mut body = node.puller().send("GET", &path, &[]).await.into_body();
    let mut got = 0;
    let end = loop {
        match body.frame().await {
            Some(Ok(frame)) => got += frame.into_data().map_or(0, |data| data.len()),
            end => break end,
        }
    };
    assert!(end.is_some(), "all {got} bytes came");
    assert!(got <= 200 * unit() - 4096, "{got} bytes came");
    tokio::time::sleep(support::timing().negative * 2).await;
    assert_eq!(digest(node.puller().blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
}

#[tokio::test]
async fn what_is_passed_on_is_resumed_where_its_registry_cut_it() {
    let (Full { node, registry, dir: _dir }, made) = large().await;
    for part in [3, 2] {
        registry.trouble(RegistryFault::Cut(200 * unit() / part));
    }
    assert_eq!(digest(node.puller().blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
    assert_eq!(node.counted("upstream_bytes") / (200 * unit()) as u64, 1);
}

/// The download is over long before its client has read all of it.
#[tokio::test]
async fn client_of_a_download_holds_its_blob_until_it_has_read_it() {
    const SIZE: usize = 24 << 20;
    let (registry, served, _dir) = support::pair().await;
    let made = registry.image(APP, "1", 40, &[SIZE]);
    let (store, layer) = (served.mirror.store(), &made.layers[0]);
    let mut body =
        Puller(served.address).send("GET", &format!("/v2/{APP}/blobs/{layer}"), &[]).await.into_body();
    body.frame().await.unwrap().unwrap();
    while !store.has(layer) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Those who wait hear of the end a moment after the blob has its name.
    for _ in 0..20 {
        store.prune(0, now_utc()).unwrap();
        assert!(store.has(layer), "it left while it was read");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    while store.has(layer) {
        store.prune(0, now_utc()).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
