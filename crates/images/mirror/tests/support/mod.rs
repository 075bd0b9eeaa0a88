//! A registry in this process with faults on demand, and a mirror in front of it.

#![allow(dead_code)] // each test file uses a part of it

pub(crate) mod conformance;
pub(crate) mod fill;
pub(crate) mod line;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod site;
pub(crate) mod tls;

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::{net::TcpListener, task::JoinHandle};
use weir_image::{
    Digest, Mirror, Settings, Timing, UpstreamSettings,
    coordination::{Coordination, Embedded},
    digest::Algorithm,
    now_utc,
    store::{Budget, PolicyKind, Store},
};

/// The fault of the next blob.
#[derive(Debug, Clone)]
pub(crate) enum RegistryFault {
    /// An answer of this status.
    Status(u16),
    /// The body ends after this number of bytes.
    Cut(usize),
    /// Nothing more comes after this number of bytes.
    Stall(usize),
    /// The last byte is another.
    Lie,
    /// All of it, whatever range was asked for, after a cut.
    NoRange,
    /// Sent elsewhere.
    Redirect(String),
    /// Never answered.
    Silence,
    /// So long between two pieces of 64 KiB.
    Slow(Duration),
    /// This number of bytes at a time, and this time between them.
    Drip(usize, Duration),
    /// 429, and after how many seconds to come again.
    Limited(u64),
    /// 503, and after how many seconds to come again.
    Unavailable(u64),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) blobs: Mutex<HashMap<String, Bytes>>,
    pub(crate) manifests: Mutex<HashMap<String, (String, Bytes)>>,
    /// Method, path, and range if there was one.
    pub(crate) log: Mutex<Vec<String>>,
    pub(crate) blob_troubles: Mutex<VecDeque<RegistryFault>>,
    /// The digest that it states for any manifest, if not the true one.
    pub(crate) digest_said: Mutex<Option<String>>,
    /// Of all manifests, until taken away.
    pub(crate) manifest_status: Mutex<Option<(u16, u64)>>,
    /// `user:password` in base64, if a token is wanted.
    pub(crate) login: Mutex<Option<String>>,
    /// The grant that its token service takes too, `grant_type=refresh_token`.
    pub(crate) identity: Mutex<Option<String>>,
    /// Headers of the last request.
    pub(crate) headers: Mutex<HeaderMap>,
}

