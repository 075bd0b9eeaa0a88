//! Why a registry gave nothing.

use std::time::Duration;

/// Why something could not be had from its registry. Shared by all who wait for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The registry does not have it.
    #[error("{what} is not in its registry ({status})")]
    NotFound {
        /// The content that was asked for.
        what: String,
        /// 404, mostly.
        status: u16,
    },
    /// The registry does not give it to this client.
    #[error("{what} is refused by its registry ({status}): is it private, are the credentials right?")]
    Denied {
        /// The content that was asked for.
        what: String,
        /// 401 or 403.
        status: u16,
    },
    /// Too many requests, or a registry that says when it is back.
    #[error("{what}: its registry wants no requests now ({status}), retry after {retry:?}")]
    Limited {
        /// The content that was asked for.
        what: String,
        /// 429 or 503.
        status: u16,
        /// When it may be asked again.
        retry: Duration,
    },
    /// As many requests as may be are under way.
    #[error("{what}: {most} {of}, as many as may be (`requests`), and none ended within {wait:?}")]
    Busy {
        /// The content that was asked for.
        what: String,
        /// So many.
        most: usize,
        /// Of what.
        of: &'static str,
        /// How long it waited for one of them.
        wait: Duration,
    },
    /// The registry sends less than it has to.
    #[error("{what}: its registry sent {rate} bytes a second for {window:?}, and has to send {least}")]
    Slow {
        /// The blob that was asked for.
        what: String,
        /// Bytes a second that came.
        rate: u64,
        /// Bytes a second that have to come.
        least: u64,
        /// The time over which both are averaged.
        window: Duration,
    },
    /// No connection, no name, no answer in time, or an error of the registry's own.
    #[error("{what}: {why}")]
    Outage {
        /// The content that was asked for.
        what: String,
        /// What happened.
        why: String,
    },
    /// The answer is not the content that was asked for.
    #[error("{what} is not what its registry sent: {why}")]
    Wrong {
        /// The content that was asked for.
        what: String,
        /// What came.
        why: String,
    },
    /// weir does not ask there.
    #[error("{what}: weir does not ask {whom}: {why}")]
    Refused {
        /// The content that was asked for.
        what: String,
        /// Whom.
        whom: String,
        /// The reason.
        why: String,
    },
    /// The store cannot take it.
    #[error("{what} cannot be kept: {why}")]
    Store {
        /// The content that was asked for.
        what: String,
        /// The store's words.
        why: String,
    },
}

impl Fault {
    /// Whether what was known before may be served instead.
    #[must_use]
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Fault::Outage { .. } | Fault::Limited { .. } | Fault::Busy { .. })
    }
}
