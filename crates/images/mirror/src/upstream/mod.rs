//! Registries: where they are, as whom they are asked, and what they answered.

mod auth;
mod connect;
mod fault;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod guard;
mod login;
mod names;
mod retry;
mod special;
mod token;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderValue},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_units::without_user;

use crate::{
    Registry, Source, Utc,
    clock::holds,
    name::DOCKER_IO,
    settings::{Settings, Timing, UpstreamSettings},
};
use auth::Challenge;
use connect::{Https, Proxies, Resolvers, client, tls};
pub use fault::Fault;
use guard::{Guard, Place};
use login::Login;

/// Whether an address is this node's or a private network's, by the registries of special addresses.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    special::classify(ip).is_some_and(|(class, _)| class == special::AddressClass::Private)
}

/// Says whom a request has passed through, so that mirrors that ask each other in a circle notice.
pub(crate) const HOP: &str = "x-weir-hop";

const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// As often as one registry sends elsewhere.
const REDIRECTS: usize = 5;

/// The longest that a registry's `Retry-After` is honoured.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Requests at once to a registry of which the configuration says nothing.
const REQUESTS: usize = 16;

/// The blobs that may be on their way for each request at once. They have a queue of their own:
/// behind a thin link they take minutes, and a manifest does not wait for them. containerd asks for
/// all layers of an image at once.
const BLOBS: usize = 4;

/// The most registries that have queues of their own, of those that the configuration does not name. Names
/// come from clients: all others have one queue together.
const MAX_REGISTRIES: usize = 1024;

/// The most repositories that are left alone for a while.
const MAX_PAUSED: usize = 4096;

/// The most tokens that are kept, and the longest credentials of a client for which one is kept, bytes.
const MAX_TOKENS: usize = 1024;
const MAX_CREDENTIALS: usize = 8 << 10;

/// A way to a registry: scheme and host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    is_tls: bool,
    authority: String,
}

impl Base {
    pub(crate) fn of(settings: &UpstreamSettings) -> Result<Base, String> {
        let Some(url) = &settings.url else { return Ok(Base::usual(&settings.registry)) };
        let shown = || without_user(url, "(hidden)");
        let bad = || {
            format!("cannot read url `{}`: write it as https://mirror.example:5000, without a path", shown())
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let authority = rest.trim_end_matches('/');
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(bad()),
        };
        authority.parse::<Registry>().map_err(|_| bad())?;
        Ok(Base { is_tls, authority: authority.to_owned() })
    }

    fn url(&self, path: &str) -> String {
        format!("{}://{}/{path}", if self.is_tls { "https" } else { "http" }, self.authority)
    }

    fn usual(registry: &Registry) -> Base {
        let authority =
            if registry.as_str() == DOCKER_IO { "registry-1.docker.io" } else { registry.as_str() };
        Base { is_tls: true, authority: authority.to_owned() }
    }
}

#[derive(Debug, Clone)]
struct Known {
    base: Base,
    login: Option<Login>,
    share: Vec<String>,
    /// Where it is, and where else it may send although the address is private.
    places: Arc<[Place]>,
    /// Every connection shows a certificate of this node.
    shows_certificate: bool,
    /// Asks those places,
    client: Https,
    /// and all others.
    strict: Https,
    requests: Queue,
    blobs: Queue,
}

/// The places for requests at once.
#[derive(Debug, Clone)]
struct Queue {
    places: usize,
    free: Arc<Semaphore>,
}

impl Queue {
    fn of(places: usize) -> Queue {
        Queue { places, free: Arc::new(Semaphore::new(places)) }
    }
}

/// As whom a registry is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// As nobody.
    Anonymous,
    /// With the credentials of the configuration.
    Own,
    /// With what a client brought, `Authorization`.
    Client(Arc<str>),
}

/// A request to a registry.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) source: Source,
    /// Below the repository: `blobs/sha256:…`.
    pub(crate) path: String,
    pub(crate) accept: Option<String>,
    /// The first byte wanted, if not all.
    pub(crate) from: u64,
    pub(crate) identity: Identity,
    /// The nodes that the request has passed through already.
    pub(crate) hops: String,
}

impl Ask {
    fn what(&self) -> String {
        format!("{}/{}", self.source, self.path)
    }

    /// Whether its answer may be long.
    fn is_for_a_blob(&self) -> bool {
        self.method == Method::GET && self.path.starts_with("blobs/")
    }
}

