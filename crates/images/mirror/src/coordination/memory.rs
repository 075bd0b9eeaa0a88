//! A site in memory: several nodes on one keeper, which a test can cut off.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::ready;
use tokio::sync::broadcast;

use super::{AcquireResult, Answer, Coordination, Lease, NEWS, News, Nodes, Unreachable, embedded::Kept};
use crate::{Digest, UnixMillis};

/// The records that a server would keep for the nodes of a site.
#[derive(Debug, Clone)]
pub struct InMemoryCoordination {
    kept: Arc<Mutex<Kept>>,
    news: broadcast::Sender<News>,
    is_lost: Arc<AtomicBool>,
}

/// One node's view of a [`InMemoryCoordination`].
#[derive(Debug, Clone)]
pub struct InMemoryNode {
    site: InMemoryCoordination,
    address: String,
    is_lost: Arc<AtomicBool>,
}

impl Default for InMemoryCoordination {
    fn default() -> InMemoryCoordination {
        InMemoryCoordination {
            kept: Arc::default(),
            news: broadcast::Sender::new(NEWS),
            is_lost: Arc::default(),
        }
    }
}

impl InMemoryCoordination {
    /// The view of the node whose mirror is at `address`.
    #[must_use]
    pub fn node(&self, address: &str) -> InMemoryNode {
        InMemoryNode { site: self.clone(), address: address.to_owned(), is_lost: Arc::default() }
    }

    /// Cuts all nodes off, or lets them back.
    pub fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }
}

impl InMemoryNode {
    /// Cuts this node off, or lets it back.
    pub fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }

    fn with<'a, T: Send + 'a>(&self, work: impl FnOnce(&mut Kept) -> T) -> Answer<'a, T> {
        if self.site.is_lost.load(Ordering::Relaxed) || self.is_lost.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(Unreachable("cut off".to_owned()))));
        }
        let done = work(&mut self.site.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(ready(Ok(done)))
    }
}

impl Coordination for InMemoryNode {
    fn acquire<'a>(&'a self, digest: &'a Digest, now: UnixMillis) -> Answer<'a, AcquireResult> {
        self.with(|kept| kept.acquire(&self.address, digest, now))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: UnixMillis) -> Answer<'a, bool> {
        self.with(|kept| kept.renew(lease, now))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.with(|kept| kept.release(lease))
    }

    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, now: UnixMillis) -> Answer<'a, ()> {
        self.with(|kept| kept.register(&self.address, in_use, now))
    }

    fn nodes<'a>(&'a self, now: UnixMillis) -> Answer<'a, Nodes> {
        self.with(|kept| kept.nodes(now))
    }

    fn tell<'a>(&'a self, news: &'a News) -> Answer<'a, ()> {
        let sender = &self.site.news;
        self.with(|_| {
            // An error means that no receiver listens.
            let _ = sender.send(news.clone());
        })
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.site.news.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::conformance, *};
    use crate::digest::Algorithm;

    #[tokio::test]
    async fn the_twin_conforms() {
        let site = InMemoryCoordination::default();
        conformance::check(&site.node("a"), &site.node("b"), &conformance::Told::default()).await;
    }

    #[tokio::test]
    async fn a_node_that_is_cut_off_is_told_so_and_finds_its_leases_when_it_is_back() {
        let (site, now) = (InMemoryCoordination::default(), UnixMillis(0));
        let (node, digest) = (site.node("a"), Digest::of(Algorithm::Sha256, b"x"));
        let AcquireResult::Granted(lease) = node.acquire(&digest, now).await.unwrap() else { panic!("held") };
        site.set_lost(true);
        assert!(node.renew(&lease, now).await.is_err() && node.acquire(&digest, now).await.is_err());
        assert!(node.nodes(now).await.is_err());
        site.set_lost(false);
        assert_eq!(node.renew(&lease, now).await, Ok(true));
        assert_eq!(
            site.node("b").acquire(&digest, now).await,
            Ok(AcquireResult::Held { by: "a".to_owned() })
        );
    }
}
