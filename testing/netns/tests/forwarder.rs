//! The forwarder of engine `user` outlives a killed agent and no other one: the next agent adopts it, and
//! what takes the engine away takes it away too.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{
            AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen,
            recv, send, setsockopt, socket, sockopt,
        },
        time::TimeVal,
    },
    unistd::Pid,
};
use weir_netlab::topology::{Mode, Spec};
use weir_netns_tests::{
    EngineBounds, EngineKind, Node, as_user, containers,
    kernel::{SCHEDULER, TAP, index_of},
};

/// The name that the forwarder listens at.
const NAME: &[u8] = b"weir-forwarder";
/// The kernel takes 10 ms for each of its tap queues.
const ENDS: Duration = Duration::from_secs(5);

/// A node with an agent and a forwarder, if the engine is here.
fn node() -> Option<Node> {
    if !EngineKind::User.is_here() {
        return None;
    }
    let mut node =
        Node::build(&Spec { containers: containers(2), wire: None, mode: Mode::Bridged, ..Spec::default() });
    let config = node.config().engine(EngineKind::User);
    node.start(&config);
    Some(node)
}

#[track_caller]
fn assert_becomes(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < ENDS, "{what}: not after {ENDS:?}");
        sleep(Duration::from_millis(20));
    }
}

fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

fn assert_nothing_is_left(node: &Node, forwarder: u32) {
    assert_becomes("the forwarder ends", || !lives(forwarder) && node.forwarder().is_none());
    for device in [SCHEDULER, TAP] {
        assert_eq!(index_of(node.topology.node(), device), None, "{device} is left");
    }
}

#[test]
fn forwarder_of_a_killed_agent_is_adopted_and_ends_with_the_next() {
    let Some(mut node) = node() else { return };
    let (forwarder, tap) = (node.forwarder(), index_of(node.topology.node(), TAP));
    assert!(forwarder.is_some() && tap.is_some());
    node.agent().kill();
    sleep(Duration::from_secs(2));
    assert_eq!(node.forwarder(), forwarder, "it goes on without an agent");
    node.restart();
    assert_eq!((node.forwarder(), index_of(node.topology.node(), TAP)), (forwarder, tap));
    assert_eq!(node.client().status().expect("it answers").repairs, 0);
    assert!(node.agent().stop());
    assert_nothing_is_left(&node, forwarder.expect("seen above"));
}

#[test]
fn forwarder_ends_when_an_agent_takes_another_engine() {
    let Some(mut node) = node() else { return };
    let forwarder = node.forwarder().expect("it runs");
    node.agent().kill();
    let config = node.config().engine(EngineKind::Htb);
    node.start(&config);
    assert_becomes("the forwarder ends", || !lives(forwarder) && node.forwarder().is_none());
    assert_eq!(index_of(node.topology.node(), TAP), None);
}

#[test]
fn forwarder_without_agent_ends_when_its_device_is_gone() {
    let Some(mut node) = node() else { return };
    let forwarder = node.forwarder().expect("it runs");
    node.agent().kill();
    node.sh(&["ip", "link", "del", SCHEDULER]);
    assert_becomes("the forwarder ends", || !lives(forwarder));
    node.restart();
    assert!(node.forwarder().is_some_and(|next| next != forwarder));
}

/// Set for the process that speaks like a forwarder of a later version.
const OTHER_VERSION: &str = "WEIR_TEST_OTHER_VERSION";

#[test]
#[ignore = "it is the other process of forwarder_of_another_version_is_ended_and_replaced"]
fn process_speaks_like_a_forwarder_of_a_later_version() {
    if std::env::var_os(OTHER_VERSION).is_none() {
        return;
    }
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(listener.as_raw_fd(), &UnixAddr::new_abstract(NAME).expect("it is short"))
        .expect("the name is free");
    listen(&listener, Backlog::new(4).expect("it is small")).expect("it can listen");
    loop {
        let talk = accept(listener.as_raw_fd()).expect("an agent calls");
        while recv(talk, &mut [0; 65536], MsgFlags::empty()).is_ok_and(|length| length > 0) {
            let answer = br#"{"State":{"protocol":4000000000,"shape":"unknown"}}"#;
            let _ = send(talk, answer, MsgFlags::MSG_NOSIGNAL);
        }
    }
}

