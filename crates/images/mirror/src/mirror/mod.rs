//! The mirror: the pull side of the OCI distribution specification, over the store.
//!
//! The mirror answers 404 for content that it cannot serve: Docker and containerd then ask the
//! registry themselves. They would wait after 5xx, and hang without an answer.

mod access;
mod body;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod listen;
mod manifests;
mod piece;
mod probe;
mod range;
mod relay;
mod reply;
mod route;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
};
use tokio::time::timeout;
use weir_units::BitRate;

use crate::{
    Digest, PopStore, Reference, Settings, Source, Timing,
    coordination::{Coordination, Embedded, Redis},
    download::{Downloads, Progress, Waiter},
    flight::Flights,
    jobs::Jobs,
    manifest::Manifest,
    now_utc,
    pace::Pace,
    peer::{self, Peers, Probed},
    scope::Scope,
    scrub::Scrubs,
    stats::{Counted, Stats, count},
    store::{Opened, Recovered, Store, StoreError},
    upstream::{Ask, Fault, HOP, Identity, Upstreams},
};
use access::Permissions;
use body::Body;

pub(crate) use manifests::Asker;
use manifests::{Found, Manifests};
pub use probe::PROBE;
use probe::Probes;
use relay::Asked;
use reply::{joined, manifest, refuse, send};
use route::{Route, Unroutable};

/// Why there is no mirror.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The registries' settings cannot.
    #[error("cannot set up the registries of [images]: {0}")]
    Upstreams(String),
    /// It cannot be one of its site.
    #[error("cannot join the site of [images.pop]: {0}")]
    Pop(String),
    /// No client can ask.
    #[error("cannot listen on {address} for image pulls (`listen` in [images])")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// A mirror of registries; cheap to clone, and to be kept in a tokio runtime.
#[derive(Debug, Clone)]
pub struct Mirror {
    inner: Arc<Inner>,
}

/// A blob that is in the store.
enum Whole {
    /// To be sent.
    Ready(Opened),
    /// To be sent as far as it is hashed.
    Checking(Waiter),
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
enum Asks {
    Client,
    Peer,
}

/// The other nodes, as this one knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteState {
    /// Those that registered a moment ago, when that could be asked last.
    pub nodes: Vec<String>,
    /// Why it cannot be asked now.
    pub problem: Option<String>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    timing: Timing,
    store: Store,
    upstreams: Arc<Upstreams>,
    downloads: Arc<Downloads>,
    manifests: Arc<Manifests>,
    permissions: Arc<Permissions>,
    coordination: Arc<dyn Coordination>,
    site: Mutex<SiteState>,
    peers: Option<Arc<Peers>>,
    stats: Arc<Stats>,
    jobs: Jobs,
    scrubs: Scrubs,
    pace: Arc<Pace>,
    probes: Probes,
}

impl Mirror {
    /// Opens the store and makes a mirror over it, for one node or as one of a site.
    ///
    /// # Errors
    /// [`MirrorError`].
    pub fn open(settings: Settings, timing: Timing) -> Result<(Mirror, Recovered), MirrorError> {
        let (budget, now) = (settings.store_budget(), now_utc());
        let policy = settings.policy;
        let Some(pop) = &settings.pop else {
            let (store, recovered) = Store::open(&settings.directory, budget, policy, now)?;
            return Ok((Mirror::over(settings, timing, store, Arc::<Embedded>::default())?, recovered));
        };
        let coordination = Arc::new(Redis::of(pop).map_err(MirrorError::Pop)?);
        let (store, recovered) = match pop.store {
            PopStore::SharedDir => {
                let node = pop.node().map_err(MirrorError::Pop)?;
                Store::share(&settings.directory, &node, budget, policy, now)?
            }
            PopStore::Peer => Store::open(&settings.directory, budget, policy, now)?,
        };
        Ok((Mirror::over(settings, timing, store, coordination)?, recovered))
    }

