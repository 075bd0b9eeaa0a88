//! Nodes of a site that each keep their own part: what one lacks it asks of the others, by the mirror's
//! own protocol on an address of the site's network.
//!
//! A peer is asked for what it has, or is bringing, and asks no one itself. Whether a client may have
//! something is for the node that it asks to find out; peers prove by a secret that they are peers.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod proof;
mod site;
mod tls;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use http_body_util::Empty;
use hyper::{
    HeaderMap, Method, Request, Response,
    body::Incoming,
    header::{AUTHORIZATION, HeaderValue, RANGE},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::{
    Source, Utc,
    clock::holds,
    network::Network,
    now_utc,
    scope::Scope,
    settings::{PopSettings, PopStore},
};
use proof::{Asked, Proofs, WINDOW};
use site::Site;

/// A peer is on the same network: it answers soon, or is not there.
const CONNECT: Duration = Duration::from_millis(300);
/// A peer says soon what it has.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// A peer that was not there is not asked for so long.
const DOWN: Duration = Duration::from_secs(5);
/// The most nodes of a site that are asked.
const MAX_PEERS: usize = 256;

/// In the query of a request that takes what is on its way too: in the scope of its repository, or of all that its
/// registry gives to everybody.
const PARTS: [(&str, bool); 2] = [("part=own", false), ("part=public", true)];

/// The scope in which a request takes what is on its way; none if it takes only what is whole.
pub(crate) fn scope_of_part(source: &Source, query: &str) -> Option<Scope> {
    let asked = PARTS.iter().find(|(pair, _)| query.split('&').any(|is| is == *pair));
    asked.map(|(_, is_public)| Scope::of(source, *is_public))
}

/// In an answer with a blob that everybody may have.
const PUBLIC: &str = "x-weir-public";

/// Says that everybody may have a blob.
pub(crate) fn say_public(headers: &mut HeaderMap) {
    headers.insert(PUBLIC, HeaderValue::from_static("1"));
}

/// Whether a peer says that everybody may have a blob.
pub(crate) fn says_public(headers: &HeaderMap) -> bool {
    headers.get(PUBLIC).is_some_and(|value| value == "1")
}

/// By which an answer says what it was made by, and when: ms since 1970.
const VERSION: &str = "x-weir-version";
const NOW: &str = "x-weir-now";

/// Says who answers, and what his clock says.
pub(crate) fn introduce(headers: &mut HeaderMap, now: Utc) {
    headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    headers.insert(NOW, HeaderValue::from(now.unix_millis()));
}

/// The answer of another node to a question that only a peer may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// Its address.
    pub node: String,
    /// Of its weir, if it says so.
    pub version: Option<String>,
    /// By how much its clock is ahead of this one's, ms, give or take the time of an answer.
    pub ahead_ms: Option<i64>,
    /// Why nothing comes from it, if nothing does.
    pub problem: Option<String>,
}

/// The other nodes.
pub(crate) struct Peers {
    site: Site,
    proofs: Proofs,
    acceptor: TlsAcceptor,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    known: Mutex<BTreeSet<SocketAddr>>,
    down: Mutex<HashMap<SocketAddr, Utc>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("site", &self.site).finish_non_exhaustive()
    }
}

impl Peers {
    /// The other nodes to ask, if they are asked.
    ///
    /// # Errors
    /// The secret cannot be read, or can be guessed.
    pub(crate) fn of(pop: &PopSettings) -> Result<Option<Peers>, String> {
        let (PopStore::Peer, Some(file), Some(own)) = (pop.store, &pop.secret_file, pop.listen) else {
            return Ok(None);
        };
        let cannot = |e: io::Error| format!("cannot read secret_file {}: {e}", file.display());
        if std::fs::metadata(file).map_err(cannot)?.mode() & 0o007 != 0 {
            let why = "all users may open it; take that away with `chmod o-rwx`";
            return Err(format!("cannot use secret_file {}: {why}", file.display()));
        }
        let secret = std::fs::read_to_string(file).map_err(cannot)?;
        let secret = secret.trim();
        if secret.len() < 16 {
            let length = secret.len();
            return Err(format!("secret_file {} has {length} characters: write 16 or more", file.display()));
        }
        Peers::new(own, &pop.networks, secret.as_bytes()).map(Some)
    }

