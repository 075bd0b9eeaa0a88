//! The stream of the status and all classes.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_api::{PolicyChange, SetPolicies};
use weir_fake_agent::{self as fake, FakeAgent};

use super::stream::{MAX_READERS, difference, drop_nulls};

/// A reader of the stream at the socket.
struct Reader(BufReader<UnixStream>);

impl Reader {
    /// The answer's status and the reader behind its head.
    fn open(path: &Path) -> (String, Reader) {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: weir\r\n\r\n").unwrap();
        let mut reader = Reader(BufReader::new(stream));
        let status = reader.line();
        while reader.line() != "" {}
        (status, reader)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The kind and the text of the next message.
    fn next(&mut self) -> (String, Value) {
        loop {
            if let Some(kind) = self.line().strip_prefix("event: ") {
                let data = self.line();
                return (
                    kind.to_owned(),
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
                );
            }
        }
    }
}

/// A document after a JSON Merge Patch, as RFC 7396 defines it.
fn patched(target: Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut map = if let Value::Object(map) = target { map } else { Default::default() };
    for (key, value) in changes {
        if value.is_null() {
            map.remove(key);
        } else {
            let old = map.remove(key).unwrap_or(Value::Null);
            map.insert(key.clone(), patched(old, value));
        }
    }
    map.into()
}

#[test]
fn stream_has_the_whole_and_then_differences_that_lead_to_the_present() {
    let agent = FakeAgent::start();
    let (status, mut reader) = Reader::open(agent.path());
    assert_eq!(status, "HTTP/1.1 200 OK");
    let (kind, mut seen) = reader.next();
    assert_eq!((kind.as_str(), &seen["status"]["link"]), ("whole", &json!("eth0")));
    assert_eq!(seen["classes"].as_object().unwrap().len(), fake::classes().len());
    let (kind, patch) = reader.next();
    assert!(kind == "patch" && patch.get("classes").is_none(), "{patch}");
    let change = PolicyChange {
        name: "web".to_owned(),
        weight: Some(Some(fake::weight(7))),
        min: Some(None),
        ..PolicyChange::default()
    };
    let set = SetPolicies { changes: vec![change], allow_absent: false };
    let class = agent.client().set(&set).unwrap().remove(0);
    for _ in 0..2 {
        seen = patched(seen, &reader.next().1);
    }
    let mut wanted = serde_json::to_value(&class).unwrap();
    drop_nulls(&mut wanted);
    assert_eq!(seen["classes"]["docker:web"], wanted);
    assert!(seen["classes"]["docker:web"]["policy"].get("min").is_none());
}

#[test]
fn readers_have_a_bound_and_one_that_leaves_frees_its_place() {
    let agent = FakeAgent::start();
    let mut readers: Vec<Reader> = (0..MAX_READERS).map(|_| Reader::open(agent.path()).1).collect();
    let (status, mut refused) = Reader::open(agent.path());
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    let mut text = [0; 160];
    refused.0.read_exact(&mut text[..60]).unwrap();
    assert!(String::from_utf8_lossy(&text).contains("busy"), "{}", String::from_utf8_lossy(&text));
    // All others still read.
    assert!(readers.iter_mut().all(|reader| reader.next().0 == "whole"));
    drop(readers.pop());
    let end = Instant::now() + Duration::from_secs(10);
    while Reader::open(agent.path()).0 != "HTTP/1.1 200 OK" {
        assert!(Instant::now() < end, "a reader that left keeps its place");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_page_of_another_site_gets_nothing_at_the_socket() {
    let agent = FakeAgent::start();
    for (headers, wanted) in [
        ("host: localhost:8080\r\norigin: https://evil.example", "403"),
        ("host: evil.example:8080", "403"),
        ("host: localhost:8080\r\norigin: http://localhost:8080", "200"),
    ] {
        let mut stream = UnixStream::connect(agent.path()).unwrap();
        let request = format!("GET /v1/classes HTTP/1.1\r\nconnection: close\r\n{headers}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(wanted), "{headers}: {answer}");
    }
}

#[test]
fn a_difference_leads_from_one_document_to_the_next() {
    let documents = [
        json!({}),
        json!({ "a": 1, "b": { "c": [1, 2], "d": { "e": true } } }),
        json!({ "a": 1, "b": { "c": [1], "d": "x" } }),
        json!({ "b": { "d": { "e": false, "f": 0 } }, "g": {} }),
        json!({ "b": 2 }),
    ];
    for before in &documents {
        for after in &documents {
            let patch = difference(before, after);
            assert_eq!(&patched(before.clone(), &patch), after, "{before} {patch}");
            assert_eq!(patch == json!({}), before == after, "{before} {after} {patch}");
        }
    }
}
