//! Packets leave with their own priority: qdiscs of the operator take it for a class or a band.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
    thread::sleep,
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use weir_netlab::topology::{Family, Mode, Netns, Spec, UPLINK};
use weir_netlink::{Netlink, tc};
use weir_netns_tests::{
    Config, EngineKind, Need, Node, can_run, containers, for_each_engine,
    kernel::{index_of, load_classifier},
};
use weir_units::TcHandle;

for_each_engine!(packet_leaves_with_its_own_priority);

/// The minors of weir's classes (control, host, containers), which the operator has too, and one more.
const OF_WEIR: [&str; 7] = ["1:2", "1:3", "1:4", "1:5", "1:10", "1:11", "1:12"];
/// The class of what has no priority.
const REST: &str = "1:30";
/// The class that a socket asks for, and its priority.
const ASKED: (&str, u32) = ("1:40", 0x1_0040);
/// The class of weir's first container, in a socket's hand.
const CLASH: (&str, u32) = ("1:10", 0x1_0010);
/// `TC_PRIO_INTERACTIVE`, which any process may ask for.
const INTERACTIVE: u32 = 6;
const DATAGRAMS: u64 = 300;
const PAYLOAD: usize = 500;
/// The bytes of most of the datagrams.
const MOST: u64 = DATAGRAMS * PAYLOAD as u64 * 9 / 10;

/// Gives a device an HTB of the operator's, whose default class is [`REST`].
fn set_tree(node: &Node, device: &str) {
    node.sh(&["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb", "default", "30"]);
    for class in OF_WEIR.iter().chain([&REST, &ASKED.0]) {
        node.sh(&["tc", "class", "add", "dev", device, "classid", class, "htb", "rate", "1gbit"]);
    }
}

/// The bytes that a class of the operator's has sent.
fn bytes(node: &Node, device: &str, class: &str) -> u64 {
    let text = node.sh(&["tc", "-s", "class", "show", "dev", device]);
    let mut lines = text.lines();
    lines
        .find(|line| line.split(' ').nth(2) == Some(class))
        .unwrap_or_else(|| panic!("no {class} in {text}"));
    let sent =
        lines.next().and_then(|line| line.trim().strip_prefix("Sent ")?.split(' ').next()?.parse().ok());
    sent.unwrap_or_else(|| panic!("no count of {class} in {text}"))
}

/// Sends datagrams of a socket of this priority, over 1.5 s: flows of HTB's first second wait.
fn send(from: &Netns, to: IpAddr, priority: Option<u32>) {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let sends = || {
        let socket = UdpSocket::bind(any).expect("a socket");
        if let Some(priority) = priority {
            setsockopt(&socket, sockopt::Priority, &i32::try_from(priority).expect("it is small"))
                .expect("the test may set it");
        }
        for _ in 0..DATAGRAMS {
            // The server's answer that nothing listens there comes back as an error.
            let _ = socket.send_to(&[0; PAYLOAD], (to, 9));
            sleep(Duration::from_millis(5));
        }
    };
    from.within(sends).expect("the namespace can be entered");
}

/// Sends, and looks which of the operator's classes the datagrams are in.
#[track_caller]
fn lands(node: &Node, device: &str, class: &str, what: &str, sends: impl FnOnce()) {
    let watched = || -> Vec<(&str, u64)> {
        let all = OF_WEIR.iter().chain([&REST, &ASKED.0]);
        all.map(|class| (*class, bytes(node, device, class))).collect()
    };
    let before = watched();
    sends();
    sleep(Duration::from_millis(300));
    let sent: Vec<(&str, u64)> = watched()
        .into_iter()
        .zip(before)
        .map(|((class, after), (_, before))| (class, after - before))
        .collect();
    println!("{what}: {sent:?}");
    for (found, bytes) in &sent {
        let is_most = *bytes >= MOST;
        assert!(
            is_most == (*found == class) && (is_most || *found == REST || *bytes == 0),
            "{what}: {sent:?}"
        );
    }
}

fn packet_leaves_with_its_own_priority(engine: EngineKind) {
    for mode in [Mode::Bridged, Mode::Routed] {
        let spec = Spec { containers: containers(1), mode, wire: None, ..Spec::default() };
        let mut node = Node::build(&spec);
        set_tree(&node, UPLINK);
        let config = node.config().engine(engine);
        node.start(&config);
        let ask = |from: &str, family: Family, priority: Option<u32>, class: &str| {
            let what = format!("{engine}, {mode}, {family}, {from}, priority {priority:?}");
            let to = node.topology.server_address(family);
            lands(&node, UPLINK, class, &what, || send(node.netns(from), to, priority));
        };
        for family in [Family::V4, Family::V6] {
            ask("host", family, None, REST);
            ask("C1", family, None, REST);
        }
        // A container's priority ends at its interface.
        ask("C1", Family::V6, Some(CLASH.1), REST);
        // The process of this engine sends packets of its own, which have none.
        if engine != EngineKind::User {
            ask("host", Family::V4, Some(ASKED.1), ASKED.0);
            ask("host", Family::V6, Some(CLASH.1), CLASH.0);
            is_seen_by_a_filter(&node);
        }
    }
}

/// A filter of the operator's sees the interactive priority of a host's socket.
fn is_seen_by_a_filter(node: &Node) {
    // r0 = skb->priority; if (r0 == 6) return the class 1:40; return 0, which is no match
    let program = load_classifier(
        "interactive",
        &[0x0020_1061, 0x0000_0006_0002_0015, 0x0000_00b7, 0x95, 0x0001_0040_0000_00b7, 0x95],
    );
    let (home, root) = (node.topology.node(), TcHandle::new(1, 0));
    let index = index_of(home, UPLINK).expect("the uplink is there");
    let filter = || {
        let program = (program.as_raw_fd(), "interactive");
        Netlink::open()?.call(tc::set_class_filter(index, UPLINK, root, 1, program))
    };
    home.within(filter).expect("the namespace can be entered").expect("HTB takes a filter");
    let to = node.topology.server_address(Family::V4);
    let what = format!("priority {INTERACTIVE}");
    lands(node, UPLINK, ASKED.0, &what, || send(home, to, Some(INTERACTIVE)));
}

fn with_download(node: &Node) -> Config {
    node.config().engine(EngineKind::Htb).link("download = \"50mbit\"")
}

#[test]
fn arrivals_go_on_without_the_priority_of_a_class() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let spec = Spec { containers: containers(1), mode: Mode::Bridged, wire: None, ..Spec::default() };
    let mut node = Node::build(&spec);
    let config = with_download(&node);
    node.start(&config);
    let container = node.topology.container("C1").expect("it is there");
    let device = container.host_interface();
    set_tree(&node, &device);
    for family in [Family::V4, Family::V6] {
        let to = container.address(family);
        lands(&node, &device, REST, &format!("download, {family}"), || send(node.topology.srv(), to, None));
    }
    let rest = bytes(&node, &device, REST);
    assert!(rest >= 2 * MOST, "{rest} bytes passed");
    let through = node.sh(&["tc", "-s", "class", "show", "dev", "weir0d"]);
    println!("{through}");
}
