//! Who downloads what: leases with fences, for one process or for the nodes of a site.

mod embedded;
mod twin;

pub mod conformance;

use futures_util::future::BoxFuture;

use crate::{Digest, Moment};

pub use embedded::Embedded;
pub use twin::{Site, SiteNode};

/// How long a lease holds unless it is renewed.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(10);

/// The right to download a blob, for [`LEASE`] from when it was taken or renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Of what.
    pub digest: Digest,
    /// Larger than that of every lease before it, of any digest. What a holder writes is in its
    /// fence's name, so that a stale holder cannot publish.
    pub fence: u64,
}

/// The answer to asking for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is the asker's.
    Granted(Lease),
    /// Another has it, at this address of its mirror.
    Held {
        /// Whom to stream from.
        by: String,
    },
}

/// Whoever keeps the leases cannot be asked. Callers go on by themselves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach the coordination of the site: {0}")]
pub struct Unreachable(pub String);

/// Keeps one download per blob. Time is an argument, so that tests have theirs.
pub trait Coordination: Send + Sync + std::fmt::Debug {
    /// Asks for the lease of a digest. Granted if nobody has it, or whoever had it did not renew it.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn acquire<'a>(&'a self, digest: &'a Digest, now: Moment) -> BoxFuture<'a, Result<Claim, Unreachable>>;

    /// Holds a lease for longer. `false`: it is lost, and another may have it.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn renew<'a>(&'a self, lease: &'a Lease, now: Moment) -> BoxFuture<'a, Result<bool, Unreachable>>;

    /// Gives a lease back; one that is lost already is nobody's business.
    ///
    /// # Errors
    /// [`Unreachable`]: it ends by itself.
    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Unreachable>>;
}
