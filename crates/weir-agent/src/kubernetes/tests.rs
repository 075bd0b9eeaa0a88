//! The source before a stand-in for the API server, which behaves well and badly.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use weir_testkit::api_server::{ApiServer, Manner, namespace, pod};

use super::*;

const NODE: &str = "edge-1";
/// A busy machine may take so long.
const SOON: Duration = Duration::from_secs(10);

fn config() -> Kubernetes {
    Kubernetes { namespace_groups: true, ..Kubernetes::default() }
}

fn open(server: &ApiServer, state: &Path, config: &Kubernetes) -> Source {
    open_at(server.url(), state, config)
}

fn open_at(server: String, state: &Path, config: &Kubernetes) -> Source {
    let token_file = state.join("token");
    let endpoint = Endpoint { node: NODE.into(), server, token_file, ca_file: "/no/ca.crt".into() };
    Source::open(config, endpoint, state)
}

/// A server that refuses pods, and has one namespace. It ends with the process.
fn refusing_pods() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let namespaces = json!({
        "metadata": { "resourceVersion": "1" },
        "items": [namespace("shop", &[("weir.dev/weight", "4")])],
    })
    .to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let (status, body) = match first.as_str() {
                line if line.starts_with("GET /api/v1/pods") => (403, "{}"),
                line if line.contains("watch=1") => (200, ""),
                _ => (200, namespaces.as_str()),
            };
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} status\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"));
}

fn annotation(source: &Source, pod: &str, key: &str) -> Option<String> {
    source.followed().pods.get(pod)?.annotations.kept.get(key).cloned()
}

fn max(rate: &str) -> Value {
    pod(NODE, "shop", "web", &[("weir.dev/max", rate)])
}

fn has_max(source: &Source, rate: &str) -> bool {
    annotation(source, "shop/web", "weir.dev/max").as_deref() == Some(rate)
}

#[tokio::test]
async fn pods_of_the_node_and_namespaces_are_followed_with_a_fresh_token() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("pods", max("5mbit"));
    server.put("pods", pod("edge-2", "shop", "other", &[]));
    server.put("namespaces", namespace("shop", &[("weir.dev/weight", "4")]));
    std::fs::write(dir.path().join("token"), "first\n").unwrap();
    let source = open(&server, dir.path(), &config());
    until("list", || has_max(&source, "5mbit") && source.followed().namespaces.len() == 1).await;
    assert!(source.followed().pods.get("shop/other").is_none());
    assert_eq!(source.followed().pods.len(), 1);
    server.put("pods", max("9mbit"));
    until("change", || has_max(&source, "9mbit")).await;
    server.put("pods", pod(NODE, "shop", "web", &[]));
    until("removal", || annotation(&source, "shop/web", "weir.dev/max").is_none()).await;
    server.put("namespaces", namespace("shop", &[]));
    until("namespace", || source.followed().namespaces.len() == 0).await;
    server.delete("pods", "shop", "web");
    until("end", || source.followed().pods.len() == 0).await;
    assert_eq!(source.faults(), Vec::<String>::new());
    let shown = |token: &str| server.requests().iter().any(|r| r.authorization.as_deref() == Some(token));
    assert!(shown("Bearer first"));
    std::fs::write(dir.path().join("token"), "second").unwrap();
    server.behave(Manner::Expired);
    until("new token", || shown("Bearer second")).await;
}

/// The kept pods would be lost, and the cluster would be told of room that pods have.
#[tokio::test]
async fn a_list_of_namespaces_does_not_count_as_one_of_pods() {
    let dir = tempfile::tempdir().unwrap();
    let config = Kubernetes { publish: false, events: false, ..config() };
    let source = open_at(refusing_pods(), dir.path(), &config);
    until("namespaces", || source.followed().namespaces.len() == 1).await;
    until("refusal", || source.followed().pods_fault.is_some()).await;
    assert!(!source.followed().is_listed);
}

#[tokio::test]
async fn an_expired_watch_lists_again_and_misses_nothing() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("pods", max("5mbit"));
    let source = open(&server, dir.path(), &Kubernetes::default());
    until("list", || has_max(&source, "5mbit")).await;
    server.behave(Manner::Away);
    until("loss", || !source.faults().is_empty()).await;
    server.put("pods", max("7mbit"));
    server.compact();
    server.behave(Manner::Well);
    until("later state", || has_max(&source, "7mbit") && source.faults().is_empty()).await;
    let lists = || server.requests().iter().filter(|r| r.path.contains("limit=")).count();
    assert_eq!(lists(), 2);
    // Bookmarks carry the version over changes of other nodes, so no list is due after them.
    for n in 0..50 {
        server.put("pods", pod("edge-2", "shop", &format!("p{n}"), &[]));
    }
    sleep(Duration::from_millis(700)).await;
    server.behave(Manner::Short);
    server.behave(Manner::Well);
    server.put("pods", max("8mbit"));
    until("change", || has_max(&source, "8mbit")).await;
    assert_eq!(lists(), 2);
}

