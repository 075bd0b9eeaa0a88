//! Manifests: the mirror asks for an old tag again, and never twice for a digest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::{BodyExt, Limited};
use hyper::{Method, header};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::access::Permissions;
use crate::{
    Digest, Reference, Source, Tag, Utc,
    clock::holds,
    coordination::{AcquireResult, Coordination, SiteEvent, until_lost},
    digest::Algorithm,
    flight::Flights,
    manifest::{ACCEPT, MAX_MANIFEST, Manifest},
    now_utc,
    peer::Peers,
    settings::Timing,
    stats::{Stats, count},
    store::{Store, Stored},
    upstream::{Ask, Fault, Identity, Upstreams, outage},
};

/// Between two looks whether another node has it.
const LOOK: Duration = Duration::from_millis(20);

/// A manifest to answer with.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) stored: Stored,
    /// How long ago its registry said that the tag is this.
    pub(super) age: Duration,
    /// The registry could not be asked.
    pub(super) is_stale: bool,
}

type Key = (Source, Reference, Identity, Option<String>);

/// The most failures that are remembered, and the longest text of a client that one is remembered for, bytes.
const MAX_FAILED: usize = 1024;
const MAX_KEY: usize = 8 << 10;

/// The text of a key that comes from a client's headers, bytes.
fn key_length((_, _, identity, accept): &Key) -> usize {
    let credentials = if let Identity::Client(text) = identity { text.len() } else { 0 };
    credentials + accept.as_ref().map_or(0, String::len)
}

/// All that is done about manifests.
#[derive(Debug)]
pub(super) struct Manifests {
    pub(super) store: Store,
    pub(super) upstreams: Arc<Upstreams>,
    pub(super) permissions: Arc<Permissions>,
    pub(super) timing: Timing,
    pub(super) tag_ttl: Duration,
    pub(super) stats: Arc<Stats>,
    pub(super) flights: Flights<Key, Result<Stored, Fault>>,
    pub(super) failed: Mutex<HashMap<Key, (Fault, Utc)>>,
    pub(super) coordination: Arc<dyn Coordination>,
    pub(super) peers: Option<Arc<Peers>>,
}

/// The client that asks, and its request.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) identity: Identity,
    /// All `Accept` lines, joined.
    pub(crate) accept: Option<String>,
    pub(crate) hops: String,
}

impl Asker {
    pub(crate) fn ask(&self, method: Method, source: &Source, path: String) -> Ask {
        Ask {
            method,
            source: source.clone(),
            path,
            accept: self.accept.clone(),
            from: 0,
            identity: self.identity.clone(),
            hops: self.hops.clone(),
        }
    }

    /// Whether the client takes this type.
    fn takes(&self, media_type: &str) -> bool {
        self.accept.as_ref().is_none_or(|accept| {
            accept.split(',').map(|a| a.split(';').next().unwrap_or_default().trim()).any(|a| {
                a == media_type
                    || a == "*/*"
                    || (a == "application/*" && media_type.starts_with("application/"))
            })
        })
    }
}

impl Manifests {
    /// The manifest, from here or from its registry.
    pub(super) async fn find(
        self: &Arc<Self>,
        source: &Source,
        reference: &Reference,
        asker: &Asker,
        now: Utc,
    ) -> Result<Found, Fault> {
        let tag = match reference {
            Reference::Tag(tag) => tag,
            Reference::Digest(digest) => {
                let may = self.may(source, asker, now).await;
                let stored = match self.stored(source, digest, now).await {
                    Some(stored) if may => {
                        count(&self.stats.manifest_hits, 1);
                        stored
                    }
                    _ => self.once(source, reference, asker, now).await?,
                };
                return Ok(Found { stored, age: Duration::ZERO, is_stale: false });
            }
        };
        let known = self.known(source, tag, asker, now).await;
        if let Some(found) = &known
            && found.age < self.tag_ttl
        {
            count(&self.stats.manifest_hits, 1);
            return Ok(found.clone());
        }
        match self.once(source, reference, asker, now).await {
            Ok(stored) => Ok(Found { stored, age: Duration::ZERO, is_stale: false }),
            Err(fault) => match known {
                Some(found) if fault.is_outage() => {
                    tracing::warn!("{fault}; serving what {source}:{tag} was {:?} ago", found.age);
                    count(&self.stats.stale, 1);
                    Ok(Found { is_stale: true, ..found })
                }
                _ => Err(fault),
            },
        }
    }