#[test]
fn forwarder_of_another_version_is_ended_and_replaced() {
    let Some(mut node) = node() else { return };
    let forwarder = node.forwarder().expect("it runs");
    node.agent().kill();
    kill(Pid::from_raw(forwarder.cast_signed()), Signal::SIGKILL).expect("it is there");
    let is_taken = |node: &Node| node.sh(&["ss", "-xl"]).contains("@weir-forwarder");
    assert_becomes("the name is free", || !is_taken(&node));
    let program = std::env::current_exe().expect("it is known");
    let program = program.to_str().expect("it is UTF-8");
    let (set, test) = (format!("{OTHER_VERSION}=1"), "process_speaks_like_a_forwarder_of_a_later_version");
    let other = ["env", &set, program, "--ignored", "--exact", test];
    let mut other = node.topology.node().spawn(&other).expect("it can run");
    assert_becomes("the other one listens", || is_taken(&node));
    node.restart();
    let ended = other.ended().expect("it can be looked at");
    assert!(ended.is_some(), "the one of the other version is still there");
    assert!(node.forwarder().is_some());
    assert_becomes("the new one listens", || is_taken(&node));
}

/// Connects to the forwarder and says this.
fn say(message: &[u8]) -> (OwnedFd, nix::Result<usize>) {
    let talk =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    connect(talk.as_raw_fd(), &UnixAddr::new_abstract(NAME).expect("it is short")).expect("it listens");
    setsockopt(&talk, sockopt::ReceiveTimeout, &TimeVal::new(3, 0)).expect("it can be told");
    let _ = send(talk.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL);
    let answer = recv(talk.as_raw_fd(), &mut [0; 65536], MsgFlags::empty());
    (talk, answer)
}

#[test]
fn forwarder_answers_no_other_user_and_survives_bad_messages() {
    let Some(node) = node() else { return };
    let forwarder = node.forwarder();
    let hangs_up = |answer: nix::Result<usize>| matches!(answer, Ok(0) | Err(nix::errno::Errno::ECONNRESET));
    node.topology
        .node()
        .within(|| {
            for message in [&br#""End""#[..], br#""Measure""#] {
                let (_, answer) = as_user(65_534, &[65_534], || say(message));
                assert!(hangs_up(answer), "another user: {answer:?}");
            }
            let (_, answer) = say(br#""Measure""#);
            assert!(answer.is_ok_and(|length| length > 2), "root: {answer:?}");
            for message in [&b"\xff\x00{"[..], b"{}", br#"{"Write":[{"Lead":70000}]}"#, &[b'['; 60_000]] {
                let (_, answer) = say(message);
                assert!(hangs_up(answer), "{message:?}: {answer:?}");
            }
            let (_, answer) = say(br#"{"Join":{"protocol":4000000000,"cookie":1}}"#);
            assert!(answer.is_ok_and(|length| length > 2), "another version is refused: {answer:?}");
        })
        .expect("the namespace can be entered");
    assert!(forwarder.is_some_and(lives));
    // The agent, whose connection was taken, makes itself heard again.
    assert_becomes("an agent has a forwarder", || {
        node.forwarder().is_some() && node.client().status().is_ok_and(|status| status.warnings.is_empty())
    });
}

/// A local user takes the name, and its queue of calls is full.
#[test]
fn agent_starts_though_another_user_has_the_forwarders_name() {
    if !EngineKind::User.is_here() {
        return;
    }
    let mut node =
        Node::build(&Spec { containers: containers(2), wire: None, mode: Mode::Bridged, ..Spec::default() });
    let stranger = node.topology.node().within(|| {
        as_user(65_534, &[65_534], || {
            let address = UnixAddr::new_abstract(NAME).expect("it is short");
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let new = || socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
            let listener = new();
            bind(listener.as_raw_fd(), &address).expect("the name is free");
            listen(&listener, Backlog::new(1).expect("it is small")).expect("it can listen");
            let calls: Vec<OwnedFd> = std::iter::repeat_with(new)
                .take_while(|call| connect(call.as_raw_fd(), &address).is_ok())
                .take(10)
                .collect();
            assert!(calls.len() < 10, "its queue is not full");
            (listener, calls)
        })
    });
    let stranger = stranger.expect("the namespace can be entered");
    let config = node.config().engine(EngineKind::User);
    node.start(&config);
    assert!(node.forwarder().is_some());
    drop(stranger);
    assert_becomes("the forwarder listens", || node.sh(&["ss", "-xl"]).contains("@weir-forwarder"));
    assert!(node.agent().stop());
}
