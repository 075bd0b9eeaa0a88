//! Connections to registries: whom to believe, what to show, and through which proxy.

use std::{
    error::Error,
    io,
    net::IpAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Uri,
    header::HeaderValue,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{
            Client,
            connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::net::TcpStream;
use tower_service::Service;

use super::{
    guard::{Guard, Resolver},
    names::Names,
};
use crate::settings::{Settings, Timing};

/// Asks over TLS or without, directly or through a proxy.
pub(super) type Https = Client<HttpsConnector<Way>, Full<Bytes>>;

/// The proxy of each host.
#[derive(Debug, Clone)]
pub(super) struct Proxies(Arc<Matcher>);

impl Proxies {
    /// Those of the configuration, or else of the environment: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`.
    pub(super) fn of(settings: &Settings) -> Proxies {
        let matcher = match &settings.proxy {
            None => Matcher::from_env(),
            Some(proxy) => {
                let no = settings.no_proxy.as_deref().unwrap_or_default();
                Matcher::builder().all(proxy.as_str()).no(no).build()
            }
        };
        Proxies(Arc::new(matcher))
    }

    /// The one for a URL; none for this machine's own addresses.
    fn find(&self, url: &Uri) -> Option<Intercept> {
        let host = url.host()?.trim_matches(['[', ']']);
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if is_here { None } else { self.0.intercept(url) }
    }

    /// The credentials that a request without TLS shows to its proxy; with TLS the request for a
    /// tunnel shows them.
    pub(super) fn authorization(&self, url: &Uri) -> Option<HeaderValue> {
        (url.scheme_str() == Some("http")).then(|| self.find(url)?.basic_auth().cloned())?
    }
}

/// The way to a host.
#[derive(Debug, Clone)]
pub(super) struct Way {
    direct: HttpConnector<Resolver>,
    /// To the proxy, which may well be at a private address.
    to_proxy: HttpConnector<Resolver>,
    proxies: Proxies,
}

type Fault = Box<dyn Error + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Result<Line, Fault>> + Send>>;

impl Service<Uri> for Way {
    type Response = Line;
    type Error = Fault;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Connecting {
        let Way { mut direct, mut to_proxy, proxies } = self.clone();
        Box::pin(async move {
            let Some(proxy) = proxies.find(&to) else {
                return Ok(Line { stream: direct.call(to).await?, is_proxied: false });
            };
            let at = proxy.uri().clone();
            if at.scheme_str() != Some("http") {
                return Err(format!("the proxy {at} is not spoken to: only http:// proxies are").into());
            }
            let through = |e: Fault| {
                let why = weir_units::chain(&*e);
                Fault::from(format!("through the proxy {at}: {why}"))
            };
            if to.scheme_str() == Some("https") {
                let mut tunnel = Tunnel::new(at.clone(), to_proxy);
                if let Some(authorization) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(authorization.clone());
                }
                let stream = tunnel.call(to).await.map_err(|e| through(e.into()))?;
                return Ok(Line { stream, is_proxied: false });
            }
            let stream = to_proxy.call(at.clone()).await.map_err(|e| through(e.into()))?;
            Ok(Line { stream, is_proxied: true })
        })
    }
}

/// A connection; of one to a proxy that is asked itself requests name all of the URL.
#[derive(Debug)]
pub(super) struct Line {
    stream: TokioIo<TcpStream>,
    is_proxied: bool,
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_proxied)
    }
}

impl Read for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The most names of places of the configuration, and of others, that are looked up at once. While the uplink is away
/// names of many configured registries may hang, beside that of one in this network.
const MAX_NAMED: usize = 12;
const MAX_OTHERS: usize = 8;

/// The resolvers of all registries. Clients choose the names of others, and hold up no place of the configuration.
#[derive(Debug)]
pub(super) struct Resolvers {
    named: Names,
    others: Names,
}

impl Resolvers {
    pub(super) fn new(timing: Timing) -> Resolvers {
        // Sooner than the waiting client gives up, so that it hears why.
        let wait = timing.first_byte * 4 / 5;
        Resolvers { named: Names::new(MAX_NAMED, wait), others: Names::new(MAX_OTHERS, wait) }
    }

    /// That of places that the configuration names, or of all others.
    fn of(&self, guard: Guard) -> Resolver {
        let names = if guard.private { &self.named } else { &self.others };
        Resolver { guard, names: names.clone() }
    }
}

pub(super) fn client(
    tls: ClientConfig,
    guard: Guard,
    resolvers: &Resolvers,
    proxies: &Proxies,
    timing: Timing,
) -> Https {
    let connector = |guard| {
        let mut http = HttpConnector::new_with_resolver(resolvers.of(guard));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timing.connect));
        http
    };
    let way = Way {
        direct: connector(guard),
        to_proxy: connector(Guard { private: true }),
        proxies: proxies.clone(),
    };
    let https =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(way);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(8)
        .pool_timer(TokioTimer::new())
        // The memory of a connection; its answers come in pieces of this size.
        .http1_max_buf_size(128 << 10)
        .build(https)
}

/// * `ca_file`: whom to believe, instead of whom the system believes.
/// * `own`: files with a certificate and its key, to show.
pub(super) fn tls(ca_file: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("cannot set up TLS: {e}"))?;
    let builder = match ca_file {
        Some(file) => builder.with_root_certificates(roots(file)?),
        // A system without certificates can still ask registries without TLS.
        None => builder.clone().with_native_roots().unwrap_or_else(|e| {
            tracing::warn!("no certificate authorities on this system, https registries will fail: {e}");
            builder.with_root_certificates(RootCertStore::empty())
        }),
    };
    let Some((cert, key)) = own else { return Ok(builder.with_no_client_auth()) };
    let shown = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| format!("cannot read key_file {}: {e}", key.display()))?;
    builder
        .with_client_auth_cert(certificates("cert_file", cert)?, shown)
        .map_err(|e| format!("cannot use cert_file {} with key_file {}: {e}", cert.display(), key.display()))
}

/// The certificates in a file, one at least.
fn certificates(key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |e: &dyn std::fmt::Display| format!("cannot read {key} {}: {e}", file.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(|e| cannot(&e))?.collect();
    let found = found.map_err(|e| cannot(&e))?;
    if found.is_empty() {
        return Err(cannot(&"there is no certificate in it"));
    }
    Ok(found)
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", file)? {
        roots.add(certificate).map_err(|e| format!("cannot use ca_file {}: {e}", file.display()))?;
    }
    Ok(roots)
}
