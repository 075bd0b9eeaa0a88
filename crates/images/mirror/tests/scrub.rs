//! Blobs are checked while no client asks for them; bad ones are removed.

mod support;

use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use http_body_util::BodyExt;
use support::{
    Registry, Served, digest, serve, settings,
    site::{APP, Cluster, file_of, files, rot},
};
use weir_image::{
    PopStore, now_utc,
    store::{Budget, PolicyKind, ScrubBatch, Store},
};
use weir_units::Bytes;

const FAST: Bytes = Bytes(1 << 30);

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn corrupt(served: &Served) -> u64 {
    served.mirror.store().usage(now_utc()).unwrap().counts.corrupt
}

/// All blobs below a store were written, and so checked, ten days ago.
fn age(root: &Path) {
    let then = SystemTime::now() - Duration::from_secs(10 * 24 * 3600);
    for file in files(root, &["blobs"]) {
        std::fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
    }
}

#[tokio::test]
async fn blob_that_goes_bad_unseen_is_found_and_fetched_again() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let mut given = settings(&root, vec![registry.settings("docker.io")]);
    (given.scrub_rate, given.scrub_days) = (FAST, 0);
    let served = serve(given).await;
    let mut told = served.mirror.store().corrupted();
    let made = registry.image(APP, "1", 1, &[400_000, 30_000]);
    served.pull(APP, "1").await.unwrap();
    rot(&file_of(&root, &made.layers[0]), 200_000);
    until("found", || corrupt(&served) == 1).await;
    assert_eq!(told.try_recv(), Ok(made.layers[0].clone()));
    assert!(!served.mirror.store().has(&made.layers[0]) && files(&root, &["trash"]).is_empty());
    served.pull(APP, "1").await.unwrap();
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 2);
    // A good blob stays through all checks.
    let before = served.counted("scrubbed_blobs");
    until("looked at again", || served.counted("scrubbed_blobs") > before + 8).await;
    assert_eq!((corrupt(&served), registry.asked_whole(APP, &made.layers[1])), (1, 1));
}

#[tokio::test]
async fn who_is_being_sent_a_blob_that_is_found_bad_does_not_get_its_end() {
    const SIZE: usize = 24 << 20;
    let (registry, served, dir) = support::pair().await;
    let made = registry.image(APP, "1", 2, &[SIZE]);
    served.pull(APP, "1").await.unwrap();
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let mut body = support::Puller(served.address).send("GET", &path, &[]).await.into_body();
    body.frame().await.unwrap().unwrap();
    rot(&file_of(&dir.path().join("store"), &made.layers[0]), SIZE - 1);
    served.mirror.scrub(None, &tokio::runtime::Handle::current());
    until("scrubbed", || served.mirror.scrubbing().is_some_and(|scrub| scrub.is_over)).await;
    let scrub = served.mirror.scrubbing().unwrap();
    assert_eq!(
        (scrub.corrupt, scrub.blobs, scrub.error),
        (vec![made.layers[0].clone()], scrub.of_blobs, None)
    );
    let rest = body.collect().await;
    assert!(rest.is_err(), "all of it was sent");
}

#[tokio::test]
async fn a_scrub_that_is_asked_for_looks_at_all_there_is_at_its_rate() {
    let (registry, served, _dir) = support::pair().await;
    registry.image(APP, "1", 3, &[700_000, 300_000, 10]);
    served.pull(APP, "1").await.unwrap();
    assert_eq!(served.mirror.scrubbing(), None);
    let begun = Instant::now();
    served.mirror.scrub(Some(Bytes(500_000)), &tokio::runtime::Handle::current());
    // Once more while it is under way is the same one.
    served.mirror.scrub(None, &tokio::runtime::Handle::current());
    until("scrubbed", || served.mirror.scrubbing().is_some_and(|scrub| scrub.is_over)).await;
    let scrub = served.mirror.scrubbing().unwrap();
    assert!(begun.elapsed() > Duration::from_millis(1800), "{:?}", begun.elapsed());
    // Three layers, a configuration and a manifest.
    assert_eq!((scrub.blobs, scrub.of_blobs, scrub.corrupt.len()), (5, 5, 0));
    assert!(scrub.bytes == scrub.of_bytes && scrub.bytes > 1_000_010, "{scrub:?}");
}