#[tokio::test]
async fn a_server_that_is_away_slow_or_talks_nonsense_leaves_what_is_known() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("pods", max("5mbit"));
    let source = open(&server, dir.path(), &Kubernetes::default());
    until("list", || has_max(&source, "5mbit")).await;
    for (manner, said) in [
        (Manner::Away, "does not answer"),
        (Manner::Refusing(403), "refused with status 403: not now"),
        (Manner::Refusing(500), "refused with status 500: not now"),
        (Manner::Garbled, "cannot read an answer"),
    ] {
        server.behave(manner);
        let is_told = || source.faults().iter().any(|why| why.contains(said));
        until(&format!("{manner:?}"), || {
            server.put("pods", max("5mbit"));
            is_told()
        })
        .await;
        assert!(has_max(&source, "5mbit"), "{manner:?}");
    }
    server.behave(Manner::Slow(Duration::from_millis(300)));
    server.put("pods", max("6mbit"));
    until("slow", || has_max(&source, "6mbit") && source.faults().is_empty()).await;
}

/// A client without pauses would ask thousands of times.
#[tokio::test]
async fn a_server_that_ends_or_refuses_each_watch_is_asked_seldom() {
    for manner in [Manner::Short, Manner::Expired, Manner::Away, Manner::Refusing(410)] {
        let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
        server.behave(manner);
        let _source =
            open(&server, dir.path(), &Kubernetes { publish: false, events: false, ..Kubernetes::default() });
        sleep(Duration::from_millis(1_500)).await;
        let asked = server.requests().len();
        assert!((2..=16).contains(&asked), "{manner:?}: {asked} requests");
    }
}

#[tokio::test]
async fn a_list_that_is_too_large_is_read_in_smaller_pages() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.behave(Manner::Huge);
    for n in 0..3 {
        server.put("pods", pod(NODE, "shop", &format!("p{n}"), &[]));
    }
    let source = open(&server, dir.path(), &Kubernetes::default());
    until("list", || source.followed().pods.len() == 3).await;
    assert!(server.requests().iter().any(|r| r.path.contains("limit=1&continue=")));
}

/// A tenant's pod can be larger in JSON than in the server's store.
#[tokio::test]
async fn a_huge_pod_is_left_out_and_no_other_change_waits() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("pods", max("5mbit"));
    server.put("pods", pod(NODE, "evil", "huge", &[]));
    let source = open(&server, dir.path(), &Kubernetes::default());
    until("list", || source.followed().pods.len() == 2).await;
    let mut huge = pod(NODE, "evil", "huge", &[]);
    huge["spec"]["text"] = json!("x".repeat(5 << 20));
    let is_told = || source.faults() == ["pod evil/huge is left out: a change of it is larger than 4 MiB"];
    for n in 1..6 {
        server.put("pods", huge.clone());
        server.put("pods", max(&format!("{n}mbit")));
        until("change", || has_max(&source, &format!("{n}mbit"))).await;
        assert!(is_told(), "{:?}", source.faults());
    }
    assert_eq!(source.followed().pods.len(), 1);
    let lists = server.requests().iter().filter(|r| r.path.contains("limit=")).count();
    assert_eq!(lists, 1, "the watch goes on");
    server.put("pods", pod(NODE, "evil", "huge", &[]));
    until("small again", || source.followed().pods.len() == 2 && source.faults().is_empty()).await;
}

#[tokio::test]
async fn an_agent_that_starts_without_the_server_has_the_last_pods() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("pods", max("5mbit"));
    let mut source = open(&server, dir.path(), &Kubernetes::default());
    until("list", || has_max(&source, "5mbit")).await;
    source.take_note();
    drop(source);
    server.behave(Manner::Away);
    let source = open(&server, dir.path(), &Kubernetes::default());
    assert!(has_max(&source, "5mbit"), "before any answer");
    until("fault", || source.faults().iter().any(|why| why.starts_with("pods may be out of date: "))).await;
    assert!(has_max(&source, "5mbit") && source.followed().is_settled());
}

