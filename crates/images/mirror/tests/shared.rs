//! Nodes of a site that share one directory.

mod support;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use http_body_util::BodyExt;
use support::{
    Registry, RegistryFault, digest,
    redis::RedisServer,
    settings,
    site::{APP, Cluster, Node, files, on_disk, share},
};
use weir_image::{
    PopStore,
    coordination::Coordination,
    digest::Algorithm,
    now_utc,
    store::{Budget, RESUME, Store, StoreError},
};

/// Where a store has bytes of blobs. The last is looked into first, so that what goes from one to the
/// next meanwhile is not counted twice.
const BYTES: [&str; 3] = ["part", "blobs", "trash"];

async fn world(nodes: usize, budget: u64) -> Cluster {
    support::site::world(PopStore::SharedDir, nodes, budget).await
}

#[tokio::test]
async fn twenty_pullers_on_five_nodes_cost_one_get_per_blob_and_manifest() {
    let (registry, server) = (Registry::start().await, RedisServer::start().await);
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let nodes: Vec<Node> = (0..5)
        .map(|n| Node::sharing(&format!("node{n}"), &settings, Arc::new(server.node(&format!("node{n}")))))
        .collect();
    let made = registry.image(APP, "1", 2, &[3_000_000, 200_000, 17]);
    for _ in 0..4 {
        registry.trouble(RegistryFault::Slow(Duration::from_millis(5)));
    }
    let pulls = nodes.iter().flat_map(|node| (0..4).map(|_| async { node.puller().pull(APP, "1").await }));
    for result in join_all(pulls).await {
        result.unwrap();
    }
    assert_eq!(registry.asked(&format!("GET /v2/{APP}/manifests/")), 1, "{:?}", registry.log());
    for blob in made.layers.iter().chain([&made.config]) {
        assert_eq!(registry.asked_whole(APP, blob), 1, "{blob}: {:?}", registry.log());
    }
    let manifest = registry.state.manifests.lock().unwrap()[&format!("{APP}/1")].1.len() as u64;
    let blobs: u64 = registry.state.blobs.lock().unwrap().values().map(|b| b.len() as u64).sum();
    let came: u64 = nodes.iter().map(|node| node.counted("upstream_bytes")).sum();
    assert_eq!(came, blobs + manifest);
    assert_eq!(files(&settings.directory, &["part"]).len(), 0);
}