/// A registry's answer, and the place in its queue, which is kept until the body is read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// Of another node, which is asked without a queue.
    pub(crate) fn of_peer(response: Response<Incoming>) -> Answer {
        Answer { response, _permit: None }
    }
}

/// The scope of a token: registry, repository, and client.
type TokenFor = (Registry, String, Identity);

/// All registries that may be asked.
#[derive(Debug)]
pub(crate) struct Upstreams {
    known: Mutex<HashMap<Registry, Known>>,
    /// For the others; none if there are to be no others.
    others: Option<Https>,
    /// The queues of registries that have none of their own: requests and blobs.
    crowd: (Queue, Queue),
    tokens: Mutex<HashMap<TokenFor, (HeaderValue, Utc)>>,
    /// Repositories of which a registry wants no requests for now, until when, and its status.
    paused: Mutex<HashMap<Source, (Utc, u16)>>,
    proxies: Proxies,
    /// This mirror's name among mirrors.
    id: String,
    timing: Timing,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upstreams {
    /// The registries of a configuration.
    ///
    /// # Errors
    /// A certificate authority's file cannot be read; what it says is in the text.
    pub(crate) fn new(settings: &Settings, timing: Timing) -> Result<Upstreams, String> {
        let usual = tls(None, None)?;
        let (proxies, resolvers) = (Proxies::of(settings), Resolvers::new(timing));
        let open = |tls, private| client(tls, Guard { private }, &resolvers, &proxies, timing);
        let mut known = HashMap::new();
        for upstream in &settings.upstreams {
            let tls = match (&upstream.ca_file, &upstream.cert_file, &upstream.key_file) {
                (None, None, None) => usual.clone(),
                (ca, cert, key) => tls(ca.as_deref(), cert.as_deref().zip(key.as_deref()))?,
            };
            let base = Base::of(upstream)?;
            let own = base.url("").parse().ok().and_then(|url| Place::of_url(&url));
            let places = own.into_iter().chain(upstream.redirects.iter().map(Place::of)).collect();
            let entry = Known {
                base,
                login: Login::of(upstream),
                share: upstream.share.clone(),
                places,
                shows_certificate: upstream.cert_file.is_some(),
                client: open(tls.clone(), true),
                strict: open(tls, false),
                requests: Queue::of(upstream.requests),
                blobs: Queue::of(upstream.requests.saturating_mul(BLOBS)),
            };
            known.insert(upstream.registry.clone(), entry);
        }
        let mut id = [0; 8];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut id)
            .map_err(|_| "cannot get random numbers from the system".to_owned())?;
        Ok(Upstreams {
            known: Mutex::new(known),
            others: settings.any_registry.then(|| open(usual, false)),
            crowd: (Queue::of(REQUESTS), Queue::of(REQUESTS * BLOBS)),
            tokens: Mutex::default(),
            paused: Mutex::default(),
            proxies,
            id: format!("{:016x}", u64::from_ne_bytes(id)),
            timing,
        })
    }

    /// Whether a first component of a path can mean this registry.
    pub(crate) fn may_ask(&self, registry: &Registry) -> bool {
        self.others.is_some() || lock(&self.known).contains_key(registry)
    }

    /// Whether a request has passed through this mirror before.
    pub(crate) fn is_loop(&self, hops: &str) -> bool {
        hops.contains(&self.id) || hops.split(',').count() > 4
    }

    /// As whom the mirror asks for a client that brought nothing.
    pub(crate) fn identity(&self, source: &Source) -> Identity {
        let known = lock(&self.known);
        let shares = |entry: &Known| {
            entry.login.is_some()
                && entry.share.iter().any(|s| crate::pattern::fits(s, source.repository.as_str()))
        };
        if known.get(&source.registry).is_some_and(shares) { Identity::Own } else { Identity::Anonymous }
    }

    /// Whether what a registry gives to this identity it gives to everybody.
    ///
    /// A certificate shows who asks, also without other credentials.
    pub(crate) fn is_public_way(&self, source: &Source, identity: &Identity) -> bool {
        let shows = |entry: &Known| entry.shows_certificate;
        *identity == Identity::Anonymous && !lock(&self.known).get(&source.registry).is_some_and(shows)
    }

