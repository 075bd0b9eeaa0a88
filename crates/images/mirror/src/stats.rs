//! The mirror's counters, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Requests of clients for blobs that were here.
    pub(crate) blob_hits: AtomicU64,
    /// That were not, and began a download.
    pub(crate) blob_misses: AtomicU64,
    /// That joined a download.
    pub(crate) blob_joined: AtomicU64,
    /// Requests for manifests answered from here.
    pub(crate) manifest_hits: AtomicU64,
    /// Asked of a registry.
    pub(crate) manifest_misses: AtomicU64,
    /// Answered from here as the registry could not be asked.
    pub(crate) stale: AtomicU64,
    /// Requests to registries.
    pub(crate) upstream_requests: AtomicU64,
    /// Bytes of blobs and manifests from registries.
    pub(crate) upstream_bytes: AtomicU64,
    /// Bytes of blobs from other nodes.
    pub(crate) peer_bytes: AtomicU64,
    /// Answers of 429.
    pub(crate) upstream_limited: AtomicU64,
    /// Downloads continued after a cut or a stall.
    pub(crate) resumed: AtomicU64,
    /// Blobs passed on without being kept.
    pub(crate) passed: AtomicU64,
    /// Downloads of other nodes, read while they came.
    pub(crate) followed: AtomicU64,
    /// Leases that ended while their downloads went on.
    pub(crate) leases_lost: AtomicU64,
    /// Content that was not what it was called.
    pub(crate) wrong: AtomicU64,
    /// Blobs that a scrub has looked at.
    pub(crate) scrubbed_blobs: AtomicU64,
    /// Their bytes.
    pub(crate) scrubbed_bytes: AtomicU64,
    /// Bytes of blobs to clients.
    pub(crate) served_bytes: AtomicU64,
    /// Requests answered with 404 for want of something to serve.
    pub(crate) refused: AtomicU64,
}

/// One counter, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// As in Prometheus, without a prefix.
    pub name: &'static str,
    /// The meaning of the counter.
    pub help: &'static str,
    /// Since the start.
    pub value: u64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Stats {
    pub(crate) fn all(&self) -> Vec<Counted> {
        let of =
            |name, help, counter: &AtomicU64| Counted { name, help, value: counter.load(Ordering::Relaxed) };
        vec![
            of("blob_hits", "Blobs asked for that were in the store", &self.blob_hits),
            of("blob_misses", "Blobs asked for that began a download", &self.blob_misses),
            of("blob_joined", "Blobs asked for that joined a download", &self.blob_joined),
            of("manifest_hits", "Manifests answered from the store", &self.manifest_hits),
            of("manifest_misses", "Manifests asked of a registry", &self.manifest_misses),
            of("stale_served", "Manifests served while the registry could not be asked", &self.stale),
            of("upstream_requests", "Requests to registries", &self.upstream_requests),
            of("upstream_bytes", "Bytes from registries", &self.upstream_bytes),
            of("peer_bytes", "Bytes from other nodes of the site", &self.peer_bytes),
            of("upstream_limited", "Answers of registries that want fewer requests", &self.upstream_limited),
            of("downloads_resumed", "Downloads continued after a cut or a stall", &self.resumed),
            of("passed_on", "Blobs passed on without being kept, for want of room", &self.passed),
            of(
                "downloads_followed",
                "Downloads of other nodes of the site, read while they came",
                &self.followed,
            ),
            of("leases_lost", "Leases that ended while their downloads went on", &self.leases_lost),
            of("wrong_content", "Content that was not what it was called", &self.wrong),
            of("scrubbed_blobs", "Blobs that a scrub has looked at", &self.scrubbed_blobs),
            of("scrubbed_bytes", "Bytes that a scrub has read", &self.scrubbed_bytes),
            of("served_bytes", "Bytes of blobs to clients", &self.served_bytes),
            of("refused", "Requests answered with 404 for want of something to serve", &self.refused),
        ]
    }
}