#[tokio::test]
async fn who_waits_on_another_node_has_the_first_byte_when_the_leader_has_it() {
    let world = world(5, 64 << 20).await;
    let made = world.registry.image(APP, "1", 10, &[1_000_000]);
    world.registry.trouble(RegistryFault::Slow(Duration::from_millis(100)));
    let pulls = world.nodes.iter().map(|node| async { node.puller().timed(APP, &made.layers[0]).await });
    let timed = join_all(pulls).await;
    assert!(timed.iter().all(|t| digest(t.got.bytes()) == made.layers[0]));
    assert_eq!(world.registry.asked_whole(APP, &made.layers[0]), 1, "{:?}", world.registry.log());
    let first: Vec<Instant> = timed.iter().map(|t| t.first).collect();
    let late = first.iter().max().unwrap().duration_since(*first.iter().min().unwrap());
    println!("first byte of the last of five after that of the first: {late:?}");
    assert!(late < Duration::from_millis(100), "{late:?}");
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_by_another_that_goes_on_where_it_was() {
    let mut world = world(3, 64 << 20).await;
    let made = world.registry.image(APP, "1", 3, &[2_000_000]);
    world.nodes[0].puller().get(&format!("/v2/{APP}/manifests/1")).await;
    world.registry.trouble(RegistryFault::Slow(Duration::from_millis(40)));
    let leading = world.nodes[0].puller();
    let blob = made.layers[0].clone();
    let lost = tokio::spawn(async move { leading.blob(APP, &blob).await });
    world.reaches(0, 100_000).await;
    let waiting: Vec<_> = world.nodes[1..]
        .iter()
        .map(|node| {
            let (puller, blob) = (node.puller(), made.layers[0].clone());
            tokio::spawn(async move { puller.timed(APP, &blob).await })
        })
        .collect();
    world.reaches(0, 600_000).await;
    world.nodes[0].kill();
    for waiter in waiting {
        assert_eq!(digest(waiter.await.unwrap().got.bytes()), made.layers[0]);
    }
    assert!(
        lost.await.is_err() || world.registry.asked(&format!("GET /v2/{APP}/blobs/{}", made.layers[0])) == 2
    );
    let log = world.registry.log();
    let asked: Vec<_> = log.iter().filter(|l| l.contains(&made.layers[0].to_string())).collect();
    let from = asked.last().unwrap().rsplit_once("bytes=").expect("a range").1.trim_end_matches('-');
    assert!(asked.len() == 2 && from.parse::<u64>().unwrap() >= 500_000, "{asked:?}");
    assert_eq!(files(world.root(0), &["part", "trash"]), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn holder_of_a_lost_lease_neither_writes_nor_publishes() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| share(dir.path(), name, Budget::of(64 << 20)));
    let bytes = support::noise(5, 1_000_000);
    let name = weir_image::Digest::of(Algorithm::Sha256, &bytes);
    let mut stale = a.begin(&name, 1_000_000, 1, now_utc()).unwrap();
    stale.write(&bytes[..400_000]).unwrap();
    let mut fresh = b.begin(&name, 1_000_000, 2, now_utc()).unwrap();
    assert_eq!(fresh.written(), 400_000, "it goes on where the other was");
    // It writes something else, to the end, and finds out at the latest when it is to have its name.
    let wrote = stale.write(&vec![0; 500_000]);
    assert!(matches!(wrote, Err(StoreError::TakenOver(_))), "{wrote:?}");
    drop(stale);
    fresh.write(&bytes[400_000..]).unwrap();
    // All of it at once, as from a process that stood still.
    let mut still = a.begin_alone(&name, 1_000_000, 1, now_utc()).unwrap();
    still.write(&bytes).unwrap();
    let mut third = b.begin(&name, 1_000_000, 3, now_utc()).unwrap();
    assert!(matches!(still.finish(now_utc()), Err(StoreError::TakenOver(_))));
    assert!(matches!(fresh.finish(now_utc()), Err(StoreError::TakenOver(_))));
    assert!(!a.has(&name) && !b.has(&name));
    third.write(&bytes[usize::try_from(third.written()).unwrap()..]).unwrap();
    third.finish(now_utc()).unwrap();
    assert!(a.has(&name) && b.has(&name));
    let opened = a.open_blob(&name, now_utc()).unwrap().unwrap();
    assert!(a.verify(&opened, now_utc()).unwrap());
    assert_eq!(files(dir.path(), &["part"]).len(), 0);
}

#[tokio::test]
async fn a_node_that_is_cut_off_and_one_that_takes_over_both_end_right() {
    let world = world(2, 64 << 20).await;
    let made = world.registry.image(APP, "1", 4, &[3_000_000]);
    world.nodes[0].puller().get(&format!("/v2/{APP}/manifests/1")).await;
    for _ in 0..2 {
        world.registry.trouble(RegistryFault::Slow(Duration::from_millis(150)));
    }
    let leading = world.nodes[0].puller();
    let blob = made.layers[0].clone();
    let first = tokio::spawn(async move { leading.blob(APP, &blob).await });
    world.reaches(0, 200_000).await;
    // It cannot renew its lease any more, and knows nothing of who has it next.
    world.nodes_in_memory[0].set_lost(true);
    let second = world.nodes[1].puller().blob(APP, &made.layers[0]).await;
    assert_eq!(digest(second.bytes()), made.layers[0]);
    assert_eq!(digest(first.await.unwrap().bytes()), made.layers[0]);
    assert_eq!(files(world.root(0), &["part"]).len(), 0);
}

#[tokio::test]
async fn without_a_redis_and_with_one_that_says_nothing_every_pull_ends_right() {
    let (registry, server) = (Registry::start().await, RedisServer::start().await);
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let nodes: Vec<Node> = (0..3)
        .map(|n| Node::sharing(&format!("node{n}"), &settings, Arc::new(server.node(&format!("node{n}")))))
        .collect();
    for (seed, trouble) in ["frozen", "thawed", "killed", "there again"].into_iter().enumerate() {
        let made =
            registry.image(APP, trouble.split(' ').next().unwrap(), 20 + seed as u64, &[1_500_000, 90_000]);
        let tag = trouble.split(' ').next().unwrap().to_owned();
        for _ in 0..16 {
            registry.trouble(RegistryFault::Slow(Duration::from_millis(20)));
        }
        let pulls: Vec<_> = nodes
            .iter()
            .map(|node| {
                let (puller, tag) = (node.puller(), tag.clone());
                tokio::spawn(async move { puller.pull(APP, &tag).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        match trouble {
            "frozen" => server.pause(),
            "killed" => server.kill(),
            "thawed" => server.resume(),
            _ => server.begin().await,
        }
        let begun = Instant::now();
        for pull in pulls {
            pull.await.unwrap().unwrap_or_else(|e| panic!("{trouble}: {e}"));
        }
        println!("{trouble}: {:?}, {} GETs of the layer", begun.elapsed(), {
            registry.asked(&format!("GET /v2/{APP}/blobs/{}", made.layers[0]))
        });
        registry.state.blob_troubles.lock().unwrap().clear();
    }
    // Healed: as if nothing had been.
    let begun = Instant::now();
    loop {
        let made = registry.image(APP, "last", 30 + begun.elapsed().as_millis() as u64, &[500_000]);
        let pulls = nodes.iter().map(|node| async { node.puller().blob(APP, &made.layers[0]).await });
        assert!(join_all(pulls).await.iter().all(|got| digest(got.bytes()) == made.layers[0]));
        if registry.asked_whole(APP, &made.layers[0]) == 1 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not heal");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(files(&settings.directory, &["part"]).len(), 0);
}

#[tokio::test]
async fn budget_is_of_all_nodes_and_no_node_removes_blobs_in_use() {
    let budget = 8 << 20;
    let world = world(4, budget).await;
    let held = world.registry.image("acme/held", "1", 50, &[1 << 20]);
    world.nodes[0].puller().pull("acme/held", "1").await.unwrap();
    world.nodes[0].mirror.store().set_in_use(HashSet::from([held.config.clone()]));
    for (node, twin) in world.nodes.iter().zip(&world.nodes_in_memory) {
        twin.register(&node.mirror.store().in_use(), now_utc()).await.unwrap();
    }
    for node in &world.nodes {
        let used = world.nodes_in_memory[0].nodes(now_utc()).await.unwrap().in_use;
        node.mirror.store().set_in_use_elsewhere(used);
        // The list of its blobs is read from time to time, sooner than blobs may be evicted; here
        // they may at once.
        node.mirror.store().tick(now_utc().after(Duration::from_secs(20))).unwrap();
    }
    for n in 0..12 {
        world.registry.image(&format!("acme/app{n}"), "1", 100 + n, &[7 << 17, 1 << 17]);
    }
    for is_lost in [false, true] {
        world.site.set_lost(is_lost);
        let pulls: Vec<_> = world
            .nodes
            .iter()
            .enumerate()
            .map(|(at, node)| {
                let puller = node.puller();
                tokio::spawn(async move {
                    let mut good = 0;
                    for n in 0..12 {
                        // Each in another order, so that they bring different ones at once.
                        let name = format!("acme/app{}", (n * 5 + at * 3) % 12);
                        good += usize::from(puller.pull(&name, "1").await.is_ok());
                    }
                    good
                })
            })
            .collect();
        while !pulls.iter().all(tokio::task::JoinHandle::is_finished) {
            // A look takes time: room that was freed where it has been, and is used where it comes to, counts
            // twice. The other way round what moves does.
            let [a, b, c] = BYTES;
            let there = on_disk(world.root(0), &BYTES).min(on_disk(world.root(0), &[c, b, a]));
            assert!(there <= budget, "{there} of {budget}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut good = 0;
        for pull in pulls {
            good += pull.await.unwrap();
        }
        // Where there is no room its client goes to the registry; mostly there is.
        println!("lost: {is_lost}: {good} of 48 pulls");
        assert!(good > 24, "{good} of 48");
    }
    for node in &world.nodes {
        node.mirror.store().tick(now_utc().after(Duration::from_secs(40))).unwrap();
    }
    let store = world.nodes[3].mirror.store();
    assert!(held.layers.iter().chain([&held.config]).all(|blob| store.has(blob)), "it is used by a node");
    let usage = store.usage(now_utc()).unwrap();
    assert!(usage.bytes + usage.reserved <= budget, "{usage:?}");
}

#[tokio::test]
async fn what_a_node_that_died_has_left_is_gone_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget { young: Duration::ZERO, ..Budget::of(64 << 20) };
    let dead = share(dir.path(), "dead", budget);
    let name = digest(b"never comes");
    let mut part = dead.begin(&name, 500_000, 1, now_utc()).unwrap();
    part.write(&[1; 300_000]).unwrap();
    // Killed: nothing of it runs to the end.
    std::mem::forget(part);
    std::fs::write(dir.path().join("refs/.new-dead"), "x").unwrap();
    // As its kernel does, which this process outlives.
    std::fs::remove_file(dir.path().join("claims/.lock-dead")).unwrap();
    let other = share(dir.path(), "other", budget);
    let reserved = |store: &Store, at| store.usage(at).unwrap().reserved;
    let now = now_utc();
    // Of other nodes in whole blocks.
    let blocks = |bytes: u64| bytes.div_ceil(4096) * 4096;
    assert_eq!(reserved(&other, now), blocks(500_000), "all that it has set aside");
    other.tick(now.after(Duration::from_secs(30))).unwrap();
    let later = now.after(Duration::from_secs(100));
    other.tick(later).unwrap();
    assert_eq!(reserved(&other, later), blocks(300_000), "it is silent: what is there");
    let end = now.after(RESUME * 2);
    other.tick(end).unwrap();
    assert_eq!((reserved(&other, end), files(dir.path(), &["part"]).len()), (0, 0));
    let (_, recovered) = {
        drop(dead);
        Store::share(dir.path(), "dead", budget, weir_image::store::PolicyKind::Lru, end).unwrap()
    };
    assert_eq!(recovered.removed, 1);
    assert!(!dir.path().join("refs/.new-dead").exists());
}

#[tokio::test]
async fn removed_blob_returns_when_used_and_else_goes_after_its_grace() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget { young: Duration::ZERO, high: 0.5, low: 0.25, ..Budget::of(16 * MIB) };
    let [a, b] = ["a", "b"].map(|name| share(dir.path(), name, budget));
    let now = now_utc();
    let after = |s| now.after(Duration::from_secs(s));
    let keep = |n: u8| {
        let bytes = vec![n; 2 << 20];
        a.put(&digest(&bytes), &bytes, u64::from(n) + 1, now).unwrap();
        digest(&bytes)
    };
    let blobs: Vec<_> = (0..4).map(keep).collect();
    // Two are being read on the other node, of one of which it has said so.
    let known = b.open_blob(&blobs[0], now).unwrap().unwrap();
    assert!(known.is_verified(), "the other node has hashed it");
    b.tick(now).unwrap();
    let unknown = b.open_blob(&blobs[1], now).unwrap().unwrap();
    keep(4);
    assert_eq!([0, 1, 2, 3].map(|n| a.has(&blobs[n])), [true, false, false, false]);
    let usage = b.usage(after(2)).unwrap();
    assert_eq!(
        (usage.bytes, usage.reserved),
        (4 * MIB, 6 * MIB),
        "what is thrown away counts while it is there"
    );
    assert!(b.verify(&unknown, now).unwrap(), "who reads it reads on");
    b.tick(after(50)).unwrap();
    a.tick(after(70)).unwrap();
    assert_eq!(on_disk(dir.path(), &["trash"]), 0);
    assert_eq!([0, 1, 2, 3].map(|n| a.has(&blobs[n])), [true, true, false, false]);
    drop((known, unknown));
    let usage = b.usage(after(80)).unwrap();
    assert_eq!((usage.bytes, usage.reserved), (6 * MIB, 0));
}

#[tokio::test]
async fn directory_of_one_node_is_not_shared_nor_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget::of(64 << 20);
    let lru = weir_image::store::PolicyKind::Lru;
    let alone = Store::open(&dir.path().join("a"), budget, lru, now_utc()).unwrap();
    let shared = Store::share(&dir.path().join("a"), "n", budget, lru, now_utc());
    assert!(matches!(shared, Err(StoreError::Version { .. })), "{shared:?}");
    drop(alone);
    let [one, two] = ["n", "m"].map(|n| Store::share(&dir.path().join("b"), n, budget, lru, now_utc()));
    assert!(one.is_ok() && two.is_ok());
    let alone = Store::open(&dir.path().join("b"), budget, lru, now_utc());
    assert!(alone.unwrap_err().to_string().contains("shared"));
}

/// Each would skip the claims of the other as its own, so that both together exceed the budget.
#[test]
fn second_node_of_a_name_is_refused_until_the_first_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let begin = |name| {
        let budget = Budget::of(64 << 20);
        Store::share(dir.path(), name, budget, weir_image::store::PolicyKind::Lru, now_utc())
    };
    let first = begin("node-2").unwrap();
    let second = begin("node-2");
    assert!(matches!(&second, Err(StoreError::NodeInUse { node, .. }) if node == "node-2"), "{second:?}");
    let why = second.unwrap_err().to_string();
    assert!(why.contains("its own `node` in [images.pop]"), "{why}");
    begin("node-3").unwrap();
    drop(first);
    begin("node-2").unwrap();
}

/// Each request asks for a tag or a manifest. A look at all of a repository took a second in one of 400 tags.
#[test]
fn tag_of_a_shared_directory_is_read_without_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["n", "m"].map(|node| share(dir.path(), node, Budget::of(1 << 20)));
    let image: weir_image::Image = "docker.io/library/app:1".parse().unwrap();
    let weir_image::Reference::Tag(tag) = &image.reference else { panic!("it has a tag") };
    let (before, after) = (digest(b"before"), digest(b"after"));
    one.set_tag(&image.source, tag, &before, now_utc()).unwrap();
    assert_eq!(two.tag(&image.source, tag).map(|entry| entry.digest), Some(before));
    one.set_tag(&image.source, tag, &after, now_utc()).unwrap();
    // A read of this tag's file waits.
    let stuck = dir.path().join("refs/docker.io/library/app/_tags/stuck");
    assert!(std::process::Command::new("mkfifo").arg(&stuck).status().unwrap().success());
    let (tell, told) = std::sync::mpsc::channel();
    let (source, name) = (image.source.clone(), tag.clone());
    let asking = std::thread::spawn(move || {
        let seen = two.tag(&source, &name).map(|entry| entry.digest);
        let _ = tell.send((seen, two.is_public(&source)));
    });
    let seen = told.recv_timeout(Duration::from_secs(10));
    // A writer comes and goes.
    drop(std::fs::File::options().read(true).write(true).open(&stuck));
    std::fs::remove_file(&stuck).unwrap();
    asking.join().unwrap();
    assert_eq!(seen, Ok((Some(after), false)));
}

/// The removal of the package stops the mirror while it serves. A stop drops all that it does, as here.
#[tokio::test]
async fn node_that_is_removed_while_it_serves_leaves_all_to_the_others() {
    const SIZE: usize = 24 << 20;
    let mut world = world(2, 64 << 20).await;
    let whole = world.registry.image(APP, "1", 40, &[SIZE]);
    world.nodes[1].puller().pull(APP, "1").await.unwrap();
    let coming = world.registry.image(APP, "2", 41, &[2_000_000]);
    world.nodes[0].puller().get(&format!("/v2/{APP}/manifests/2")).await;
    world.registry.trouble(RegistryFault::Slow(Duration::from_millis(40)));
    let path = |blob: &weir_image::Digest| format!("/v2/{APP}/blobs/{blob}");
    let serving = world.nodes[0].puller();
    let mut sent = serving.send("GET", &path(&whole.layers[0]), &[]).await.into_body();
    sent.frame().await.unwrap().unwrap();
    let blob = coming.layers[0].clone();
    let leading = tokio::spawn(async move { serving.blob(APP, &blob).await });
    world.reaches(0, 200_000).await;
    let begun = Instant::now();
    world.nodes[0].kill();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // No client takes a part for the whole.
    assert!(sent.collect().await.is_err());
    assert!(leading.await.unwrap().body.is_err());
    for made in [&whole, &coming] {
        let got = world.nodes[1].puller().blob(APP, &made.layers[0]).await;
        assert_eq!(digest(got.bytes()), made.layers[0]);
    }
    assert_eq!(world.whole(&whole.layers[0]), 1, "the blob that was being sent stays");
    assert_eq!(files(world.root(0), &["part", "trash"]), Vec::<std::path::PathBuf>::new());
    // Its claims are void after a while, and take no room from the others.
    let store = world.nodes[1].mirror.store();
    let later = now_utc().after(Duration::from_secs(120));
    store.tick(later).unwrap();
    assert_eq!(store.usage(later).unwrap().reserved, 0);
}
