//! Coordination in one process, and in memory for the nodes of a site.

mod support;

use support::{conformance, memory::InMemoryCoordination};
use weir_image::{
    Digest, Utc,
    coordination::{AcquireResult, Coordination, Embedded},
    digest::Algorithm,
};

#[tokio::test]
async fn one_process_conforms() {
    let one = Embedded::default();
    conformance::check(&one, &one, &conformance::Told::default()).await;
}

#[tokio::test]
async fn a_site_in_memory_conforms() {
    let site = InMemoryCoordination::default();
    conformance::check(&site.node("a"), &site.node("b"), &conformance::Told::default()).await;
}

#[tokio::test]
async fn a_node_that_is_cut_off_finds_its_leases_when_it_is_back() {
    let (site, now) = (InMemoryCoordination::default(), Utc::from_unix_millis(0));
    let (node, digest) = (site.node("a"), Digest::of(Algorithm::Sha256, b"x"));
    let AcquireResult::Granted(lease) = node.acquire(&digest, now).await.unwrap() else { panic!("held") };
    site.set_lost(true);
    assert!(node.renew(&lease, now).await.is_err() && node.acquire(&digest, now).await.is_err());
    assert!(node.nodes(now).await.is_err());
    site.set_lost(false);
    assert_eq!(node.renew(&lease, now).await, Ok(true));
    assert_eq!(site.node("b").acquire(&digest, now).await, Ok(AcquireResult::Held { by: "a".to_owned() }));
}
