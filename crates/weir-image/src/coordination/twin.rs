//! A site in memory: several nodes on one keeper of leases, which a test can cut off.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::{BoxFuture, ready};

use super::{Claim, Coordination, LEASE, Lease, Unreachable};
use crate::{Digest, Moment};

/// What a server would keep for the nodes of a site.
#[derive(Debug, Clone, Default)]
pub struct Site {
    shared: Arc<Mutex<Shared>>,
    is_lost: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Shared {
    fence: u64,
    leases: HashMap<Digest, (u64, String, Moment)>,
}

/// One node's view of a [`Site`].
#[derive(Debug, Clone)]
pub struct SiteNode {
    site: Site,
    address: String,
}

impl Site {
    /// The view of the node whose mirror is at `address`.
    #[must_use]
    pub fn node(&self, address: &str) -> SiteNode {
        SiteNode { site: self.clone(), address: address.to_owned() }
    }

    /// Cuts all nodes off, or lets them back.
    pub fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }
}

impl SiteNode {
    fn with<'a, T: Send + 'a>(
        &self,
        work: impl FnOnce(&mut Shared) -> T,
    ) -> BoxFuture<'a, Result<T, Unreachable>> {
        if self.site.is_lost.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(Unreachable("cut off".to_owned()))));
        }
        let done = work(&mut self.site.shared.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(ready(Ok(done)))
    }
}

impl Coordination for SiteNode {
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Moment) -> BoxFuture<'a, Result<Claim, Unreachable>> {
        self.with(|shared| {
            if let Some((_, by, until)) = shared.leases.get(digest)
                && now < *until
            {
                return Claim::Held { by: by.clone() };
            }
            shared.fence += 1;
            let lease = (shared.fence, self.address.clone(), now.after(LEASE));
            shared.leases.insert(digest.clone(), lease);
            Claim::Granted(Lease { digest: digest.clone(), fence: shared.fence })
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: Moment) -> BoxFuture<'a, Result<bool, Unreachable>> {
        self.with(|shared| match shared.leases.get_mut(&lease.digest) {
            Some((fence, _, until)) if *fence == lease.fence && now < *until => {
                *until = now.after(LEASE);
                true
            }
            _ => false,
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Unreachable>> {
        self.with(|shared| {
            if shared.leases.get(&lease.digest).is_some_and(|(fence, ..)| *fence == lease.fence) {
                shared.leases.remove(&lease.digest);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Algorithm;

    #[tokio::test]
    async fn the_twin_conforms() {
        let site = Site::default();
        super::super::conformance::check(&site.node("a"), &site.node("b")).await;
    }

    #[tokio::test]
    async fn a_node_that_is_cut_off_is_told_so_and_finds_its_leases_when_it_is_back() {
        let (site, now) = (Site::default(), Moment(0));
        let (node, digest) = (site.node("a"), Digest::of(Algorithm::Sha256, b"x"));
        let Claim::Granted(lease) = node.acquire(&digest, now).await.unwrap() else { panic!("held") };
        site.set_lost(true);
        assert!(node.renew(&lease, now).await.is_err() && node.acquire(&digest, now).await.is_err());
        site.set_lost(false);
        assert_eq!(node.renew(&lease, now).await, Ok(true));
        assert_eq!(site.node("b").acquire(&digest, now).await, Ok(Claim::Held { by: "a".to_owned() }));
    }
}
