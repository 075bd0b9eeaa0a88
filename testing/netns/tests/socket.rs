//! Local users at the agent's socket: the rights of each, and floods of connections, bodies and names.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_netlab::topology::{Family, Spec};
use weir_netns_tests::{
    Need, Node, SECONDS, as_user,
    attack::{End, ROOT_ANSWERED_WITHIN, ask_as_root, target, unmoved},
    can_run, check, containers, http,
};

const READER: u32 = 4001;
const OWNER: u32 = 4002;
const OTHER_OWNER: u32 = 4003;
const OPERATOR: u32 = 4004;
const ADMIN: u32 = 4005;
/// A user whose second group has the right `read`.
const MEMBER: u32 = 4006;
const STRANGER: u32 = 4007;
const GROUP: u32 = 4100;

/// The socket of a node, in a directory that other users may enter.
fn open_socket(node: &Node) -> PathBuf {
    let socket = node.socket().to_owned();
    let dir = socket.parent().expect("it is in a directory");
    fs::set_permissions(dir, PermissionsExt::from_mode(0o711)).expect("the directory is ours");
    socket
}

/// The status and the text of an answer to this user.
fn ask(socket: &Path, uid: u32, request: &str, body: &str) -> (u16, String) {
    let groups = if uid == MEMBER { vec![uid, GROUP] } else { vec![uid] };
    as_user(uid, &groups, || http(socket, request, "accept: application/json\r\n", body.as_bytes()))
        .unwrap_or_else(|e| panic!("{request} by {uid}: {e}"))
}

#[test]
fn user_does_what_its_right_allows_and_nothing_else() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let access = format!(
        "[agreements]\n[access]\nread = [\"{READER}\", \"@{GROUP}\"]\nown = [\"{OWNER}\", \"{OTHER_OWNER}\"]\n\
         operate = [\"{OPERATOR}\"]\nadmin = [\"{ADMIN}\"]\n"
    );
    let config = node.config().sections(&access);
    node.start(&config);
    let socket = open_socket(&node);
    // Each user offers for a container of its own, which is not here yet.
    let offer = "{\"context\":{\"initiator\":\"acme\"},\"service\":{\"term\":\"t\",\"name\":\"OWN\"},\
                 \"terms\":{\"min\":1000000,\"max\":2000000}}";
    let change = "{\"changes\":[{\"name\":\"host\",\"weight\":3}]}";
    let users = [STRANGER, READER, MEMBER, OWNER, OPERATOR, ADMIN, 0];
    // Each request, and the first of these users that may make it.
    for (request, body, first) in [
        ("GET /v1/status", "", 1),
        ("GET /v1/events", "", 1),
        ("GET /metrics", "", 1),
        ("POST /v1/agreements", offer, 3),
        ("PATCH /v1/policies", change, 4),
        ("DELETE /v1/notices", "", 5),
    ] {
        for (place, uid) in users.into_iter().enumerate() {
            let body = body.replace("OWN", &format!("of-{uid}"));
            let (status, text) = ask(&socket, uid, request, &body);
            if place >= first {
                assert!(matches!(status, 200 | 201), "{request} by {uid}: {text}");
            } else {
                assert_eq!(status, 403, "{request} by {uid}: {text}");
                assert!(text.contains(&format!("user {uid} has ")), "{text}");
            }
        }
    }
    // The agreements made above are those of OWNER, OPERATOR, ADMIN and root, in this order.
    for (uid, id, expected) in [
        (READER, "a-1", 403),
        (OTHER_OWNER, "a-1", 403),
        (OPERATOR, "a-1", 403),
        (OWNER, "a-2", 403),
        (OWNER, "a-1", 200),
        (ADMIN, "a-2", 200),
        (0, "a-3", 200),
    ] {
        let (status, text) = ask(&socket, uid, &format!("DELETE /v1/agreements/{id}"), "");
        assert_eq!(status, expected, "{id} by {uid}: {text}");
    }
}

#[test]
fn removed_socket_is_put_back_with_its_rights_and_reloads_go_on() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let socket = open_socket(&node);
    let mut events = node.client().events(true).expect("it tells").flatten();
    let answers = |client: &weir_api::Client| client.status().err().map(|e| e.to_string());
    fs::remove_file(&socket).expect("it is ours");
    node.agent().wait_until("answer again", answers).unwrap_or_else(|e| panic!("{e:#}"));
    // The connection that was open stays open.
    let told = events.find(|event| event.what.as_str() == "repaired").expect("it tells");
    assert_eq!(told.detail, format!("the agent's socket {} had been removed", socket.display()));

    let other = node.config().sections(&format!("[access]\nread = [\"{READER}\"]\n"));
    fs::remove_file(&socket).expect("it is ours");
    node.agent().rewrite(&other).expect("can write");
    node.agent().signal(nix::sys::signal::Signal::SIGHUP);
    node.agent().wait_until("answer again", answers).unwrap_or_else(|e| panic!("{e:#}"));
    let status = node.client().status().expect("it answers");
    assert_eq!(status.config_error, None);
    assert_eq!(ask(&socket, READER, "GET /v1/status", "").0, 200);
    assert_eq!(ask(&socket, STRANGER, "GET /v1/status", "").0, 403);

    // A file in its place is another's.
    fs::remove_file(&socket).expect("it is ours");
    fs::write(&socket, "precious").expect("can write");
    let begin = Instant::now();
    let said = "no one can ask the agent over its socket";
    while !node.agent().log().contains(said) {
        assert!(begin.elapsed() < Duration::from_secs(5), "it says nothing: {}", node.agent().log());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read_to_string(&socket).expect("can read"), "precious");
    fs::remove_file(&socket).expect("it is ours");
    node.agent().wait_until("answer again", answers).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(node.agent().stop() && !socket.exists());
}