    /// * `own`: where the others ask this node.
    /// * `networks`: where they are; none: private addresses, and neighbours of `own`.
    ///
    /// # Errors
    /// TLS cannot be set up, in words.
    pub(crate) fn new(own: SocketAddr, networks: &[Network], secret: &[u8]) -> Result<Peers, String> {
        let (near, far) = tls::configs(secret)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_timer(TokioTimer::new())
            .build(
                HttpsConnectorBuilder::new()
                    .with_tls_config(near)
                    .https_only()
                    .enable_http1()
                    .wrap_connector(http),
            );
        Ok(Peers {
            site: Site { own, networks: networks.to_vec() },
            proofs: Proofs::new(secret),
            acceptor: TlsAcceptor::from(Arc::new(far)),
            client,
            known: Mutex::default(),
            down: Mutex::default(),
        })
    }

    /// The nodes that are there; this one may be among them. Addresses outside the site's networks are left out.
    pub(crate) fn set_known(&self, addresses: &[String]) {
        let read = addresses.iter().map(|text| (text, self.site.read(text)));
        let (good, bad): (Vec<_>, Vec<_>) = read.partition(|(_, at)| at.is_some());
        let good: BTreeSet<SocketAddr> = good.into_iter().filter_map(|(_, at)| at).take(MAX_PEERS).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == good {
            return;
        }
        *known = good;
        for (text, _) in bad.into_iter().take(8) {
            tracing::warn!("{text:?} is no address in the site's `networks`: that node is not asked");
        }
    }

    /// Whether this is the address of a node that may be asked.
    pub(crate) fn is_of_site(&self, address: &str) -> bool {
        self.site.read(address).is_some()
    }

