//! The class that each kind of traffic is charged to: the host's own, local traffic, traffic of no
//! class, processes by their cgroup, and the protocols without which nothing works.

use std::{
    fs,
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Netns, Proc, Spec},
    traffic::{Load, wait_until_listening},
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, Rate, SECONDS, Stream, TOLERANCE, assert_shares, can_run, check, compare,
    containers, measure_once, party,
};
use weir_units::BitRate;

const FLOOD: Load = Load::Udp(BitRate::mbit(80));

fn build(n: usize, mode: Mode) -> Node {
    Node::build(&Spec { containers: containers(n), mode, br_netfilter: None, ..Spec::default() })
}

fn v4(node: &Node) -> IpAddr {
    node.topology.server_address(Family::V4)
}

/// Bytes that a class was charged, and those that stayed on the node.
fn counted(node: &Node, label: &str) -> (f64, f64) {
    let class = node.class(label);
    (class.bytes.0 as f64, class.local_bytes.0 as f64)
}

#[test]
fn the_hosts_own_traffic_is_a_class_beside_the_containers() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for (mode, division) in [
        (
            Mode::Routed,
            Division::of([
                party("host").sends(Load::Tcp),
                party("C1").weight(2).sends(Load::Tcp),
                party("C2").weight(2).sends(FLOOD),
            ]),
        ),
        (
            Mode::Bridged,
            Division::of([
                party("host").max(20).sends(Load::TcpMany(3)),
                party("C1").sends(Load::Tcp),
                party("C2"),
            ]),
        ),
    ] {
        let mut node = build(2, mode);
        let config = node.config().division(&node, &division);
        node.start(&config);
        check(&node, &format!("{mode} host and containers"), &division, Family::V4, SECONDS + 1);
    }
}

#[test]
fn what_stays_on_the_node_is_neither_charged_nor_limited() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = build(3, Mode::Routed);
    let division = Division::of([party("C1").max(10), party("C2"), party("C3").sends(FLOOD)]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    let (server, srv) = (v4(&node), node.topology.srv());
    let flood = Stream::udp(node.netns("C3"), srv, server, Rate::Unlimited);
    let c2 = node.topology.container("C2").expect("it is there");
    let host: IpAddr = [10, 97, 0, 1].into();
    let host6: IpAddr = "fd97::1".parse().expect("an address");
    for (what, to, address) in [
        ("to a container", c2.netns(), c2.address(Family::V4)),
        ("to a container, IPv6", c2.netns(), c2.address(Family::V6)),
        ("to the host", node.topology.node(), host),
        ("to the host, IPv6", node.topology.node(), host6),
    ] {
        let before = counted(&node, "C1");
        let stream = Stream::tcp(node.netns("C1"), to, address);
        // Half a second: at gigabits it leaves other processes no processor.
        let rate = stream.goodput(Duration::from_millis(500));
        let arrived = stream.received() as f64;
        drop(stream);
        // The counters are read ten times a second.
        std::thread::sleep(Duration::from_millis(700));
        let after = counted(&node, "C1");
        let (charged, local) = (after.0 - before.0, after.1 - before.1);
        println!(
            "local {what:<22} {rate:8.0} Mbit/s, charged {charged:6.0} bytes, local {:5.1} MB of {:5.1}",
            local / 1e6,
            arrived / 1e6
        );
        assert!(rate > 3.0 * CAPACITY.as_mbit(), "{rate:.0} Mbit/s {what}: it should not be limited");
        assert!(charged < 0.001 * arrived, "{charged:.0} bytes {what} are charged to the link");
        assert!(local > arrived, "of {arrived:.0} bytes {what} only {local:.0} are counted as local");
    }
    let outside = flood.goodput(Duration::from_secs(1));
    println!("local: beside it {outside:.1} Mbit/s leave by the link");
    assert!(outside > 0.9 * CAPACITY.as_mbit(), "{outside:.1} Mbit/s leave by the link");
}

