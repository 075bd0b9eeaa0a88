//! Lists in pages: a client that follows the links of the mirror reads all of them.

mod support;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use support::{Got, Registry, Served, serve, settings};
use tokio::{net::TcpListener, task::JoinHandle};
use weir_image::UpstreamSettings;

/// As many tags and as many referrers as the registry has.
const ALL: usize = 250;
/// As many as it gives at once.
const PAGE: usize = 100;
const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A registry of one repository, `acme/app`, with long lists.
struct Lists {
    address: SocketAddr,
    /// Paths and queries, as they came.
    log: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lists {
    /// * `host`: what its links begin with.
    async fn start(host: &'static str) -> Lists {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::clone(&log);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let log = Arc::clone(&shared);
                let answer = service_fn(move |request| {
                    log.lock().unwrap().push(request.uri().to_string());
                    let response = list(&request, host);
                    async { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
                );
            }
        });
        Lists { address, log, task }
    }

    async fn mirror(&self, directory: &std::path::Path) -> Served {
        let registry = Registry::start().await.settings("ghcr.io");
        let upstream = UpstreamSettings { url: Some(format!("http://{}", self.address)), ..registry };
        serve(settings(&directory.join("store"), vec![upstream])).await
    }
}

/// A page, from after the mark in the query on.
fn list(request: &Request<Incoming>, host: &str) -> Response<Full<Bytes>> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let of = |key: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    // Base64 in the mark, as Quay and ECR have it.
    let from = of("mark").map_or(0, |mark| mark.trim_end_matches("%3D").parse::<usize>().unwrap());
    let names: Vec<String> = (from..ALL.min(from + PAGE)).map(|n| format!("v{n:03}")).collect();
    let mut response = Response::builder().header("x-inner", "not for clients");
    if from + PAGE < ALL {
        let filter = of("artifactType").map_or_else(String::new, |kind| format!("&artifactType={kind}"));
        let link = format!("<{host}{path}?mark={}%3D{filter}>; rel=\"next\"", from + PAGE);
        response = response.header("link", link);
    }
    let body = if path == "/v2/acme/app/tags/list" {
        serde_json::json!({ "name": "acme/app", "tags": names })
    } else if path == format!("/v2/acme/app/referrers/{DIGEST}") {
        if of("artifactType").is_some() {
            response = response.header("oci-filters-applied", "artifactType");
        }
        let kind = "application/vnd.oci.image.index.v1+json";
        response = response.header("content-type", kind);
        let descriptor = |name: &String| {
            let digest = support::digest(name.as_bytes());
            serde_json::json!({ "mediaType": "a/b", "digest": digest, "size": 1, "annotations": { "name": name } })
        };
        let manifests: Vec<_> = names.iter().map(descriptor).collect();
        serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests })
    } else {
        return Response::builder().status(404).body(Full::default()).unwrap();
    };
    response.body(Full::from(body.to_string())).unwrap()
}

/// Every page from this path on, by the mirror's own links.
async fn pages(served: &Served, first: &str) -> Vec<Got> {
    let (mut at, mut pages) = (first.to_owned(), Vec::new());
    loop {
        let got = served.get(&at).await;
        assert_eq!(got.status, 200, "{at}: {got:?}");
        let link = got.headers.get("link").map(|link| link.to_str().unwrap().to_owned());
        pages.push(got);
        assert!(pages.len() <= ALL.div_ceil(PAGE), "the pages do not end");
        let Some(link) = link else { return pages };
        let target = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
        at = target.unwrap_or_else(|| panic!("{link}")).to_owned();
        assert!(at.starts_with('/') && !at.starts_with("//"), "{at} leads away from the mirror");
    }
}

fn names(pages: &[Got], key: &str) -> Vec<String> {
    let of = |page: &Got| serde_json::from_slice::<serde_json::Value>(page.bytes()).unwrap()[key].clone();
    let all =
        pages.iter().flat_map(|page| serde_json::from_value::<Vec<serde_json::Value>>(of(page)).unwrap());
    all.map(|entry| {
        let name = entry.get("annotations").map_or(&entry, |of| &of["name"]);
        name.as_str().unwrap().to_owned()
    })
    .collect()
}

fn every() -> Vec<String> {
    (0..ALL).map(|n| format!("v{n:03}")).collect()
}

#[tokio::test]
async fn a_client_that_follows_the_links_reads_every_tag() {
    let dir = tempfile::tempdir().unwrap();
    for host in ["", "http://inner.example:5000"] {
        let registry = Lists::start(host).await;
        let served = registry.mirror(&dir.path().join(host.len().to_string())).await;
        for first in ["/v2/ghcr.io/acme/app/tags/list?n=100", "/v2/acme/app/tags/list?ns=ghcr.io&n=100"] {
            let pages = pages(&served, first).await;
            assert_eq!(names(&pages, "tags"), every(), "{first}");
            let links: Vec<_> = pages.iter().filter_map(|page| page.headers.get("link")).collect();
            let name = first.split('?').next().unwrap();
            for link in links {
                let link = link.to_str().unwrap();
                assert!(link.starts_with(&format!("<{name}?")), "{link}");
                assert_eq!(link.contains("ns=ghcr.io"), first.contains("ns=ghcr.io"), "{link}");
            }
            assert!(pages.iter().all(|page| !page.headers.contains_key("x-inner")));
        }
        assert!(registry.log.lock().unwrap().iter().all(|line| !line.contains("ns=")));
    }
}

#[tokio::test]
async fn referrers_keep_their_pages_and_their_filter() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Lists::start("").await;
    let served = registry.mirror(dir.path()).await;
    {
        let at = format!("/v2/ghcr.io/acme/app/referrers/{DIGEST}?artifactType=a%2Fb");
        let pages = pages(&served, &at).await;
        assert_eq!(names(&pages, "manifests"), every());
        for page in &pages {
            assert_eq!(page.headers["oci-filters-applied"], "artifactType");
            assert_eq!(page.headers["content-type"], "application/vnd.oci.image.index.v1+json");
        }
    }
    let unfiltered = pages(&served, &format!("/v2/acme/app/referrers/{DIGEST}?ns=ghcr.io")).await;
    assert_eq!(names(&unfiltered, "manifests"), every());
    assert!(unfiltered.iter().all(|page| !page.headers.contains_key("oci-filters-applied")));
}

/// A list that cannot go on is refused, as a list cut short looks like a whole one.
#[tokio::test]
async fn a_list_that_goes_on_elsewhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Lists::start("http://evil.example/v2/other").await;
    let served = registry.mirror(dir.path()).await;
    let got = served.get("/v2/ghcr.io/acme/app/tags/list").await;
    // The path ends as it should here, so the host and what comes before it are dropped.
    assert_eq!(got.headers["link"], "</v2/ghcr.io/acme/app/tags/list?mark=100%3D>; rel=\"next\"");
    let registry = Lists::start("http://evil.example/steal?").await;
    let served = registry.mirror(&dir.path().join("2")).await;
    let got = served.get("/v2/ghcr.io/acme/app/tags/list").await;
    assert_eq!(got.status, 404, "{got:?}");
    assert!(!got.headers.contains_key("link"));
    assert_eq!(registry.log.lock().unwrap().len(), 1, "nothing is asked elsewhere");
}
