//! The client against sockets that misbehave. The round trips with the real server are tested beside
//! the server.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use weir_api::{BadRemote, Client, ClientError, Remote};
use weir_units::BitRate;

/// A socket in its own temporary directory.
fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    (dir, path)
}

/// Reads one request up to the end of its head.
fn read_head(stream: &mut impl Read) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// An HTTP answer with `body`.
fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// An HTTP answer whose body comes in `pieces`, without its end.
fn chunked(pieces: &[&str]) -> Vec<u8> {
    let mut text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for piece in pieces {
        text.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    text.into_bytes()
}

/// Answers one connection with `answer` unchanged and returns the request's head.
fn answering(answer: Vec<u8>) -> (tempfile::TempDir, Client, thread::JoinHandle<String>) {
    let (dir, path) = socket();
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream);
        stream.write_all(&answer).unwrap();
        head
    });
    (dir, Client::new(path), server)
}

#[test]
fn without_an_agent_the_error_says_how_to_start_one() {
    let (_dir, path) = socket();
    let error = Client::new(&path).status().unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { socket, .. } if *socket == path), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("is `weir agent` running? start it with"), "{text}");
}

#[test]
fn a_socket_left_behind_by_a_dead_agent_counts_as_no_agent() {
    let (_dir, path) = socket();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert!(matches!(Client::new(&path).classes(), Err(ClientError::Unreachable { .. })));
}

#[test]
fn a_socket_without_the_right_to_use_it_names_root_and_the_group() {
    let (dir, path) = socket();
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let error = thread::spawn(move || {
        if nix::unistd::Uid::effective().is_root() {
            // This thread alone loses root's access to files.
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
        } else {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        }
        Client::new(&path).status().unwrap_err()
    });
    let error = error.join().unwrap();
    assert!(matches!(error, ClientError::Permission { .. }), "{error:?}");
    assert!(error.to_string().contains("root or membership of the group weir"), "{error}");
}

