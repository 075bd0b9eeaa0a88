//! The client over TCP beside the real port.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tokio::{sync::mpsc, task::spawn_blocking};
use weir_api::{Client, ClientError, Remote, Status, TokenScope};
use weir_fake_agent as fake;

use super::{Stream, tcp::Port};
use crate::{
    config::{Pem, Place},
    control::Request,
    images::Images,
    tokens::Tokens,
};

/// Signed by itself, and no authority.
const LEAF: [&str; 2] = [include_str!("testdata/one.pem"), include_str!("testdata/one.key")];
const OTHER: &str = include_str!("testdata/two.pem");
/// Signed by itself, and an authority, as `openssl req -x509` makes it.
const AUTHORITY: [&str; 2] = [include_str!("testdata/own_root.pem"), include_str!("testdata/own_root.key")];

fn write(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// The answer to `weir status` at this URL.
async fn ask(url: String, token: PathBuf, trusted: PathBuf) -> Result<Status, ClientError> {
    let remote = Remote::new(&url, Some(&token), Some(&trusted)).unwrap();
    spawn_blocking(move || Client::over_tcp(remote).status()).await.unwrap()
}

async fn with_port<F: Future<Output = ()>>(
    pair: [&str; 2],
    dir: &Path,
    test: impl FnOnce(SocketAddr, PathBuf) -> F,
) {
    let tokens = Tokens::default();
    let token = write(dir.join("token"), &format!("{}\n", tokens.made("reader", TokenScope::Read, None)));
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pem =
        Pem { certificate: write(dir.join("cert.pem"), pair[0]), key: write(dir.join("key.pem"), pair[1]) };
    let port = Port::new(Some(Place { listen, pem: Some(pem) }), tokens);
    let (control, mut requests) = mpsc::channel(8);
    let agent = async {
        while let Some(request) = requests.recv().await {
            let Request::Status(reply) = request else { panic!("{request:?}") };
            drop(reply.send(fake::status()));
        }
    };
    let listening = async {
        while tokio::net::TcpStream::connect(listen).await.is_err() {
            tokio::task::yield_now().await;
        }
        test(listen, token).await;
    };
    tokio::select! {
        () = listening => {}
        () = port.clone().serve(control.clone(), Images::off(), Stream::new(control)) => unreachable!("the port serves on"),
        () = agent => unreachable!("the port holds the channel"),
    }
}

#[tokio::test]
async fn agent_is_asked_over_tls_under_the_name_of_its_certificate_only() {
    let dir = tempfile::tempdir().unwrap();
    for pair in [LEAF, AUTHORITY] {
        with_port(pair, dir.path(), |at, token| async move {
            let trusted = write(token.with_file_name("ca.pem"), pair[0]);
            let url = format!("https://{at}/");
            assert_eq!(ask(url.clone(), token.clone(), trusted.clone()).await.unwrap(), fake::status());
            // A certificate that the file does not have, a name that it does not have, and a token of no one.
            let other = write(token.with_file_name("other.pem"), OTHER);
            let error = ask(url.clone(), token.clone(), other).await.unwrap_err();
            assert!(matches!(&error, ClientError::NoTls { .. }), "{error:?}");
            let named = format!("https://localhost:{}", at.port());
            let error = ask(named, token.clone(), trusted.clone()).await.unwrap_err();
            assert!(matches!(&error, ClientError::NoTls { .. }), "{error:?}");
            let wrong = write(token.with_file_name("wrong"), "weir_0000");
            let error = ask(url, wrong, trusted).await.unwrap_err();
            assert!(matches!(&error, ClientError::Refused(_)), "{error:?}");
        })
        .await;
    }
}
