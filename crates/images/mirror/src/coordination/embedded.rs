//! One process: a map.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures_util::future::ready;
use tokio::sync::broadcast;

use super::{AcquireResult, Answer, Coordination, LEASE, Lease, NEWS, News, Nodes, REGISTERED};
use crate::{Digest, UnixMillis};

/// Leases among the downloads of one process.
#[derive(Debug)]
pub struct Embedded {
    kept: Mutex<Kept>,
    news: broadcast::Sender<News>,
}

/// The records of a keeper, by the addresses of nodes; `InMemoryCoordination` keeps them too.
#[derive(Debug, Default)]
pub(super) struct Kept {
    fence: u64,
    leases: HashMap<Digest, (u64, String, UnixMillis)>,
    nodes: HashMap<String, (HashSet<Digest>, UnixMillis)>,
}

impl Kept {
    pub(super) fn acquire(&mut self, by: &str, digest: &Digest, now: UnixMillis) -> AcquireResult {
        if let Some((_, by, until)) = self.leases.get(digest)
            && now < *until
        {
            return AcquireResult::Held { by: by.clone() };
        }
        self.fence = (self.fence + 1).max(now.0);
        self.leases.insert(digest.clone(), (self.fence, by.to_owned(), now.after(LEASE)));
        AcquireResult::Granted(Lease { digest: digest.clone(), fence: self.fence })
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: UnixMillis) -> bool {
        match self.leases.get_mut(&lease.digest) {
            Some((fence, _, until)) if *fence == lease.fence && now < *until => {
                *until = now.after(LEASE);
                true
            }
            _ => false,
        }
    }

    pub(super) fn release(&mut self, lease: &Lease) {
        if self.leases.get(&lease.digest).is_some_and(|(fence, ..)| *fence == lease.fence) {
            self.leases.remove(&lease.digest);
        }
    }

    pub(super) fn register(&mut self, by: &str, in_use: &HashSet<Digest>, now: UnixMillis) {
        self.nodes.insert(by.to_owned(), (in_use.clone(), now.after(REGISTERED)));
    }

    pub(super) fn nodes(&mut self, now: UnixMillis) -> Nodes {
        self.nodes.retain(|_, (_, until)| now < *until);
        let mut addresses: Vec<String> = self.nodes.keys().cloned().collect();
        addresses.sort();
        Nodes { addresses, in_use: self.nodes.values().flat_map(|(used, _)| used).cloned().collect() }
    }
}

impl Default for Embedded {
    fn default() -> Embedded {
        Embedded { kept: Mutex::default(), news: broadcast::Sender::new(NEWS) }
    }
}

impl Embedded {
    fn kept(&self) -> MutexGuard<'_, Kept> {
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

#[cfg(test)]
mod tests {
    use super::{super::conformance, *};

    #[tokio::test]
    async fn the_embedded_one_conforms() {
        let one = Embedded::default();
        conformance::check(&one, &one, &conformance::Told::default()).await;
    }
}
