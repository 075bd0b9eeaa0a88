//! Faults of a site of three nodes on a real Redis, one after the other, for both kinds of store.
//! Each pull ends right or fails clearly, and the state afterwards is as without the fault.

mod support;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all, stream};
use support::{
    RegistryFault, TestImage, digest,
    line::{Line, To},
    redis::RedisServer,
    site::{APP, Cluster, Timed, files, on_disk},
};
use tokio::task::JoinHandle;
use weir_image::{PopStore, coordination::Coordination, now_utc, store::RESUME};

const NODES: usize = 3;
const BUDGET: u64 = 24 << 20;
/// The layer that is pulled while things go wrong.
const SIZE: usize = 3_000_000;
/// The longest that a client may get nothing.
const GAP_TIMEOUT: Duration = Duration::from_secs(10);

/// The fault.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// With the registry's answers: this number of the first ones.
    Registry(fn() -> RegistryFault, usize),
    /// The node that downloads is off the network, at 30 %; and comes back when others have gone on.
    LeaderUnplugged,
    /// Its way to the registry and to Redis goes silent.
    LeadersUplinkSilent,
    /// No node hears of Redis any more.
    RedisSilent,
    /// The node that downloads does not.
    RedisSilentForLeader,
    /// It is gone, and has forgotten all when it comes back.
    RedisKilled,
    /// The second node has no room on its disk.
    NoRoomOnOne,
}

/// A fault, and which nodes' first pull is right all the same.
const FAULTS: [(Fault, [bool; NODES]); 12] = [
    (Fault::Registry(|| RegistryFault::Status(500), 1), [true; 3]),
    (Fault::Registry(|| RegistryFault::Status(500), 100), [false; 3]),
    (Fault::Registry(|| RegistryFault::Limited(1), 1), [false; 3]),
    (Fault::Registry(|| RegistryFault::Stall(SIZE / 3), 1), [true; 3]),
    (Fault::Registry(|| RegistryFault::Cut(SIZE / 3), 2), [true; 3]),
    (Fault::Registry(|| RegistryFault::Lie, 1), [false; 3]),
    (Fault::LeaderUnplugged, [false, true, true]),
    (Fault::LeadersUplinkSilent, [false, true, true]),
    (Fault::RedisSilent, [true; 3]),
    (Fault::RedisSilentForLeader, [true; 3]),
    (Fault::RedisKilled, [true; 3]),
    (Fault::NoRoomOnOne, [true, false, true]),
];

/// A site whose lines can be cut.
struct Site {
    world: Cluster,
    server: RedisServer,
    to_registry: Vec<Line>,
    to_redis: Vec<Line>,
}

async fn site(store: PopStore, fault: Fault) -> Site {
    let server = RedisServer::start().await;
    let mut world = Cluster::plan(store, NODES, BUDGET).await;
    let (mut to_registry, mut to_redis) = (Vec::new(), Vec::new());
    let mut by: Vec<Arc<dyn Coordination>> = Vec::new();
    for n in 0..NODES {
        let (registry, redis) =
            (Line::to(To::Tcp(world.registry.address)).await, Line::to(To::Unix(server.socket())).await);
        world.settings[n].upstreams[0].url = Some(format!("http://{}", registry.address));
        let url = format!("redis://{}", redis.address);
        by.push(Arc::new(weir_image::coordination::Redis::new(&url, None, "test", &world.name(n)).unwrap()));
        to_registry.push(registry);
        to_redis.push(redis);
    }
    if let Fault::NoRoomOnOne = fault {
        world.settings[1].keep_free = weir_units::Bytes(u64::MAX / 2);
    }
    world.begin(by).await;
    Site { world, server, to_registry, to_redis }
}

/// The end of what came.
fn said(pulled: &Timed) -> String {
    let body =
        pulled.got.body.as_ref().map(|body| String::from_utf8_lossy(&body[body.len().saturating_sub(400)..]));
    format!("{} {body:?} after a gap of {:?}", pulled.got.status, pulled.gap)
}

/// Right, or clearly not; and never for long nothing.
fn judge(what: &str, pulled: &Timed, made: &TestImage) -> bool {
    assert!(pulled.gap < GAP_TIMEOUT, "{what}: nothing for {:?}", pulled.gap);
    match (&pulled.got.body, pulled.got.status) {
        (Ok(body), 200) => {
            assert_eq!(digest(body), made.layers[0], "{what}: something else was served to its end");
            true
        }
        (Err(_), 200) | (_, 404) => false,
        (_, status) => panic!("{what}: {status}"),
    }
}

