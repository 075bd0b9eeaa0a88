//! What every [`Coordination`] must do. Its users call [`check`] in their tests.

use std::time::Duration;

use super::{Claim, Coordination, LEASE, Lease};
use crate::{Digest, Moment, digest::Algorithm};

/// Checks two views of one keeper (the same one twice, if it is for one process); leases of digests
/// that nobody else uses.
///
/// # Panics
/// If it does not conform.
pub async fn check(one: &dyn Coordination, two: &dyn Coordination) {
    let (a, b) = (Digest::of(Algorithm::Sha256, b"a"), Digest::of(Algorithm::Sha256, b"b"));
    let start = Moment(1_000_000);
    let at = |ms| start.after(Duration::from_millis(ms));
    let end = u64::try_from(LEASE.as_millis()).expect("a lease is short");

    let first = granted(one, &a, start).await;
    assert!(is_held(two, &a, at(1)).await, "one lease of a digest at a time");
    assert!(is_held(one, &a, at(1)).await, "whoever holds it does not get it twice");
    let other = granted(two, &b, at(2)).await;
    assert!(other.fence > first.fence, "fences grow, of whatever digest");

    assert_eq!(one.renew(&first, at(end - 1)).await, Ok(true), "in time it is renewed");
    assert!(is_held(two, &a, at(end + 1)).await, "and holds for as long again");

    let second = granted(two, &a, at(2 * end)).await;
    assert!(second.fence > other.fence, "a lease that was not renewed goes to the next, with a larger fence");
    assert_eq!(one.renew(&first, at(2 * end)).await, Ok(false), "and is lost to whoever had it");
    assert_eq!(one.release(&first).await, Ok(()), "who may give it back");
    assert!(is_held(one, &a, at(2 * end + 1)).await, "without taking it from its new holder");

    assert_eq!(two.release(&second).await, Ok(()));
    let third = granted(one, &a, at(2 * end + 2)).await;
    assert!(third.fence > second.fence, "given back it is free at once");
    assert_eq!(two.renew(&second, at(2 * end + 2)).await, Ok(false), "what was given back is not renewed");
    assert_eq!(one.release(&third).await, Ok(()));
    assert_eq!(two.release(&other).await, Ok(()));
}

async fn granted(by: &dyn Coordination, digest: &Digest, now: Moment) -> Lease {
    match by.acquire(digest, now).await {
        Ok(Claim::Granted(lease)) => {
            assert_eq!(lease.digest, *digest);
            lease
        }
        other => panic!("the lease of {digest} was to be had: {other:?}"),
    }
}

async fn is_held(by: &dyn Coordination, digest: &Digest, now: Moment) -> bool {
    matches!(by.acquire(digest, now).await, Ok(Claim::Held { .. }))
}