    /// A mirror over a store, with others of its site.
    ///
    /// # Errors
    /// [`MirrorError::Upstreams`].
    pub fn over(
        settings: Settings,
        timing: Timing,
        store: Store,
        coordination: Arc<dyn Coordination>,
    ) -> Result<Mirror, MirrorError> {
        let upstreams = Arc::new(Upstreams::new(&settings, timing).map_err(MirrorError::Upstreams)?);
        let (stats, permissions) = (Arc::<Stats>::default(), Arc::<Permissions>::default());
        let (up, count) = (Arc::clone(&upstreams), Arc::clone(&stats));
        let peers = settings.pop.as_ref().map(Peers::of).transpose().map_err(MirrorError::Pop)?;
        let peers = peers.flatten().map(Arc::new);
        let (leases, others) = (Arc::clone(&coordination), peers.clone());
        let pace = Arc::new(Pace::new(settings.max_rate));
        let slow = Arc::clone(&pace);
        let downloads = Arc::new(Downloads::new(store.clone(), up, leases, others, timing, count, slow));
        let manifests = Arc::new(Manifests {
            store: store.clone(),
            upstreams: Arc::clone(&upstreams),
            permissions: Arc::clone(&permissions),
            timing,
            tag_ttl: Duration::from_secs(settings.tag_ttl_s),
            stats: Arc::clone(&stats),
            flights: Flights::default(),
            failed: Mutex::new(HashMap::new()),
            coordination: Arc::clone(&coordination),
            peers: peers.clone(),
        });
        let (jobs, scrubs) = (Jobs::default(), Scrubs::new(settings.scrub_rate));
        let inner = Inner {
            settings,
            timing,
            store,
            upstreams,
            downloads,
            manifests,
            permissions,
            coordination,
            site: Mutex::default(),
            peers,
            stats,
            jobs,
            scrubs,
            pace,
            probes: Probes::default(),
        };
        Ok(Mirror { inner: Arc::new(inner) })
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// How it was set up.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The state of its site; of one node alone, that node.
    #[must_use]
    pub fn site(&self) -> SiteState {
        self.inner.site.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks each of the other nodes, of whom it knows, whether it gives this one what it has; none where
    /// nodes do not ask each other.
    pub async fn probe_peers(&self) -> Vec<Probed> {
        match &self.inner.peers {
            Some(peers) => peers.probe().await,
            None => Vec::new(),
        }
    }

    /// Its counters since it began.
    #[must_use]
    pub fn counted(&self) -> Vec<Counted> {
        self.inner.stats.all()
    }

    /// Other rates from now on, also for what is under way; nothing else of `settings`, which
    /// [`Settings::differs_only_in_rates`].
    pub fn reconfigure(&self, settings: &Settings) {
        self.inner.pace.set(settings.max_rate);
        self.inner.scrubs.set(settings.scrub_rate);
    }

    /// The most that registries are asked to send; none: as much as comes.
    #[must_use]
    pub fn max_rate(&self) -> Option<BitRate> {
        self.inner.pace.rate()
    }

    pub(crate) fn scrubs(&self) -> &Scrubs {
        &self.inner.scrubs
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.inner.stats
    }

    pub(crate) fn timing(&self) -> Timing {
        self.inner.timing
    }

    pub(crate) fn coordination(&self) -> &dyn Coordination {
        &*self.inner.coordination
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    /// The mirror itself asks, as the configuration has it.
    pub(crate) fn own(&self, source: &Source) -> Asker {
        Asker { identity: self.inner.upstreams.identity(source), accept: None, hops: String::new() }
    }

    pub(crate) async fn manifest(
        &self,
        source: &Source,
        reference: &Reference,
        asker: &Asker,
    ) -> Result<Arc<Manifest>, Fault> {
        let found = self.inner.manifests.find(source, reference, asker, now_utc()).await?;
        Ok(found.stored.manifest)
    }

    /// The download of a blob. `None`: it is in the store.
    pub(crate) async fn join(
        &self,
        source: &Source,
        digest: &Digest,
        asker: &Asker,
    ) -> Result<Option<Waiter>, Fault> {
        let ask = asker.ask(Method::GET, source, format!("blobs/{digest}"));
        let (of, name) = (source.clone(), digest.clone());
        let looked = move |store: &Store| {
            (store.is_proved(&of, &name), store.part_of(&of, &name).map(|part| part.size))
        };
        let (has, size) = self.ask_store(looked).await?;
        if has {
            return Ok(None);
        }
        self.download(digest, size, ask).map(Some)
    }

    /// A download of a blob, in the scope of who asks.
    fn download(&self, digest: &Digest, size: Option<u64>, ask: Ask) -> Result<Waiter, Fault> {
        let is_public = self.inner.upstreams.is_public_way(&ask.source, &ask.identity);
        let scope = Scope::of(&ask.source, is_public);
        self.inner.downloads.join(scope, digest, size, ask, now_utc())
    }

    /// Asks the store on a thread of its own: the store may wait for its disk, and other clients do not.
    pub(crate) async fn ask_store<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let store = self.inner.store.clone();
        let answered = tokio::task::spawn_blocking(move || question(&store)).await;
        answered.map_err(|e| Fault::Store { what: "the store".to_owned(), why: e.to_string() })
    }

    /// Answers a request of a client, or of a peer.
    async fn answer(&self, request: Request<Incoming>, asks: Asks) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let mut response = match asks {
            Asks::Client => self.respond(&request).await,
            Asks::Peer => self.respond_to_peer(&request).await,
        };
        let headers = response.headers_mut();
        headers.insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
        if let Asks::Peer = asks {
            // Also of a refusal: it says whether clocks are the reason.
            peer::introduce(headers, now_utc());
        }
        if is_head {
            *response.body_mut() = body::whole("");
        }
        response
    }

    async fn respond(&self, request: &Request<Incoming>) -> Response<Body> {
        let inner = &self.inner;
        let (path, query) = (request.uri().path(), request.uri().query());
        if let Some(response) = inner.probes.answer(path) {
            return response;
        }
        let routed = route::route(path, query, &|registry| inner.upstreams.may_ask(registry));
        let is_pull = request.method() == Method::GET || request.method() == Method::HEAD;
        let (route, ns) = match routed {
            Err(Unroutable::Bad(code, why)) => return refuse(StatusCode::BAD_REQUEST, code, &why),
            _ if !is_pull => {
                let why = "weir mirrors pulls: push to the registry";
                let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", why);
                refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
                return refusal;
            }
            Ok(routed) => routed,
            Err(Unroutable::NoTag(why)) => return refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", &why),
            Err(Unroutable::Unknown) => {
                return refuse(StatusCode::NOT_FOUND, "UNSUPPORTED", "no such path here");
            }
        };
        let headers = request.headers();
        let hops = joined(headers, HOP).unwrap_or_default();
        if inner.upstreams.is_loop(&hops) {
            return refuse(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "mirrors ask each other in a circle");
        }
        let asker = |source: &Source| Asker {
            identity: match headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()) {
                Some(text) => Identity::Client(text.into()),
                None => inner.upstreams.identity(source),
            },
            accept: joined(headers, "accept"),
            hops: hops.clone(),
        };
        let unknown = route.unknown();
        let result = match route {
            Route::Base => Ok(Response::new(body::whole("{}"))),
            Route::Manifest(source, reference) => {
                let asker = asker(&source);
                let found = inner.manifests.find(&source, &reference, &asker, now_utc()).await;
                if let (Ok(found), &Method::GET) = (&found, request.method()) {
                    self.used(found).await;
                }
                found.map(|found| manifest(&found, headers))
            }
            Route::Blob(source, digest) => {
                let asker = Asker { accept: None, ..asker(&source) };
                self.blob(&source, &digest, &asker, request.method(), headers).await
            }
            Route::Relay(source, path) => {
                let asker = asker(&source);
                let asked = Asked { path: request.uri().path(), ns: ns.as_deref() };
                self.relay(&asker.ask(Method::GET, &source, path), asked).await
            }
        };
        let mut response = result.unwrap_or_else(|fault| {
            count(&inner.stats.refused, 1);
            tracing::debug!("404 for {path}: {fault}");
            refuse(StatusCode::NOT_FOUND, unknown, &fault.to_string())
        });
        if let Some(ns) = ns.and_then(|ns| HeaderValue::from_str(&ns).ok()) {
            response.headers_mut().insert("oci-namespace", ns);
        }
        response
    }

