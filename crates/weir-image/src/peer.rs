//! Nodes of a site that each keep their own part: what one lacks it asks of the others, by the mirror's
//! own protocol on an address of the site's network.
//!
//! A peer is asked for what it has, or is bringing, and asks nobody itself. Whether a client may have
//! something is for the node that it asks to find out; peers prove by a secret that they are peers.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
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
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use ring::hmac;
use tokio::time::timeout;

use crate::{Moment, Source, scope::Scope};

/// A peer is on the same network: it answers soon, or is not there.
const CONNECT: Duration = Duration::from_millis(300);
/// What it has it says soon.
const SOON: Duration = Duration::from_secs(1);
/// A peer that was not there is not asked for so long.
const DOWN: Duration = Duration::from_secs(5);
/// A proof holds for so long, as the clocks of nodes differ.
const PROOF: Duration = Duration::from_secs(60);
/// How it begins.
const SCHEME: &str = "weir-peer ";

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
pub(crate) fn introduce(headers: &mut HeaderMap, now: Moment) {
    headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    headers.insert(NOW, HeaderValue::from(now.0));
}

/// What another node said to a question that only a peer may ask.
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
    /// This node's address among them.
    own: String,
    secret: hmac::Key,
    client: Client<HttpConnector, Empty<Bytes>>,
    known: Mutex<Vec<String>>,
    down: Mutex<HashMap<String, Moment>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Peers {
    pub(crate) fn new(own: &str, secret: &[u8]) -> Peers {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_timer(TokioTimer::new())
            .build(http);
        Peers {
            own: own.to_owned(),
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret),
            client,
            known: Mutex::default(),
            down: Mutex::default(),
        }
    }

    /// Who is there; this node may be among them.
    pub(crate) fn set_known(&self, addresses: Vec<String>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Says for this path and time that a peer asks.
    fn proof(&self, path: &str, at: Moment) -> String {
        use std::fmt::Write;
        let tag = hmac::sign(&self.secret, format!("{} {path}", at.0).as_bytes());
        let mut text = format!("{SCHEME}{} ", at.0);
        for byte in tag.as_ref() {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Whether a request for this path and query comes from a peer.
    pub(crate) fn is_peer(&self, headers: &HeaderMap, path: &str, now: Moment) -> bool {
        let text = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let Some((at, tag)) = text.and_then(|t| t.strip_prefix(SCHEME)?.split_once(' ')) else {
            return false;
        };
        let Ok(at) = at.parse().map(Moment) else { return false };
        let pairs =
            tag.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let Some(tag) = pairs.collect::<Option<Vec<u8>>>() else { return false };
        let is_now = now.since(at) < PROOF && at.since(now) < PROOF;
        is_now && hmac::verify(&self.secret, format!("{} {path}", at.0).as_bytes(), &tag).is_ok()
    }

    /// What one of the others has whole: the first that says so. Not what it is bringing, as that it might
    /// be asking of this node.
    ///
    /// * `what`: below the repository, `blobs/sha256:…`.
    /// * `from`: the first byte wanted.
    pub(crate) async fn find(&self, source: &Source, what: &str, from: u64) -> Option<Response<Incoming>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let path = &format!("/v2/{}/{what}?ns={}", source.repository, source.registry);
        let mut asked: FuturesUnordered<_> =
            known.into_iter().map(|peer| async move { self.ask(&peer, path, from, SOON).await }).collect();
        while let Some(answer) = asked.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// What this peer is bringing, or has.
    ///
    /// * `patience`: until it has the first byte itself.
    pub(crate) async fn follow(
        &self,
        peer: &str,
        (source, is_public): (&Source, bool),
        what: &str,
        from: u64,
        patience: Duration,
    ) -> Option<Response<Incoming>> {
        let part = if is_public { PARTS[1].0 } else { PARTS[0].0 };
        let path = format!("/v2/{}/{what}?ns={}&{part}", source.repository, source.registry);
        self.ask(peer, &path, from, patience).await
    }

    /// Asks all the others whether they take this node for a peer, those too that were not there a moment ago.
    pub(crate) async fn probe(&self) -> Vec<Probed> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let others = known.into_iter().filter(|peer| *peer != self.own);
        join_all(others.map(|peer| self.probe_one(peer))).await
    }

    async fn probe_one(&self, node: String) -> Probed {
        let path = "/v2/";
        let now = Moment::now();
        let request =
            Request::get(format!("http://{node}{path}")).header(AUTHORIZATION, self.proof(path, now));
        let failed = |node, why| Probed { node, version: None, ahead_ms: None, problem: Some(why) };
        let request = match request.body(Empty::new()) {
            Ok(request) => request,
            Err(e) => return failed(node, e.to_string()),
        };
        let response = match timeout(SOON, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => return failed(node, crate::upstream::chain(&e)),
            Err(_) => return failed(node, format!("no answer within {SOON:?}")),
        };
        let said = |name| response.headers().get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let at: Option<i64> = said(NOW).and_then(|text| text.parse().ok());
        let ahead_ms = at.zip(i64::try_from(now.0).ok()).map(|(at, now)| at.saturating_sub(now));
        let version = said(VERSION).map(str::to_owned);
        let problem = match (response.status().as_u16(), &version) {
            (code, None) => Some(format!("it answers {code} and does not say that it is a weir")),
            (200, _) => None,
            (403, _) if ahead_ms.is_some_and(|ms| u128::from(ms.unsigned_abs()) >= PROOF.as_millis()) => {
                Some(format!("it refuses this node, as clocks differ by {PROOF:?} or more"))
            }
            (403, _) => Some("it refuses this node: is secret_file the same on both?".to_owned()),
            (code, _) => Some(format!("it answers {code}")),
        };
        Probed { version, ahead_ms, problem, node }
    }

    /// None: it has it not, or is this node, or not there.
    async fn ask(&self, peer: &str, path: &str, from: u64, patience: Duration) -> Option<Response<Incoming>> {
        let now = Moment::now();
        {
            let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
            down.retain(|_, until| now < *until);
            if peer == self.own || down.contains_key(peer) {
                return None;
            }
        }
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(format!("http://{peer}{path}"))
            .header(AUTHORIZATION, self.proof(path, now));
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let sent = self.client.request(request.body(Empty::new()).ok()?);
        let why = match timeout(patience, sent).await {
            Ok(Ok(response)) => return response.status().is_success().then_some(response),
            Ok(Err(e)) => crate::upstream::chain(&e),
            Err(_) => format!("no answer within {patience:?}"),
        };
        tracing::info!("peer {peer} cannot be asked: {why}");
        self.down.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.to_owned(), now.after(DOWN));
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, Write};

    use super::*;

    #[test]
    fn who_knows_the_secret_is_a_peer_for_one_path_and_a_minute() {
        let peers = |secret: &[u8]| Peers::new("10.0.0.1:5051", secret);
        let (one, two, stranger) = (peers(b"secret"), peers(b"secret"), peers(b"other"));
        let now = Moment(1_000_000);
        let with = |proof: String| HeaderMap::from_iter([(AUTHORIZATION, proof.parse().unwrap())]);
        let path = "/v2/a/blobs/x?ns=docker.io";
        assert!(two.is_peer(&with(one.proof(path, now)), path, now.after(Duration::from_secs(59))));
        assert!(!two.is_peer(&with(one.proof(path, now)), "/v2/b/blobs/x?ns=docker.io", now));
        assert!(!two.is_peer(&with(one.proof(path, now)), path, now.after(PROOF)));
        assert!(!two.is_peer(&with(one.proof(path, now.after(PROOF))), path, now));
        assert!(!two.is_peer(&with(stranger.proof(path, now)), path, now));
        for text in ["", "weir-peer", "weir-peer 1000000 ", "weir-peer 1000000 zz", "Basic x"] {
            assert!(!two.is_peer(&with(text.to_owned()), path, now), "{text}");
        }
        assert!(!two.is_peer(&HeaderMap::new(), path, now));
    }

    #[tokio::test]
    async fn what_answers_at_a_peers_address_and_is_no_weir_is_not_taken_for_one() {
        for status in ["200 OK", "404 Not Found"] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let peers = Peers::new("10.0.0.1:5051", b"secret");
            peers.set_known(vec!["10.0.0.1:5051".to_owned(), listener.local_addr().unwrap().to_string()]);
            let answers = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let mut head = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
                while !head.next().unwrap().unwrap().is_empty() {}
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            });
            let probed = peers.probe().await;
            let why = probed[0].problem.as_deref().unwrap_or_default();
            assert!(probed.len() == 1 && why.contains("does not say that it is a weir"), "{probed:?}");
            answers.join().unwrap();
        }
    }
}
