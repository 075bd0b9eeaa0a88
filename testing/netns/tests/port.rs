//! Strangers at the agent's TCP port, in clear and over TLS: random bytes, requests a byte at a time, and silence.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};
use weir_netlab::topology::Family;
use weir_netns_tests::{
    Need, SECONDS,
    attack::{End, ROOT_ANSWERED_WITHIN, ask_as_root, most_descriptors, target, unmoved},
    can_run, check,
};

/// The agent takes 64 connections, and has descriptors of its own.
const MAX_OPEN: usize = 192;
/// The connections at a time, of all kinds together.
const CONNECTIONS: usize = 1000;
/// The threads of each kind.
const THREADS: usize = 10;
/// The random bytes of one connection.
const RANDOM: usize = 4000;
const CERTIFICATE: [&str; 2] = ["own_root.pem", "own_root.key"];
const PAIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/weir-agent/src/server/testdata");

/// A stranger's way to use a connection.
#[derive(Debug, Clone, Copy)]
enum Stranger {
    Random,
    Slow,
    Silent,
}

/// Connections that were made, and bytes that were sent.
#[derive(Debug, Default)]
struct Sent {
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// A connection from the n-th address of loopback, as one address may have few.
fn connect(n: usize, to: SocketAddr) -> Option<TcpStream> {
    let SocketAddr::V4(to) = to else { panic!("{to} is of IPv4") };
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let from = SockaddrIn::new(127, 1, (n / 200) as u8, (n % 200) as u8 + 1, 0);
    socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &from).ok()?;
    socket::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrIn::from(to)).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_millis(50))).ok()?;
    stream.set_write_timeout(Some(Duration::from_millis(50))).ok()?;
    Some(stream)
}

/// Connects as `count` strangers, uses the connections and lets them go, until the end.
fn attack(stranger: Stranger, first: usize, count: usize, to: SocketAddr, sent: &Sent, over: &AtomicBool) {
    let mut random = File::open("/dev/urandom").expect("it is there");
    let head = b"GET /metrics HTTP/1.1\r\nhost: weir\r\nx-slow: ";
    while !over.load(Ordering::Relaxed) {
        let mut held: Vec<_> = (first..first + count).filter_map(|n| connect(n, to)).collect();
        sent.connections.fetch_add(held.len() as u64, Ordering::Relaxed);
        let begin = Instant::now();
        for round in 0_u32.. {
            if held.is_empty() || begin.elapsed() > Duration::from_secs(2) || over.load(Ordering::Relaxed) {
                break;
            }
            held.retain_mut(|stream| {
                let mut bytes = vec![b'x'];
                match stranger {
                    Stranger::Random => {
                        bytes.resize(RANDOM, 0);
                        random.read_exact(&mut bytes).expect("it has bytes");
                    }
                    Stranger::Slow if round == 0 => bytes = head.to_vec(),
                    Stranger::Slow => {}
                    Stranger::Silent => return true,
                }
                let is_taken = stream.write_all(&bytes).is_ok();
                sent.bytes.fetch_add(if is_taken { bytes.len() as u64 } else { 0 }, Ordering::Relaxed);
                // Random bytes are no request, so the agent ends that connection.
                is_taken && !matches!(stranger, Stranger::Random)
            });
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The agent's section of the port. Over TLS, its certificate is in the directory.
fn api(port: SocketAddr, tls: Option<&Path>) -> String {
    let Some(dir) = tls else { return format!("[api]\nlisten = \"{port}\"\n") };
    let [certificate, key] = CERTIFICATE.map(|name| {
        let path = dir.join(name);
        fs::copy(Path::new(PAIRS).join(name), &path).expect("can copy");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("can change");
        path.display().to_string()
    });
    format!("[api]\nlisten = \"{port}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
}

#[test]
fn port_under_attack_leaves_shares_ticks_memory_and_root_alone() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("prlimit")]) {
        return;
    }
    let (mut node, division, limit) = target();
    let dir = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let port = SocketAddr::from(([127, 0, 0, 1], 9798));
    for tls in [None, Some(dir.path())] {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let config = node.config().division(&node, &division).behind(&limit).sections(&api(port, tls));
        node.start(&config);
        let secret = node.weir(&["token", "add", scheme, "--scope", "read", "--json"]);
        let secret: serde_json::Value = serde_json::from_str(&secret).expect("it is JSON");
        let file = dir.path().join(scheme);
        fs::write(&file, secret["secret"].as_str().expect("it has one")).expect("can write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("can change");
        let url = format!("{scheme}://{port}");
        let (token, ca) = (file.display().to_string(), dir.path().join(CERTIFICATE[0]).display().to_string());
        let mut asked = vec!["--url", &url, "--token-file", &token];
        if tls.is_some() {
            asked.extend(["--ca-file", &ca]);
        }
        asked.push("ps");
        let ran = node.ran(&asked);
        assert_eq!(ran.code, Some(0), "{scheme} before the attack: {}", ran.stderr);

        let pid = node.agent().id();
        let (over, sent) = (AtomicBool::new(false), Sent::default());
        thread::scope(|scope| {
            let (node, over, sent) = (&node, &over, &sent);
            let end = End(over);
            let strangers = scope.spawn(move || {
                let all = || {
                    thread::scope(|scope| {
                        let each = CONNECTIONS / 3 / THREADS + 1;
                        for (i, kind) in
                            [Stranger::Random, Stranger::Slow, Stranger::Silent].into_iter().enumerate()
                        {
                            for n in 0..THREADS {
                                scope.spawn(move || {
                                    attack(kind, (i * THREADS + n) * each, each, port, sent, over)
                                });
                            }
                        }
                    });
                };
                node.topology.node().within(all).expect("the namespace is here");
            });
            let root = scope.spawn(move || ask_as_root(node, over));
            let open = scope.spawn(move || most_descriptors(pid, over));
            thread::sleep(Duration::from_secs(1));
            check(node, &format!("attack at the port ({scheme})"), &division, Family::default(), SECONDS);
            drop(end);
            let (slowest, answers) = root.join().expect("root is answered");
            strangers.join().expect("the attack lasts");
            let open = open.join().expect("the agent lasts");
            println!("{scheme}: {open} descriptors at most");
            assert!(open <= MAX_OPEN, "{open} descriptors");
            assert!(answers >= 5 && slowest < ROOT_ANSWERED_WITHIN, "{answers} answers, slowest {slowest:?}");
        });
        let [connections, bytes] =
            [&sent.connections, &sent.bytes].map(|count| count.load(Ordering::Relaxed));
        println!("{scheme}: {connections} connections, {bytes} bytes");
        assert!(
            connections >= CONNECTIONS as u64 && bytes >= 1_000_000,
            "{connections} connections, {bytes} bytes"
        );
        let begin = Instant::now();
        let ran = node.ran(&asked);
        let took = begin.elapsed();
        assert_eq!(ran.code, Some(0), "{scheme} after the attack: {}", ran.stderr);
        assert!(took < ROOT_ANSWERED_WITHIN, "the answer after the attack took {took:?}");
        unmoved(&mut node, pid);
        assert!(node.agent().stop(), "the agent ends");
    }
}
