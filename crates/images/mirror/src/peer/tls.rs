//! TLS between the nodes of a site, without certificates: all nodes derive one key pair from the site's secret.
//!
//! A node proves by the raw public key (RFC 7250) that it knows the secret, and a client accepts no other key.
//! There is nothing to issue, to publish or to renew. Clients prove themselves in the requests:
//! [`super::proof`].

use std::sync::Arc;

use ring::hkdf;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::AlwaysResolvesServerRawPublicKeys,
    sign::CertifiedKey,
    version::TLS13,
};

/// PKCS #8 of an Ed25519 key, before the 32 bytes of its seed (RFC 8410, section 7).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Bytes that follow from the secret, for one use (RFC 5869).
pub(super) fn derive(secret: &[u8], what: &str) -> [u8; 32] {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir peers");
    let key = salt.extract(secret);
    let mut bytes = [0; 32];
    // It fails only for more than 255 times as many bytes.
    let _ = key.expand(&[what.as_bytes()], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut bytes));
    bytes
}

/// Both ends of a connection between nodes that know the secret.
///
/// # Errors
/// The key cannot be used, in words.
pub(super) fn configs(secret: &[u8]) -> Result<(ClientConfig, ServerConfig), String> {
    let cannot = |e: Error| format!("cannot set up TLS between nodes: {e}");
    let provider = Arc::new(provider::default_provider());
    let pkcs8 = [&PKCS8[..], &derive(secret, "tls")].concat();
    let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).map_err(cannot)?;
    let public = key.public_key().ok_or("cannot set up TLS between nodes: the key has no public part")?;
    let own = CertificateDer::from(public.as_ref().to_vec());
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(cannot)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned {
            own: own.clone(),
            provider: Arc::clone(&provider),
        }))
        .with_no_client_auth();
    let shown = Arc::new(CertifiedKey::new(vec![own], key));
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(cannot)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)));
    Ok((client, server))
}

/// Accepts one key: that of the site.
#[derive(Debug)]
struct Pinned {
    own: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *shown == self.own {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General("it shows another key: is secret_file the same on both?".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("nodes of a site speak TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Has a client of one secret ask a server of another.
    async fn meet(client: &[u8], server: &[u8]) -> Result<Vec<u8>, String> {
        let (near, far) = duplex(1 << 16);
        let connector = TlsConnector::from(Arc::new(configs(client).unwrap().0));
        let acceptor = TlsAcceptor::from(Arc::new(configs(server).unwrap().1));
        let serving = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await.ok()?;
            stream.write_all(b"hello").await.ok()?;
            stream.shutdown().await.ok()
        });
        let name = ServerName::try_from("10.0.0.1").unwrap();
        let mut stream = connector.connect(name, near).await.map_err(|e| e.to_string())?;
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.map_err(|e| e.to_string())?;
        let _ = serving.await;
        Ok(got)
    }

    #[tokio::test]
    async fn nodes_of_one_secret_connect_and_others_do_not() {
        assert_eq!(meet(b"sixteen or more!", b"sixteen or more!").await, Ok(b"hello".to_vec()));
        let error = meet(b"sixteen or more!", b"another secret!!").await.unwrap_err();
        assert!(error.contains("secret_file"), "{error}");
    }

    #[test]
    fn derived_keys_differ_by_secret_and_use() {
        let all = [derive(b"a", "tls"), derive(b"b", "tls"), derive(b"a", "proof")];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2] && all[0] == derive(b"a", "tls"));
    }
}