    /// A client that takes an image's manifest uses the image, even if it has all layers itself.
    async fn used(&self, found: &Found) {
        if let Manifest::Image { .. } = &*found.stored.manifest {
            let parts: Vec<_> = found.stored.manifest.parts().cloned().collect();
            let digest = found.stored.digest.clone();
            // An error is that the mirror is stopping.
            let _ = self.ask_store(move |store| store.used(&digest, &parts, now_utc())).await;
        }
    }

    /// The content that is here, or on its way, for a node of the site; no registry is asked for
    /// it.
    async fn respond_to_peer(&self, request: &Request<Incoming>) -> Response<Body> {
        let inner = &self.inner;
        let (uri, headers) = (request.uri(), request.headers());
        let whole = uri.path_and_query().map_or(uri.path(), |path| path.as_str());
        let is_peer = inner.peers.as_ref().is_some_and(|peers| peers.is_peer(headers, whole, now_utc()));
        if !is_peer || request.method() != Method::GET {
            let why = "this is for nodes of the site that know its secret, and whose clocks go right";
            return refuse(StatusCode::FORBIDDEN, "DENIED", why);
        }
        let unknown = || refuse(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "it is not here");
        match route::route(uri.path(), uri.query(), &|_| true) {
            Ok((Route::Base, _)) => Response::new(body::whole("{}")),
            Ok((Route::Manifest(source, Reference::Digest(digest)), _)) => {
                let stored = inner.manifests.stored(&source, &digest, now_utc()).await;
                let found = |stored| Found { stored, age: Duration::ZERO, is_stale: false };
                stored.map_or_else(unknown, |stored| manifest(&found(stored), headers))
            }
            Ok((Route::Blob(source, digest), _)) => {
                let stats = Arc::clone(&inner.stats);
                let part = peer::scope_of_part(&source, uri.query().unwrap_or_default());
                let waiter = match self.whole(&source, &digest, request.method()).await {
                    Ok(Some(Whole::Ready(blob))) => {
                        let body = |range| body::of_blob(blob.clone(), range, stats);
                        let mut answer = send(&digest, blob.size(), request.method(), headers, body);
                        let is_for_all = self.ask_store(move |store| store.is_for_all(&digest)).await;
                        if is_for_all.is_ok_and(|is| is) {
                            peer::say_public(answer.headers_mut());
                        }
                        return answer;
                    }
                    Ok(Some(Whole::Checking(waiter))) => Some(waiter),
                    _ => part.and_then(|scope| inner.downloads.watch(scope, &digest)),
                };
                let Some(waiter) = waiter else { return unknown() };
                let asker = self.own(&source);
                let ask = asker.ask(Method::GET, &source, format!("blobs/{digest}"));
                let followed = self.follow(waiter, &digest, &ask, request.method(), headers).await;
                followed.unwrap_or_else(|_| unknown())
            }
            _ => unknown(),
        }
    }

