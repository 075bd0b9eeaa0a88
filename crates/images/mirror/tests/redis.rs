//! The coordination of a site on a real Redis, also one that is gone, frozen or has lost its memory.

mod support;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use support::{conformance, digest, redis::RedisServer};
use weir_image::{
    coordination::{AcquireResult, Coordination, Lease, Redis},
    now_utc,
};

async fn granted(by: &Redis, of: &[u8]) -> Lease {
    match by.acquire(&digest(of), now_utc()).await {
        Ok(AcquireResult::Granted(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

/// Asks until it is there again; it is tried once a second.
async fn heals(node: &Redis) {
    let begun = Instant::now();
    while node.nodes(now_utc()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn redis_conforms() {
    let server = RedisServer::start().await;
    let [one, two] = ["10.0.0.1:5051", "10.0.0.2:5051"].map(|address| server.node(address));
    // Connected, as events are of those who listen already.
    for node in [&one, &two] {
        node.nodes(now_utc()).await.unwrap();
    }
    conformance::check(&one, &two, &server).await;
    let held = granted(&one, b"by").await;
    let answer = two.acquire(&held.digest, now_utc()).await;
    assert_eq!(answer, Ok(AcquireResult::Held { by: "10.0.0.1:5051".to_owned() }));
    one.register(&HashSet::new(), now_utc()).await.unwrap();
    assert_eq!(two.nodes(now_utc()).await.unwrap().addresses, ["10.0.0.1:5051"]);
    one.release(&held).await.unwrap();
    // The keys that remain are the set of nodes, the blobs that one of them uses, and the last
    // fence.
    assert_eq!(server.count_keys().await, Ok(3));
}

#[tokio::test]
async fn a_redis_that_says_nothing_costs_a_moment_and_then_none() {
    let server = RedisServer::start().await;
    let node = server.node("a");
    let lease = granted(&node, b"x").await;
    server.pause();
    let begun = Instant::now();
    assert!(node.renew(&lease, now_utc()).await.is_err());
    for _ in 0..100 {
        assert!(node.acquire(&digest(b"y"), now_utc()).await.is_err());
    }
    // Each by itself would wait for half a second.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    server.resume();
    heals(&node).await;
    granted(&node, b"z").await;
}

#[tokio::test]
async fn redis_that_forgot_everything_gives_larger_fences_still() {
    let server = RedisServer::start().await;
    let node = server.node("a");
    let before = granted(&node, b"x").await;
    server.kill();
    assert!(node.acquire(&digest(b"x"), now_utc()).await.is_err());
    server.begin().await;
    heals(&node).await;
    assert_eq!(node.renew(&before, now_utc()).await, Ok(false), "it knows nothing of it");
    let after = granted(&node, b"x").await;
    assert!(after.fence > before.fence, "{} after {}", after.fence, before.fence);
    // News come again too.
    let mut events = node.events();
    let told = weir_image::coordination::SiteEvent::Evicted(digest(b"x"));
    node.publish_event(&told).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(10), events.recv()).await.unwrap();
    assert_eq!(heard, Ok(told));
}

#[test]
fn what_is_no_redis_is_refused_with_the_way_out() {
    for url in ["http://10.0.0.1", "10.0.0.1:6379", "redis://"] {
        let error = Redis::new(url, None, "s", "a").err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(url) && error.contains("redis://10.0.0.5:6379"), "{url}: {error}");
    }
}