/// Answers what was refused though it could have been had.
async fn suffer(store: PopStore, fault: Fault, right: [bool; NODES]) -> Option<String> {
    let what = format!("{store:?}, {fault:?}");
    let Site { mut world, server, to_registry, to_redis } = site(store, fault).await;
    // A container of the first node runs from this.
    let held = world.registry.image("acme/held", "1", 1, &[1 << 20]);
    let begun = Instant::now();
    while let Err(e) = world.nodes[0].puller().pull("acme/held", "1").await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {e}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.nodes[0].mirror.store().set_in_use(HashSet::from([held.config.clone()]));
    let pull = |world: &Cluster, n: usize, made: &TestImage| {
        let (puller, blob) = (world.nodes[n].puller(), made.layers[0].clone());
        tokio::spawn(async move { puller.timed(APP, &blob).await })
    };
    let (watched, is_over) = (Arc::new(world.settings.clone()), Arc::new(()));
    let (roots, going) = (Arc::clone(&watched), Arc::downgrade(&is_over));
    let watch = tokio::spawn(async move {
        while going.strong_count() > 0 {
            for given in roots.iter() {
                let there = on_disk(&given.directory, &["blobs", "part", "trash"]);
                assert!(there <= BUDGET, "{there} of {BUDGET} in {}", given.directory.display());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut tag = 0;
    let (made, pulls) = loop {
        tag += 1;
        let made = world.registry.image(APP, &tag.to_string(), 1 + tag, &[SIZE]);
        for node in &world.nodes {
            node.puller().get(&format!("/v2/{APP}/manifests/{tag}")).await;
        }
        match fault {
            Fault::Registry(trouble, times) => (0..times).for_each(|_| world.registry.trouble(trouble())),
            _ => world.registry.trouble(RegistryFault::Slow(Duration::from_millis(40))),
        }
        let served: Vec<u64> = world.nodes.iter().map(|node| node.counted("served_bytes")).collect();
        let mut pulls = vec![pull(&world, 0, &made)];
        let is_early = |pulls: &[JoinHandle<_>], part: u64, waiting: usize| {
            let has_first = |n: usize| {
                n >= pulls.len()
                    || pulls[n].is_finished()
                    || world.nodes[n].counted("served_bytes") > served[n]
            };
            !pulls[0].is_finished()
                && (on_disk(world.root(0), &["part"]) < part || !(0..waiting).all(has_first))
        };
        if !matches!(fault, Fault::Registry(..)) {
            while is_early(&pulls, SIZE as u64 / 10, 1) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        pulls.extend((1..NODES).map(|n| pull(&world, n, &made)));
        if !matches!(fault, Fault::Registry(..) | Fault::NoRoomOnOne) {
            while is_early(&pulls, SIZE as u64 * 3 / 10, NODES) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // On a machine that stood still it may be over before anything could go wrong: another one, then.
        if matches!(fault, Fault::Registry(..)) || !pulls[0].is_finished() || tag == 4 {
            break (made, pulls);
        }
    };
    let mut frozen = None;
    match fault {
        Fault::LeaderUnplugged => frozen = Some(world.nodes[0].freeze()),
        Fault::LeadersUplinkSilent => {
            to_registry[0].set_silent(true);
            to_redis[0].set_silent(true);
        }
        Fault::RedisSilent => to_redis.iter().for_each(|line| line.set_silent(true)),
        Fault::RedisSilentForLeader => to_redis[0].set_silent(true),
        Fault::RedisKilled => server.kill(),
        Fault::Registry(..) | Fault::NoRoomOnOne => {}
    }
    let mut pulls = pulls.into_iter();
    let first = pulls.next().unwrap();
    let others = join_all(pulls).await;
    // A node off the network has clients too; they get their blobs afterwards.
    let was_frozen = frozen.take().is_some();
    let first = first.await.unwrap();
    let mut refused = None;
    for (n, pulled) in others.into_iter().map(Result::unwrap).enumerate() {
        let is_right = judge(&format!("{what}: node {}", n + 1), &pulled, &made);
        if !is_right && right[n + 1] {
            refused = Some(format!("{what}: node {}: {}", n + 1, said(&pulled)));
        }
    }
    if !was_frozen {
        let is_right = judge(&format!("{what}: node 0"), &first, &made);
        if !is_right && right[0] {
            refused = Some(format!("{what}: node 0: {}", said(&first)));
        }
    }
    // It is over, and all is as before.
    to_registry.iter().chain(&to_redis).for_each(|line| line.set_silent(false));
    world.registry.state.blob_troubles.lock().unwrap().clear();
    if let Fault::RedisKilled = fault {
        server.begin().await;
    }
    let begun = Instant::now();
    for n in 0..NODES {
        if matches!((fault, n), (Fault::NoRoomOnOne, 1)) {
            continue;
        }
        while !judge(
            &format!("{what}: healed"),
            &world.nodes[n].puller().timed(APP, &made.layers[0]).await,
            &made,
        ) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: node {n} does not heal");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    drop(is_over);
    watch.await.unwrap();
    world.nodes.iter_mut().for_each(support::site::Node::kill);
    let of_first = world.nodes[0].mirror.store();
    assert!(held.layers.iter().chain([&held.config]).all(|blob| of_first.has(blob)), "{what}: it is in use");
    let usage = of_first.usage(now_utc()).unwrap();
    world.nodes.clear();
    for n in 0..NODES {
        // Twice: what another node has left is noticed first.
        let store = world.open(n);
        for times in 1..3 {
            store.tick(now_utc().after(RESUME * 2 * times)).unwrap();
        }
        let left = files(world.root(n), &["part", "trash"]);
        assert!(left.is_empty(), "{what}: {left:?}, {usage:?}");
        let all = files(world.root(n), &["."]);
        assert!(!all.iter().any(|file| file.to_string_lossy().contains("/.new-")), "{what}: {all:?}");
    }
    refused
}

async fn suffer_all(store: PopStore) {
    let all = FAULTS.map(|(fault, right)| async move {
        // Nothing wrong is ever right; but who is not woken for seconds refuses what he could have had.
        for _ in 0..2 {
            let Some(refused) = suffer(store, fault, right).await else { return };
            println!("once more: {refused}");
        }
        assert_eq!(suffer(store, fault, right).await, None);
    });
    // Some at once: they wait, mostly.
    stream::iter(all).buffer_unordered(3).collect::<()>().await;
}

#[tokio::test]
async fn every_fault_on_nodes_with_one_directory_ends_right_or_clearly() {
    suffer_all(PopStore::SharedDir).await;
}

#[tokio::test]
async fn every_fault_on_peers_ends_right_or_clearly() {
    suffer_all(PopStore::Peer).await;
}
