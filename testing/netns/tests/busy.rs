//! The agent answers on each route within two seconds while everything else it does is busy.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use weir_netlab::topology::Spec;
use weir_netns_tests::{Need, Node, can_run, containers, http};

const CLASSES: usize = 200;
const LASTS: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Routes that look at things. `GET /v1/doctor` tries engines out for seconds, on purpose, and is
/// one of those that keep the agent busy.
const ROUTES: [&str; 17] = [
    "/v1/status",
    "/v1/classes",
    "/v1/classes/host",
    "/v1/classes/host/explain",
    "/v1/export",
    "/v1/events",
    "/v1/congestion",
    "/v1/congestion/flows",
    "/v1/congestion/stats",
    "/v1/congestion/explain?to=192.0.2.1",
    "/v1/congestion/advice",
    "/v1/images",
    "/v1/agreements",
    "/v1/agreements/templates",
    "/v1/agreements/status",
    "/v1/agreements/calendar",
    "/metrics",
];

/// The status of the answer to a request, and how long all of it took.
fn ask(socket: &Path, request: &str, body: &str) -> (u16, Duration) {
    let start = Instant::now();
    let json = "content-type: application/json\r\n";
    let (status, _) =
        http(socket, request, json, body.as_bytes()).unwrap_or_else(|e| panic!("{request}: {e}"));
    (status, start.elapsed())
}

#[test]
fn each_route_answers_within_2_s_while_all_else_is_busy() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), wire: None, ..Spec::default() });
    let mut sections =
        "[agreements]\noffers_at_once = 100000\noffers_per_minute = 1000000\nmost_of_party = 100000\n"
            .to_owned();
    for i in 0..CLASSES {
        let _ = writeln!(
            sections,
            "[[class]]\nname = \"class-{i}\"\ninterface = \"veth-{i}\"\nmin = \"100kbit\""
        );
    }
    let config = node.config().sections(&sections);
    node.start(&config);
    let (path, socket) = (node.agent().config_path(), node.socket().to_owned());
    let text = fs::read_to_string(&path).expect("can read");
    let over = AtomicBool::new(false);
    let done: [AtomicU32; 4] = Default::default();
    let mut slowest = ROUTES.map(|route| (Duration::ZERO, route));
    let mut asked = 0;
    let busy = |kind: usize, act: &dyn Fn(u32)| {
        while !over.load(Ordering::Relaxed) {
            act(done[kind].fetch_add(1, Ordering::Relaxed));
        }
    };
    std::thread::scope(|scope| {
        let (busy, socket, text, path, client) = (&busy, &socket, &text, &path, node.client());
        scope.spawn(move || {
            busy(0, &|i| {
                let other = text.replace("min = \"100kbit\"", &format!("min = \"{}kbit\"", 100 + i % 100));
                fs::write(path, other).expect("can write");
                std::thread::sleep(Duration::from_millis(20));
            });
        });
        scope.spawn(move || {
            busy(1, &|i| {
                let offer = format!(
                    "{{\"context\":{{\"initiator\":\"p\"}},\"service\":{{\"term\":\"server_parameters\",\"name\":\"c{i}\"}},\
                     \"terms\":{{\"min\":\"10kbit\",\"max\":\"20kbit\"}}}}"
                );
                let (status, _) = ask(socket, "POST /v1/agreements/offers", &offer);
                // 429: one user may make 100 offers at once, and 12 a second.
                assert!([200, 201, 409, 429].contains(&status), "an offer is answered with {status}");
            });
        });
        scope.spawn(move || {
            busy(2, &|i| {
                let change = format!("{{\"changes\":[{{\"name\":\"class-7\",\"weight\":{}}}]}}", i % 9 + 1);
                assert_eq!(ask(socket, "PATCH /v1/policies", &change).0, 200);
            });
        });
        // It tries engines out, and a caller waits for that as long as it takes.
        scope.spawn(move || {
            busy(3, &|_| drop(client.doctor().expect("the doctor answers")));
        });
        let start = Instant::now();
        while start.elapsed() < LASTS {
            for (slowest, route) in &mut slowest {
                let (status, took) = ask(socket, &format!("GET {route}"), "");
                // There is no image cache.
                assert_eq!(status, if *route == "/v1/images" { 404 } else { 200 }, "{route}");
                *slowest = took.max(*slowest);
                asked += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let done = done.map(AtomicU32::into_inner);
    println!(
        "{asked} answers during {} reloads, {} offers, {} changes, {} self-tests",
        done[0], done[1], done[2], done[3]
    );
    slowest.sort();
    for (took, route) in slowest.iter().rev().take(5) {
        println!("{route:<40} {took:?}");
    }
    let (took, route) = slowest[slowest.len() - 1];
    assert!(took < ANSWERS_WITHIN, "{route} took {took:?}");
}
