//! The first pulls after a restart, when no one knows whether the blobs are still right.

mod support;

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use support::{
    Registry, TestImage, digest,
    site::{APP, Node, file_of, rot},
};
use weir_image::{Settings, Timing};

const SIZE: usize = 64 << 20;

/// A node that has just begun, with a blob in its store whose hash takes longer than a first byte may.
async fn restarted(spoil: bool) -> (Node, TestImage, tempfile::TempDir) {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given: Settings =
        support::settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.budget = weir_units::Bytes(1 << 30);
    let made = registry.image(APP, "1", 1, &[SIZE]);
    let mut node = Node::alone(&given, Duration::ZERO, support::timing());
    node.puller().pull(APP, "1").await.unwrap();
    node.kill();
    drop(node);
    if spoil {
        rot(&file_of(&given.directory, &made.layers[0]), SIZE / 2);
    }
    let first_byte = Duration::from_millis(20);
    let node = Node::alone(&given, Duration::ZERO, Timing { first_byte, ..support::timing() });
    (node, made, dir)
}

#[tokio::test]
async fn a_blob_whose_check_takes_long_is_sent_while_it_is_checked() {
    let (node, made, _dir) = restarted(false).await;
    let begun = Instant::now();
    let pulled = node.puller().timed(APP, &made.layers[0]).await;
    println!("first byte after {:?}, all after {:?}", pulled.first - begun, begun.elapsed());
    assert_eq!(digest(pulled.got.bytes()), made.layers[0]);
    assert_eq!((node.counted("upstream_requests"), node.counted("blob_hits")), (0, 1));
    // It is believed from now on.
    assert_eq!(digest(node.puller().blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
}

#[tokio::test]
async fn a_blob_that_went_bad_never_reaches_its_end_while_it_is_checked() {
    let (node, made, _dir) = restarted(true).await;
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let mut body = node.puller().send("GET", &path, &[]).await.into_body();
    let mut got = 0;
    while let Some(Ok(frame)) = body.frame().await {
        got += frame.into_data().map_or(0, |data| data.len());
    }
    assert!(got <= SIZE - 4096, "{got} bytes came");
    assert!(!node.mirror.store().has(&made.layers[0]));
}

/// Its agent opens another then.
#[tokio::test]
async fn mirror_ends_when_its_directory_is_removed_and_pulls_go_on_until_then() {
    let (registry, served, dir) = support::pair().await;
    let made = registry.image(APP, "1", 1, &[300_000]);
    let listener = served.mirror.listen().unwrap();
    let serving = served.mirror.clone();
    let serving = tokio::spawn(async move { serving.serve(listener).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    served.pull(APP, "1").await.unwrap();
    assert!(!dir.path().join("store").exists());
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
    let end = tokio::time::timeout(Duration::from_secs(30), serving).await.unwrap().unwrap();
    assert!(end.unwrap_err().to_string().contains("was removed or replaced"));
}
