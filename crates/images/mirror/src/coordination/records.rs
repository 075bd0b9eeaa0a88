//! The records behind a [`Coordination`](super::Coordination).

use std::collections::{HashMap, HashSet};

use super::{AcquireResult, LEASE, Lease, Nodes, REGISTERED};
use crate::{Digest, Utc};

/// The records of a keeper, by the addresses of nodes; `InMemoryCoordination` keeps them too.
#[derive(Debug, Default)]
pub struct Records {
    fence: u64,
    leases: HashMap<Digest, (u64, String, Utc)>,
    nodes: HashMap<String, (HashSet<Digest>, Utc)>,
}

impl Records {
    /// Takes a lease for the node at `by`, unless another holds it at `now`.
    #[must_use]
    pub fn acquire(&mut self, by: &str, digest: &Digest, now: Utc) -> AcquireResult {
        if let Some((_, by, until)) = self.leases.get(digest)
            && now < *until
        {
            return AcquireResult::Held { by: by.clone() };
        }
        self.fence = (self.fence + 1).max(now.unix_millis());
        self.leases.insert(digest.clone(), (self.fence, by.to_owned(), now.after(LEASE)));
        AcquireResult::Granted(Lease { digest: digest.clone(), fence: self.fence })
    }

    /// Renews a lease. False if it is over, or another one was taken since.
    #[must_use]
    pub fn renew(&mut self, lease: &Lease, now: Utc) -> bool {
        match self.leases.get_mut(&lease.digest) {
            Some((fence, _, until)) if *fence == lease.fence && now < *until => {
                *until = now.after(LEASE);
                true
            }
            _ => false,
        }
    }

    /// Ends a lease.
    pub fn release(&mut self, lease: &Lease) {
        if self.leases.get(&lease.digest).is_some_and(|(fence, ..)| *fence == lease.fence) {
            self.leases.remove(&lease.digest);
        }
    }

    /// Registers the node at `by` with the blobs that it uses.
    pub fn register(&mut self, by: &str, in_use: &HashSet<Digest>, now: Utc) {
        self.nodes.insert(by.to_owned(), (in_use.clone(), now.after(REGISTERED)));
    }

    /// The nodes registered at `now`, and the blobs in use.
    pub fn nodes(&mut self, now: Utc) -> Nodes {
        self.nodes.retain(|_, (_, until)| now < *until);
        let mut addresses: Vec<String> = self.nodes.keys().cloned().collect();
        addresses.sort();
        Nodes { addresses, in_use: self.nodes.values().flat_map(|(used, _)| used).cloned().collect() }
    }
}