    pub(super) async fn stored(&self, source: &Source, digest: &Digest, now: Utc) -> Option<Stored> {
        let (store, source, digest) = (self.store.clone(), source.clone(), digest.clone());
        let read = spawn_blocking(move || store.manifest(&source, &digest, now)).await;
        match read {
            Ok(Ok(stored)) => stored,
            Ok(Err(e)) => {
                tracing::warn!("{e}");
                None
            }
            Err(_) => None,
        }
    }

    /// Whether this client may have what belongs to the repository. Asked on a thread of its own, as all of the
    /// store: the store may wait for its disk, and other clients do not.
    async fn may(&self, source: &Source, asker: &Asker, now: Utc) -> bool {
        let (store, permissions, timing) = (self.store.clone(), Arc::clone(&self.permissions), self.timing);
        let (source, identity) = (source.clone(), asker.identity.clone());
        let has = move || permissions.has(&store, &source, &identity, timing, now);
        spawn_blocking(has).await.unwrap_or(false)
    }

    /// Notes that the registry has given something of the repository to this client.
    async fn grant(&self, source: &Source, asker: &Asker) {
        let (store, permissions, timing) = (self.store.clone(), Arc::clone(&self.permissions), self.timing);
        let (source, identity) = (source.clone(), asker.identity.clone());
        let grant = move || permissions.grant(&store, &source, &identity, timing, now_utc());
        // An error is that the mirror is stopping.
        let _ = spawn_blocking(grant).await;
    }

    /// The last known state of a tag, for clients that may have it.
    async fn known(&self, source: &Source, tag: &Tag, asker: &Asker, now: Utc) -> Option<Found> {
        let (store, of, name) = (self.store.clone(), source.clone(), tag.clone());
        let entry = spawn_blocking(move || store.tag(&of, &name)).await.ok()??;
        if !self.may(source, asker, now).await {
            return None;
        }
        let stored = self.stored(source, &entry.digest, now).await?;
        // A time ahead of now is from before the clock was set back.
        let checked = Utc::from_unix_millis(entry.checked_ms);
        let age = now.since(checked).max(checked.since(now));
        asker.takes(&stored.media_type).then_some(Found { stored, age, is_stale: false })
    }

    /// Asks the registry, once for all who ask the same now.
    async fn once(
        self: &Arc<Self>,
        source: &Source,
        reference: &Reference,
        asker: &Asker,
        now: Utc,
    ) -> Result<Stored, Fault> {
        // A digest is the same whatever was accepted.
        let accept = matches!(reference, Reference::Tag(_)).then(|| asker.accept.clone()).flatten();
        let key = (source.clone(), reference.clone(), asker.identity.clone(), accept);
        {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.retain(|_, (_, until)| holds(*until, now, self.timing.negative));
            if let Some((fault, _)) = failed.get(&key) {
                return Err(fault.clone());
            }
        }
        count(&self.stats.manifest_misses, 1);
        let this = Arc::clone(self);
        let (source, reference, asker) = (source.clone(), reference.clone(), asker.clone());
        let flight = self.flights.join(key.clone(), move || async move {
            let result = match &reference {
                Reference::Tag(tag) => this.resolve(&source, tag, &asker).await,
                Reference::Digest(digest) => this.by_digest(&source, digest, &asker).await,
            };
            match &result {
                Ok(_) => {
                    this.grant(&source, &asker).await;
                }
                Err(fault) => {
                    this.note(&source, &reference, &asker, fault).await;
                    let mut failed = this.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_short = key_length(&key) <= MAX_KEY;
                    if failed.len() < MAX_FAILED && is_short {
                        failed.insert(key, (fault.clone(), now_utc().after(this.timing.negative)));
                    }
                }
            }
            result
        });
        let lost = || Fault::Outage { what: "the manifest".to_owned(), why: "no answer in time".to_owned() };
        timeout(self.timing.first_byte, flight).await.ok().flatten().ok_or_else(lost)?
    }