#[test]
fn what_stays_on_the_node_is_charged_if_asked_for() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = build(2, Mode::Routed);
    let division = Division::of([party("C1").max(20), party("C2")]);
    let config = node.config().link("charge_local = true").division(&node, &division);
    node.start(&config);
    let c2 = node.topology.container("C2").expect("it is there");
    let stream = Stream::tcp(node.netns("C1"), c2.netns(), c2.address(Family::V4));
    std::thread::sleep(Duration::from_secs(1));
    let rate =
        measure_once(|| stream.goodput(Duration::from_secs(2)), |rate| (rate / 19.1 - 1.0).abs() < TOLERANCE);
    let wanted = BitRate::mbit(20).as_mbit() * Load::Tcp.payload_share(Family::V4);
    println!("local, charged: {rate:.2} Mbit/s of {wanted:.2}");
    assert!((rate / wanted - 1.0).abs() < TOLERANCE, "{rate:.2} Mbit/s instead of {wanted:.2}");
    std::thread::sleep(Duration::from_millis(300));
    let (charged, local) = counted(&node, "C1");
    assert!(charged > 0.98 * stream.received() as f64, "{charged:.0} bytes are charged");
    assert!(local < 1e4, "{local:.0} bytes are counted as local");
}

/// Neighbours are asked for again, over a link that two floods fill; one is the asker's own.
fn neighbours(mode: Mode) {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = build(3, mode);
    let config = node.config();
    node.start(&config);
    let (server, srv) = (v4(&node), node.topology.srv());
    let floods = ["C1", "C2"].map(|c| Stream::udp(node.netns(c), srv, server, Rate::Unlimited));
    std::thread::sleep(Duration::from_millis(1500));
    let asked = node.class("control").packets;
    for label in ["C3", "C1"] {
        for family in [Family::V4, Family::V6] {
            let (container, address) = (node.netns(label), node.topology.server_address(family).to_string());
            // The neighbour that the container asks for: the server itself, or the node before it.
            let ask = || {
                container.exec(&["ip", "neigh", "flush", "all"]).expect("it can be flushed");
                let begin = Instant::now();
                let pong = container.exec(&["ping", "-n", "-c", "1", "-W", "1", &address]);
                pong.map(|_| begin.elapsed()).inspect_err(|e| println!("{mode} {family} {label}: {e:#}"))
            };
            let slowest = measure_once(
                || (0..5).map(|_| ask().unwrap_or(Duration::MAX)).max().expect("five times"),
                |slowest| *slowest < Duration::from_secs(1),
            );
            println!("{mode} {family} {label}: neighbour found and answered within {slowest:.0?}");
            assert!(slowest < Duration::from_secs(1), "{label} gets no answer from {address}");
        }
    }
    let used: f64 = Stream::goodputs(&[&floods[0], &floods[1]], Duration::from_secs(1)).iter().sum();
    std::thread::sleep(Duration::from_millis(200));
    let asked = node.class("control").packets - asked;
    println!("{mode}: {asked} packets of the control class; the floods filled {used:.1} Mbit/s");
    assert!(asked >= 20, "{asked} control packets for 20 questions");
    assert!(used > 0.9 * CAPACITY.as_mbit(), "the link was not full: {used:.1} Mbit/s");
}

#[test]
fn neighbours_are_found_over_a_full_link_when_bridged() {
    neighbours(Mode::Bridged);
}

#[test]
fn neighbours_are_found_over_a_full_link_when_routed() {
    neighbours(Mode::Routed);
}