/// Another program has removed a file, and one has put a pipe in the place of another.
#[tokio::test]
async fn blob_whose_file_is_missing_is_told_and_counts_no_longer() {
    let (registry, served, dir) = support::pair().await;
    let made = registry.image(APP, "1", 4, &[700_000, 300_000, 20_000]);
    served.pull(APP, "1").await.unwrap();
    let before = served.mirror.store().usage(now_utc()).unwrap().bytes;
    let files = [0, 1].map(|n| file_of(&dir.path().join("store"), &made.layers[n]));
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    assert!(std::process::Command::new("mkfifo").arg(&files[1]).status().unwrap().success());
    served.mirror.scrub(None, &tokio::runtime::Handle::current());
    until("scrubbed", || served.mirror.scrubbing().is_some_and(|scrub| scrub.is_over)).await;
    let mut scrub = served.mirror.scrubbing().unwrap();
    scrub.missing.sort();
    let mut missing = made.layers[..2].to_vec();
    missing.sort();
    assert_eq!((&scrub.missing, scrub.corrupt.len(), &scrub.error), (&missing, 0, &None));
    assert_eq!((scrub.blobs, scrub.of_blobs, scrub.bytes), (3, 3, before - 1_000_000));
    assert_eq!(served.mirror.store().usage(now_utc()).unwrap().bytes, before - 1_000_000);
    served.pull(APP, "1").await.unwrap();
    assert_eq!(made.layers.iter().map(|l| registry.asked_whole(APP, l)).collect::<Vec<_>>(), [2, 2, 1]);
}

/// A task that panics is dropped as one of a runtime that ends.
#[tokio::test]
async fn scrub_that_is_stopped_ends_with_an_error_and_another_can_begin() {
    let (_registry, served, _dir) = support::pair().await;
    let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
    served.mirror.scrub(None, other.handle());
    tokio::task::spawn_blocking(|| drop(other)).await.unwrap();
    let scrub = served.mirror.scrubbing().unwrap();
    assert!(scrub.is_over && scrub.error.is_some_and(|why| why.contains("ask for it again")));
    served.mirror.scrub(None, &tokio::runtime::Handle::current());
    until("scrubbed", || served.mirror.scrubbing().is_some_and(|scrub| scrub.is_over)).await;
    assert_eq!(served.mirror.scrubbing().unwrap().error, None);
}

#[tokio::test]
async fn after_a_restart_it_goes_on_with_what_was_not_checked_the_longest_first() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let budget = Budget::of(64 << 20);
        Store::open(dir.path(), budget, PolicyKind::Lru, now_utc()).unwrap().0
    };
    let (now, day) = (now_utc(), Duration::from_secs(24 * 3600));
    let store = open();
    let blobs: Vec<_> = (0..6u8).map(|n| vec![n; 1000]).map(|bytes| (digest(&bytes), bytes)).collect();
    for (name, bytes) in &blobs {
        store.put(name, bytes, 1, now).unwrap();
    }
    let due = |store: &Store| -> Vec<_> {
        let due = store.unchecked(ScrubBatch::Own, now.before(day * 3), now).unwrap();
        due.into_iter().map(|(digest, _)| digest).collect()
    };
    assert_eq!(due(&store), [], "all were hashed as they came");
    drop(store);
    // The later ones were written earlier.
    for (n, (name, _)) in blobs.iter().enumerate() {
        // The same clock as the store's: two readings may lie in two seconds.
        let then = SystemTime::UNIX_EPOCH + Duration::from_millis(now.unix_millis())
            - day * (10 + u32::try_from(n).unwrap());
        let file = std::fs::File::options().write(true).open(file_of(dir.path(), name)).unwrap();
        file.set_modified(then).unwrap();
    }
    let store = open();
    let order: Vec<_> = blobs.iter().rev().map(|(name, _)| name.clone()).collect();
    assert_eq!(due(&store), order);
    for name in &order[..2] {
        let opened = store.open_blob(name, now).unwrap().unwrap();
        assert!(!opened.is_verified() && store.verify(&opened, now).unwrap());
    }
    drop(store);
    // A line that a crash has torn is one more check.
    let journal = dir.path().join("checked/only");
    let mut text = std::fs::read_to_string(&journal).unwrap();
    text.push_str(&format!("{} {}", now.unix_millis(), &order[2].to_string()[..40]));
    std::fs::write(&journal, text).unwrap();
    let store = open();
    assert_eq!(due(&store), order[2..]);
    assert_eq!(store.oldest_check().unwrap(), now.before(day * 13));
}

