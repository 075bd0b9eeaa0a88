//! Connections use the congestion control that a rule says, from the first packet on, and change
//! it where the rule or their application says so; programs of others stay.

use std::{
    cell::Cell,
    fs,
    io::Read,
    net::{IpAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::PathBuf,
    thread::sleep,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage},
};
use weir_cc::Direction;
use weir_discovery::cgroup::Cgroup2;
use weir_netlab::topology::{Family, Mode, Netns, Spec};
use weir_netns_tests::{
    Counting, Foreign, Node,
    connections::{
        Pair, algorithm, can_choose, now_ms, programs, records_since, rule, started, usual, wait_for,
    },
    containers, measure_once,
};

const MIB: usize = 1 << 20;

/// A cgroup, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Group {
        let root = Cgroup2::find().expect("asked for").mount().to_owned();
        let path = root.join(format!("weir-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a cgroup can be made");
        Group(path)
    }

    fn name(&self) -> String {
        format!("/{}", self.0.file_name().expect("it has one").to_string_lossy())
    }

    /// Connects from a process in the cgroup; the end that was accepted, of which all is read.
    fn connect(&self, from: &Netns, to: &Netns, address: IpAddr) -> u16 {
        let listener = to.within(|| TcpListener::bind((address, 0))).expect("is there").expect("free");
        let port = listener.local_addr().expect("it is bound").port();
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec 3<>/dev/tcp/{address}/{port} && echo hello >&3",
            self.0.display()
        );
        from.exec(&["bash", "-c", &script]).expect("it connects");
        let (mut accepted, peer) = listener.accept().expect("it is there");
        let mut text = String::new();
        accepted.read_to_string(&mut text).expect("it ends");
        assert_eq!(text, "hello\n");
        peer.port()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Busy until its last process is reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        eprintln!("cannot remove {}", self.0.display());
    }
}