const IDLE: usize = 2000;
const UNFINISHED: usize = 100;
const NAMES: usize = 100_000;
/// Connections of one user, which the agent bounds by 32.
const OF_USER: usize = 25;

/// A change of that many classes that are not here.
fn change_of(names: usize, weight: usize) -> String {
    let mut body = "{\"allow_absent\":true,\"changes\":[".to_owned();
    for i in 0..names {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(body, "{comma}{{\"name\":\"n{i}\",\"weight\":{weight}}}");
    }
    body + "]}"
}

/// Connects, sends `text` and waits, again and again: each user holds 25 connections.
fn hold(socket: &Path, first_user: u32, connections: usize, text: &str, over: &AtomicBool) -> u32 {
    let opened = AtomicU32::new(0);
    thread::scope(|scope| {
        for user in 0..connections.div_ceil(OF_USER) {
            let (opened, uid) = (&opened, first_user + user as u32);
            scope.spawn(move || {
                as_user(uid, &[uid], || {
                    while !over.load(Ordering::Relaxed) {
                        let held: Vec<_> =
                            (0..OF_USER).filter_map(|_| UnixStream::connect(socket).ok()).collect();
                        opened.fetch_add(held.len() as u32, Ordering::Relaxed);
                        for mut stream in &held {
                            let _ = stream.write_all(text.as_bytes());
                        }
                        let since = Instant::now();
                        while since.elapsed() < Duration::from_secs(2) && !over.load(Ordering::Relaxed) {
                            thread::sleep(Duration::from_millis(50));
                        }
                    }
                });
            });
        }
    });
    opened.into_inner()
}

/// The attack beside unfinished bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Names,
    Idle,
}

/// Changes the policies of many classes that are not here, again and again.
///
/// Returns how many changes the agent took.
fn change_names(socket: &Path, over: &AtomicBool) -> u32 {
    let bodies = [(900, 2), (NAMES, 2), (900, 3), (10_000, 2)].map(|(n, weight)| (n, change_of(n, weight)));
    let mut taken = 0;
    while !over.load(Ordering::Relaxed) {
        for (names, body) in &bodies {
            let (status, text) = ask(socket, OPERATOR, "PATCH /v1/policies", body);
            // A large body waits for its place, and here all places are taken.
            let expected: &[u16] = if *names == 900 { &[200] } else { &[400, 413, 503] };
            assert!(expected.contains(&status), "{names} names: {text:.300}");
            taken += u32::from(status == 200);
        }
    }
    taken
}

#[test]
fn socket_under_attack_leaves_shares_ticks_memory_and_root_alone() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("prlimit")]) {
        return;
    }
    let (mut node, division, limit) = target();
    let access = format!("[access]\noperate = [\"{OPERATOR}\", \"@{GROUP}\"]\n");
    let config = node.config().division(&node, &division).behind(&limit).sections(&access);
    node.start(&config);
    let (socket, pid) = (open_socket(&node), node.agent().id());
    let unfinished =
        "PATCH /v1/policies HTTP/1.1\r\nhost: weir\r\ncontent-length: 1000000\r\n\r\n{\"changes\":[";
    for phase in [Phase::Names, Phase::Idle] {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (socket, over, node) = (&socket, &over, &node);
            let end = End(over);
            let bodies = scope.spawn(move || hold(socket, 5000, UNFINISHED, unfinished, over));
            let other = scope.spawn(move || match phase {
                Phase::Names => change_names(socket, over),
                Phase::Idle => hold(socket, 6000, IDLE, "", over),
            });
            let root = scope.spawn(move || ask_as_root(node, over));
            thread::sleep(Duration::from_secs(1));
            check(node, &format!("attack at the socket: {phase:?}"), &division, Family::default(), SECONDS);
            drop(end);
            let (slowest, asked) = root.join().expect("root is answered");
            let [bodies, other] = [bodies, other].map(|attack| attack.join().expect("the attack lasts"));
            println!(
                "{bodies} unfinished bodies; {phase:?} {other}; root asked {asked} times, slowest {slowest:.1?}"
            );
            assert!(bodies as usize >= UNFINISHED, "{bodies}");
            assert!(other as usize >= if phase == Phase::Idle { IDLE } else { 5 }, "{phase:?}: {other}");
            assert!(asked >= 5 && slowest < ROOT_ANSWERED_WITHIN, "{asked} answers, slowest {slowest:?}");
        });
    }
    unmoved(&mut node, pid);
}
