//! The socket that the verbs ask, removals, and the unit of the cache.

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::ExitCode,
    thread,
};

use serde_json::{Value, json};

use super::super::tests::{Outcome, weir};

#[test]
fn socket_of_the_unit_is_asked_if_it_is_there_and_no_other_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (unit, usual) = (dir.path().join("weir.sock"), Path::new(weir_api::DEFAULT_SOCKET));
    assert_eq!(super::socket_to_ask(usual, &unit), usual);
    std::fs::write(&unit, "").unwrap();
    assert_eq!(super::socket_to_ask(usual, &unit), unit);
    let named = Path::new("/run/other.sock");
    assert_eq!(super::socket_to_ask(named, &unit), named);
}

/// The unit runs parsers on the answers of possibly hostile registries.
#[test]
fn unit_of_the_cache_is_exposed_by_two_points_at_most() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/weir-images.service");
    let asked =
        std::process::Command::new("systemd-analyze").args(["security", "--offline=yes", unit]).output();
    let Ok(told) = asked else {
        println!("SKIPPED: there is no systemd-analyze");
        return;
    };
    let text = String::from_utf8(told.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("Overall exposure level"));
    let exposure = line.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
    assert!(
        exposure.is_some_and(|exposure| exposure <= 2.0),
        "{line:?} {}",
        String::from_utf8_lossy(&told.stderr)
    );
}

/// Answers requests for removals. Each removal frees 5 bytes, and there is no `gone:1`.
fn serve_removals(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let answer = move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            while !request.ends_with(b"}") {
                let mut part = [0; 1024];
                let count = stream.read(&mut part).unwrap();
                assert_ne!(count, 0, "the request ends early");
                request.extend(&part[..count]);
            }
            let (status, body) = match String::from_utf8(request).unwrap().contains("gone:1") {
                true => ("404 Not Found", r#"{"code":"unknown-name","message":"there is no image gone:1"}"#),
                false => ("200 OK", r#"{"freed":5}"#),
            };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
            write!(stream, "{head}\r\n\r\n{body}").unwrap();
        }
    };
    thread::spawn(answer);
}

/// The list has the images that were removed before a failure.
#[test]
fn removal_of_several_images_prints_one_list_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("weir.sock");
    serve_removals(&socket);
    let remove = |words: &[&str]| {
        let verb = ["--socket", socket.to_str().unwrap(), "image", "rm", "--force"];
        weir(&[&verb, words].concat())
    };
    let freed = |image: &str| json!({ "image": image, "freed": 5 });
    assert_eq!(remove(&["--json", "a:1"]).json::<Value>(), json!([freed("a:1")]));
    assert_eq!(remove(&["--json", "a:1", "b:1"]).json::<Value>(), json!([freed("a:1"), freed("b:1")]));
    let Outcome { code, out, err } = remove(&["--json", "a:1", "gone:1", "b:1"]);
    assert_eq!((code, serde_json::from_str(&out).ok()), (ExitCode::FAILURE, Some(json!([freed("a:1")]))));
    assert!(err.contains("there is no image gone:1"), "{err}");
    assert_eq!(remove(&["a:1", "b:1"]).good(), "a:1 is removed: 5B freed\nb:1 is removed: 5B freed\n");
}

/// A fault at boot, such as a port that is still taken, may last longer than systemd's own limit of starts.
#[test]
fn units_start_again_however_often_they_fail_but_not_with_a_wrong_file() {
    for name in ["weir.service", "weir-images.service"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
        let unit = std::fs::read_to_string(path).unwrap();
        let section = |head: &str| -> Vec<String> {
            let lines = unit.lines().skip_while(|line| *line != head).skip(1);
            lines.take_while(|line| !line.starts_with('[')).map(str::to_owned).collect()
        };
        // 2 is the code of a wrong file.
        let settings = [
            ("[Unit]", "StartLimitIntervalSec=0"),
            ("[Service]", "Restart=always"),
            ("[Service]", "RestartPreventExitStatus=2"),
        ];
        for (head, setting) in settings {
            assert!(section(head).iter().any(|line| line == setting), "{name} has no {setting} in {head}");
        }
    }
}