fn every_connection_of(mode: Mode) {
    let mut node = Node::build(&Spec { containers: containers(2), mode, ..Spec::default() });
    let server = node.topology.server_address(Family::V6);
    let config = node.config();
    let rules = [
        rule(&format!("container = \"{}\"\nstart = \"reno\"", node.name("C1"))),
        rule(&format!(
            "container = \"{}\"\nto = \"{server}/128\"\ndirection = \"out\"\nstart = \"bbr\"",
            node.name("C2")
        )),
        rule(&format!(
            "container = \"{}\"\ndirection = \"in\"\nport = 5777\nstart = \"reno\"",
            node.name("C2")
        )),
        rule("container = \"host\"\nstart = \"cubic\""),
        rule("start = \"cubic\""),
    ];
    started(&mut node, &config, &rules);
    let counting = Counting::begin();
    let (runs, ns) = counting.runs(programs(&node)[0]);

    let (mut made, mut wrong) = (0, Vec::new());
    let mut check = |what: &str, is: String, wanted: &str| {
        made += 1;
        if is != wanted {
            wrong.push(format!("{what} has {is} instead of {wanted}"));
        }
    };
    let srv = node.topology.srv();
    let elsewhere = usual(srv);
    for (label, wanted) in [("C1", ["reno", "reno"]), ("C2", ["cubic", "bbr"]), ("host", ["cubic", "cubic"])]
    {
        for (family, wanted) in [Family::V4, Family::V6].into_iter().zip(wanted) {
            let listener = srv.within(|| TcpListener::bind((node.topology.server_address(family), 0)));
            let listener = listener.expect("is there").expect("free");
            let begun = now_ms();
            let mut pairs: Vec<Pair> = (0..20).map(|_| Pair::to(node.netns(label), &listener)).collect();
            for pair in &pairs {
                check(&format!("{label} {family:?}"), algorithm(&pair.opened), wanted);
                check("the server, which is nobody's", algorithm(&pair.accepted), &elsewhere);
            }
            let told =
                node.netns(label).exec(&["ss", "-tinH", "state", "established"]).expect("ss runs").stdout;
            let told = told.lines().filter(|l| l.split_whitespace().next() == Some(wanted)).count();
            assert!(told >= pairs.len(), "ss tells of {told} connections with {wanted}");
            for pair in &mut pairs {
                pair.send(3000);
            }
            let ports: Vec<u16> = pairs.iter().map(Pair::port).collect();
            drop(pairs);
            for flow in records_since(begun, &node, &ports, Direction::Out) {
                check(&format!("the record of {label} {family:?}"), flow.first.to_string(), wanted);
                assert_eq!((flow.sent.0, flow.to), (3000, node.topology.server_address(family)));
                assert_eq!(flow.class.as_deref(), Some(node.name(label).as_str()));
                assert!(flow.least_rtt_us > 0 && flow.most_rtt_us >= flow.least_rtt_us, "{flow:?}");
            }
        }
    }
    // Accepted connections; port 5777 has a rule of its own.
    for (label, port, wanted) in [("C1", 5777, "reno"), ("C2", 5777, "reno"), ("C2", 5778, "cubic")] {
        for family in [Family::V4, Family::V6] {
            let address = node.topology.container(label).expect("it is there").address(family);
            let listener = node.netns(label).within(|| TcpListener::bind((address, port)));
            let listener = listener.expect("is there").expect("free");
            // From elsewhere: what C1 opens has rules of its own.
            let begun = now_ms();
            let mut pairs: Vec<Pair> = (0..10).map(|_| Pair::to(node.topology.srv(), &listener)).collect();
            for pair in &mut pairs {
                check(&format!("{label} accepts {port}"), algorithm(&pair.accepted), wanted);
                pair.answer(2000);
            }
            let ports: Vec<u16> = pairs.iter().map(Pair::port).collect();
            drop(pairs);
            for flow in records_since(begun, &node, &ports, Direction::In) {
                check("the record of what was accepted", flow.first.to_string(), wanted);
                assert_eq!((flow.sent.0, flow.local_port), (2000, port));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {made}: {wrong:?}", wrong.len());
    let (runs, ns) = {
        let after = counting.runs(programs(&node)[0]);
        (after.0 - runs, after.1 - ns)
    };
    let view = node.client().congestion().expect("it answers");
    println!(
        "{mode:?}: {made} looks, all as the rules say; {} connections, {runs} calls of {} ns, {:.2} us a connection",
        view.set,
        ns / runs.max(1),
        ns as f64 / 1e3 / view.set as f64
    );
    assert_eq!((view.failed, view.lost), (0, 0));
    assert!(node.agent().stop(), "the agent puts everything back");
    assert!(programs(&node).is_empty(), "the program goes with the agent");
}

#[test]
fn new_connections_have_their_rules_algorithm_at_once_bridged() {
    if can_choose() {
        every_connection_of(Mode::Bridged);
    }
}

#[test]
fn new_connections_have_their_rules_algorithm_at_once_routed() {
    if can_choose() {
        every_connection_of(Mode::Routed);
    }
}

#[test]
fn a_flow_changes_its_algorithm_where_the_rule_says_and_loses_nothing() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let config = node.config();
    // C2's is weir's own rule.
    let rules = [
        rule(&format!(
            "container = \"{}\"\nstart = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"",
            node.name("C1")
        )),
        rule(""),
    ];
    started(&mut node, &config, &rules);
    let changes = Cell::new(0);
    for (label, family, first) in
        [("C1", Family::V4, "reno"), ("C1", Family::V6, "reno"), ("C2", Family::V4, "bbr")]
    {
        let (srv, address) = (node.topology.srv(), node.topology.server_address(family));
        let measure = || {
            let (begun, mut ports) = (now_ms(), Vec::new());
            for (bytes, last) in [(MIB / 2, first), (8 * MIB, "cubic")] {
                let mut pair = Pair::new(node.netns(label), srv, address, 0);
                pair.send(bytes);
                // Acknowledged bytes are known a moment later here.
                wait_for("the algorithm at the end", || (algorithm(&pair.opened) == last).then_some(()));
                ports.push(pair.port());
            }
            let mut flows = records_since(begun, &node, &ports, Direction::Out);
            flows.sort_by_key(|flow| flow.sent);
            let (small, large) = (&flows[0], &flows[1]);
            assert_eq!(
                (small.sent.0, small.algorithms(), small.switched_at),
                ((MIB / 2) as u64, first.to_owned(), None)
            );
            assert_eq!((large.sent.0, large.algorithms()), (8 * MIB as u64, format!("{first}>cubic")));
            changes.set(changes.get() + 1);
            let at = large.switched_at.expect("it changed").0;
            // Within a round trip, at the rate at which the path delivers; a super-packet is
            // acknowledged at once.
            let round_trip = large.delivery_rate.0 / 8 * u64::from(large.most_rtt_us) / 1_000_000;
            let most = MIB as u64 + round_trip + 2 * 65_536;
            println!("{label} {family:?}: {} at {at} bytes, {most} at the latest", large.algorithms());
            (at, most)
        };
        // A stall delays acknowledgements, so that one of them has more than a round trip's bytes.
        let good = |(at, most): &(u64, u64)| (MIB as u64..=*most).contains(at);
        let (at, most) = measure_once(measure, good);
        assert!(good(&(at, most)), "{label} {family:?}: changed at {at}, {most} at the latest");
    }
    assert_eq!(node.client().congestion().expect("it answers").switched, changes.get());

    // The output of the verbs about it.
    let (c1, server) = (node.name("C1"), node.topology.server_address(Family::V4));
    let list = node.weir(&["cc", "ls"]);
    assert!(
        list.contains("reno, cubic after 1MiB") && list.contains("bbr within 128 segments, cubic after 1MiB"),
        "{list}"
    );
    let why = node.weir(&["cc", "explain", &server.to_string(), "--container", &c1]);
    assert!(why.contains("uses reno, cubic after 1MiB, by rule 1"), "{why}");
    assert!(why.contains("but rule 1 names the container"), "{why}");
    assert!(node.weir(&["cc", "flows"]).contains("bbr>cubic"));
    let stats = node.weir(&["cc", "stats"]);
    assert!(stats.contains("bbr>cubic") && stats.contains("10MB"), "{stats}");
    assert!(node.client().congestion_stats().expect("it answers").paths.len() >= 2);
    assert!(node.agent().stop());
}

/// The kernel's state of a connection: its window in segments.
fn window(socket: &TcpStream) -> u32 {
    // SAFETY: all zeros are a `tcp_info`.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes no more than `len` bytes.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    Errno::result(code).expect("TCP tells of itself");
    info.tcpi_snd_cwnd
}

#[test]
fn flow_keeps_to_its_rules_window_until_the_change() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    let ruled = "start = \"bbr\"\nafter = \"4MiB\"\nthen = \"cubic\"\nwindow = 16";
    started(&mut node, &config, &[rule(ruled)]);
    let (c1, srv) = (node.netns("C1"), node.topology.srv());
    for family in [Family::V4, Family::V6] {
        let to = node.topology.server_address(family);
        let (mut passes, mut is_freed) = (Pair::new(c1, srv, to, 0), Pair::new(c1, srv, to, 0));
        for pair in [&mut passes, &mut is_freed] {
            for _ in 0..8 {
                pair.send(MIB / 4);
                let now = (algorithm(&pair.opened), window(&pair.opened));
                assert!(now.0 == "bbr" && now.1 <= 16, "{now:?}");
            }
        }
        passes.send(4 * MIB);
        wait_for("the change, and a greater window", || {
            passes.send(MIB);
            (algorithm(&passes.opened) == "cubic" && window(&passes.opened) > 16).then_some(())
        });
        // A connection that is no longer to change has the whole window at once, too.
        node.weir(&["cc", "set", "start=bbr"]);
        wait_for("a window without the rule's bound", || {
            is_freed.send(MIB / 4);
            (window(&is_freed.opened) > 16).then_some(())
        });
        assert_eq!(algorithm(&is_freed.opened), "bbr");
        node.weir(&["cc", "unset"]);
    }
    assert!(node.agent().stop());
}

/// The hint of an application: this many bytes more will be sent.
fn will_send(socket: &impl AsRawFd, bytes: &[u8]) -> Result<(), Errno> {
    let len = libc::socklen_t::try_from(bytes.len()).expect("it is short");
    // SAFETY: the socket is open, and the bytes are there as long as the call.
    let code = unsafe { libc::setsockopt(socket.as_raw_fd(), 0x5745, 1, bytes.as_ptr().cast(), len) };
    Errno::result(code).map(drop)
}

/// A connection of user nobody that says, before it connects, how much it will send.
fn connected_by_nobody(from: &Netns, to: &Netns, address: IpAddr, bytes: u64) -> Pair {
    let listener = to.within(|| TcpListener::bind((address, 0))).expect("is there").expect("free");
    let target = SockaddrStorage::from(listener.local_addr().expect("it is bound"));
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let opened = from.within(|| {
        // SAFETY: plain system calls; this thread, which ends here, is user nobody from now on.
        let code = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(code, 0, "this thread becomes nobody");
        let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        will_send(&socket, &bytes.to_ne_bytes())?;
        socket::connect(socket.as_raw_fd(), &target)?;
        Ok::<_, Errno>(TcpStream::from(socket))
    });
    let opened = opened.expect("is there").unwrap_or_else(|e| panic!("nobody says {bytes} bytes: {e}"));
    Pair { opened, accepted: listener.accept().expect("it is there").0 }
}

#[test]
fn size_hint_of_an_application_selects_the_algorithm_at_once() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"")]);
    let before = node.client().congestion().expect("it answers").hinted;
    for family in [Family::V4, Family::V6] {
        // The other family's connections may have had these ports.
        let begun = now_ms();
        let (c1, srv) = (node.netns("C1"), node.topology.srv());
        let address = node.topology.server_address(family);
        // A long one, from its first packet on.
        let mut long = connected_by_nobody(c1, srv, address, 8 * MIB as u64);
        assert_eq!(algorithm(&long.opened), "cubic");
        long.send(MIB / 4);
        // A small one never, unless it is not small.
        let mut small = connected_by_nobody(c1, srv, address, 100_000);
        small.send(100_000);
        assert_eq!(algorithm(&small.opened), "reno");
        small.send(2 * MIB);
        wait_for("what is not as small as it said changes", || {
            (algorithm(&small.opened) == "cubic").then_some(())
        });
        // One that is under way, with the next round trip; as a C integer too.
        let mut known_late = Pair::new(c1, srv, address, 0);
        known_late.send(1000);
        assert_eq!(algorithm(&known_late.opened), "reno");
        will_send(&known_late.opened, &(4 * MIB as u32).to_ne_bytes()).expect("weir hears it");
        known_late.send(1000);
        wait_for("it changes long before the threshold", || {
            (algorithm(&known_late.opened) == "cubic").then_some(())
        });
        let ports = [long.port(), known_late.port()];
        drop((long, known_late));
        for flow in records_since(begun, &node, &ports, Direction::Out) {
            let (is_long, at) = (flow.sent.0 == MIB as u64 / 4, flow.switched_at.map(|at| at.0));
            assert_eq!(flow.last.as_str(), "cubic");
            assert!(if is_long { at.is_none() } else { at.is_some_and(|at| at < 10_000) }, "{flow:?}");
        }
        // The same for what a server accepts.
        let address = node.topology.container("C1").expect("it is there").address(family);
        let mut served = Pair::new(srv, node.netns("C1"), address, 0);
        will_send(&served.accepted, &(8 * MIB as u64).to_ne_bytes()).expect("weir hears it");
        served.answer(MIB / 4);
        wait_for("an answer's algorithm", || (algorithm(&served.accepted) == "cubic").then_some(()));
    }
    let view = node.client().congestion().expect("it answers");
    assert_eq!((view.hinted - before, view.failed), (8, 0));
    // The kernel refuses a meaningless hint, and any hint without weir.
    let pair = Pair::new(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4), 0);
    assert_eq!(will_send(&pair.opened, &[1, 2]), Err(Errno::ENOPROTOOPT));
    pair.opened.set_nodelay(true).expect("other options are as they were");
    node.agent().kill();
    will_send(&pair.opened, &1u64.to_ne_bytes()).expect("what is in force hears it without an agent");
    node.restart();
    wait_for("the agent takes over", || (programs(&node).len() == 1).then_some(()));
    assert!(node.agent().stop(), "the agent puts everything back");
    assert_eq!(will_send(&pair.opened, &1u64.to_ne_bytes()), Err(Errno::ENOPROTOOPT));
}