    async fn note(&self, source: &Source, reference: &Reference, asker: &Asker, fault: &Fault) {
        tracing::warn!("{fault}");
        match fault {
            Fault::Denied { .. } => {
                let (store, permissions) = (self.store.clone(), Arc::clone(&self.permissions));
                let (source, identity) = (source.clone(), asker.identity.clone());
                let revoke = move || permissions.revoke(&store, &source, &identity);
                // An error is that the mirror is stopping.
                let _ = spawn_blocking(revoke).await;
            }
            Fault::NotFound { .. } => {
                let Reference::Tag(tag) = reference else { return };
                let (store, source, tag) = (self.store.clone(), source.clone(), tag.clone());
                let dropped = spawn_blocking(move || store.drop_tag(&source, &tag)).await;
                if let Ok(Err(e)) = dropped {
                    tracing::warn!("{e}");
                }
            }
            Fault::Limited { .. } => count(&self.stats.upstream_limited, 1),
            Fault::Wrong { .. } => count(&self.stats.wrong, 1),
            _ => {}
        }
    }

    /// The registry's state of the tag now. A `HEAD` tells; the manifest itself is fetched only if
    /// it is not here, as it is what registries count.
    async fn resolve(self: &Arc<Self>, source: &Source, tag: &Tag, asker: &Asker) -> Result<Stored, Fault> {
        let ask = self.asking(Method::HEAD, source, tag.as_str(), asker);
        let answer = self.ask(&ask).await?;
        let digest = digest_header(&answer.response);
        drop(answer);
        let stored = match digest {
            Some(digest) => match self.stored(source, &digest, now_utc()).await {
                Some(stored) => stored,
                None => {
                    let reference = Reference::Digest(digest.clone());
                    let key = (source.clone(), reference, asker.identity.clone(), None);
                    let (this, source, asker) = (Arc::clone(self), source.clone(), asker.clone());
                    let work = move || async move { this.by_digest(&source, &digest, &asker).await };
                    let lost = || outage(&ask, "its download ended without a result");
                    self.flights.join(key, work).await.ok_or_else(lost)??
                }
            },
            // A registry that does not say: the manifest itself does.
            None => self.fetch(source, tag.as_str(), None, asker).await?,
        };
        let (store, source, tag, digest) =
            (self.store.clone(), source.clone(), tag.clone(), stored.digest.clone());
        let noted = spawn_blocking(move || store.set_tag(&source, &tag, &digest, now_utc()));
        if let Ok(Err(e)) = noted.await {
            tracing::warn!("{e}");
        }
        Ok(stored)
    }

    /// A manifest from here, or from its registry; by one node of the site only, for which the others wait.
    async fn by_digest(&self, source: &Source, digest: &Digest, asker: &Asker) -> Result<Stored, Fault> {
        let name = digest.to_string();
        let mut has_asked_peers = false;
        loop {
            // Here already: whether this client may have it is all there is to ask.
            if let Some(stored) = self.stored(source, digest, now_utc()).await {
                let ask = self.asking(Method::HEAD, source, &name, asker);
                if !self.may(source, asker, now_utc()).await {
                    self.ask(&ask).await?;
                }
                return Ok(stored);
            }
            let fetch = self.fetch(source, &name, Some(digest), asker);
            match self.coordination.acquire(digest, now_utc()).await {
                Ok(AcquireResult::Granted(lease)) => {
                    // Another may have published it and given the lease back since.
                    let mut is_here = self.stored(source, digest, now_utc()).await.is_some();
                    // Full bounds may have it forgotten at once. Asking peers again would not help then.
                    if !is_here && !has_asked_peers {
                        has_asked_peers = true;
                        is_here = self.of_peers(source, digest).await;
                    }
                    let fetched = match is_here {
                        true => None,
                        false => tokio::select! {
                            fetched = fetch => Some(fetched),
                            () = until_lost(&*self.coordination, &lease) => None,
                        },
                    };
                    let _ = self.coordination.release(&lease).await;
                    let Some(fetched) = fetched else { continue };
                    if fetched.is_ok() {
                        let _ = self.coordination.publish_event(&SiteEvent::Published(digest.clone())).await;
                    }
                    return fetched;
                }
                Ok(AcquireResult::Held { .. }) => sleep(LOOK).await,
                Err(_) => return fetch.await,
            }
        }
    }

    /// Takes a manifest from another node that has it. Answers whether it is here now; whether a client
    /// may have it is another question.
    async fn of_peers(&self, source: &Source, digest: &Digest) -> bool {
        let Some(peers) = &self.peers else { return false };
        let found = peers.find(source, &format!("manifests/{digest}"), 0).await;
        let Some(response) = found else { return false };
        let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        let read = timeout(self.timing.stall, Limited::new(response.into_body(), MAX_MANIFEST).collect());
        let Ok(Ok(bytes)) = read.await.map(|read| read.map(|body| body.to_bytes())) else { return false };
        let (name, text) = (digest.clone(), bytes.clone());
        let reading = spawn_blocking(move || name.names(&text).then(|| Manifest::read(&text).ok()).flatten());
        let Some(manifest) = reading.await.ok().flatten() else { return false };
        count(&self.stats.peer_bytes, bytes.len() as u64);
        if !is_manifest(&media_type) {
            return false;
        }
        let stored = Stored { digest: digest.clone(), media_type, bytes, manifest: Arc::new(manifest) };
        self.keep(source, &stored).await.is_ok()
    }

