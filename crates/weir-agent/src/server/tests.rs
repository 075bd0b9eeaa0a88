use std::{
    io::{Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use weir_api::{ClientError, ErrorCode, Event, PolicyChange, SetPolicies};
use weir_fake_agent::{self as fake, FakeAgent};
use weir_units::BitRate;

use super::{Socket, socket::BindError};
use crate::config::Rights;

/// Sends bytes. Returns the answer until the server closes or is silent.
fn raw(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Sends one request. Returns its status and its body.
fn http(path: &Path, head: &str, body: &str) -> (u16, Value) {
    let request = format!(
        "{head} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw(path, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}")))
}

/// The status and the error's code and message.
fn refused(path: &Path, head: &str, body: &str) -> (u16, String, String) {
    let (status, error) = http(path, head, body);
    let text = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("no {key} in {error}")).to_owned();
    (status, text("code"), text("message"))
}

#[test]
fn every_route_answers_what_the_loop_says() {
    let agent = FakeAgent::start();
    let client = agent.client();
    assert_eq!(client.status().unwrap(), fake::status());
    assert_eq!(client.classes().unwrap(), fake::classes());
    assert_eq!(client.class("web").unwrap(), fake::classes()[0]);
    assert_eq!(client.class("docker:web").unwrap(), fake::classes()[0]);
    assert_eq!(client.explain("video").unwrap(), fake::explanation(fake::classes()[1].clone()));
    assert_eq!(client.doctor().unwrap(), fake::doctor());
    assert_eq!(client.acknowledge().unwrap(), ["2026-11-23T00:00:00Z: the state was damaged"]);
    let set = client
        .set(&SetPolicies {
            changes: vec![PolicyChange {
                name: "web".to_owned(),
                weight: Some(Some(fake::weight(5))),
                min: Some(None),
                ..PolicyChange::default()
            }],
            allow_absent: false,
        })
        .unwrap();
    assert_eq!(set.len(), 1);
    assert_eq!(set[0].policy.weight, fake::weight(5));
    assert_eq!((set[0].policy.min, set[0].policy.max), (None, Some(BitRate::mbit(50))));
    assert_eq!(client.class("web").unwrap(), set[0]);
    assert_eq!(client.unset("web").unwrap().policy.weight, fake::weight(1));
}

#[tokio::test]
async fn process_of_the_cache_alone_names_the_verbs_that_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let access = super::Access::new(Rights::default());
    let serving = tokio::spawn(super::serve_images(listener, crate::images::Images::off(), access));
    let asked = tokio::task::spawn_blocking(move || refused(&path, "GET /v1/status", ""));
    let (status, code, why) = asked.await.unwrap();
    serving.abort();
    assert_eq!((status, &*code), (404, "unknown-route"));
    assert!(why.contains("`weir image serve` serves the image cache alone"), "{why}");
}

#[test]
fn history_answers_pages_and_refuses_queries_it_does_not_know() {
    let agent = FakeAgent::start();
    let query = weir_api::HistoryQuery { name: Some("docker:we&b".to_owned()), ..Default::default() };
    let page = agent.client().history(&query).unwrap();
    assert_eq!((page.records.len(), page.next), (1, Some(8)));
    assert_eq!(page.records[0].by.to_string(), "container docker:web");
    for query in ["after=-1", "since_ms=soon", "until=7", "limit=0", "limit=-1"] {
        let head = format!("GET /v1/history?{query}");
        let (status, code, why) = refused(agent.path(), &head, "");
        assert_eq!((status, code.as_str()), (400, "bad-request"), "{query}: {why}");
    }
}