pub(crate) struct Registry {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<State>,
    task: JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn status(code: u16) -> Response<Body> {
    Response::builder().status(code).body(full("")).unwrap()
}

fn later(code: u16, after: u64) -> Response<Body> {
    Response::builder().status(code).header("retry-after", after).body(full("")).unwrap()
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

/// Bytes that do not repeat, from a seed.
pub(crate) fn noise(seed: u64, len: usize) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(word).take(len / 8 + 1).flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes.into()
}

/// An image of the registry.
#[derive(Debug, Clone)]
pub(crate) struct TestImage {
    pub(crate) manifest: Digest,
    pub(crate) config: Digest,
    pub(crate) layers: Vec<Digest>,
}

impl Registry {
    pub(crate) async fn start() -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let answer = service_fn(move |request| answer(Arc::clone(&state), address, request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Registry { address, state, task }
    }

    /// Makes `name:tag` of layers of these sizes.
    pub(crate) fn image(&self, name: &str, tag: &str, seed: u64, sizes: &[usize]) -> TestImage {
        let mut blobs = self.state.blobs.lock().unwrap();
        let mut add = |bytes: Bytes| {
            let digest = digest(&bytes);
            let size = bytes.len();
            blobs.insert(digest.to_string(), bytes);
            (digest, size)
        };
        let (config, config_size) = add(Bytes::from(format!("{{\"seed\":{seed}}}")));
        let layers: Vec<_> =
            sizes.iter().enumerate().map(|(n, size)| add(noise(seed * 100 + n as u64 + 1, *size))).collect();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let text = serde_json::json!({
            "schemaVersion": 2, "mediaType": kind,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size },
            "layers": layers.iter().map(|(digest, size)| serde_json::json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size,
            })).collect::<Vec<_>>(),
        });
        let bytes = Bytes::from(text.to_string());
        let manifest = digest(&bytes);
        let mut manifests = self.state.manifests.lock().unwrap();
        for reference in [tag.to_owned(), manifest.to_string()] {
            manifests.insert(format!("{name}/{reference}"), (kind.to_owned(), bytes.clone()));
        }
        TestImage { manifest, config, layers: layers.into_iter().map(|(digest, _)| digest).collect() }
    }

    /// Makes an index of these manifests, each with a platform or none. Answers its digest and size.
    pub(crate) fn index(
        &self,
        name: &str,
        tag: &str,
        of: &[(&Digest, usize, Option<&str>)],
    ) -> (Digest, usize) {
        let kind = "application/vnd.oci.image.index.v1+json";
        let child = |(digest, size, architecture): &(&Digest, usize, Option<&str>)| {
            let mut child = serde_json::json!({ "mediaType": kind, "digest": digest, "size": size });
            if let Some(architecture) = architecture {
                child["platform"] = serde_json::json!({ "os": "linux", "architecture": architecture });
            }
            child
        };
        let manifests: Vec<_> = of.iter().map(child).collect();
        let text = serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
        let bytes = Bytes::from(text.to_string());
        let index = digest(&bytes);
        let mut manifests = self.state.manifests.lock().unwrap();
        for reference in [tag.to_owned(), index.to_string()] {
            manifests.insert(format!("{name}/{reference}"), (kind.to_owned(), bytes.clone()));
        }
        (index, bytes.len())
    }

    pub(crate) fn trouble(&self, trouble: RegistryFault) {
        self.state.blob_troubles.lock().unwrap().push_back(trouble);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }

    /// How many requests began like this.
    pub(crate) fn asked(&self, what: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(what)).count()
    }

    /// How often a blob was asked for from its first byte; after a pause of a busy machine the rest of
    /// one is asked for again.
    pub(crate) fn asked_whole(&self, name: &str, blob: &Digest) -> usize {
        let line = format!("GET /v2/{name}/blobs/{blob}");
        self.log().iter().filter(|asked| **asked == line).count()
    }

    pub(crate) fn settings(&self, registry: &str) -> UpstreamSettings {
        UpstreamSettings {
            registry: registry.parse().unwrap(),
            url: Some(format!("http://{}", self.address)),
            username: None,
            password_file: None,
            docker_config: None,
            share: Vec::new(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            redirects: Vec::new(),
            requests: 64,
        }
    }
}

