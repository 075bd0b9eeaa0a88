//! A registry cannot have the mirror ask this node or a private network, unless the operator has named that place.

mod support;

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use support::{Registry, RegistryFault, Served, digest, serve, settings, site::APP};
use tokio::{net::TcpListener, task::JoinHandle};

/// Of each path, a status, headers and a body.
type Answers = HashMap<String, (u16, Vec<(&'static str, String)>, String)>;

/// A server that says what it is told to.
struct Server {
    address: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    log: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answers, log) = (Arc::<Mutex<Answers>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let shared = (Arc::clone(&answers), Arc::clone(&log));
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (answers, log) = shared.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    log.lock().unwrap().push(request.uri().to_string());
                    let found = answers.lock().unwrap().get(request.uri().path()).cloned();
                    let (status, headers, body) = found.unwrap_or((404, Vec::new(), String::new()));
                    let mut response = Response::builder().status(status);
                    for (name, value) in headers {
                        response = response.header(name, value);
                    }
                    let response = response.body(Full::new(Bytes::from(body))).unwrap();
                    async { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
                );
            }
        });
        Server { address, answers, log, task }
    }

    fn say(&self, path: &str, status: u16, headers: &[(&'static str, &str)], body: &str) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.answers.lock().unwrap().insert(path.to_owned(), (status, headers, body.to_owned()));
    }

    fn asked(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// A mirror that calls this server `docker.io`.
    async fn mirror(&self, directory: &std::path::Path) -> Served {
        let mut upstream = Registry::start().await.settings("docker.io");
        upstream.url = Some(format!("http://{}", self.address));
        serve(settings(&directory.join("store"), vec![upstream])).await
    }
}

const TAGS: &str = "/v2/library/app/tags/list";
const SECRET: &str = "LOOPBACK ONLY SECRET";

#[tokio::test]
async fn redirect_of_a_named_registry_to_this_node_is_refused() {
    let (registry, inner) = (Server::start().await, Server::start().await);
    let dir = tempfile::tempdir().unwrap();
    let served = registry.mirror(dir.path()).await;
    inner.say("/secret", 200, &[], r#"{"name":"library/app","tags":["LOOPBACK"]}"#);
    let port = inner.address.port();
    for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"] {
        registry.say(TAGS, 302, &[("location", &format!("http://{host}:{port}/secret"))], "");
        let got = served.get(TAGS).await;
        let why = String::from_utf8(got.body.clone().unwrap().to_vec()).unwrap();
        assert!(got.status == 404 && why.contains("redirects"), "{host}: {got:?}");
    }
    assert!(inner.asked().is_empty(), "{:?}", inner.asked());
    // Its own address leads on.
    let port = registry.address.port();
    registry.say(TAGS, 302, &[("location", &format!("http://127.0.0.1:{port}/elsewhere"))], "");
    registry.say("/elsewhere", 200, &[], r#"{"name":"library/app","tags":["1"]}"#);
    assert_eq!(served.get(TAGS).await.status, 200);
}

#[tokio::test]
async fn blob_at_a_private_address_that_is_not_listed_is_refused() {
    let (registry, cdn) = (Registry::start().await, Registry::start().await);
    let dir = tempfile::tempdir().unwrap();
    let given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let served = serve(given).await;
    let made = registry.image(APP, "1", 21, &[200_000]);
    cdn.image(APP, "1", 21, &[200_000]);
    registry
        .trouble(RegistryFault::Redirect(format!("http://{}/v2/x/blobs/{}", cdn.address, made.layers[0])));
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    assert_eq!(served.blob(APP, &made.layers[0]).await.status, 404);
    assert!(cdn.log().is_empty(), "{:?}", cdn.log());
}

#[tokio::test]
async fn token_service_at_a_private_address_that_is_not_listed_is_refused() {
    let (registry, inner) = (Server::start().await, Server::start().await);
    let dir = tempfile::tempdir().unwrap();
    let served = registry.mirror(dir.path()).await;
    let challenge = format!("Bearer realm=\"http://{}/token?x=1\",service=\"x\"", inner.address);
    registry.say(TAGS, 401, &[("www-authenticate", &challenge)], "");
    inner.say("/token", 200, &[], r#"{"token":"t0k"}"#);
    let got = served.get(TAGS).await;
    assert_eq!((got.status, inner.asked()), (404, vec![]), "{got:?}");
}

#[tokio::test]
async fn list_that_is_not_of_the_specified_shape_is_refused() {
    let registry = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = registry.mirror(dir.path()).await;
    let digest = digest(b"x");
    let referrers = format!("/v2/{APP}/referrers/{digest}");
    for (path, body) in [
        (TAGS, SECRET),
        (TAGS, r#"{"secret":"LOOPBACK ONLY SECRET"}"#),
        (TAGS, r#"["LOOPBACK ONLY SECRET"]"#),
        (TAGS, r#"{"name":"library/app","tags":["LOOPBACK ONLY SECRET"]}"#),
        (TAGS, r#"{"name":"LOOPBACK ONLY SECRET","tags":[]}"#),
        (&referrers, SECRET),
        (&referrers, r#"{"schemaVersion":2,"manifests":["LOOPBACK ONLY SECRET"]}"#),
        (&referrers, r#"{"schemaVersion":2,"manifests":[{"mediaType":"a/b","size":1,"digest":"LOOPBACK"}]}"#),
    ] {
        registry.say(path, 200, &[("content-type", "text/html")], body);
        let got = served.get(path).await;
        assert_eq!(got.status, 404, "{path}: {body}: {got:?}");
    }
    // Nothing else of an answer is passed on than what a list has.
    registry.say(TAGS, 200, &[], r#"{"name":"library/app","tags":["1","2"],"secret":"LOOPBACK"}"#);
    let got = served.get(TAGS).await;
    let text = String::from_utf8(got.bytes().to_vec()).unwrap();
    assert_eq!(text, r#"{"name":"library/app","tags":["1","2"]}"#);
    assert_eq!(got.headers["content-type"], "application/json");
    registry.say(TAGS, 200, &[], r#"{"name":"library/app","tags":null}"#);
    assert_eq!(served.get(TAGS).await.status, 200);
    let kind = "application/vnd.oci.image.index.v1+json";
    let body = format!(
        r#"{{"schemaVersion":2,"mediaType":"{kind}","secret":1,"manifests":[{{"mediaType":"a/b","digest":"{digest}","size":7,"artifactType":"c/d","annotations":{{"e":"f"}},"secret":2}}]}}"#
    );
    registry.say(&referrers, 200, &[], &body);
    let got = served.get(&referrers).await;
    let text = String::from_utf8(got.bytes().to_vec()).unwrap();
    assert!(text.contains("\"c/d\"") && text.contains("\"e\":\"f\"") && !text.contains("secret"), "{text}");
    assert_eq!(got.headers["content-type"], kind);
}
