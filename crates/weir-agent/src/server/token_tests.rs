//! Tokens and TLS of the API over TCP.

use std::{
    fs,
    future::Future,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    http::{Request as HttpRequest, StatusCode, header},
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    time::{sleep, timeout},
};
use weir_agree::Agreement;
use weir_api::{Status, TokenScope};
use weir_fake_agent as fake;

use super::{
    Stream,
    access::{OF_PARTIES, ROUTES},
    bearer::Bearers,
    tcp::{OPEN, Port, Routes},
};
use crate::{
    agent::agree::{StoredAgreements, offer},
    config::{Pem, Place},
    control::{AgreementsRequest, Request},
    images::Images,
    tokens::Tokens,
};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// An answer's status, headers and body.
struct Answered {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: String,
}

async fn ask_from(
    routes: &Routes,
    from: IpAddr,
    is_private: bool,
    request: &str,
    token: Option<&str>,
    body: &str,
) -> Answered {
    let (method, path) = request.split_once(' ').unwrap();
    let mut request = HttpRequest::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = routes.answer(request, from, is_private).await;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    Answered { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

async fn ask(routes: &Routes, request: &str, token: Option<&str>) -> Answered {
    ask_from(routes, HERE, true, request, token, "").await
}

/// Routes before the loop behind this channel.
fn routes_before(control: crate::control::Control, tokens: &Tokens) -> Routes {
    let stream = Stream::new(control.clone());
    Routes::new(control, Images::off(), stream, Bearers::new(tokens.clone()))
}

/// Routes without an agent behind them. A request that passes gets that answer.
fn routes(tokens: &Tokens) -> Routes {
    routes_before(mpsc::channel(1).0, tokens)
}

#[tokio::test]
async fn each_route_over_tcp_answers_the_scopes_that_have_its_right() {
    let tokens = Tokens::default();
    let scopes = [TokenScope::Read, TokenScope::Party, TokenScope::Operate, TokenScope::Admin];
    let secrets = scopes.map(|scope| {
        let party = (scope == TokenScope::Party).then_some("acme");
        (scope.clone(), tokens.made(scope.as_str(), scope.clone(), party))
    });
    let mut passed = 0;
    for (method, path, needed) in ROUTES {
        let request = format!("{method} {}", path.replace("{name}", "web").replace("{id}", "7"));
        // Other bounds than the scope have tests of their own.
        let routes = routes(&tokens);
        let without = ask(&routes, &request, None).await;
        let is_open = OPEN.contains(&path);
        assert_eq!(without.status == StatusCode::UNAUTHORIZED, !is_open, "{request}: {}", without.body);
        assert!(is_open || without.headers[header::WWW_AUTHENTICATE].to_str().unwrap().starts_with("Bearer"));
        for wrong in ["", "weir_", "weir_0000", "x y"] {
            let answer = ask_from(&routes, [10, 0, 0, 1].into(), true, &request, Some(wrong), "").await;
            let expected = if is_open { without.status } else { StatusCode::UNAUTHORIZED };
            assert_eq!(answer.status, expected, "{request} with `{wrong}`: {}", answer.body);
        }
        for (scope, secret) in &secrets {
            let answer = ask(&routes, &request, Some(secret)).await;
            let may = match scope {
                _ if is_open => true,
                TokenScope::Party => OF_PARTIES.contains(&(method, path)),
                scope => tokens.all().iter().any(|t| t.view.scope == *scope && t.right() >= Some(needed)),
            };
            let what = format!("{request} by {scope}: {} {}", answer.status, answer.body);
            passed += usize::from(may);
            assert_eq!(answer.status == StatusCode::FORBIDDEN, !may, "{what}");
            assert!(
                answer.status != StatusCode::UNAUTHORIZED && answer.status != StatusCode::METHOD_NOT_ALLOWED,
                "{what}"
            );
            assert!(
                may || answer.body.contains(&format!("token {scope} has the scope {scope} here")),
                "{what}"
            );
        }
    }
    assert!(passed > ROUTES.len() * 2, "{passed}");
}

#[test]
fn no_scope_that_only_sees_has_a_route_that_changes_anything() {
    let changes = |method: &str| !matches!(method, "GET" | "HEAD");
    for (method, path, right) in ROUTES.iter().filter(|(method, ..)| changes(method)) {
        let is_look = path.starts_with("/v1/plan/") || *path == "/v1/cni/check";
        assert!(is_look || *right > crate::config::Right::Read, "{method} {path}");
        assert!(!OPEN.contains(path), "{method} {path}");
    }
}

#[tokio::test]
async fn a_connection_that_others_can_read_takes_no_token() {
    let tokens = Tokens::default();
    let secret = tokens.made("ops", TokenScope::Admin, None);
    let routes = routes(&tokens);
    for request in ["GET /v1/classes", "PATCH /v1/policies", "GET /healthz"] {
        let answer = ask_from(&routes, HERE, false, request, Some(&secret), "").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{request}: {}", answer.body);
        assert!(answer.body.contains("no token is taken here"), "{}", answer.body);
    }
    let without = ask_from(&routes, HERE, false, "GET /v1/classes", None, "").await;
    assert_eq!(without.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn guesses_are_slowed_down_and_counted_and_good_tokens_elsewhere_pass() {
    let tokens = Tokens::default();
    let secret = tokens.made("reader", TokenScope::Read, None);
    let bearers = Bearers::new(tokens.clone());
    let control = mpsc::channel(1).0;
    let stream = Stream::new(control.clone());
    let routes = Routes::new(control, Images::off(), stream, bearers.clone());
    let from = IpAddr::from([192, 0, 2, 7]);
    let mut statuses = Vec::new();
    for n in 0..12 {
        let guess = format!("weir_{n}");
        let answer = ask_from(&routes, from, true, "GET /v1/status", Some(&guess), "").await;
        statuses.push(answer.status.as_u16());
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            let wait: u64 = answer.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
            assert!((1..=7).contains(&wait), "{wait}");
        }
    }
    assert_eq!(statuses, [[401; 10].as_slice(), &[429; 2]].concat());
    assert_eq!(bearers.failed(), 10, "a guess that is not looked at is none");
    // The right token waits too, so that a guess tells nothing. Other addresses do not wait.
    let waits = ask_from(&routes, from, true, "GET /v1/status", Some(&secret), "").await;
    assert_eq!(waits.status, StatusCode::TOO_MANY_REQUESTS);
    let elsewhere = ask(&routes, "GET /v1/status", Some(&secret)).await;
    assert_eq!(elsewhere.status, StatusCode::SERVICE_UNAVAILABLE, "no agent runs: {}", elsewhere.body);
}

#[tokio::test]
async fn open_routes_answer_a_caller_with_an_expired_token_and_count_no_failure() {
    let tokens = Tokens::default();
    tokens.made("reader", TokenScope::Read, None);
    let bearers = Bearers::new(tokens);
    let control = mpsc::channel(1).0;
    let routes = Routes::new(control.clone(), Images::off(), Stream::new(control), bearers.clone());
    for path in OPEN {
        let request = format!("GET {path}");
        let without = ask(&routes, &request, None).await;
        for _ in 0..12 {
            let with = ask(&routes, &request, Some("weir_0000")).await;
            assert_eq!(with.status, without.status, "{request}: {}", with.body);
        }
    }
    assert_eq!(bearers.failed(), 0);
}

/// The party's requests send heads of offers and never a body.
#[tokio::test]
async fn bodies_that_never_come_keep_no_other_token_waiting() {
    let tokens = Tokens::default();
    let [acme, other] = ["acme", "other"].map(|p| tokens.made(p, TokenScope::Party, Some(p)));
    let admin = tokens.made("ops", TokenScope::Admin, None);
    let routes = routes(&tokens);
    let silent = (0..15).map(|_| {
        let request = HttpRequest::builder()
            .method("POST")
            .uri("/v1/agreements")
            .header(header::AUTHORIZATION, format!("Bearer {acme}"))
            .body(Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>()));
        routes.answer(request.unwrap(), HERE, true)
    });
    let asked = async {
        sleep(Duration::from_millis(100)).await;
        for (request, token) in [("GET /v1/status", &admin), ("GET /v1/agreements", &other)] {
            let answer = timeout(Duration::from_secs(1), ask(&routes, request, Some(token))).await;
            let answer = answer.unwrap_or_else(|_| panic!("{request} waits for another token"));
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "no agent runs: {}", answer.body);
        }
        // The token that has used up its part is told so.
        ask(&routes, "GET /v1/agreements", Some(&acme)).await
    };
    let refused = tokio::select! {
        refused = asked => refused,
        _ = futures_util::future::join_all(silent) => panic!("all bodies came"),
    };
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{}", refused.body);
    assert_eq!(refused.headers[header::RETRY_AFTER], "3");
    assert!(refused.body.contains("2 of its requests are being answered"), "{}", refused.body);
}

/// Answers the questions of agreements from a database.
async fn provider(mut requests: mpsc::Receiver<Request>) {
    let mut stored = StoredAgreements::new();
    let (agreements, store) = (&mut stored.agreements, &stored.store);
    let at = |seconds: u64| {
        let utc = weir_agree::Utc::from_millis(1_800_000_000_000 + 1_000 * i64::try_from(seconds).unwrap());
        weir_agree::ClockReading { utc, monotonic: weir_units::Instant(Duration::from_secs(seconds)) }
    };
    let mut seconds = 0;
    while let Some(request) = requests.recv().await {
        seconds += 1;
        let now = at(seconds);
        match request {
            Request::Agreements(AgreementsRequest::Offer(from, offer, reply)) => {
                drop(reply.send(agreements.offer(&from.client, Some(from.maker), *offer, store, now)));
            }
            Request::Agreements(AgreementsRequest::All(reply)) => {
                drop(reply.send(Ok(agreements.all().cloned().collect())));
            }
            Request::Agreements(AgreementsRequest::One(id, reply)) => {
                drop(reply.send(agreements.one(&id).cloned()));
            }
            Request::Agreements(AgreementsRequest::Terminate(id, owner, _, reply)) => {
                let begun = agreements.permits(&owner, &id, "terminate");
                let begun = begun.and_then(|()| agreements.terminate(&id, store, now.utc));
                agreements.finish(|_| true, store, now.utc);
                drop(reply.send(begun.and_then(|()| agreements.one(&id).cloned())));
            }
            request => panic!("{request:?}"),
        }
    }
}

#[tokio::test]
async fn a_party_sees_and_ends_its_own_agreements_and_no_others() {
    let tokens = Tokens::default();
    let [acme, other, heir] = [("a", "acme"), ("b", "other"), ("c", "acme")]
        .map(|(name, party)| tokens.made(name, TokenScope::Party, Some(party)));
    let (control, requests) = mpsc::channel(8);
    let routes = routes_before(control, &tokens);
    let document = serde_json::to_string(&offer("web", 5)).unwrap();
    let test = async {
        let send = |token: String, body: String| {
            let routes = &routes;
            async move { ask_from(routes, HERE, true, "POST /v1/agreements", Some(&token), &body).await }
        };
        let made = send(acme.clone(), document.clone()).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
        let id = serde_json::from_str::<Agreement>(&made.body).unwrap().id;
        let refused = send(other.clone(), document.clone()).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
        assert!(refused.body.contains("this token is of party other"), "{}", refused.body);
        for (token, has) in [(&acme, true), (&other, false), (&heir, true)] {
            let list = ask(&routes, "GET /v1/agreements", Some(token)).await;
            assert_eq!(list.body.contains(id.as_str()), has, "{}", list.body);
        }
        // An agreement of others answers as one that does not exist.
        for (method, path) in OF_PARTIES.iter().filter(|(_, path)| path.starts_with("/v1/agreements/{id}")) {
            let [there, nowhere] =
                [id.as_str(), "a-999"].map(|id| format!("{method} {}", path.replace("{id}", id)));
            let [there, nowhere] =
                [ask(&routes, &there, Some(&other)).await, ask(&routes, &nowhere, Some(&other)).await];
            assert_eq!(
                (there.status, nowhere.status),
                (StatusCode::NOT_FOUND, StatusCode::NOT_FOUND),
                "{path}"
            );
            assert_eq!(there.body.replace(id.as_str(), "a-999"), nowhere.body);
        }
        // Another token of the party ends it.
        let ended = ask(&routes, &format!("DELETE /v1/agreements/{id}"), Some(&heir)).await;
        assert_eq!(ended.status, StatusCode::OK, "{}", ended.body);
    };
    tokio::select! {
        () = test => {}
        () = provider(requests) => unreachable!("the routes hold the channel"),
    }
}

/// Puts a certificate and its key in place.
fn put(directory: &Path, certificate: &str, key: &str) -> Pem {
    let pem = Pem { certificate: directory.join("cert.pem"), key: directory.join("key.pem") };
    for (path, text) in [(&pem.certificate, certificate), (&pem.key, key)] {
        // A new file has another time of change even within a tick of the kernel's clock.
        let _ = fs::remove_file(path);
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    pem
}

const ONE: [&str; 2] = [include_str!("testdata/one.pem"), include_str!("testdata/one.key")];
const TWO: [&str; 2] = [include_str!("testdata/two.pem"), include_str!("testdata/two.key")];

/// The answer over TLS to a client that trusts this certificate only.
async fn over_tls(address: SocketAddr, trusted: &str, request: &str, token: &str) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let text = format!(
        "{request} HTTP/1.1\r\nhost: node\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn loop_of(mut requests: mpsc::Receiver<Request>, status: Status) {
    while let Some(request) = requests.recv().await {
        match request {
            Request::Status(reply) => drop(reply.send(status.clone())),
            request => panic!("{request:?}"),
        }
    }
}

/// Waits until a condition holds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let all = async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(15), all).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn tls_answers_tokens_and_follows_its_files_and_a_bad_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::default();
    let secret = tokens.made("reader", TokenScope::Read, None);
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pem = put(dir.path(), ONE[0], ONE[1]);
    let port = Port::new(Some(Place { listen, pem: Some(pem.clone()) }), tokens.clone());
    let (control, requests) = mpsc::channel(8);
    let test = async {
        let get = |trusted: &'static str| {
            let secret = secret.clone();
            async move { over_tls(listen, trusted, "GET /v1/status", &secret).await }
        };
        until("an answer over TLS", || async {
            get(ONE[0]).await.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
        })
        .await;
        assert!(get(TWO[0]).await.is_err(), "a client that trusts another certificate is answered");
        // A caller without TLS learns nothing.
        let mut clear = TcpStream::connect(listen).await.unwrap();
        clear.write_all(b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = clear.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
        // Another certificate is in use with the next connection.
        put(dir.path(), TWO[0], TWO[1]);
        assert!(get(TWO[0]).await.unwrap().starts_with("HTTP/1.1 200"));
        assert_eq!(port.failure(), None);
        // A key that does not belong to it is told, and the old pair stays in use.
        put(dir.path(), TWO[0], ONE[1]);
        assert!(get(TWO[0]).await.unwrap().starts_with("HTTP/1.1 200"));
        let why = port.failure().unwrap();
        assert!(why.contains("cert.pem") && why.ends_with("the one before stays in use"), "{why}");
        put(dir.path(), ONE[0], ONE[1]);
        assert!(get(ONE[0]).await.unwrap().starts_with("HTTP/1.1 200"));
        assert_eq!(port.failure(), None);
    };
    tokio::select! {
        () = test => {}
        () = port.clone().serve(control.clone(), Images::off(), Stream::new(control)) => unreachable!("the port serves on"),
        () = loop_of(requests, fake::status()) => unreachable!("the port holds the channel"),
    }
}

#[test]
fn certificates_that_cannot_be_used_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let why = |certificate: &str, key: &str| put(dir.path(), certificate, key).load().unwrap_err();
    let both = put(dir.path(), ONE[0], ONE[1]);
    assert!(both.load().is_ok());
    fs::set_permissions(&both.key, fs::Permissions::from_mode(0o604)).unwrap();
    assert!(both.load().unwrap_err().contains("key.pem for TLS of `[api]`: all users may open it"));
    for (certificate, key, file) in [
        ("", ONE[1], "cert.pem"),
        ("no pem", ONE[1], "cert.pem"),
        (ONE[0], "", "key.pem"),
        (ONE[0], TWO[1], "cert.pem"),
    ] {
        let why = why(certificate, key);
        assert!(why.starts_with("cannot use ") && why.contains(file), "{why}");
    }
    fs::remove_file(&both.key).unwrap();
    assert!(both.load().unwrap_err().starts_with("cannot read "));
}