    fn entry(&self, ask: &Ask) -> Result<Known, Fault> {
        let registry = &ask.source.registry;
        let mut known = lock(&self.known);
        if let Some(entry) = known.get(registry) {
            return Ok(entry.clone());
        }
        let refused =
            |why: &str| Fault::Refused { what: ask.what(), whom: registry.to_string(), why: why.into() };
        let Some(client) = &self.others else {
            return Err(refused("no [[images.upstream]] names it, and any_registry is false"));
        };
        if registry.port().is_some_and(|port| port != 443) {
            return Err(refused("it has a port of its own, and no [[images.upstream]] names it"));
        }
        let entry = Known {
            base: Base::usual(registry),
            login: None,
            share: Vec::new(),
            places: Arc::default(),
            shows_certificate: false,
            client: client.clone(),
            strict: client.clone(),
            requests: Queue::of(REQUESTS),
            blobs: Queue::of(REQUESTS * BLOBS),
        };
        if known.len() >= MAX_REGISTRIES {
            let (requests, blobs) = self.crowd.clone();
            return Ok(Known { requests, blobs, ..entry });
        }
        known.insert(registry.clone(), entry.clone());
        Ok(entry)
    }

    /// Asks a registry, logs in if it wants that, goes where it sends. The answer is 200 or 206.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) async fn ask(&self, ask: &Ask, now: Utc) -> Result<Answer, Fault> {
        let registry = &ask.source.registry;
        let paused = lock(&self.paused).get(&ask.source).copied();
        if let Some((until, status)) = paused.filter(|(until, _)| holds(*until, now, MAX_PAUSE)) {
            return Err(Fault::Limited { what: ask.what(), status, retry: until.since(now) });
        }
        let entry = self.entry(ask)?;
        let permit = self.place(ask, &entry).await?;
        let url = entry.base.url(&format!("v2/{}/{}", ask.source.repository, ask.path));
        let key = (registry.clone(), ask.source.repository.to_string(), ask.identity.clone());
        let cached = lock(&self.tokens).get(&key).filter(|(_, until)| now < *until).map(|(t, _)| t.clone());
        let bearer = match &ask.identity {
            Identity::Client(text) if !is_basic(text) => HeaderValue::from_str(text).ok(),
            _ => None,
        };
        let mut token = cached.or(bearer);
        let mut response = self.follow(ask, &entry, &url, token.as_ref()).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let challenge = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
            let challenge = challenge.filter_map(|v| v.to_str().ok()).find_map(Challenge::read);
            let denied = || Fault::Denied { what: ask.what(), status: 401 };
            let (fresh, lifetime) = match challenge.ok_or_else(denied)? {
                Challenge::Basic => (self.basic(ask, &entry).await?.ok_or_else(denied)?, 300),
                bearer => self.token(ask, &entry, &bearer).await?,
            };
            let until = now.after(Duration::from_secs(lifetime.saturating_sub(10)));
            {
                let mut tokens = lock(&self.tokens);
                tokens.retain(|_, (_, until)| now < *until);
                let is_short =
                    !matches!(&ask.identity, Identity::Client(text) if text.len() > MAX_CREDENTIALS);
                if tokens.len() < MAX_TOKENS && is_short {
                    tokens.insert(key.clone(), (fresh.clone(), until));
                }
            }
            token = Some(fresh);
            response = self.follow(ask, &entry, &url, token.as_ref()).await?;
        }
        let status = response.status();
        match status.as_u16() {
            200 | 206 => Ok(Answer { response, _permit: Some(permit) }),
            code @ (401 | 403) => {
                lock(&self.tokens).remove(&key);
                Err(Fault::Denied { what: ask.what(), status: code })
            }
            status @ (429 | 503) => {
                let after = retry::after(response.headers(), now);
                if let (503, None) = (status, after) {
                    return Err(outage(ask, "its registry answers 503"));
                }
                let retry = after.unwrap_or(self.timing.negative).min(MAX_PAUSE);
                let mut paused = lock(&self.paused);
                paused.retain(|_, (until, _)| holds(*until, now, MAX_PAUSE));
                if paused.len() >= MAX_PAUSED {
                    let first = paused.iter().min_by_key(|(_, (until, _))| *until);
                    let first = first.map(|(source, _)| source.clone());
                    first.and_then(|source| paused.remove(&source));
                }
                paused.insert(ask.source.clone(), (now.after(retry), status));
                Err(Fault::Limited { what: ask.what(), status, retry })
            }
            code @ 400..=499 => Err(Fault::NotFound { what: ask.what(), status: code }),
            code => Err(outage(ask, format!("its registry answers {code}"))),
        }
    }

    /// A place among those who ask.
    async fn place(&self, ask: &Ask, entry: &Known) -> Result<OwnedSemaphorePermit, Fault> {
        let (queue, of) = if ask.is_for_a_blob() {
            (&entry.blobs, "blobs of this registry are on their way")
        } else {
            (&entry.requests, "requests to this registry wait for their answers")
        };
        let permit = Arc::clone(&queue.free).acquire_owned();
        // Sooner than the waiting client gives up, so that it hears why.
        let wait = self.timing.first_byte * 4 / 5;
        let late = |_| Fault::Busy { what: ask.what(), most: queue.places, of, wait };
        let permit = tokio::time::timeout(wait, permit).await.map_err(late)?;
        permit.map_err(|_| outage(ask, "the mirror is stopping"))
    }

    /// One request, and those it is sent on to. Secrets go to the first host only.
    async fn follow(
        &self,
        ask: &Ask,
        entry: &Known,
        url: &str,
        token: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Fault> {
        let mut url: Uri = url.parse().map_err(|_| outage(ask, format!("{url} is not a URL")))?;
        let first = url.authority().cloned();
        for _ in 0..=REDIRECTS {
            let client = self.client(ask, entry, &url)?;
            let mut request = Request::builder().method(&ask.method).uri(&url);
            if let Some(headers) = request.headers_mut() {
                let mut put = |name: &'static str, value: &str| {
                    if let Ok(value) = HeaderValue::from_str(value) {
                        headers.insert(name, value);
                    }
                };
                put("user-agent", AGENT);
                // Content that is compressed on the way has another digest.
                put("accept-encoding", "identity");
                put("accept", ask.accept.as_deref().unwrap_or("*/*"));
                if ask.from > 0 {
                    put("range", &format!("bytes={}-", ask.from));
                }
                if url.authority() == first.as_ref() {
                    let hops = if ask.hops.is_empty() {
                        self.id.clone()
                    } else {
                        format!("{},{}", ask.hops, self.id)
                    };
                    put(HOP, &hops);
                    if let Some(token) = token {
                        headers.insert(header::AUTHORIZATION, token.clone());
                    }
                }
                if let Some(authorization) = self.proxies.authorization(&url) {
                    headers.insert(header::PROXY_AUTHORIZATION, authorization);
                }
            }
            let request = request.body(Full::default()).map_err(|e| outage(ask, e.to_string()))?;
            let sent = client.request(request);
            let response = self
                .in_time(ask, "no answer", sent)
                .await?
                .map_err(|e| outage(ask, weir_units::chain(&e)))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok());
            url = location
                .and_then(|to| absolute(&url, to))
                .ok_or_else(|| outage(ask, "its registry sends elsewhere, and does not say where"))?;
        }
        Err(outage(ask, format!("its registry sends elsewhere more than {REDIRECTS} times")))
    }

    /// The client for a URL, wherever that came from, if it may be asked.
    fn client<'a>(&self, ask: &Ask, entry: &'a Known, url: &Uri) -> Result<&'a Https, Fault> {
        let refused = |why: &str| {
            let whom = url.authority().map_or_else(String::new, ToString::to_string);
            Err(Fault::Refused { what: ask.what(), whom, why: why.to_owned() })
        };
        let private = entry.places.iter().any(|place| place.has(url));
        if url.scheme_str() != Some("https") && entry.base.is_tls {
            return refused("it would be without TLS");
        }
        let host = url.host().unwrap_or_default();
        // Addresses are not resolved, so the resolver does not see them.
        if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>()
            && let Some(why) = (Guard { private }).refuses(ip)
        {
            return refused(&why);
        }
        Ok(if private { &entry.client } else { &entry.strict })
    }

    async fn in_time<T>(&self, ask: &Ask, what: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
        let wait = self.timing.first_byte;
        tokio::time::timeout(wait, work).await.map_err(|_| outage(ask, format!("{what} within {wait:?}")))
    }
}

fn is_basic(text: &str) -> bool {
    text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic "))
}

pub(crate) fn outage(ask: &Ask, why: impl Into<String>) -> Fault {
    Fault::Outage { what: ask.what(), why: why.into() }
}

fn absolute(base: &Uri, to: &str) -> Option<Uri> {
    if to.starts_with('/') && !to.starts_with("//") {
        return format!("{}://{}{to}", base.scheme_str()?, base.authority()?).parse().ok();
    }
    let url: Uri = to.parse().ok()?;
    (url.scheme().is_some() && url.authority().is_some()).then_some(url)
}