#[test]
fn a_refusal_keeps_its_code_and_numbers_through_client_and_server() {
    let agent = FakeAgent::start();
    let change =
        |name: &str, min| PolicyChange { name: name.to_owned(), min: Some(Some(min)), ..Default::default() };
    let asked = SetPolicies {
        changes: vec![change("web", BitRate::mbit(30)), change("video", BitRate::mbit(80))],
        allow_absent: false,
    };
    match agent.client().set(&asked) {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.code, "no-capacity");
            assert_eq!((error.asked, error.free), (Some(BitRate::mbit(80)), Some(fake::FREE)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(agent.client().classes().unwrap(), fake::classes(), "half of a refused change was applied");
    for error in [
        agent.client().class("nobody").unwrap_err(),
        agent.client().explain("nobody").unwrap_err(),
        agent.client().unset("nobody").unwrap_err(),
    ] {
        assert!(matches!(&error, ClientError::Refused(e) if e.code == ErrorCode::UnknownName), "{error:?}");
    }
}

#[test]
fn the_status_code_follows_from_the_refusal() {
    let agent = FakeAgent::start();
    let path = agent.path();
    let (status, code, _) = refused(path, "GET /v1/classes/nobody", "");
    assert_eq!((status, code.as_str()), (404, "unknown-name"));
    let (status, code, message) = refused(path, "GET /v1/nothing", "");
    assert_eq!((status, code.as_str()), (404, "unknown-route"));
    assert!(message.contains("/v1/nothing"), "{message}");
    let (status, code, _) = refused(path, "DELETE /v1/status", "");
    assert_eq!((status, code.as_str()), (405, "bad-method"));
    let body = r#"{"changes":[{"name":"web","min":"80mbit"}]}"#;
    let (status, code, _) = refused(path, "PATCH /v1/policies", body);
    assert_eq!((status, code.as_str()), (409, "no-capacity"));
    let (status, code, _) = refused(path, "GET /v1/classes/vanish", "");
    assert_eq!((status, code.as_str()), (503, "stopping"));
}

#[test]
fn a_loop_that_does_not_answer_is_reported_before_the_client_gives_up() {
    let agent = FakeAgent::start();
    let error = agent.client().class("hang").unwrap_err();
    assert!(matches!(&error, ClientError::Refused(e) if e.code == ErrorCode::Busy), "{error:?}");
}

#[test]
fn bad_json_is_refused_with_the_field_named() {
    let agent = FakeAgent::start();
    for (body, told) in [
        (r#"{"changes":[{"name":"web","weight":0}]}"#, "changes[0].weight: cannot use `0` as a weight"),
        (r#"{"changes":[{"name":"a"},{"name":"b","min":-5}]}"#, "changes[1].min: cannot read `-5` as a rate"),
        (r#"{"changes":[{"name":"a","max":"fast"}]}"#, "changes[0].max: cannot read `fast` as a rate"),
        (r#"{"changes":[{"name":"a","max":"99999999gbit"}]}"#, "as a rate: more than 10000gbit"),
        (r#"{"changes":[{"name":"a","max":1e400}]}"#, "number out of range"),
        (r#"{"changes":[{"name":"a","max":true}]}"#, "changes[0].max: invalid type: boolean `true`"),
        (r#"{"changes":[{"name":"a","wieght":3}]}"#, "unknown field `wieght`"),
        (r#"{"changes":[{"weight":3}]}"#, "changes[0]: missing field `name`"),
        (r#"{"changes":[{"name":"a","min":1,"min":2}]}"#, "changes[0]: duplicate field `min`"),
        (
            r#"{"changes":[{"name":"a","weight":1e99}]}"#,
            "changes[0].weight: cannot use `1e99` as a weight: write",
        ),
        (r#"{"changes":[{"name":"a","weight":true}]}"#, "expected a whole number from 1 to 1000000"),
        (
            r#"{"changes":[],"allow_absent":1}"#,
            "allow_absent: invalid type: integer `1`, expected true or false",
        ),
        (r#"{"changes":{}}"#, "changes: invalid type: table, expected a list"),
        (r#"{"changes":[]} and more"#, "trailing characters"),
        ("{}", "missing field `changes`"),
        ("hello", "expected value at line 1 column 1"),
        ("", "EOF"),
        ("[[[[", "cannot read the request"),
    ] {
        let (status, code, message) = refused(agent.path(), "PATCH /v1/policies", body);
        assert_eq!((status, code.as_str()), (400, "bad-request"), "{body}: {message}");
        assert!(
            message.starts_with("cannot read the request: ") && message.contains(told),
            "{body}: {message}"
        );
    }
    assert_eq!(agent.client().classes().unwrap(), fake::classes());
}

#[test]
fn a_body_without_end_is_refused_at_the_limit() {
    let agent = FakeAgent::start();
    let body = format!(r#"{{"changes":[{{"name":"{}"}}]}}"#, "a".repeat(super::body::MAX_BODY));
    let (status, code, message) = refused(agent.path(), "PATCH /v1/policies", &body);
    assert_eq!((status, code.as_str()), (413, "too-large"), "{message}");
}

#[test]
fn a_query_and_a_name_that_make_no_sense_are_refused_in_json() {
    let agent = FakeAgent::start();
    for head in [
        "GET /v1/events?follow=perhaps",
        "GET /v1/events?fellow=true",
        "GET /v1/classes/%ff",
        "GET /v1/images/warm/first",
        "GET /v1/agreements/a-1/report?month=2026-11&month=2026-12",
    ] {
        let (status, code, message) = refused(agent.path(), head, "");
        assert_eq!((status, code.as_str()), (400, "bad-request"), "{head}: {message}");
    }
}

#[test]
fn a_list_in_place_of_an_object_is_refused() {
    let agent = FakeAgent::start();
    for body in ["[null, null]", " \n[]"] {
        for head in ["PATCH /v1/link", "POST /v1/plan/link", "PATCH /v1/policies"] {
            let (status, code, message) = refused(agent.path(), head, body);
            assert_eq!((status, code.as_str()), (400, "bad-request"), "{head}: {message}");
            assert!(message.contains("a list, and an object is wanted"), "{head}: {message}");
        }
    }
}

#[test]
fn garbage_does_not_harm_the_server() {
    let agent = FakeAgent::start();
    for garbage in
        [&b"\0\0\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", &[b'x'; 100_000]]
    {
        let mut stream = UnixStream::connect(agent.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    let names = ["", "/", "..", "a/b", "\n", "%", "🦆", &"n".repeat(20_000)];
    for name in names {
        assert!(agent.client().class(name).is_err(), "{name}");
    }
    assert_eq!(agent.client().status().unwrap(), fake::status());
}

fn seqs(events: &[Event]) -> Vec<u64> {
    events.iter().map(|e| e.seq).collect()
}

#[test]
fn events_are_those_kept_and_with_follow_those_to_come() {
    let agent = FakeAgent::start();
    let kept: Vec<Event> = agent.client().events(false).unwrap().map(Result::unwrap).collect();
    assert_eq!(kept, [fake::event(1, "started"), fake::event(2, "class-added")]);
    let mut follow = agent.client().events(true).unwrap();
    let mut seen: Vec<Event> = follow.by_ref().take(2).map(Result::unwrap).collect();
    // The reader has the second event already, as one of the kept events.
    for seq in [2, 3, 4] {
        agent.events.send(fake::event(seq, "policy-changed")).unwrap();
    }
    seen.extend(follow.by_ref().take(2).map(Result::unwrap));
    assert_eq!(seqs(&seen), [1, 2, 3, 4]);
}

#[test]
fn a_reader_that_is_too_slow_learns_how_many_events_it_lost() {
    let agent = FakeAgent::start();
    let mut follow = agent.client().events(true).unwrap();
    assert_eq!(follow.by_ref().take(2).count(), 2);
    // The events are large. They fill the socket's buffer and then the channel's four places.
    let mut sent = 3..2_000;
    for seq in sent.by_ref() {
        let event = Event { detail: "x".repeat(10_000), ..fake::event(seq, "policy-changed") };
        agent.events.send(event).unwrap();
    }
    let mut last = 2;
    let mut lost = 0;
    while last < 1_999 {
        let event = follow.next().unwrap().unwrap();
        if event.what == "lost" {
            lost += event.seq - last;
        } else {
            assert_eq!(event.seq, last + 1);
        }
        last = event.seq;
    }
    assert!(lost > 0, "nothing was lost, so nothing was tested");
}

#[test]
fn a_stream_ends_when_the_agent_does() {
    let agent = FakeAgent::start();
    let mut follow = agent.client().events(true).unwrap();
    assert_eq!(follow.by_ref().take(2).count(), 2);
    drop(agent);
    let rest: Vec<_> = follow.collect();
    assert!(rest.iter().all(Result::is_err) && rest.len() <= 1, "{rest:?}");
}

#[test]
fn events_come_as_server_sent_events_to_who_asks_for_them() {
    let agent = FakeAgent::start();
    let answer = raw(
        agent.path(),
        b"GET /v1/events HTTP/1.1\r\nhost: weir\r\nconnection: close\r\naccept: text/event-stream\r\n\r\n",
    );
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    let data: Vec<Event> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!(seqs(&data), [1, 2]);
    assert!(answer.contains("id: 2\n"), "{answer}");
    let (_, body) = http(agent.path(), "GET /v1/status", "");
    assert_eq!(body, json!(fake::status()));
}

#[test]
fn the_socket_is_for_root_and_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/on/demand/weir.sock");
    let _socket = Socket::bind(&path, &Rights::default()).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    match nix::unistd::Group::from_name("weir").unwrap() {
        Some(group) => assert_eq!(path.metadata().unwrap().gid(), group.gid.as_raw()),
        None => assert_eq!(path.metadata().unwrap().gid(), nix::unistd::Gid::effective().as_raw()),
    }
}

#[test]
fn a_live_socket_is_never_taken_and_a_dead_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    let first = Socket::bind(&path, &Rights::default()).unwrap();
    assert!(matches!(Socket::bind(&path, &Rights::default()), Err(BindError::InUse(p)) if p == path));
    drop(first);
    assert!(!path.exists());
    // A dead socket, as after `kill -9`.
    drop(UnixListener::bind(&path).unwrap());
    drop(Socket::bind(&path, &Rights::default()).unwrap());
    // A live socket of a program that does not use the lock.
    let stranger = UnixListener::bind(&path).unwrap();
    assert!(matches!(Socket::bind(&path, &Rights::default()), Err(BindError::InUse(_))));
    assert!(path.exists());
    drop(stranger);
}

#[test]
fn a_file_in_the_way_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::bind(&path, &Rights::default()), Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_path_that_cannot_be_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.join("weir.sock"), dir.path().join("long".repeat(40))] {
        let error = Socket::bind(&path, &Rights::default()).unwrap_err();
        assert!(matches!(&error, BindError::Io { .. }), "{error:?}");
        assert!(error.to_string().starts_with("cannot "), "{error}");
    }
}

#[test]
fn a_socket_whose_name_has_gone_to_another_leaves_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    let ours = Socket::bind(&path, &Rights::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _theirs = UnixListener::bind(&path).unwrap();
    drop(ours);
    assert!(path.exists());
}

#[tokio::test]
async fn removed_socket_is_put_back_and_a_file_in_its_place_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/weir.sock");
    let mut socket = Socket::bind(&path, &Rights::default()).unwrap();
    assert!(socket.is_in_place());
    for remove in [
        |path: &Path| std::fs::remove_file(path),
        |path: &Path| std::fs::remove_dir_all(path.parent().unwrap()),
    ] {
        remove(&path).unwrap();
        assert!(!socket.is_in_place());
        super::admit(&path, &Rights::default()).unwrap();
        drop(socket.rebind(&Rights::default()).unwrap());
        assert!(socket.is_in_place() && UnixStream::connect(&path).is_ok());
        // The lock is held beside the new socket too.
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Socket::bind(&path, &Rights::default()), Err(BindError::InUse(_))));
    }
    std::fs::write(&path, "precious").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    let before = mode(&path);
    super::admit(&path, &Rights::default()).unwrap();
    assert!(matches!(socket.rebind(&Rights::default()), Err(BindError::NotASocket(_))));
    assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("precious", before));
    drop(socket);
    assert!(path.exists());
}

#[test]
fn socket_whose_process_takes_no_connections_counts_as_in_use_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("busy.sock");
    assert!(!super::is_listened(&path), "it is not there");
    let busy = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // A backlog of 0 holds one connection.
    nix::sys::socket::listen(&busy, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert!(super::is_listened(&path));
    }
    assert!(matches!(Socket::bind(&path, &Rights::default()), Err(BindError::InUse(_))));
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(busy);
    assert!(!super::is_listened(&path));
}