/// Programs of all agents stand at the root of the cgroups, and each gets the hint.
#[test]
fn hint_reaches_the_agent_of_its_own_namespace() {
    if !can_choose() {
        return;
    }
    let mut nodes = [0, 1].map(|_| Node::build(&Spec { containers: containers(1), ..Spec::default() }));
    for node in &mut nodes {
        let config = node.config();
        started(node, &config, &[rule("start = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"")]);
    }
    for node in &nodes {
        let (c1, srv) = (node.netns("C1"), node.topology.srv());
        let pair = connected_by_nobody(c1, srv, node.topology.server_address(Family::V4), 8 * MIB as u64);
        assert_eq!(algorithm(&pair.opened), "cubic");
        assert_eq!(node.client().congestion().expect("it answers").hinted, 1);
    }
}

#[test]
fn other_owners_programs_go_on_and_a_cgroup_can_have_rules_of_its_own() {
    if !can_choose() {
        return;
    }
    let (group, beside) = (Group::new("backup"), Group::new("beside"));
    let (foreign, counting) = (Foreign::attach(&group.0), Counting::begin());
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let class = format!("[[class]]\nname = \"backup\"\ncgroup = \"{}\"\n", group.name());
    let rules = [
        class,
        rule("container = \"backup\"\nstart = \"reno\""),
        rule("container = \"host\"\nstart = \"cubic\""),
    ];
    let (config, address) = (node.config(), node.topology.server_address(Family::V4));
    started(&mut node, &config, &rules);

    // And one that comes later.
    let later = Foreign::attach(&beside.0);
    for (group, foreign, class, wanted) in
        [(&group, &foreign, "backup", "reno"), (&beside, &later, "host", "cubic")]
    {
        let before = counting.runs(foreign.id()).0;
        for family in [Family::V6, Family::V4] {
            let begun = now_ms();
            let address = node.topology.server_address(family);
            let port = group.connect(node.topology.node(), node.topology.srv(), address);
            let flow = records_since(begun, &node, &[port], Direction::Out).remove(0);
            let found = (flow.class.as_deref(), flow.first.as_str(), flow.to);
            assert_eq!(found, (Some(class), wanted, address));
        }
        let runs = counting.runs(foreign.id()).0 - before;
        println!("{class}: {wanted} by weir's rule, {runs} calls of the other's program");
        assert!(foreign.is_attached() && runs > 0, "the other's program ran {runs} times");
    }
    // And one at the root, where weir's is too.
    let at_root = Foreign::attach_beside(Cgroup2::find().expect("asked for").mount());
    let before = counting.runs(at_root.id()).0;
    let begun = now_ms();
    let port = group.connect(node.topology.node(), node.topology.srv(), address);
    assert_eq!(records_since(begun, &node, &[port], Direction::Out)[0].first.as_str(), "reno");
    assert!(counting.runs(at_root.id()).0 > before, "the program at the root is called too");
    // Two agents' rules do not meet.
    let mut other = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = other.config();
    started(&mut other, &config, &[rule("start = \"bbr\"")]);
    for (node, wanted) in [(&other, "bbr"), (&node, "cubic")] {
        let (netns, srv) = (node.topology.node(), node.topology.srv());
        let pair = Pair::new(netns, srv, node.topology.server_address(Family::V4), 0);
        assert_eq!(algorithm(&pair.opened), wanted);
    }
    assert!(other.agent().stop() && node.agent().stop());
    let theirs = [&foreign, &later, &at_root];
    assert!(theirs.iter().all(|theirs| theirs.is_attached()), "theirs stay when weir goes");
}
