//! The way to a registry: what is shown to it, and through which proxy.

mod support;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use support::{Registry, digest, serve, settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

const APP: &str = "acme/app";

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn certificates(name: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(pem(name)).unwrap().map(Result::unwrap).collect()
}

/// Listens in front of a registry as `registry.test`, for each client that shows a certificate of
/// `ca.pem`.
async fn behind_tls(registry: SocketAddr) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificates("ca.pem").remove(0)).unwrap();
    let wanted = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(wanted.build().unwrap())
        .with_single_cert(
            certificates("server.pem"),
            PrivateKeyDer::from_pem_file(pem("server-key.pem")).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut near) = acceptor.accept(stream).await else { return };
                let mut far = TcpStream::connect(registry).await.unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}

/// Carries what asks for a tunnel to one address and the rest to another, and keeps what it was asked.
async fn proxy(tunnels: SocketAddr, plain: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = near.read_u8().await else { return };
                    head.push(byte);
                }
                let text = String::from_utf8(head.clone()).unwrap();
                let is_tunnel = text.starts_with("CONNECT ");
                log.lock().unwrap().push(text);
                let mut far = TcpStream::connect(if is_tunnel { tunnels } else { plain }).await.unwrap();
                if is_tunnel {
                    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                } else {
                    far.write_all(&head).await.unwrap();
                }
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn a_registry_that_wants_a_certificate_is_shown_the_configured_one() {
    let registry = Registry::start().await;
    let front = behind_tls(registry.address).await;
    let dir = tempfile::tempdir().unwrap();
    let upstream = |name: &str| {
        let mut upstream = registry.settings(name);
        upstream.url = Some(format!("https://{front}"));
        upstream.ca_file = Some(pem("ca.pem"));
        upstream
    };
    let (mut good, silent, mut doubting) = (upstream("a.test"), upstream("b.test"), upstream("c.test"));
    for shown in [&mut good, &mut doubting] {
        (shown.cert_file, shown.key_file) = (Some(pem("client.pem")), Some(pem("client-key.pem")));
    }
    // None of the system's authorities has signed it.
    doubting.ca_file = None;
    let served = serve(settings(&dir.path().join("store"), vec![good, silent, doubting])).await;
    let made = registry.image(APP, "1", 80, &[300_000]);
    served.pull(&format!("a.test/{APP}"), "1").await.unwrap();
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
    let asked = registry.log().len();
    for other in ["b.test", "c.test"] {
        let refused = served.get(&format!("/v2/{other}/{APP}/manifests/1")).await;
        assert_eq!(refused.status, 404, "{other}: {refused:?}");
    }
    assert_eq!(registry.log().len(), asked, "nobody else came through");
}

#[tokio::test]
async fn registries_are_asked_through_the_proxy_but_for_those_that_are_excepted() {
    let registry = Registry::start().await;
    let front = behind_tls(registry.address).await;
    let (proxy, asked) = proxy(front, registry.address).await;
    let dir = tempfile::tempdir().unwrap();
    let upstream = |name: &str, url: &str| {
        let mut upstream = registry.settings(name);
        upstream.url = Some(url.to_owned());
        upstream
    };
    let mut by_tls = upstream("tls.example", "https://registry.test:8443");
    by_tls.ca_file = Some(pem("ca.pem"));
    (by_tls.cert_file, by_tls.key_file) = (Some(pem("client.pem")), Some(pem("client-key.pem")));
    let upstreams = vec![
        upstream("plain.example", "http://registry.test:5000"),
        by_tls,
        upstream("excepted.example", "http://a.b.invalid:5000"),
        registry.settings("here.example"),
    ];
    let mut given = settings(&dir.path().join("store"), upstreams);
    given.proxy = Some(format!("http://bot:secret@{proxy}"));
    given.no_proxy = Some("10.0.0.0/8, b.invalid".to_owned());
    given.check().unwrap();
    let served = serve(given.clone()).await;
    let made = registry.image(APP, "1", 81, &[300_000]);
    registry.image("acme/other", "1", 82, &[1000]);
    // Its own address is this machine's.
    served.pull("here.example/acme/other", "1").await.unwrap();
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new());
    assert_eq!(served.get(&format!("/v2/excepted.example/{APP}/manifests/1")).await.status, 404);
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new(), "its name is resolved here, in vain");
    for (name, line) in [
        ("tls.example", "CONNECT registry.test:8443 HTTP/1.1"),
        ("plain.example", "HEAD http://registry.test:5000/v2/acme/app/manifests/1 HTTP/1.1"),
    ] {
        let got = served.get(&format!("/v2/{name}/{APP}/manifests/1")).await;
        assert_eq!(digest(got.bytes()), made.manifest, "{name}");
        let asked = asked.lock().unwrap();
        let head = asked.iter().find(|head| head.starts_with(line)).unwrap_or_else(|| panic!("{asked:?}"));
        // `bot:secret`
        let login = head.to_lowercase().contains("proxy-authorization: basic ym90onnly3jlda==");
        assert!(login, "{head}");
    }
    served.pull(&format!("plain.example/{APP}"), "1").await.unwrap();
    served.pull(&format!("tls.example/{APP}"), "1").await.unwrap();
    let mut plain = given;
    plain.proxy = Some("https://proxy.example".to_owned());
    assert!(plain.check().is_err_and(|(key, _)| key == "[images] proxy"));
    (plain.proxy, plain.no_proxy) = (None, Some("x".to_owned()));
    assert!(plain.check().is_err_and(|(key, _)| key == "[images] no_proxy"));
}
