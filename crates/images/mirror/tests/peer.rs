//! Nodes of a site that each keep their own part, and ask each other.

mod support;

use std::{
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use support::{
    Puller, RegistryFault, digest,
    site::{APP, Cluster, file_of, files, rot, write_secret},
};
use weir_image::{
    Digest, Image, Mirror, PopStore, Scope,
    coordination::{AcquireResult, Coordination},
    now_utc,
};

async fn world(nodes: usize, budget: u64) -> Cluster {
    support::site::world(PopStore::Peer, nodes, budget).await
}

#[tokio::test]
async fn twenty_pullers_on_five_peers_cost_one_get_per_blob_and_manifest() {
    let world = world(5, 64 << 20).await;
    let made = world.registry.image(APP, "1", 2, &[3_000_000, 200_000, 17]);
    for _ in 0..4 {
        world.registry.trouble(RegistryFault::Slow(Duration::from_millis(5)));
    }
    let pulls =
        world.nodes.iter().flat_map(|node| (0..4).map(|_| async { node.puller().pull(APP, "1").await }));
    for result in join_all(pulls).await {
        result.unwrap();
    }
    assert_eq!(world.registry.asked(&format!("GET /v2/{APP}/manifests/")), 1, "{:?}", world.registry.log());
    for blob in made.layers.iter().chain([&made.config]) {
        assert_eq!(world.whole(blob), 1, "{blob}: {:?}", world.registry.log());
    }
    let manifest = world.registry.state.manifests.lock().unwrap()[&format!("{APP}/1")].1.len() as u64;
    let blobs: u64 = world.registry.state.blobs.lock().unwrap().values().map(|b| b.len() as u64).sum();
    assert_eq!(world.sum("upstream_bytes"), blobs + manifest);
    // Each of the others has got it once, from one that had it, or had the beginning of it.
    assert_eq!(world.sum("peer_bytes"), 4 * (blobs + manifest));
}

#[tokio::test]
async fn secret_that_all_users_may_read_is_refused() {
    let world = Cluster::plan(PopStore::Peer, 1, 64 << 20).await;
    let secret = world.settings[0].pop.as_ref().unwrap().secret_file.clone().unwrap();
    let over = || {
        let (site, given) = (Arc::new(world.nodes_in_memory[0].clone()), world.settings[0].clone());
        Mirror::over(given, support::timing(), world.open(0), site).map(drop)
    };
    over().unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let why = over().unwrap_err().to_string();
    assert!(why.contains("chmod o-rwx") && why.contains("secret_file"), "{why}");
}

#[tokio::test]
async fn a_node_tells_which_peers_take_it_for_one_and_why_others_do_not() {
    let mut world = Cluster::plan(PopStore::Peer, 4, 64 << 20).await;
    let other = world.dir.path().join("other");
    write_secret(&other, "another secret of some length\n");
    world.settings[2].pop.as_mut().unwrap().secret_file = Some(other);
    world.begin_in_memory().await;
    // It is registered still.
    world.nodes[3].kill();
    let probed = world.nodes[0].mirror.probe_peers().await;
    assert_eq!(probed.len(), 3, "{probed:?}");
    let of = |n: usize| probed.iter().find(|peer| peer.node == world.name(n)).unwrap();
    assert_eq!((of(1).version.as_deref(), &of(1).problem), (Some(env!("CARGO_PKG_VERSION")), &None));
    // One clock, and the time of an answer.
    assert!(of(1).ahead_ms.is_some_and(|ms| ms.abs() < 5_000), "{probed:?}");
    let why = |n: usize| of(n).problem.clone().unwrap_or_default();
    assert!(why(2).contains("secret_file"), "{probed:?}");
    assert!(why(3).contains("refused") || why(3).contains("no answer"), "{probed:?}");
}

#[tokio::test]
async fn a_peer_that_waits_has_the_first_byte_when_the_leader_has_it() {
    let world = world(5, 64 << 20).await;
    let made = world.registry.image(APP, "1", 10, &[1_000_000]);
    world.registry.trouble(RegistryFault::Slow(Duration::from_millis(100)));
    let pulls = world.nodes.iter().map(|node| async { node.puller().timed(APP, &made.layers[0]).await });
    let timed = join_all(pulls).await;
    assert!(timed.iter().all(|t| digest(t.got.bytes()) == made.layers[0]));
    assert_eq!(world.whole(&made.layers[0]), 1, "{:?}", world.registry.log());
    let first: Vec<Instant> = timed.iter().map(|t| t.first).collect();
    let late = first.iter().max().unwrap().duration_since(*first.iter().min().unwrap());
    println!("first byte of the last of five after that of the first: {late:?}");
    assert!(late < Duration::from_millis(100), "{late:?}");
}

#[tokio::test]
async fn peer_that_dies_is_followed_by_one_that_continues() {
    let mut world = world(3, 64 << 20).await;
    let made = world.registry.image(APP, "1", 3, &[2_000_000]);
    let blob = made.layers[0].clone();
    world.registry.trouble(RegistryFault::Slow(Duration::from_millis(40)));
    let pull = |puller: Puller| {
        let blob = blob.clone();
        tokio::spawn(async move { puller.timed(APP, &blob).await })
    };
    let _lost = pull(world.nodes[0].puller());
    world.reaches(0, 100_000).await;
    let waiting: Vec<_> = world.nodes[1..].iter().map(|node| pull(node.puller())).collect();
    world.reaches(1, 600_000).await;
    world.nodes[0].kill();
    for waiter in waiting {
        assert_eq!(digest(waiter.await.unwrap().got.bytes()), blob);
    }
    let log = world.registry.log();
    let asked: Vec<_> = log.iter().filter(|l| l.contains("GET") && l.contains(&blob.to_string())).collect();
    let from = asked.last().unwrap().rsplit_once("bytes=").expect("a range").1.trim_end_matches('-');
    assert!(asked.len() == 2 && from.parse::<u64>().unwrap() >= 400_000, "{asked:?}");
    for node in [1, 2] {
        assert_eq!(files(world.root(node), &["part", "trash"]).len(), 0);
    }
}

#[tokio::test]
async fn blob_of_one_peer_is_fetched_by_no_other_even_without_redis() {
    let world = world(3, 64 << 20).await;
    let made = world.registry.image(APP, "1", 4, &[300_000]);
    world.nodes[0].puller().pull(APP, "1").await.unwrap();
    world.site.set_lost(true);
    world.nodes[1].puller().pull(APP, "1").await.unwrap();
    world.site.set_lost(false);
    world.nodes[2].puller().pull(APP, "1").await.unwrap();
    assert_eq!((world.whole(&made.layers[0]), world.whole(&made.config)), (1, 1));
    // Cut off while no node has it: each by itself, and right.
    world.site.set_lost(true);
    let other = world.registry.image(APP, "2", 5, &[400_000]);
    let pulls = world.nodes.iter().map(|node| async { node.puller().pull(APP, "2").await });
    assert!(join_all(pulls).await.iter().all(Result::is_ok));
    assert!((1..=3).contains(&world.whole(&other.layers[0])));
}

#[tokio::test]
async fn copies_of_what_a_peer_has_go_before_what_no_other_has() {
    let world = world(2, 8 << 20).await;
    let layers =
        |n: u64| world.registry.image(&format!("acme/app{n}"), "1", 100 + n, &[1 << 20]).layers[0].clone();
    let blobs: Vec<Digest> = (0..8).map(layers).collect();
    let pull = |node: usize, n: usize| {
        let puller = world.nodes[node].puller();
        async move { puller.pull(&format!("acme/app{n}"), "1").await.unwrap() }
    };
    pull(0, 0).await;
    for n in 1..6 {
        pull(1, n).await;
    }
    // A copy, the latest used of all; then more than there is room for.
    pull(1, 0).await;
    assert!(world.nodes[1].mirror.store().has(&blobs[0]));
    for n in 6..8 {
        pull(1, n).await;
    }
    let store = world.nodes[1].mirror.store();
    assert!(!store.has(&blobs[0]) && store.has(&blobs[5]) && world.nodes[0].mirror.store().has(&blobs[0]));
    let usage = store.usage(now_utc()).unwrap();
    assert!(usage.bytes + usage.reserved <= 8 << 20, "{usage:?}");
}

#[tokio::test]
async fn what_is_private_is_so_on_all_peers_and_strangers_get_nothing() {
    let world = world(2, 64 << 20).await;
    *world.registry.state.login.lock().unwrap() = Some("dXNlcjpwYXNz".to_owned());
    let made = world.registry.image(APP, "1", 7, &[100_000]);
    let path = format!("/v2/{APP}/manifests/1");
    let blob = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let login = ("authorization", "Basic dXNlcjpwYXNz");
    for at in [&path, &blob] {
        assert_eq!(world.nodes[0].puller().request("GET", at, &[login]).await.status, 200);
    }
    // The other node's client has no credentials: what its peer has is of no use to it.
    for at in [&path, &blob, &format!("/v2/{APP}/manifests/{}", made.manifest)] {
        assert_eq!(world.nodes[1].puller().get(at).await.status, 404, "{at}");
    }
    assert!(!world.nodes[1].mirror.store().has(&made.layers[0]));
    for at in [&path, &blob] {
        assert_eq!(world.nodes[1].puller().request("GET", at, &[login]).await.status, 200);
    }
    assert_eq!(world.whole(&made.layers[0]), 1, "who may have it gets it from the peer");
    // At the address for peers no one else is served, with or without TLS.
    let peers = world.settings[0].pop.as_ref().unwrap().listen.unwrap();
    for headers in ["", "authorization: Basic dXNlcjpwYXNz\r\n", "authorization: weir-peer 1 00 00\r\n"] {
        let request = format!("GET {blob} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        let answer = support::tls::ask(peers, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        let answer = support::tls::ask_plainly(peers, request.as_bytes()).await;
        assert!(!answer.starts_with("HTTP/"), "{answer}");
    }
}

/// A peer sends all of a blob, with a wrong first byte, and the registry has the right one. The client gets no mixture.
#[tokio::test]
async fn blob_that_a_peer_sends_wrong_never_reaches_its_end() {
    let world = world(2, 64 << 20).await;
    let made = world.registry.image(APP, "1", 6, &[100_000]);
    let blob = &made.layers[0];
    world.nodes[0].puller().pull(APP, "1").await.unwrap();
    rot(&file_of(world.root(0), blob), 0);
    // Node 1 brings it from the one that has the lease, and waits for the lease after that.
    let source = format!("docker.io/{APP}").parse::<Image>().unwrap().source;
    let holder = world.site.node(&world.name(0));
    let mut leases = Vec::new();
    for is_public in [true, false] {
        let key = Scope::of(&source, is_public).lease(blob);
        let AcquireResult::Granted(lease) = holder.acquire(&key, now_utc()).await.unwrap() else {
            panic!("no one has it")
        };
        leases.push(lease);
    }
    let (puller, of) = (world.nodes[1].puller(), blob.clone());
    let first = tokio::spawn(async move { puller.timed(APP, &of).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for lease in &leases {
        holder.release(lease).await.unwrap();
    }
    let got = first.await.unwrap().got;
    assert!(got.body.as_ref().is_err() || digest(got.bytes()) == *blob, "a wrong blob came to its end");
    assert!(world.sum("wrong_content") > 0, "the peer sent the right one");
    assert_eq!(digest(world.nodes[1].puller().timed(APP, blob).await.got.bytes()), *blob);
}
