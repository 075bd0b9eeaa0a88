//! An agent over TCP, at the address of its `[api] listen`.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{Uri, header::HeaderValue};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::ClientError;

/// The way to an agent over TCP.
#[derive(Debug, Clone)]
pub struct Remote {
    /// As given, without a slash at its end.
    url: String,
    host: String,
    port: u16,
    /// Host and port, as requests name them.
    authority: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
    /// All of the header `Authorization`.
    token: Option<HeaderValue>,
}

/// The reason why an agent cannot be asked over TCP.
#[derive(Debug, thiserror::Error)]
pub enum BadRemote {
    /// The text is no address.
    #[error(
        "`{url}` is no URL of an agent ({why}): write https://HOST:PORT, as `[api] listen` of that node says"
    )]
    Url {
        /// The text.
        url: String,
        /// Its fault.
        why: String,
    },
    /// The token would cross a network in clear.
    #[error(
        "{url} has no TLS, and the token would cross the network in clear: write https://, or use a loopback address"
    )]
    Clear {
        /// The URL.
        url: String,
    },
    /// A file cannot be used.
    #[error("cannot use {} as {what}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Its purpose.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// This machine knows no certificates of authorities.
    #[error(
        "this machine has no root certificates ({why}): name the agent's certificate, or its authority's, with `--ca-file`"
    )]
    NoRoots {
        /// The reason.
        why: String,
    },
}

/// A byte stream to an agent.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

impl Remote {
    /// The way to the agent at a URL. Nothing is opened yet but the files.
    ///
    /// * `url`: `https://HOST:PORT`, or `http://` without TLS. The port is 443 or 80 by default.
    /// * `token_file`: has the secret of a token (`weir token add`) and nothing else.
    /// * `ca_file`: certificates in PEM, of authorities or of the agent itself, in place of this machine's.
    ///
    /// # Errors
    /// [`BadRemote`].
    pub fn new(url: &str, token_file: Option<&Path>, ca_file: Option<&Path>) -> Result<Remote, BadRemote> {
        let url = url.strip_suffix('/').filter(|rest| !rest.ends_with('/')).unwrap_or(url);
        let bad = |why: &str| BadRemote::Url { url: url.to_owned(), why: why.to_owned() };
        let uri: Uri = url.parse().map_err(|e: hyper::http::uri::InvalidUri| bad(&e.to_string()))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("it does not begin with https:// or http://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it has a user, which the agent does not know"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(bad("it has a path"));
        }
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => Some(if is_tls { 443 } else { 80 }),
            after => after.and_then(|after| after.strip_prefix(':')?.parse().ok()).filter(|port| *port > 0),
        };
        let port = port.ok_or_else(|| bad("its port is no number from 1 to 65535"))?;
        // The brackets of an IPv6 address belong to the URL alone.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let token = token_file.map(read_token).transpose()?;
        if token.is_some() && !is_tls && !is_loopback(&host) {
            return Err(BadRemote::Clear { url: url.to_owned() });
        }
        let tls = if is_tls { Some(Arc::new(tls(ca_file)?)) } else { None };
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|e| bad(&e.to_string()))?;
        Ok(Remote { url: url.to_owned(), host, port, authority, tls, token })
    }

    /// The URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether it is asked without TLS.
    pub(super) fn is_clear(&self) -> bool {
        self.tls.is_none()
    }

    /// The header `Host`.
    pub(super) fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// The header `Authorization`.
    pub(super) fn token(&self) -> Option<&HeaderValue> {
        self.token.as_ref()
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn Duplex>, ClientError> {
        let url = || self.url.clone();
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|source| ClientError::NoConnection { url: url(), source })?;
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let untrusted = |source| ClientError::NoTls { url: url(), source };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|e| untrusted(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await.map_err(untrusted)?;
        Ok(Box::new(stream))
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read_token(path: &Path) -> Result<HeaderValue, BadRemote> {
    let bad = |why: String| BadRemote::File { path: path.to_owned(), what: "the file of a token", why };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let secret = text.trim();
    if secret.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("it holds more than a secret, as `weir token add` prints it".to_owned()));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|e| bad(e.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, BadRemote> {
    let given = ca_file.map(certificates).transpose()?;
    let mut roots = RootCertStore::empty();
    match &given {
        Some(given) => drop(roots.add_parsable_certificates(given.iter().cloned())),
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map_or("none is installed".to_owned(), ToString::to_string);
                return Err(BadRemote::NoRoots { why });
            }
        }
    }
    let unusable = |why: String| BadRemote::File {
        path: ca_file.unwrap_or(Path::new("/etc/ssl/certs")).to_owned(),
        what: "certificates",
        why,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let by_authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|e| unusable(e.to_string()))?;
    let verifier = Verifier { by_authority, known: given.unwrap_or_default() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadRemote> {
    let bad = |why: String| BadRemote::File { path: path.to_owned(), what: "certificates", why };
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| bad(e.to_string()))?;
    if found.is_empty() {
        return Err(bad("it has no certificate in PEM".to_owned()));
    }
    Ok(found)
}

/// Takes a certificate that an authority signed, as usual (RFC 5280), and one that is known itself. A node that
/// signs its own certificate has the second kind, which webpki refuses.
#[derive(Debug)]
struct Verifier {
    by_authority: Arc<WebPkiServerVerifier>,
    known: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.known.iter().any(|known| known.as_ref() == end_entity.as_ref()) {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.by_authority
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(plainer)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Says of a certificate that signed itself that no authority knows it.
fn plainer(error: Error) -> Error {
    match &error {
        Error::InvalidCertificate(CertificateError::Other(why))
            if why.to_string().contains("CaUsedAsEndEntity") =>
        {
            Error::InvalidCertificate(CertificateError::UnknownIssuer)
        }
        _ => error,
    }
}