#[test]
fn who_is_not_named_shares_the_default_class() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = build(3, Mode::Routed);
    // C2 and C3 are unknown: discovery leaves them out.
    let named = [node.name("C1")];
    let config = node
        .config()
        .netns(&named)
        .awaiting(&named)
        .sections(&format!("[default]\nweight = 2\n[[class]]\nname = \"{}\"\nweight = 3\n", named[0]));
    node.start(&config);
    let strangers = Division::of([party("C2").weight(2).sends(FLOOD), party("C1").weight(3).sends(FLOOD)]);
    let expected = strangers.expected(CAPACITY, Family::V4);
    let sending =
        Division::of([party("C1").sends(FLOOD), party("C2").sends(FLOOD), party("C3").sends(FLOOD)]);
    let (flows, worst) = measure_once(
        || {
            let outcome = sending.run(&node, &[], Family::V4, SECONDS);
            let together = outcome.flows[1].goodput + outcome.flows[2].goodput;
            let measured = [("C1".to_owned(), outcome.flows[0].goodput), ("C2".to_owned(), together)];
            let worst = compare("strangers (C2 and C3 as one)", &measured, &expected);
            (measured, worst)
        },
        |(_, worst)| *worst <= TOLERANCE,
    );
    assert!(worst <= TOLERANCE, "a share is {:.2} % off", worst * 100.0);
    let class = node.class("default");
    println!("strangers: {} in the class default", class.bytes);
    assert!(class.bytes.0 as f64 > flows[1].1 * 1e6 / 8.0, "{} in the class default", class.bytes);
}

/// A cgroup, removed when dropped.
struct Cgroup {
    dir: PathBuf,
    path: String,
}

impl Cgroup {
    fn new(name: &str) -> Cgroup {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let root = mounts.into_iter().find(|m| m.join("cgroup.procs").exists()).expect("asked before");
        let path = format!("/weir-test-{}-{name}", std::process::id());
        let dir = root.join(&path[1..]);
        fs::create_dir(&dir).expect("a cgroup can be made");
        Cgroup { dir, path }
    }

    /// Runs a command in it.
    fn spawn(&self, netns: &Netns, command: &str) -> Proc {
        let script = format!("echo $$ > {}/cgroup.procs && exec {command}", self.dir.display());
        netns.spawn(&["sh", "-c", &script]).expect("it starts")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Busy until its last process is reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("cannot remove {}", self.dir.display());
    }
}

#[test]
fn a_process_on_the_hosts_network_has_the_class_of_its_cgroup() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2]) {
        return;
    }
    let mut node = build(1, Mode::Routed);
    let cgroup = Cgroup::new("backup");
    let division = Division::of([party("C1"), party("host")]);
    let backup = format!("[[class]]\nname = \"backup\"\ncgroup = \"{}\"\nweight = 2\n", cgroup.path);
    let config = node.config().division(&node, &division).sections(&backup);
    let awaited = [node.name("C1"), "backup".to_owned()];
    node.start(&config.awaiting(&awaited));

    // The same three flows: from the cgroup, from the host beside it, from a container.
    let (server, srv) = (v4(&node), node.topology.srv());
    let mut sink = srv.spawn(&["iperf3", "-s", "-1", "-p", "5300"]).expect("it starts");
    wait_until_listening(&mut sink, 5300).expect("it listens");
    let sender = cgroup.spawn(node.topology.node(), &format!("iperf3 -c {server} -p 5300 -t 30 -C cubic"));
    let host = Stream::tcp(node.topology.node(), srv, server);
    let c1 = Stream::tcp(node.netns("C1"), srv, server);
    std::thread::sleep(Duration::from_secs(2));
    let expected = Division::of([
        party("backup").weight(2).sends(Load::Tcp),
        party("host").sends(Load::Tcp),
        party("C1").sends(Load::Tcp),
    ])
    .expected(CAPACITY, Family::V4);
    let payload = Load::Tcp.payload_share(Family::V4);
    let measure = || {
        let before = (Instant::now(), node.class("backup").bytes.0);
        let rates = Stream::goodputs(&[&host, &c1], Duration::from_secs(3));
        let after = (Instant::now(), node.class("backup").bytes.0);
        let backup = (after.1 - before.1) as f64 * 8e-6 / (after.0 - before.0).as_secs_f64() * payload;
        [("backup".to_owned(), backup), ("host".to_owned(), rates[0]), ("C1".to_owned(), rates[1])]
    };
    let measured = measure_once(measure, |m| compare("by cgroup", m, &expected) <= TOLERANCE);
    assert_shares("by cgroup", &measured, &expected, TOLERANCE);
    drop((sender, sink));
}
