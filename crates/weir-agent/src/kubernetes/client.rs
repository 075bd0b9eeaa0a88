//! Requests to the API server. An answer is bounded in size and time.
//!
//! A client of our own, because five requests need no generated one: that adds about 150 crates.

use std::{io, path::Path, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use weir_api::plain;
use weir_units::chain;

use super::{
    endpoint::Endpoint,
    followed::{Line, Lines},
    requests::{Ask, WATCH_SECONDS},
};

/// The largest answer that is read, bytes.
const LARGEST: usize = 16 << 20;
/// The longest time of an answer that is no watch.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest silence of a watch, which the server ends before.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// A dead connection is found so.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// The largest token that is read, bytes.
const LARGEST_TOKEN: u64 = 64 << 10;
/// The longest text of a server that is shown.
const LONGEST_TEXT: usize = 300;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{server} does not answer: {why}")]
    Unreachable { server: String, why: String },
    #[error("{server} has not answered within {} s", after.as_secs())]
    Timeout { server: String, after: Duration },
    #[error("{server} refused with status {status}: {why}")]
    Refused { server: String, status: u16, why: String },
    #[error("an answer of {server} is larger than {} MiB", LARGEST >> 20)]
    TooLarge { server: String },
    #[error("cannot read an answer of {server}: {why}")]
    Garbled { server: String, why: String },
    #[error("{0}")]
    Local(String),
    /// A version is too old: list again.
    #[error("the list has expired")]
    Expired,
}

/// A line of a text of another program, bounded.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(LONGEST_TEXT).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    plain(&(short + more)).to_string()
}

/// The body of a refusal.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

/// A client of one API server.
pub(super) struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    endpoint: Endpoint,
}

impl Client {
    /// Reads the certificates, and connects at the first request.
    pub(super) fn open(endpoint: &Endpoint) -> Result<Client, Fault> {
        let roots = if endpoint.is_https() { roots(&endpoint.ca_file)? } else { RootCertStore::empty() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Fault::Local(format!("cannot set up TLS: {e}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(https);
        Ok(Client { http, endpoint: endpoint.clone() })
    }

    fn server(&self) -> String {
        self.endpoint.server.clone()
    }

    /// The token, which is read each time because it rotates.
    fn token(&self) -> Result<Option<String>, Fault> {
        let file = &self.endpoint.token_file;
        let cannot = |why: String| Fault::Local(format!("cannot read token_file {}: {why}", file.display()));
        match std::fs::metadata(file) {
            Ok(meta) if meta.len() > LARGEST_TOKEN => {
                return Err(cannot(format!("it is larger than {} KiB", LARGEST_TOKEN >> 10)));
            }
            // A proxy of this node shows a token of its own.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !self.endpoint.is_https() => return Ok(None),
            _ => {}
        }
        let token = std::fs::read_to_string(file).map_err(|e| cannot(e.to_string()))?;
        Ok(Some(token.trim().to_owned()))
    }

    async fn send(&self, ask: &Ask) -> Result<Response<Incoming>, Fault> {
        let mut request = Request::builder()
            .method(ask.method())
            .uri(format!("{}{}", self.endpoint.server, ask.path()))
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("weir/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = self.token()? {
            let mut value = header::HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| Fault::Local("the token_file has no token".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let body = match ask.body() {
            Some((kind, text)) => {
                request = request.header(header::CONTENT_TYPE, kind);
                Full::from(text)
            }
            None => Full::default(),
        };
        let request = request.body(body).map_err(|e| Fault::Local(format!("cannot ask: {e}")))?;
        let answer = timeout(ANSWER_TIMEOUT, self.http.request(request))
            .await
            .map_err(|_| Fault::Timeout { server: self.server(), after: ANSWER_TIMEOUT })?
            .map_err(|e| Fault::Unreachable { server: self.server(), why: shown(&chain(&e)) })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        if status == StatusCode::GONE {
            return Err(Fault::Expired);
        }
        let body = self.read(answer).await.unwrap_or_default();
        let said = serde_json::from_slice::<Status>(&body).unwrap_or_default().message;
        let why =
            if said.is_empty() { status.canonical_reason().unwrap_or("no reason").to_owned() } else { said };
        Err(Fault::Refused { server: self.server(), status: status.as_u16(), why: shown(&why) })
    }

    async fn read(&self, answer: Response<Incoming>) -> Result<Bytes, Fault> {
        let body = timeout(ANSWER_TIMEOUT, Limited::new(answer.into_body(), LARGEST).collect())
            .await
            .map_err(|_| Fault::Timeout { server: self.server(), after: ANSWER_TIMEOUT })?;
        body.map(http_body_util::Collected::to_bytes).map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                Fault::TooLarge { server: self.server() }
            } else {
                Fault::Unreachable { server: self.server(), why: shown(&chain(&*e)) }
            }
        })
    }

    /// Asks for an answer of one object.
    pub(super) async fn ask<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Fault> {
        let answer = self.send(ask).await?;
        let body = self.read(answer).await?;
        serde_json::from_slice(&body)
            .map_err(|e| Fault::Garbled { server: self.server(), why: shown(&e.to_string()) })
    }

    /// Asks for changes.
    pub(super) async fn watch(&self, ask: &Ask) -> Result<Watch, Fault> {
        let body = self.send(ask).await?.into_body();
        Ok(Watch { body, lines: Lines::default(), server: self.server() })
    }
}

/// The lines of a watch.
pub(super) struct Watch {
    body: Incoming,
    lines: Lines,
    server: String,
}

impl Watch {
    /// The next lines. `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Line>>, Fault> {
        loop {
            let server = || self.server.clone();
            let frame = timeout(WATCH_TIMEOUT, self.body.frame())
                .await
                .map_err(|_| Fault::Timeout { server: server(), after: WATCH_TIMEOUT })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|e| Fault::Unreachable { server: server(), why: shown(&chain(&e)) })?;
            let Ok(piece) = frame.into_data() else { continue };
            let lines = self.lines.push(&piece);
            if !lines.is_empty() {
                return Ok(Some(lines));
            }
        }
    }
}

fn roots(file: &Path) -> Result<RootCertStore, Fault> {
    let cannot = |why: String| Fault::Local(format!("cannot read ca_file {}: {why}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| cannot(e.to_string()))? {
        let certificate = certificate.map_err(|e| cannot(e.to_string()))?;
        roots.add(certificate).map_err(|e| cannot(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(cannot("there is no certificate in it".to_owned()));
    }
    Ok(roots)
}
