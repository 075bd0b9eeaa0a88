//! Many downloads at once, behind links and registries that are slow: who waits, who makes progress.

mod support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use support::{Puller, Registry, RegistryFault, TestImage, digest, serve, settings, timing};

const APP: &str = "library/app";

/// All layers at once, as containerd asks for them.
async fn layers(address: std::net::SocketAddr, made: &TestImage) -> Vec<support::site::Timed> {
    let pull = async |blob| Puller(address).timed(APP, blob).await;
    join_all(made.layers.iter().map(pull)).await
}

#[tokio::test]
async fn forty_layers_at_the_least_rate_all_make_progress() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.max_rate = Some(weir_units::BitRate::mbit(1));
    // As where the configuration says nothing.
    given.upstreams[0].requests = 16;
    let served = serve(given).await;
    let made = registry.image(APP, "1", 90, &[20_000; 40]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    let begun = Instant::now();
    for (pulled, blob) in layers(served.address, &made).await.iter().zip(&made.layers) {
        assert_eq!(digest(pulled.got.bytes()), *blob);
        assert!(pulled.gap < timing().progress, "nothing for {:?}", pulled.gap);
    }
    // 800 kB at 125 kB/s, but for what passes at once.
    assert!(begun.elapsed() > Duration::from_millis(5500), "{:?}", begun.elapsed());
    assert_eq!(served.counted("refused"), 0);
}

#[tokio::test]
async fn slow_blobs_delay_no_manifest_and_too_many_are_refused() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.upstreams[0].requests = 2;
    let served = serve(given).await;
    let made = registry.image(APP, "1", 91, &[2 << 20; 8]);
    let other = registry.image("acme/other", "1", 92, &[1000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    served.get("/v2/acme/other/manifests/1").await;
    for _ in &made.layers {
        registry.trouble(RegistryFault::Slow(Duration::from_millis(150)));
    }
    let (address, of) = (served.address, made.clone());
    let slow = tokio::spawn(async move { layers(address, &of).await });
    let is_asked = || made.layers.iter().all(|blob| registry.asked_whole(APP, blob) == 1);
    let begun = Instant::now();
    while !is_asked() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", registry.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    registry.image("acme/new", "1", 93, &[1000]);
    assert_eq!(served.get("/v2/acme/new/manifests/1").await.status, 200, "it waits for no blob");
    let refused = served.blob("acme/other", &other.layers[0]).await;
    let why = String::from_utf8_lossy(refused.body.as_ref().unwrap()).into_owned();
    let is_clear = refused.status == 404 && why.contains("8 blobs") && why.contains("`requests`");
    assert!(slow.is_finished() || is_clear, "{why}");
    for (pulled, blob) in slow.await.unwrap().iter().zip(&made.layers) {
        assert_eq!(digest(pulled.got.bytes()), *blob);
    }
    tokio::time::sleep(timing().negative * 2).await;
    served.pull("acme/other", "1").await.unwrap();
}

#[tokio::test]
async fn a_registry_that_drips_is_waited_for_and_its_clients_get_what_there_is() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    let made = registry.image(APP, "1", 94, &[64 << 10]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    // All in all longer than a client waits for a byte.
    registry.trouble(RegistryFault::Drip(1 << 10, timing().progress / 55));
    let begun = Instant::now();
    let pulled = Puller(served.address).timed(APP, &made.layers[0]).await;
    assert_eq!(digest(pulled.got.bytes()), made.layers[0]);
    assert!(begun.elapsed() > timing().progress, "{:?}", begun.elapsed());
    assert!(pulled.gap < timing().progress / 2, "nothing for {:?}", pulled.gap);
}

#[tokio::test]
async fn registry_that_asks_for_a_pause_gets_it() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    let made = registry.image(APP, "1", 95, &[1000, 2000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    // Longer than a failure is remembered, and still longer then than a client waits for a first byte.
    registry.trouble(RegistryFault::Limited(5));
    let begun = Instant::now();
    assert_eq!(served.blob(APP, &made.layers[0]).await.status, 404);
    tokio::time::sleep(timing().negative * 2).await;
    let asked = registry.log().len();
    for blob in &made.layers {
        let got = served.blob(APP, blob).await;
        let why = String::from_utf8(got.body.unwrap().to_vec()).unwrap();
        assert!(
            begun.elapsed() > Duration::from_secs(5) || (got.status == 404 && why.contains("429")),
            "{why}"
        );
    }
    assert!(
        begun.elapsed() > Duration::from_secs(5) || registry.log().len() == asked,
        "{:?}",
        registry.log()
    );
    tokio::time::sleep(Duration::from_secs(5).saturating_sub(begun.elapsed()) + timing().negative * 2).await;
    served.pull(APP, "1").await.unwrap();
}

/// A byte now and then kept a place in the queue, and the room of the whole blob, for as long as anyone waited.
#[tokio::test]
async fn registry_that_sends_next_to_nothing_loses_its_place_and_its_room() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    let made = registry.image(APP, "1", 96, &[20 << 20]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    // A byte in less time than a stall is noticed in.
    registry.trouble(RegistryFault::Drip(1, timing().stall / 2));
    let begun = Instant::now();
    let got = tokio::time::timeout(timing().slow * 4, served.blob(APP, &made.layers[0])).await;
    let got = got.expect("the download goes on").body;
    assert!(begun.elapsed() >= timing().slow, "{:?}", begun.elapsed());
    let why = got.map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_else(|cut| cut);
    println!("after {:?}: {why}", begun.elapsed());
    let usage = served.mirror.store().usage(weir_image::now_utc()).unwrap();
    assert!(usage.reserved < 100, "{usage:?}");
    tokio::time::sleep(timing().negative * 2).await;
    served.pull(APP, "1").await.unwrap();
}
