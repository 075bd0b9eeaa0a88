//! One process: a map.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures_util::future::ready;
use tokio::sync::broadcast;

use super::{AcquireResult, Answer, Coordination, Lease, NEWS, News, Nodes, Records};
use crate::{Digest, UnixMillis};

/// Leases among the downloads of one process.
#[derive(Debug)]
pub struct Embedded {
    kept: Mutex<Records>,
    news: broadcast::Sender<News>,
}

impl Default for Embedded {
    fn default() -> Embedded {
        Embedded { kept: Mutex::default(), news: broadcast::Sender::new(NEWS) }
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
    fn acquire<'a>(&'a self, digest: &'a Digest, now: UnixMillis) -> Answer<'a, AcquireResult> {
        Box::pin(ready(Ok(self.kept().acquire(SELF, digest, now))))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, now: UnixMillis) -> Answer<'a, bool> {
        Box::pin(ready(Ok(self.kept().renew(lease, now))))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.kept().release(lease);
        Box::pin(ready(Ok(())))
    }

    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, now: UnixMillis) -> Answer<'a, ()> {
        self.kept().register(SELF, in_use, now);
        Box::pin(ready(Ok(())))
    }

    fn nodes<'a>(&'a self, now: UnixMillis) -> Answer<'a, Nodes> {
        Box::pin(ready(Ok(self.kept().nodes(now))))
    }

    fn tell<'a>(&'a self, news: &'a News) -> Answer<'a, ()> {
        // An error means that no receiver listens.
        let _ = self.news.send(news.clone());
        Box::pin(ready(Ok(())))
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }
}