async fn answer(
    state: Arc<State>,
    address: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let range = header("range");
    let line = format!("{} {path} {}", request.method(), range.as_deref().unwrap_or_default());
    state.log.lock().unwrap().push(line.trim_end().to_owned());
    *state.headers.lock().unwrap() = request.headers().clone();
    let login = state.login.lock().unwrap().clone();
    if let Some(login) = login {
        let has = header("authorization");
        let identity = state.identity.lock().unwrap().clone();
        if let (Some(identity), "/token", "POST") = (identity, &*path, request.method().as_str()) {
            let form = request.into_body().collect().await.unwrap().to_bytes();
            let form = String::from_utf8(form.to_vec()).unwrap();
            let has = |pair: &str| form.split('&').any(|has| has == pair);
            let good = has("grant_type=refresh_token") && has(&format!("refresh_token={identity}"));
            return Ok(if good { Response::new(full(r#"{"access_token":"t0k"}"#)) } else { status(401) });
        }
        if path == "/token" {
            let good = has.as_deref() == Some(&format!("Basic {login}"));
            return Ok(if good { Response::new(full(r#"{"token":"t0k"}"#)) } else { status(401) });
        }
        if has.as_deref() != Some("Bearer t0k") {
            let challenge = format!("Bearer realm=\"http://{address}/token\",service=\"fake\"");
            let refusal = Response::builder().status(401).header("www-authenticate", challenge);
            return Ok(refusal.body(full("")).unwrap());
        }
    }
    let is_head = request.method() == "HEAD";
    if let Some((name, reference)) = path.trim_start_matches("/v2/").split_once("/manifests/") {
        if let Some((code, after)) = *state.manifest_status.lock().unwrap() {
            let refusal = Response::builder().status(code).header("retry-after", after);
            return Ok(refusal.body(full("")).unwrap());
        }
        let Some((kind, bytes)) =
            state.manifests.lock().unwrap().get(&format!("{name}/{reference}")).cloned()
        else {
            return Ok(status(404));
        };
        let said = state.digest_said.lock().unwrap().clone();
        return Ok(Response::builder()
            .header("content-type", kind)
            .header("docker-content-digest", said.unwrap_or_else(|| digest(&bytes).to_string()))
            .header("content-length", bytes.len())
            .body(full(if is_head { Bytes::new() } else { bytes }))
            .unwrap());
    }
    let Some((_, wanted)) = path.rsplit_once("/blobs/") else { return Ok(status(404)) };
    let Some(bytes) = state.blobs.lock().unwrap().get(wanted).cloned() else { return Ok(status(404)) };
    if is_head {
        return Ok(Response::builder().header("content-length", bytes.len()).body(full("")).unwrap());
    }
    let trouble = state.blob_troubles.lock().unwrap().pop_front();
    Ok(blob(bytes, range, trouble).await)
}

async fn blob(mut bytes: Bytes, range: Option<String>, trouble: Option<RegistryFault>) -> Response<Body> {
    let total = bytes.len();
    let (mut cut, mut stall, mut pace, mut piece) = (None, false, None, 64 << 10);
    let mut from =
        range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()).unwrap_or(0);
    match trouble {
        None => {}
        Some(RegistryFault::Status(code)) => return status(code),
        Some(RegistryFault::Redirect(to)) => {
            return Response::builder().status(307).header("location", to).body(full("")).unwrap();
        }
        Some(RegistryFault::Silence) => std::future::pending().await,
        Some(RegistryFault::Cut(at)) => cut = Some(at),
        Some(RegistryFault::Stall(at)) => (cut, stall) = (Some(at), true),
        Some(RegistryFault::NoRange) => from = 0,
        Some(RegistryFault::Slow(by)) => pace = Some(by),
        Some(RegistryFault::Drip(of, by)) => (piece, pace) = (of, Some(by)),
        Some(RegistryFault::Limited(after)) => return later(429, after),
        Some(RegistryFault::Unavailable(after)) => return later(503, after),
        Some(RegistryFault::Lie) => {
            let mut lie = bytes.to_vec();
            *lie.last_mut().unwrap() ^= 1;
            bytes = lie.into();
        }
    }
    let rest = bytes.slice(from..);
    let mut pieces: Vec<Bytes> = Vec::new();
    let end = cut.unwrap_or(rest.len()).min(rest.len());
    let mut at = 0;
    while at < end {
        let to = (at + piece).min(end);
        pieces.push(rest.slice(at..to));
        at = to;
    }
    let is_cut = cut.is_some_and(|at| at < rest.len());
    let body = stream::unfold((pieces.into_iter(), is_cut), move |(mut pieces, is_cut)| async move {
        if let Some(pace) = pace {
            tokio::time::sleep(pace).await;
        }
        match pieces.next() {
            Some(piece) => Some((Ok(Frame::data(piece)), (pieces, is_cut))),
            None if is_cut && stall => std::future::pending().await,
            None if is_cut => {
                // Bytes that were sent go out first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                Some((Err(io::Error::other("cut")), (pieces, false)))
            }
            None => None,
        }
    });
    let mut response = Response::builder().header("content-length", rest.len());
    if from > 0 {
        let span = format!("bytes {from}-{}/{total}", total - 1);
        response = response.status(StatusCode::PARTIAL_CONTENT).header("content-range", span);
    }
    response.body(StreamBody::new(body).boxed_unsync()).unwrap()
}

/// Times short enough for tests, and long enough for a machine that stands still for a moment.
pub(crate) fn timing() -> Timing {
    let ms = Duration::from_millis;
    Timing {
        connect: ms(2000),
        first_byte: ms(3000),
        stall: ms(400),
        slow: ms(3000),
        progress: ms(6000),
        retry: ms(20),
        away: ms(4000),
        negative: ms(300),
        header: ms(1000),
        send: ms(1000),
        orphan: ms(200),
        permission: ms(60_000),
        scrub: ms(200),
    }
}

/// A mirror and where it listens.
pub(crate) struct Served {
    pub(crate) mirror: Mirror,
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn settings(directory: &std::path::Path, upstreams: Vec<UpstreamSettings>) -> Settings {
    Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        served_by: Default::default(),
        directory: directory.to_owned(),
        budget: weir_units::Bytes(64 << 20),
        policy: PolicyKind::Auto,
        keep_free: weir_units::Bytes(0),
        keep_new_s: 120,
        tag_ttl_s: 60,
        any_registry: true,
        connections: 64,
        scrub_rate: weir_units::Bytes(0),
        scrub_days: 3,
        max_rate: None,
        proxy: Some(String::new()),
        no_proxy: None,
        containerd: "/run/containerd/containerd.sock".into(),
        upstreams,
        pop: None,
        runtime: None,
    }
}

pub(crate) async fn serve(settings: Settings) -> Served {
    let budget = Budget { young: Duration::ZERO, ..settings.store_budget() };
    let (store, _) = Store::open(&settings.directory, budget, PolicyKind::Lru, now_utc()).unwrap();
    serve_with(settings, store, Arc::<Embedded>::default()).await
}

pub(crate) async fn serve_with(
    settings: Settings,
    store: Store,
    coordination: Arc<dyn Coordination>,
) -> Served {
    let mirror = Mirror::over(settings, timing(), store, coordination).unwrap();
    let listener = mirror.listen().unwrap();
    let address = listener.local_addr().unwrap();
    let serving = mirror.clone();
    let task = tokio::spawn(async move { serving.serve(listener).await.unwrap() });
    Served { mirror, address, task }
}

/// A registry, and a mirror of it as `docker.io` in a directory of its own.
pub(crate) async fn pair() -> (Registry, Served, tempfile::TempDir) {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    (registry, served, dir)
}

#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body, if it came to its end.
    pub(crate) body: Result<Bytes, String>,
}

impl Got {
    pub(crate) fn bytes(&self) -> &Bytes {
        assert!(matches!(self.status, 200 | 206), "{self:?}");
        self.body.as_ref().expect("the body was cut")
    }
}

/// Asks a mirror.
pub(crate) struct Puller(pub(crate) SocketAddr);

impl Served {
    pub(crate) async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Got {
        Puller(self.address).request(method, path, headers).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        Puller(self.address).get(path).await
    }

    pub(crate) async fn blob(&self, name: &str, digest: &Digest) -> Got {
        Puller(self.address).blob(name, digest).await
    }

    pub(crate) async fn pull(&self, name: &str, tag: &str) -> Result<(), String> {
        Puller(self.address).pull(name, tag).await
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        counted(&self.mirror, name)
    }
}

pub(crate) fn counted(mirror: &Mirror, name: &str) -> u64 {
    mirror.counted().iter().find(|c| c.name == name).unwrap().value
}

impl Puller {
    /// An answer's head. A mirror closes what says nothing for a while, as a client of a busy machine may;
    /// it comes again then, as runtimes do.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        let mut tries = 0;
        loop {
            let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
            let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.0));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            match client.request(request.body(Empty::new()).unwrap()).await {
                Ok(response) => return response,
                Err(e) if tries == 4 => panic!("no answer: {e:?}"),
                Err(_) => tries += 1,
            }
        }
    }

    pub(crate) async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Got {
        let response = self.send(method, path, headers).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map(|b| b.to_bytes()).map_err(|e| e.to_string());
        Got { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.request("GET", path, &[]).await
    }

    pub(crate) async fn blob(&self, name: &str, digest: &Digest) -> Got {
        self.get(&format!("/v2/{name}/blobs/{digest}")).await
    }

    /// All of an image, as a client pulls it.
    pub(crate) async fn pull(&self, name: &str, tag: &str) -> Result<(), String> {
        let manifest = self.get(&format!("/v2/{name}/manifests/{tag}")).await;
        if manifest.status != 200 {
            return Err(format!("the manifest: {manifest:?}"));
        }
        let parts = weir_image::manifest::Manifest::read(manifest.bytes()).unwrap();
        for part in parts.parts() {
            let blob = self.blob(name, &part.digest).await;
            if blob.status != 200 {
                return Err(format!("{}: {}", part.digest, blob.status));
            }
            let body = blob.body.map_err(|e| format!("{}: {e}", part.digest))?;
            if digest(&body) != part.digest {
                return Err(format!("{} is not what it is called", part.digest));
            }
        }
        Ok(())
    }
}