#[tokio::test]
async fn the_nodes_status_has_what_is_unreserved_and_keeps_it() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.set_node(json!({ "status": { "capacity": { "cpu": "2" } } }));
    let source = open(&server, dir.path(), &Kubernetes::default());
    source.publish(Resources { egress: Some(80), ingress: Some(40) });
    let both = |egress: &str, ingress: &str| json!({ write::EGRESS: egress, write::INGRESS: ingress });
    until("status", || server.node_status()["allocatable"] == both("80", "40")).await;
    assert_eq!(server.node_status()["capacity"]["cpu"], "2", "others' resources stay");
    source.publish(Resources { egress: Some(90), ingress: Some(40) });
    until("change", || server.node_status()["capacity"][write::EGRESS] == "90").await;
    let patches = || server.requests().iter().filter(|r| r.method == "PATCH").count();
    let before = patches();
    drop(source);
    sleep(Duration::from_millis(200)).await;
    assert_eq!((patches(), &server.node_status()["allocatable"]), (before, &both("90", "40")));
    // A node that is registered again has zeros, which the next look finds.
    server.set_node(json!({ "status": { "capacity": both("0", "0"), "allocatable": both("0", "0") } }));
    let source = open(&server, dir.path(), &Kubernetes::default());
    source.publish(Resources { egress: Some(90), ingress: None });
    until("again", || server.node_status()["allocatable"] == both("90", "0")).await;
}

fn remark(name: &str) -> Remark {
    let (namespace, name, uid) = ("shop".to_owned(), name.to_owned(), format!("u-{name}"));
    Remark { namespace, name, uid, reason: Reason::Ignored, text: "weight x is ignored".into() }
}

#[tokio::test]
async fn an_event_that_cannot_be_written_comes_back_and_is_told() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    let mut source = open(&server, dir.path(), &Kubernetes { publish: false, ..Kubernetes::default() });
    let is_told = |source: &Source| {
        source.faults().iter().any(|why| why.starts_with("events of pods cannot be written"))
    };
    for manner in [Manner::Refusing(503), Manner::Away] {
        server.behave(manner);
        source.event(remark("web")).unwrap();
        let mut back = None;
        until("back", || {
            back = source.unwritten();
            back.is_some()
        })
        .await;
        assert_eq!(back, Some(remark("web")), "{manner:?}");
        until("fault", || is_told(&source)).await;
    }
    server.behave(Manner::Well);
    source.event(remark("web")).unwrap();
    until("event", || server.events().len() == 1).await;
    assert_eq!(server.events()[0]["involvedObject"]["name"], "web");
    until("no fault", || source.faults().is_empty()).await;
    // The namespace is being removed.
    server.behave(Manner::Refusing(404));
    source.event(remark("web")).unwrap();
    sleep(Duration::from_millis(500)).await;
    assert!(source.unwritten().is_none() && !is_told(&source));
    server.behave(Manner::Refusing(500));
    source.event(remark("web")).unwrap();
    until("fault", || is_told(&source)).await;
    source.no_event_waits();
    assert!(!is_told(&source), "nothing is to be written");
    // A burst that the server cannot take is bounded.
    server.behave(Manner::Slow(SOON));
    let refused = (0..1_000).filter(|n| source.event(remark(&n.to_string())).is_err()).count();
    assert!(refused >= 1_000 - MAX_WAITING - 1 && source.events.capacity() == 0, "{refused}");
}

/// The path of the events names the pod's namespace.
#[tokio::test]
async fn requests_need_no_right_beyond_the_documented_ones() {
    let (server, dir) = (ApiServer::start(), tempfile::tempdir().unwrap());
    server.put("namespaces", namespace("shop", &[("weir.dev/weight", "4")]));
    let source = open(&server, dir.path(), &config());
    source.publish(Resources { egress: Some(1), ingress: None });
    source.event(remark("web")).unwrap();
    let asked = |method: &str, begin: &str| {
        server.requests().iter().any(|r| r.method == method && r.path.starts_with(begin))
    };
    let kinds = [
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1&limit="),
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1&watch=1&"),
        ("GET", "/api/v1/namespaces?limit="),
        ("GET", "/api/v1/namespaces?watch=1&"),
        ("GET", "/api/v1/nodes/edge-1"),
        ("PATCH", "/api/v1/nodes/edge-1/status"),
        ("POST", "/api/v1/namespaces/shop/events"),
    ];
    until("all kinds", || kinds.iter().all(|(method, begin)| asked(method, begin))).await;
    let is_known = |r: &weir_testkit::api_server::Request| {
        kinds.iter().any(|(method, begin)| r.method == *method && r.path.starts_with(begin))
    };
    assert!(server.requests().iter().all(is_known), "{:?}", server.requests());
}