#[tokio::test]
async fn nodes_of_one_directory_check_each_blob_once_despite_a_death() {
    let mut world = Cluster::plan(PopStore::SharedDir, 3, 64 << 20).await;
    let filling = world.open(0);
    let keep = |n: u32| filling.put(&digest(&n.to_be_bytes()), &n.to_be_bytes(), 1, now_utc()).unwrap();
    (0..30).for_each(keep);
    drop(filling);
    age(world.root(0));
    for given in &mut world.settings {
        given.scrub_rate = FAST;
    }
    world.begin_in_memory().await;
    until("checked", || world.sum("scrubbed_blobs") >= 30).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each: Vec<u64> = world.nodes.iter().map(|node| node.counted("scrubbed_blobs")).collect();
    assert!(each.iter().sum::<u64>() == 30 && each.iter().all(|n| *n > 3), "{each:?}");
    // Silent for a minute, as the two others see it: its part is theirs.
    // (The others' clocks stand still but for what is told them here.)
    world.nodes.iter_mut().for_each(support::site::Node::kill);
    let later = now_utc().after(Duration::from_secs(70));
    let stores = [world.nodes[0].mirror.store(), world.nodes[1].mirror.store()];
    stores.iter().for_each(|store| store.tick(later).unwrap());
    let lots = stores.map(|store| store.unchecked(ScrubBatch::Own, later, later).unwrap().len());
    assert!(lots[0] + lots[1] == 30 && lots.iter().all(|n| *n > 5), "{lots:?}");
}

#[tokio::test]
async fn bad_blob_of_a_peer_is_never_passed_on_whole() {
    let world = support::site::world(PopStore::Peer, 2, 64 << 20).await;
    let made = world.registry.image(APP, "1", 4, &[500_000, 15_000]);
    let [large, small] = [&made.layers[0], &made.layers[1]];
    world.nodes[0].puller().pull(APP, "1").await.unwrap();
    for (blob, at) in [(large, 300_000), (small, 10_000)] {
        rot(&file_of(world.root(0), blob), at);
    }
    world.nodes[1].puller().get(&format!("/v2/{APP}/manifests/1")).await;
    // Nothing of the small one was sent before it was proved: its client notices nothing.
    let puller = world.nodes[1].puller();
    assert_eq!(digest(puller.blob(APP, small).await.bytes()), *small);
    // A client that has the beginning of the large one is cut off, and gets it of the registry then.
    let cut = puller.blob(APP, large).await;
    assert!(cut.body.is_err() || digest(cut.bytes()) == *large, "{:?}", cut.status);
    assert_eq!(digest(puller.blob(APP, large).await.bytes()), *large);
    assert_eq!((world.whole(large), world.whole(small)), (2, 2));
    // The other has heard of it, and hashes before it serves.
    let other = world.nodes[0].puller();
    for blob in [large, small] {
        assert_eq!(digest(other.blob(APP, blob).await.bytes()), *blob);
    }
    assert_eq!(world.nodes[0].mirror.store().usage(now_utc()).unwrap().counts.corrupt, 2);
    // Where it cannot be told, it is not asked again all the same.
    let made = world.registry.image(APP, "2", 5, &[500_000]);
    world.nodes[0].puller().pull(APP, "2").await.unwrap();
    rot(&file_of(world.root(0), &made.layers[0]), 300_000);
    puller.get(&format!("/v2/{APP}/manifests/2")).await;
    world.site.set_lost(true);
    puller.blob(APP, &made.layers[0]).await;
    assert_eq!(digest(puller.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
}
