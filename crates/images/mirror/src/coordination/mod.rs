//! Messages between the nodes of a site: their downloads, images in use, blobs that came and went.
//! For one process, or for the nodes of a site.

mod embedded;
mod records;
mod redis;

use std::{collections::HashSet, fmt, str::FromStr, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::broadcast, time::sleep};

use crate::{Digest, Utc, now_utc};

pub use self::redis::{BadRedis, Redis};
pub use embedded::Embedded;
pub use records::Records;

/// How long a lease holds unless it is renewed: so long those who wait for a node that died get nothing.
pub const LEASE: Duration = Duration::from_secs(4);

/// How long what a node has registered holds unless it registers again.
pub const REGISTERED: Duration = Duration::from_secs(60);

/// Unread events; a reader that is too slow looks for itself.
const EVENTS_CAPACITY: usize = 1024;

/// The right to download a blob, for [`LEASE`] from when it was taken or renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Of what.
    pub digest: Digest,
    /// Larger than that of every lease before it, of any digest; also than the time, in
    /// milliseconds since 1970, so that fences grow where a keeper has lost its memory. A holder
    /// writes in its fence's name, so that a stale holder cannot publish.
    pub fence: u64,
}

/// The answer to asking for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireResult {
    /// It is the asker's.
    Granted(Lease),
    /// Another has it.
    Held {
        /// The address at which peers ask it; the asker's own if another process of it died.
        by: String,
    },
}

/// A message to the other nodes. Messages may be lost: who waits for one looks now and then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteEvent {
    /// A blob is there, verified.
    Published(Digest),
    /// A blob is there no more.
    Evicted(Digest),
    /// A peer sent other content under its name: each node that has it checks it again.
    Suspect(Digest),
}

impl fmt::Display for SiteEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteEvent::Published(digest) => write!(f, "published {digest}"),
            SiteEvent::Evicted(digest) => write!(f, "evicted {digest}"),
            SiteEvent::Suspect(digest) => write!(f, "suspect {digest}"),
        }
    }
}

/// A message of another version, or of another program.
#[derive(Debug, PartialEq, Eq)]
pub struct NotNews;

impl FromStr for SiteEvent {
    type Err = NotNews;

    fn from_str(text: &str) -> Result<SiteEvent, NotNews> {
        let (what, digest) = text.split_once(' ').ok_or(NotNews)?;
        let digest = digest.parse().map_err(|_| NotNews)?;
        match what {
            "published" => Ok(SiteEvent::Published(digest)),
            "evicted" => Ok(SiteEvent::Evicted(digest)),
            "suspect" => Ok(SiteEvent::Suspect(digest)),
            _ => Err(NotNews),
        }
    }
}

/// The nodes that have registered less than [`REGISTERED`] ago.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Their addresses for peers, sorted.
    pub addresses: Vec<String>,
    /// The blobs that any of them uses.
    pub in_use: HashSet<Digest>,
}

/// The keeper of the leases cannot be asked. Callers go on by themselves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach the coordination of the site: {0}")]
pub struct Unreachable(pub String);

/// The answer of a call, within a short time even without a keeper.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Unreachable>>;

/// Keeps one download per blob, and what is in use. Time is an argument, so that tests have theirs; a
/// keeper with a clock of its own goes by that.
pub trait Coordination: Send + Sync + fmt::Debug {
    /// Asks for the lease of a digest. It is granted if no node has it, or if its holder did not
    /// renew it.
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Utc) -> Answer<'a, AcquireResult>;

    /// Holds a lease for longer. `false`: it is lost, and another may have it.
    fn renew<'a>(&'a self, lease: &'a Lease, now: Utc) -> Answer<'a, bool>;

    /// Gives a lease back; a lost lease needs nothing.
    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()>;

    /// Says that this node is there and which images it uses, instead of what it said before; for
    /// [`REGISTERED`].
    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, now: Utc) -> Answer<'a, ()>;

    /// The registered nodes.
    fn nodes<'a>(&'a self, now: Utc) -> Answer<'a, Nodes>;

    /// Tells all nodes, this one too.
    fn publish_event<'a>(&'a self, event: &'a SiteEvent) -> Answer<'a, ()>;

    /// The messages from now on.
    fn events(&self) -> broadcast::Receiver<SiteEvent>;
}

/// Renews a lease until it is lost. A node that cannot ask keeps it: it writes in its fence's name.
pub(crate) async fn until_lost(by: &dyn Coordination, lease: &Lease) {
    loop {
        sleep(LEASE / 4).await;
        if by.renew(lease, now_utc()).await == Ok(false) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_as_they_are_written_and_others_are_none() {
        let digest = Digest::of(crate::digest::Algorithm::Sha512, b"x");
        for event in [
            SiteEvent::Published(digest.clone()),
            SiteEvent::Evicted(digest.clone()),
            SiteEvent::Suspect(digest),
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for text in ["", "published", "published x", "moved sha256:00"] {
            assert_eq!(text.parse::<SiteEvent>(), Err(NotNews), "{text}");
        }
    }
}
