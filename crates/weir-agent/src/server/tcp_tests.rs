//! The part of the API that is open over TCP.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use weir_api::{Ready, Status};
use weir_fake_agent as fake;

use super::{
    Stream,
    access::ROUTES,
    tcp::{MAX_HEAD, MAX_OF_ADDRESS, OPEN, Port},
};
use crate::{
    config::Place,
    control::{AgreementsRequest, CongestionRequest, Figures, Request},
    images::Images,
    tokens::Tokens,
};

/// A port on loopback that was free just before.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn place(listen: SocketAddr) -> Option<Place> {
    Some(Place { listen, pem: None })
}

/// Answers the requests that metrics and health need.
async fn answer(mut requests: mpsc::Receiver<Request>, status: Status) {
    while let Some(request) = requests.recv().await {
        match request {
            Request::Status(reply) => drop(reply.send(status.clone())),
            Request::Classes(reply) => drop(reply.send(fake::classes())),
            Request::QueueTimes(reply) => drop(reply.send(Vec::new())),
            Request::Agreements(AgreementsRequest::Figures(_, reply)) => {
                drop(reply.send(Ok(Figures::default())))
            }
            Request::Congestion(CongestionRequest::View(reply)) => drop(reply.send(fake::congestion_view())),
            Request::Congestion(CongestionRequest::Stats(reply)) => drop(reply.send(Default::default())),
            Request::Congestion(CongestionRequest::Advice(reply)) => drop(reply.send(Vec::new())),
            request => panic!("a caller over TCP asked for {request:?}"),
        }
    }
}

/// Serves on a thread of its own until the test ends.
fn serve(port: Port, status: Status) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (control, requests) = mpsc::channel(8);
            let stream = Stream::new(control.clone());
            tokio::join!(port.serve(control, Images::off(), stream), answer(requests, status));
        });
    });
}

/// Serves at an address of its own.
fn started(status: Status) -> SocketAddr {
    let address = free();
    serve(Port::new(place(address), Tokens::default()), status);
    connect(address);
    address
}

/// A connection, as soon as the port is open.
fn connect(address: SocketAddr) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                return stream;
            }
            Err(e) => assert!(Instant::now() < end, "{address}: {e}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The status and the whole answer.
fn ask(address: SocketAddr, request: &str, headers: &str) -> (u16, String) {
    let mut stream = connect(address);
    let text = format!("{request} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n{headers}\r\n");
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer)
}

#[test]
fn metrics_come_in_the_format_that_the_scraper_prefers() {
    let address = started(fake::status());
    let (status, text) = ask(address, "GET /metrics", "");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
    assert!(text.contains("# TYPE weir_class_sent_bytes_total counter\n") && !text.contains("# EOF"));
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (status, open) = ask(address, "GET /metrics", accept);
    assert_eq!(status, 200, "{open}");
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(open.contains(kind) && open.ends_with("# EOF\n"), "{open}");
    assert!(open.contains("# TYPE weir_class_sent_bytes counter\n"), "{open}");
}

#[test]
fn readiness_tells_the_reasons_and_health_does_not_need_them() {
    let (status, text) = ask(started(fake::status()), "GET /readyz", "");
    let ready: Ready = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((status, ready), (503, Ready { ready: false, reasons: fake::status().not_ready }));
    let address = started(Status { not_ready: Vec::new(), ..fake::status() });
    let (status, text) = ask(address, "GET /readyz", "");
    assert!(status == 200 && text.ends_with("{\"ready\":true,\"reasons\":[]}"), "{text}");
    let (status, text) = ask(address, "GET /healthz", "");
    assert!(status == 200 && text.ends_with("{\"healthy\":true,\"uptime_s\":11532}"), "{text}");
}

#[test]
fn all_other_routes_and_methods_answer_no_one_over_tcp() {
    let address = started(fake::status());
    let open = OPEN;
    let mut refused = 0;
    for (_, path, _) in ROUTES.iter().filter(|(_, path, _)| !open.contains(path)) {
        for method in ["GET", "POST", "PATCH", "DELETE"] {
            let path = path.replace("{name}", "web").replace("{id}", "7");
            let (status, text) = ask(address, &format!("{method} {path}"), "");
            assert!(status == 404 && text.contains("unknown-route"), "{method} {path}: {text}");
            refused += 1;
        }
    }
    assert!(refused >= 160, "{refused}");
    for path in open {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let (status, text) = ask(address, &format!("{method} {path}"), "");
            assert!(status == 405 && text.contains("bad-method"), "{method} {path}: {text}");
        }
    }
}

#[test]
fn connections_heads_and_bodies_over_tcp_have_bounds() {
    let address = started(fake::status());
    let (status, text) = ask(address, "GET /metrics", &format!("x: {}\r\n", "x".repeat(2 * MAX_HEAD)));
    assert_eq!(status, 431, "{text}");
    // A body is not read.
    let (status, _) = ask(address, "GET /healthz", "content-length: 99999999999\r\n");
    assert_eq!(status, 200);
    // Ended connections free their places, and so these are new.
    let silent: Vec<TcpStream> = (0..MAX_OF_ADDRESS).map(|_| connect(address)).collect();
    let end = Instant::now() + Duration::from_secs(5);
    while !ask(address, "GET /healthz", "").1.contains("127.0.0.1 has 16 of 16 open") {
        assert!(Instant::now() < end, "an address has more than its places");
    }
    // A silent connection ends after the time limit of a head.
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = (&silent[0]).read_to_end(&mut rest);
    assert!((5..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[test]
fn port_follows_the_configuration_and_a_taken_one_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = Port::new(None, Tokens::default());
    serve(port.clone(), fake::status());
    let (first, second) = (free(), free());
    port.set(place(first));
    let mut old = connect(first);
    port.set(place(second));
    assert_eq!(ask(second, "GET /healthz", "").0, 200);
    // The old port is closed, and so are its connections.
    assert!(TcpStream::connect(first).is_err());
    assert!(matches!(old.read(&mut [0; 8]), Ok(0) | Err(_)));
    port.set(place(taken.local_addr().unwrap()));
    let end = Instant::now() + Duration::from_secs(5);
    while port.failure().is_none() {
        assert!(Instant::now() < end, "a port that is taken was not told");
        thread::sleep(Duration::from_millis(10));
    }
    let why = port.failure().unwrap();
    assert!(why.starts_with("cannot listen on 127.0.0.1:") && why.contains("in use"), "{why}");
    port.set(None);
    while port.failure().is_some() {
        assert!(Instant::now() < end, "a port that is not wanted is still told");
        thread::sleep(Duration::from_millis(10));
    }
}
