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

use weir_image::{
    Digest, Utc,
    coordination::{AcquireResult, Answer, Coordination, Lease, Nodes, Records, SiteEvent, Unreachable},
};

/// Messages that a slow reader may leave unread.
const EVENTS_CAPACITY: usize = 1024;

/// The records that a server would keep for the nodes of a site.
#[derive(Debug, Clone)]
pub(crate) struct InMemoryCoordination {
    kept: Arc<Mutex<Records>>,
    events: broadcast::Sender<SiteEvent>,
    is_lost: Arc<AtomicBool>,
}

/// One node's view of a [`InMemoryCoordination`].
#[derive(Debug, Clone)]
pub(crate) struct InMemoryNode {
    site: InMemoryCoordination,
    address: String,
    is_lost: Arc<AtomicBool>,
}

impl Default for InMemoryCoordination {
    fn default() -> InMemoryCoordination {
        InMemoryCoordination {
            kept: Arc::default(),
            events: broadcast::Sender::new(EVENTS_CAPACITY),
            is_lost: Arc::default(),
        }
    }
}

impl InMemoryCoordination {
    /// The view of the node whose mirror is at `address`.
    #[must_use]
    pub(crate) fn node(&self, address: &str) -> InMemoryNode {
        InMemoryNode { site: self.clone(), address: address.to_owned(), is_lost: Arc::default() }
    }

    /// Cuts all nodes off, or lets them back.
    pub(crate) fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }
}

impl InMemoryNode {
    /// Cuts this node off, or lets it back.
    pub(crate) fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }

    fn with<'a, T: Send + 'a>(&self, work: impl FnOnce(&mut Records) -> T) -> Answer<'a, T> {
        if self.site.is_lost.load(Ordering::Relaxed) || self.is_lost.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(Unreachable("cut off".to_owned()))));
        }
        let done = work(&mut self.site.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(ready(Ok(done)))
    }
}

impl Coordination for InMemoryNode {
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Utc) -> Answer<'a, AcquireResult> {
        self.with(|kept| kept.acquire(&self.address, digest, now))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: Utc) -> Answer<'a, bool> {
        self.with(|kept| kept.renew(lease, now))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.with(|kept| kept.release(lease))
    }

    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, now: Utc) -> Answer<'a, ()> {
        self.with(|kept| kept.register(&self.address, in_use, now))
    }

    fn nodes<'a>(&'a self, now: Utc) -> Answer<'a, Nodes> {
        self.with(|kept| kept.nodes(now))
    }

    fn publish_event<'a>(&'a self, event: &'a SiteEvent) -> Answer<'a, ()> {
        let sender = &self.site.events;
        self.with(|_| {
            // An error means that no receiver listens.
            let _ = sender.send(event.clone());
        })
    }

    fn events(&self) -> broadcast::Receiver<SiteEvent> {
        self.site.events.subscribe()
    }
}