#[test]
fn an_agent_that_never_answers_is_given_up_in_time() {
    let (_dir, path) = socket();
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let client = Client::new(&path).with_timeout(Duration::from_millis(200));
    assert!(matches!(client.status(), Err(ClientError::Timeout { .. })));
    assert!(matches!(client.events(true), Err(ClientError::Timeout { .. })));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_refusal_keeps_its_fields() {
    let body =
        r#"{"code":"no-capacity","message":"cannot promise web 40mbit","asked":40000000,"free":25000000}"#;
    let (_dir, client, _server) = answering(answer("409 Conflict", body));
    match client.status() {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.code, "no-capacity");
            assert_eq!(error.asked, Some(BitRate::mbit(40)));
            assert_eq!(error.free, Some(BitRate::mbit(25)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_that_is_not_an_agents_is_shown_not_believed() {
    for answer in [
        answer("200 OK", "hello"),
        answer("200 OK", r#"{"version":"1"}"#),
        answer("502 Bad Gateway", "hello"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"version\":".to_vec(),
        b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(),
        Vec::new(),
    ] {
        let (_dir, client, _server) = answering(answer);
        let error = client.status().unwrap_err();
        assert!(
            matches!(&error, ClientError::Protocol { request, .. } if request == "GET /v1/status"),
            "{error:?}"
        );
    }
}

#[test]
fn a_name_is_one_segment_of_the_path_whatever_it_holds() {
    let (_dir, client, server) = answering(answer("404 Not Found", ""));
    client.explain("docker:a b/../c?d#e%é").unwrap_err();
    let head = server.join().unwrap();
    assert!(
        head.starts_with("GET /v1/classes/docker:a%20b%2F..%2Fc%3Fd%23e%25%C3%A9/explain HTTP/1.1\r\n"),
        "{head}"
    );
}

#[test]
fn events_come_one_a_line_however_the_pieces_are_cut() {
    let mut answer = chunked(&[
        r#"{"seq":1,"time_ms":5,"what":"started","cl"#,
        "ass\":null,\"detail\":\"a\"}\n\n{\"s",
        "eq\":2,\"time_ms\":6,\"what\":\"reloaded\",\"class\":\"web\",\"detail\":\"b\"}",
    ]);
    answer.extend(b"0\r\n\r\n");
    let (_dir, client, _server) = answering(answer);
    let events: Vec<_> = client.events(false).unwrap().map(Result::unwrap).collect();
    assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(events[1].class.as_deref(), Some("web"));
}

#[test]
fn a_stream_that_breaks_off_ends_with_one_error() {
    let whole = "{\"seq\":1,\"time_ms\":5,\"what\":\"started\",\"class\":null,\"detail\":\"\"}\n";
    let (_dir, client, _server) = answering(chunked(&[whole, r#"{"seq":"#]));
    let items: Vec<_> = client.events(true).unwrap().collect();
    assert_eq!(items.len(), 2, "{items:?}");
    assert_eq!(items[0].as_ref().unwrap().seq, 1);
    assert!(matches!(items[1], Err(ClientError::Protocol { .. })));
}

#[test]
fn urls_and_files_that_cannot_be_used_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let token = file("token", "weir_0123\n");
    for (url, why) in [
        ("", "empty"),
        ("node:9798", "does not begin with https://"),
        ("ftp://node", "does not begin with https://"),
        ("https://", "empty string"),
        ("https://node:70000", "port"),
        ("https://node:0", "port"),
        ("https://node:", "port"),
        ("https://[::1]:x", "port"),
        ("https://me@node", "it has a user"),
        ("https://node/v1", "it has a path"),
        ("https://node/?a=b", "it has a path"),
        ("https://node//", "it has a path"),
    ] {
        let error = Remote::new(url, Some(&token), None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, BadRemote::Url { .. }), "{url}: {error:?}");
        assert!(text.starts_with(&format!("`{url}` is no URL of an agent")), "{text}");
        assert!(text.contains(why) && text.contains("write https://HOST:PORT"), "{url}: {text}");
    }
    // A token crosses no network in clear.
    for url in ["http://node:9798", "http://192.0.2.1:9798", "http://[2001:db8::1]:9798"] {
        assert!(matches!(Remote::new(url, Some(&token), None), Err(BadRemote::Clear { .. })), "{url}");
        assert!(Remote::new(url, None, None).is_ok(), "{url}");
    }
    for url in ["http://127.0.0.1:9798", "http://[::1]:9798/", "http://localhost:9798"] {
        assert!(Remote::new(url, Some(&token), None).is_ok(), "{url}");
    }
    for (text, why) in [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("two words", "more than a secret"),
        ("\u{e9}", "more than"),
    ] {
        let error = Remote::new("https://node", Some(&file("bad", text)), None).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("bad"), "{error}");
    }
    for path in [file("no-pem", "hello"), dir.path().join("missing")] {
        let error = Remote::new("https://node", None, Some(&path)).unwrap_err();
        assert!(matches!(error, BadRemote::File { what: "certificates", .. }), "{error:?}");
    }
}

#[test]
fn over_tcp_a_request_has_its_token_and_the_hosts_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "weir_0123\n").unwrap();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let head = read_head(&mut stream);
        stream.write_all(&answer("200 OK", "[]")).unwrap();
        head
    });
    let remote = Remote::new(&format!("http://{at}"), Some(&token), None).unwrap();
    assert!(!format!("{remote:?}").contains("0123"), "the secret is in a text");
    let client = Client::over_tcp(remote);
    assert!(client.classes().unwrap().is_empty());
    let head = server.join().unwrap().to_lowercase();
    assert!(head.contains("authorization: bearer weir_0123\r\n"), "{head}");
    assert!(head.contains(&format!("host: {at}\r\n")), "{head}");
    let error = client.classes().unwrap_err();
    assert!(matches!(&error, ClientError::NoConnection { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("http://{at}: is `[api] listen` set")), "{error}");
}

/// A port with TLS answers a request in clear with an alert.
#[test]
fn answer_of_a_port_with_tls_names_https_as_the_way_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_head(&mut stream);
        stream.write_all(&[0x15, 3, 3, 0, 2, 2, 10]).unwrap();
    });
    let error = Client::over_tcp(Remote::new(&url, None, None).unwrap()).status().unwrap_err().to_string();
    server.join().unwrap();
    assert!(error.ends_with(": if the agent has a certificate, write https:// in the URL"), "{error}");
    let (_dir, client, server) = answering(vec![0x15, 3, 3, 0, 2, 2, 10]);
    let error = client.status().unwrap_err().to_string();
    server.join().unwrap();
    assert!(error.contains("cannot understand") && !error.contains("https"), "{error}");
}

#[test]
fn events_over_tcp_go_on_after_the_agent_ends_a_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let event = |seq: u64, time: u64| {
        format!(r#"{{"seq":{seq},"time_ms":{time},"what":"started","detail":"{time}"}}"#) + "\n"
    };
    let head = |stream: &mut TcpStream| read_head(stream);
    let server = thread::spawn(move || {
        // The second stream tells all again; the third is that of an agent that has started since.
        for lines in [
            vec![event(1, 10), event(2, 20), "{\"seq\":3,".to_owned()],
            vec![event(1, 10), event(2, 20), event(3, 30)],
            vec![event(1, 40)],
        ] {
            let mut stream = listener.accept().unwrap().0;
            head(&mut stream);
            let pieces: Vec<&str> = lines.iter().map(String::as_str).collect();
            stream.write_all(&chunked(&pieces)).unwrap();
        }
    });
    let client = Client::over_tcp(Remote::new(&format!("http://{at}"), None, None).unwrap());
    let mut events = client.events(true).unwrap();
    let told: Vec<String> = events.by_ref().take(4).map(|event| event.unwrap().detail).collect();
    assert_eq!(told, ["10", "20", "30", "40"]);
    server.join().unwrap();
    assert!(matches!(events.next(), Some(Err(ClientError::NoConnection { .. }))));
    assert!(events.next().is_none());
}