    /// Takes connections of other nodes.
    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    fn others(&self) -> Vec<SocketAddr> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().copied().filter(|peer| *peer != self.site.own).collect()
    }

    /// Whether a request for this path and query comes from a peer. Asked once more of the same request, it does not.
    pub(crate) fn is_peer(&self, headers: &HeaderMap, path: &str, now: Utc) -> bool {
        self.proofs.accept(&self.site.own.to_string(), path, headers, now)
    }

    /// A blob or manifest that one of the others has whole: of the first that says so. Not what it is bringing, as that it might
    /// be asking of this node.
    ///
    /// * `what`: below the repository, `blobs/sha256:…`.
    /// * `from`: the first byte wanted.
    pub(crate) async fn find(&self, source: &Source, what: &str, from: u64) -> Option<Response<Incoming>> {
        let path = &format!("/v2/{}/{what}?ns={}", source.repository, source.registry);
        let others = self.others().into_iter();
        let mut asked: FuturesUnordered<_> =
            others.map(|peer| async move { self.ask(peer, path, from, ANSWER_TIMEOUT).await }).collect();
        while let Some(answer) = asked.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// A blob that this peer is bringing, or has.
    ///
    /// * `time_limit`: until it has the first byte itself.
    pub(crate) async fn follow(
        &self,
        peer: &str,
        (source, is_public): (&Source, bool),
        what: &str,
        from: u64,
        time_limit: Duration,
    ) -> Option<Response<Incoming>> {
        let part = if is_public { PARTS[1].0 } else { PARTS[0].0 };
        let path = format!("/v2/{}/{what}?ns={}&{part}", source.repository, source.registry);
        self.ask(self.site.read(peer)?, &path, from, time_limit).await
    }

    /// Asks all the others whether they take this node for a peer, those too that were not there a moment ago.
    pub(crate) async fn probe(&self) -> Vec<Probed> {
        join_all(self.others().into_iter().map(|peer| self.probe_one(peer))).await
    }

    /// A request to another node, with its proof; none if the path cannot be one.
    fn request(&self, node: SocketAddr, path: &str, from: u64, now: Utc) -> Option<Request<Empty<Bytes>>> {
        let range = if from > 0 { format!("bytes={from}-") } else { String::new() };
        let proof = self.proofs.make(Asked { node: &node.to_string(), path, range: &range }, now)?;
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(format!("https://{node}{path}"))
            .header(AUTHORIZATION, proof);
        if from > 0 {
            request = request.header(RANGE, range);
        }
        request.body(Empty::new()).ok()
    }

    async fn probe_one(&self, address: SocketAddr) -> Probed {
        let (now, node) = (now_utc(), address.to_string());
        let failed = |node, why| Probed { node, version: None, ahead_ms: None, problem: Some(why) };
        let Some(request) = self.request(address, "/v2/", 0, now) else {
            return failed(node, "no proof can be made for it".to_owned());
        };
        let response = match timeout(ANSWER_TIMEOUT, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => return failed(node, weir_units::chain(&e)),
            Err(_) => return failed(node, format!("no answer within {ANSWER_TIMEOUT:?}")),
        };
        let said = |name| response.headers().get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let at: Option<i64> = said(NOW).and_then(|text| text.parse().ok());
        let ahead_ms = at.zip(i64::try_from(now.unix_millis()).ok()).map(|(at, now)| at.saturating_sub(now));
        let version = said(VERSION).map(str::to_owned);
        let problem = match (response.status().as_u16(), &version) {
            (code, None) => Some(format!("it answers {code} and does not say that it is a weir")),
            (200, _) => None,
            (403, _) if ahead_ms.is_some_and(|ms| u128::from(ms.unsigned_abs()) >= WINDOW.as_millis()) => {
                Some(format!("it refuses this node, as clocks differ by {WINDOW:?} or more"))
            }
            (403, _) => {
                Some("it refuses this node: is its `listen` the address that others reach?".to_owned())
            }
            (code, _) => Some(format!("it answers {code}")),
        };
        Probed { version, ahead_ms, problem, node }
    }

    /// None: it has it not, or is this node, or not there.
    async fn ask(
        &self,
        peer: SocketAddr,
        path: &str,
        from: u64,
        time_limit: Duration,
    ) -> Option<Response<Incoming>> {
        let now = now_utc();
        {
            let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
            down.retain(|_, until| holds(*until, now, DOWN));
            if peer == self.site.own || down.contains_key(&peer) {
                return None;
            }
        }
        let sent = self.client.request(self.request(peer, path, from, now)?);
        let why = match timeout(time_limit, sent).await {
            Ok(Ok(response)) => return response.status().is_success().then_some(response),
            Ok(Err(e)) => weir_units::chain(&e),
            Err(_) => format!("no answer within {time_limit:?}"),
        };
        tracing::info!("peer {peer} cannot be asked: {why}");
        self.down.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, now.after(DOWN));
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, Write};

    use super::*;

    #[tokio::test]
    async fn server_at_a_peers_address_that_is_no_weir_gets_no_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peers = Peers::new("127.0.0.1:1".parse().unwrap(), &[], b"secret").unwrap();
        peers.set_known(&["127.0.0.1:1".to_owned(), listener.local_addr().unwrap().to_string()]);
        let answers = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut head = Vec::new();
            let _ = std::io::BufReader::new(stream.try_clone().unwrap()).read_until(b'\n', &mut head);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            head
        });
        let probed = peers.probe().await;
        assert!(probed.len() == 1 && probed[0].problem.is_some(), "{probed:?}");
        let head = answers.join().unwrap();
        assert!(!String::from_utf8_lossy(&head).contains("GET"), "{head:?}");
    }
}
