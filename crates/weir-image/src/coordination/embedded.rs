//! One process: a map.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use futures_util::future::{BoxFuture, ready};

use super::{Claim, Coordination, LEASE, Lease, Unreachable};
use crate::{Digest, Moment};

/// Fences and the ends of leases.
type Leases = HashMap<Digest, (u64, Moment)>;

/// Leases among the downloads of one process.
#[derive(Debug)]
pub struct Embedded {
    /// The last fence, and the leases.
    held: Mutex<(u64, Leases)>,
}

impl Embedded {
    /// No leases yet. Fences begin at the present time, so they grow over restarts too.
    #[must_use]
    pub fn new(now: Moment) -> Embedded {
        Embedded { held: Mutex::new((now.0, HashMap::new())) }
    }
}

impl Coordination for Embedded {
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Moment) -> BoxFuture<'a, Result<Claim, Unreachable>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (fence, leases) = &mut *held;
        if leases.get(digest).is_some_and(|(_, until)| now < *until) {
            return Box::pin(ready(Ok(Claim::Held { by: String::new() })));
        }
        *fence += 1;
        leases.insert(digest.clone(), (*fence, now.after(LEASE)));
        Box::pin(ready(Ok(Claim::Granted(Lease { digest: digest.clone(), fence: *fence }))))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: Moment) -> BoxFuture<'a, Result<bool, Unreachable>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_held = match held.1.get_mut(&lease.digest) {
            Some((fence, until)) if *fence == lease.fence && now < *until => {
                *until = now.after(LEASE);
                true
            }
            _ => false,
        };
        Box::pin(ready(Ok(is_held)))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Unreachable>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.1.get(&lease.digest).is_some_and(|(fence, _)| *fence == lease.fence) {
            held.1.remove(&lease.digest);
        }
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_embedded_one_conforms() {
        let one = Embedded::new(Moment(5));
        super::super::conformance::check(&one, &one).await;
    }
}