    async fn blob(
        &self,
        source: &Source,
        digest: &Digest,
        asker: &Asker,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Fault> {
        let inner = &self.inner;
        let ask = asker.ask(Method::GET, source, format!("blobs/{digest}"));
        let (permissions, timing) = (Arc::clone(&inner.permissions), inner.timing);
        let (of, name, identity) = (source.clone(), digest.clone(), asker.identity.clone());
        let (part, may) = self
            .ask_store(move |store| {
                let part = store.part_of(&of, &name);
                (part, permissions.has(store, &of, &identity, timing, now_utc()))
            })
            .await?;
        let mut size = part.map(|part| part.size);
        let is_named = size.is_some();
        if !is_named || !may {
            // A client that may not have it hears so from its registry alone.
            count(&inner.stats.upstream_requests, 1);
            let head = Ask { method: Method::HEAD, ..ask.clone() };
            let answer = inner.upstreams.ask(&head, now_utc()).await?;
            if let (&Method::HEAD, false) = (method, is_named) {
                // The registry's word is enough for an answer without content. A download does not go by it.
                let length = answer.response.headers().get(header::CONTENT_LENGTH);
                size = length.and_then(|length| length.to_str().ok()?.parse().ok());
            }
            drop(answer);
            let permissions = Arc::clone(&inner.permissions);
            let (of, identity) = (source.clone(), asker.identity.clone());
            let grant = move |store: &Store| permissions.grant(store, &of, &identity, timing, now_utc());
            self.ask_store(grant).await?;
        }
        let waiter = match self.whole(source, digest, method).await? {
            Some(Whole::Ready(blob)) => {
                count(&inner.stats.blob_hits, 1);
                return Ok(send(digest, blob.size(), method, headers, |range| {
                    body::of_blob(blob, range, Arc::clone(&inner.stats))
                }));
            }
            Some(Whole::Checking(waiter)) => {
                count(&inner.stats.blob_hits, 1);
                waiter
            }
            None => {
                if let (&Method::HEAD, Some(size)) = (method, size) {
                    return Ok(send(digest, size, method, &HeaderMap::new(), |_| body::whole("")));
                }
                self.download(digest, size, ask.clone())?
            }
        };
        let is_anothers = waiter.source != *source;
        match self.follow(waiter, digest, &ask, method, headers).await {
            // Another repository's download has failed, which says nothing of this one.
            Err(_) if is_anothers => {
                let waiter = self.download(digest, size, ask.clone())?;
                self.follow(waiter, digest, &ask, method, headers).await
            }
            answered => answered,
        }
    }

    /// A complete blob that may be served under this name, and is what it is called or is being checked.
    async fn whole(&self, source: &Source, digest: &Digest, method: &Method) -> Result<Option<Whole>, Fault> {
        let inner = &self.inner;
        let (of, name) = (source.clone(), digest.clone());
        let opened = self.ask_store(move |store| store.open_proved(&of, &name, now_utc())).await?;
        let kept = |e: StoreError| Fault::Store { what: digest.to_string(), why: weir_units::chain(&e) };
        let Some(blob) = opened.map_err(kept)? else { return Ok(None) };
        if blob.is_verified() || method == Method::HEAD {
            return Ok(Some(Whole::Ready(blob)));
        }
        let mut waiter = inner.downloads.recheck(source, &blob);
        let over = waiter.progress.wait_for(Progress::is_over);
        // A wrong blob is fetched again if that is found before its first byte is sent.
        let over = timeout(inner.timing.first_byte / 5, over).await;
        let is_right = over.map(|over| over.is_ok_and(|seen| !matches!(&*seen, Progress::Failed(_))));
        match is_right {
            Ok(is_right) => Ok(is_right.then_some(Whole::Ready(blob))),
            Err(_) => Ok(Some(Whole::Checking(waiter))),
        }
    }

    /// An answer from a download that is under way.
    async fn follow(
        &self,
        mut waiter: Waiter,
        digest: &Digest,
        ask: &Ask,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Fault> {
        let inner = &self.inner;
        let outage = |why: &str| crate::upstream::outage(ask, why);
        let begun = waiter.progress.wait_for(|p| !matches!(p, Progress::Asking));
        let begun =
            timeout(inner.timing.first_byte, begun).await.map_err(|_| outage("no first byte in time"))?;
        let begun = begun.map_err(|_| outage("its download ended without a result"))?.clone();
        match begun {
            Progress::Failed(fault) => Err(fault),
            Progress::Asking => Err(outage("nothing came")),
            Progress::Flowing { size, .. } => {
                let stats = Arc::clone(&inner.stats);
                Ok(send(digest, size, method, headers, |range| {
                    body::of_download(waiter, size, range, inner.timing.progress, stats)
                }))
            }
        }
    }
}