    fn asking(&self, method: Method, source: &Source, reference: &str, asker: &Asker) -> Ask {
        let mut ask = asker.ask(method, source, format!("manifests/{reference}"));
        // A client that accepts anything means these: some registries hide OCI manifests from
        // `*/*`.
        if !ask.accept.as_ref().is_some_and(|accept| accept.contains("vnd.")) {
            ask.accept = Some(ACCEPT.to_owned());
        }
        ask
    }

    async fn ask(&self, ask: &Ask) -> Result<crate::upstream::Answer, Fault> {
        count(&self.stats.upstream_requests, 1);
        self.upstreams.ask(ask, now_utc()).await
    }

    /// The manifest's bytes, verified and kept.
    async fn fetch(
        &self,
        source: &Source,
        reference: &str,
        digest: Option<&Digest>,
        asker: &Asker,
    ) -> Result<Stored, Fault> {
        let ask = self.asking(Method::GET, source, reference, asker);
        let answer = self.ask(&ask).await?;
        let wrong = |why: String| Fault::Wrong { what: format!("{source}/{}", ask.path), why };
        let said = digest_header(&answer.response);
        let media_type = answer.response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        let (parts, body) = (answer, self.timing.stall);
        let read = timeout(body, Limited::new(parts.response.into_body(), MAX_MANIFEST).collect()).await;
        let read = read.map_err(|_| outage(&ask, format!("it did not come within {body:?}")))?;
        let bytes = read
            .map_err(|e| match e.downcast_ref::<http_body_util::LengthLimitError>() {
                Some(_) => wrong(format!("it has more than {MAX_MANIFEST} bytes")),
                None => outage(&ask, e.to_string()),
            })?
            .to_bytes();
        count(&self.stats.upstream_bytes, bytes.len() as u64);
        let algorithm = digest.or(said.as_ref()).map_or(Algorithm::Sha256, Digest::algorithm);
        let text = bytes.clone();
        // A few megabytes take some milliseconds, for which other clients do not wait.
        let reading = spawn_blocking(move || (Digest::of(algorithm, &text), Manifest::read(&text)));
        let (found, manifest) = reading.await.map_err(|e| outage(&ask, e.to_string()))?;
        if let Some(expected) = digest.or(said.as_ref())
            && found != *expected
        {
            return Err(wrong(format!("it is {found}")));
        }
        let manifest = manifest.map_err(|e| wrong(e.to_string()))?;
        if !is_manifest(&media_type) {
            return Err(wrong(format!("its type is `{media_type}`")));
        }
        let stored = Stored { digest: found, media_type, bytes, manifest: Arc::new(manifest) };
        if let Err(e) = self.keep(source, &stored).await {
            // It can be served all the same.
            tracing::warn!("{e}");
        }
        Ok(stored)
    }

    /// Stores a manifest. Its image takes room when the first of its blobs is asked for.
    async fn keep(&self, source: &Source, stored: &Stored) -> Result<(), String> {
        let (store, source, kept) = (self.store.clone(), source.clone(), stored.clone());
        let put = spawn_blocking(move || {
            let now = now_utc();
            store.put_manifest(&source, &kept, now.unix_millis(), now)?;
            if let Manifest::Image { .. } = &*kept.manifest {
                store.announce(&kept.digest, now);
            }
            Ok::<(), crate::store::StoreError>(())
        });
        put.await.map_err(|e| e.to_string())?.map_err(|e| weir_units::chain(&e))
    }
}

/// Whether a media type is one of a manifest that weir can serve.
fn is_manifest(media_type: &str) -> bool {
    media_type.starts_with("application/vnd.oci.image.")
        || media_type.starts_with("application/vnd.docker.distribution.manifest.")
}

fn digest_header<T>(response: &hyper::Response<T>) -> Option<Digest> {
    response.headers().get("docker-content-digest")?.to_str().ok()?.parse().ok()
}
