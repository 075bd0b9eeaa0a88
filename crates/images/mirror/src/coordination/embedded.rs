//! One process: a map.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures_util::future::ready;
use tokio::sync::broadcast;

use super::{AcquireResult, Answer, Coordination, EVENTS_CAPACITY, Lease, Nodes, Records, SiteEvent};
use crate::{Digest, Utc};

/// Leases among the downloads of one process.
#[derive(Debug)]
pub struct Embedded {
    kept: Mutex<Records>,
    events: broadcast::Sender<SiteEvent>,
}

impl Default for Embedded {
    fn default() -> Embedded {
        Embedded { kept: Mutex::default(), events: broadcast::Sender::new(EVENTS_CAPACITY) }
    }
}

impl Embedded {
    fn kept(&self) -> MutexGuard<'_, Records> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The only node; no other asks it.
const SELF: &str = "";

impl Coordination for Embedded {
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Utc) -> Answer<'a, AcquireResult> {
        Box::pin(ready(Ok(self.kept().acquire(SELF, digest, now))))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: Utc) -> Answer<'a, bool> {
        Box::pin(ready(Ok(self.kept().renew(lease, now))))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.kept().release(lease);
        Box::pin(ready(Ok(())))
    }

    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, now: Utc) -> Answer<'a, ()> {
        self.kept().register(SELF, in_use, now);
        Box::pin(ready(Ok(())))
    }

    fn nodes<'a>(&'a self, now: Utc) -> Answer<'a, Nodes> {
        Box::pin(ready(Ok(self.kept().nodes(now))))
    }

    fn publish_event<'a>(&'a self, event: &'a SiteEvent) -> Answer<'a, ()> {
        // An error means that no receiver listens.
        let _ = self.events.send(event.clone());
        Box::pin(ready(Ok(())))
    }

    fn events(&self) -> broadcast::Receiver<SiteEvent> {
        self.events.subscribe()
    }
}
