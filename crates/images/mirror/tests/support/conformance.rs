//! Checks that every [`Coordination`] must pass. Its users call [`check`] in their tests.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::{BoxFuture, ready};
use tokio::{sync::broadcast, time::timeout};

use weir_image::{
    Digest, Utc,
    coordination::{AcquireResult, Coordination, LEASE, Lease, REGISTERED, SiteEvent},
    digest::Algorithm,
};

/// How a test has time pass for a keeper.
pub(crate) trait Clock: Sync {
    /// The name of the keeper.
    fn now(&self) -> Utc;
    /// Has time pass, of the keeper's own clock too.
    fn pass(&self, time: Duration) -> BoxFuture<'_, ()>;
}

/// Of keepers that know the time from their callers only.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU64);

impl Clock for Told {
    fn now(&self) -> Utc {
        Utc::from_unix_millis(self.0.load(Ordering::Relaxed))
    }

    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Box::pin(ready(()))
    }
}

/// Checks two views of one keeper (the same one twice, if it is for one process), with leases of
/// digests that no other caller uses.
///
/// # Panics
/// If it does not conform.
pub(crate) async fn check(one: &dyn Coordination, two: &dyn Coordination, clock: &dyn Clock) {
    leases(one, two, clock).await;
    registrations(one, two, clock).await;
    messages(one, two).await;
}

async fn leases(one: &dyn Coordination, two: &dyn Coordination, clock: &dyn Clock) {
    let (a, b) = (digest(b"a"), digest(b"b"));
    // Long enough before the end of a lease for a machine that stands still for a moment.
    let most = LEASE / 4 * 3;

    let first = granted(one, &a, clock).await;
    assert!(is_held(two, &a, clock).await, "one lease of a digest at a time");
    assert!(is_held(one, &a, clock).await, "whoever holds it does not get it twice");
    let other = granted(two, &b, clock).await;
    assert!(other.fence > first.fence, "fences grow, of whatever digest");

    clock.pass(most).await;
    assert_eq!(one.renew(&first, clock.now()).await, Ok(true), "in time it is renewed");
    clock.pass(most).await;
    assert!(is_held(two, &a, clock).await, "and holds for as long again");

    clock.pass(LEASE).await;
    let second = granted(two, &a, clock).await;
    assert!(second.fence > other.fence, "a lease that was not renewed goes to the next, with a larger fence");
    assert_eq!(one.renew(&first, clock.now()).await, Ok(false), "and is lost to whoever had it");
    assert_eq!(one.release(&first).await, Ok(()), "who may give it back");
    assert!(is_held(one, &a, clock).await, "without taking it from its new holder");

    assert_eq!(two.release(&second).await, Ok(()));
    let third = granted(one, &a, clock).await;
    assert!(third.fence > second.fence, "given back it is free at once");
    assert_eq!(two.renew(&second, clock.now()).await, Ok(false), "what was given back is not renewed");
    clock.pass(LEASE).await;
    assert_eq!(one.renew(&third, clock.now()).await, Ok(false), "nor what has ended");
    assert_eq!(one.release(&third).await, Ok(()));
    assert_eq!(two.release(&other).await, Ok(()));
}

async fn registrations(one: &dyn Coordination, two: &dyn Coordination, clock: &dyn Clock) {
    let in_use = async |of: &dyn Coordination| of.nodes(clock.now()).await.expect("it can be asked").in_use;
    let [x, y, z] = [b"x", b"y", b"z"].map(|n| digest(n));
    let set = |digests: &[&Digest]| digests.iter().copied().cloned().collect::<HashSet<_>>();
    assert_eq!(one.register(&set(&[&x, &y]), clock.now()).await, Ok(()));
    assert_eq!(in_use(two).await, set(&[&x, &y]), "what one uses all know");
    assert_eq!(one.register(&set(&[&y]), clock.now()).await, Ok(()));
    assert_eq!(in_use(two).await, set(&[&y]), "what is registered replaces what was");
    clock.pass(REGISTERED / 4 * 3).await;
    assert_eq!(one.register(&set(&[&z]), clock.now()).await, Ok(()));
    clock.pass(REGISTERED / 2).await;
    assert_eq!(in_use(two).await, set(&[&z]), "and holds for as long again");
    let known = one.nodes(clock.now()).await.expect("it can be asked").addresses;
    assert_eq!(known.len(), 1, "who has registered is known: {known:?}");
    assert_eq!(two.register(&set(&[]), clock.now()).await, Ok(()));
    let known = one.nodes(clock.now()).await.expect("it can be asked").addresses;
    assert!(known.is_sorted() && !known.is_empty(), "also who uses nothing: {known:?}");
    clock.pass(REGISTERED).await;
    assert_eq!(one.nodes(clock.now()).await.map(|n| (n.addresses.len(), n.in_use.len())), Ok((0, 0)));
}

async fn messages(one: &dyn Coordination, two: &dyn Coordination) {
    let told = [SiteEvent::Published(digest(b"m")), SiteEvent::Evicted(digest(b"m"))];
    let mut ears = [one.events(), two.events()];
    for event in &told {
        assert_eq!(one.publish_event(event).await, Ok(()));
    }
    for ear in &mut ears {
        for event in &told {
            assert_eq!(heard(ear).await.as_ref(), Some(event), "all hear it, in its order");
        }
    }
}

async fn heard(ear: &mut broadcast::Receiver<SiteEvent>) -> Option<SiteEvent> {
    timeout(Duration::from_secs(10), ear.recv()).await.ok()?.ok()
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

async fn granted(by: &dyn Coordination, digest: &Digest, clock: &dyn Clock) -> Lease {
    match by.acquire(digest, clock.now()).await {
        Ok(AcquireResult::Granted(lease)) => {
            assert_eq!(lease.digest, *digest);
            lease
        }
        other => panic!("the lease of {digest} was to be had: {other:?}"),
    }
}

async fn is_held(by: &dyn Coordination, digest: &Digest, clock: &dyn Clock) -> bool {
    matches!(by.acquire(digest, clock.now()).await, Ok(AcquireResult::Held { .. }))
}
