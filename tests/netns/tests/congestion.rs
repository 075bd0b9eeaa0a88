//! Connections use the congestion control that a rule says, from the first packet on, and change
//! it where the rule says so; nothing is lost when rules or the agent go.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use nix::sys::socket::{getsockopt, sockopt::TcpCongestion};
use weir_bpf::EarlierCongestion;
use weir_cc::{Direction, FlowRecord, Origin};
use weir_host::discover::cgroup::Cgroup2;
use weir_lab::topology::{Family, Mode, Netns, Spec};
use weir_netns_tests::{Config, Counting, Foreign, Need, Node, can_run, containers};

/// How long what happens in the background may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

fn ready() -> bool {
    let has = |name| weir_host::congestion::try_algorithm(name).is_ok();
    can_run(&Need::TRAFFIC)
        && can_run(&[Need::Cgroup2, Need::Program("ss"), Need::Program("bash")])
        && ["reno", "cubic", "bbr"].into_iter().all(|name| {
            let there = has(name);
            if !there {
                println!("SKIPPED: this kernel has no congestion control {name}");
            }
            there
        })
}

#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Both ends of a connection.
struct Pair {
    opened: TcpStream,
    accepted: TcpStream,
}

impl Pair {
    fn new(from: &Netns, to: &Netns, address: IpAddr, port: u16) -> Pair {
        let listener = to.within(|| TcpListener::bind((address, port))).expect("is there").expect("free");
        Pair::to(from, &listener)
    }

    fn to(from: &Netns, listener: &TcpListener) -> Pair {
        let target = listener.local_addr().expect("it is bound");
        let opened = from.within(|| TcpStream::connect_timeout(&target, Duration::from_secs(10)));
        let opened = opened.expect("is there").unwrap_or_else(|e| panic!("{target}: {e}"));
        Pair { opened, accepted: listener.accept().expect("it is there").0 }
    }

    /// Sends so much from one end and reads it at the other: what came is what was sent.
    fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) {
        let block: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 4) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&block).expect("it is sent"));
            let mut came = vec![0; bytes];
            to.read_exact(&mut came).expect("it arrives");
            assert!(came == block, "what came is not what was sent");
        });
    }

    fn send(&mut self, bytes: usize) {
        Pair::carry(&mut self.opened, &mut self.accepted, bytes);
    }

    fn answer(&mut self, bytes: usize) {
        Pair::carry(&mut self.accepted, &mut self.opened, bytes);
    }

    /// The port at which the connection was opened.
    fn port(&self) -> u16 {
        self.opened.local_addr().expect("it is connected").port()
    }
}

fn algorithm(socket: &TcpStream) -> String {
    getsockopt(socket, TcpCongestion).expect("TCP has one").into_string().expect("a name")
}

/// What new connections of a namespace use without weir.
fn usual(netns: &Netns) -> String {
    let listener = netns.within(|| TcpListener::bind("[::1]:0")).expect("is there").expect("bound");
    algorithm(&Pair::to(netns, &listener).opened)
}

/// Now, as records tell times.
fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64
}

/// The records of the connections opened from these ports, when all have ended.
#[track_caller]
fn records(node: &Node, ports: &[u16], direction: Direction) -> Vec<FlowRecord> {
    records_since(0, node, ports, direction)
}

/// Those that ended after a time: ports are used again, by others and for other far ends.
#[track_caller]
fn records_since(begun_ms: u64, node: &Node, ports: &[u16], direction: Direction) -> Vec<FlowRecord> {
    wait_for("connections end and are told of", || {
        let all = node.client().congestion_flows().expect("it answers");
        let opened = |flow: &FlowRecord| match direction {
            Direction::Out => flow.local_port,
            Direction::In => flow.remote_port,
        };
        let is_new = |f: &FlowRecord| f.direction == Some(direction) && f.ended_ms > begun_ms;
        let found: Vec<FlowRecord> =
            all.into_iter().filter(|f| is_new(f) && ports.contains(&opened(f))).collect();
        assert!(found.len() <= ports.len(), "a connection is told of twice: {found:?}");
        (found.len() == ports.len()).then_some(found)
    })
}

/// Waits until the agent follows so many rules.
fn wait_for_rules(node: &Node, rules: usize) {
    wait_for("the agent reads its configuration", || {
        let view = node.client().congestion().expect("it answers");
        (view.rules.len() == rules).then_some(())
    });
}

/// Programs of weir's at the root of the cgroups, of this node's agent.
fn programs(node: &Node) -> Vec<u32> {
    use std::os::{fd::AsFd, unix::fs::MetadataExt};
    let dir = fs::File::open(Cgroup2::find().expect("asked for").mount()).expect("a directory");
    let netns = fs::metadata(node.topology.node().path()).expect("the namespace is there").ino();
    let all = EarlierCongestion::all(dir.as_fd()).into_iter();
    all.filter(|left| left.owner == netns).map(|left| left.program).collect()
}

fn rule(text: &str) -> String {
    format!("[[congestion]]\n{text}\n")
}

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

fn started(node: &mut Node, config: &Config, rules: &[String]) {
    node.start(&config.clone().sections(&rules.concat()));
    wait_for("rules are in force", || (programs(node).len() == 1).then_some(()));
    assert_eq!(node.client().congestion().expect("it answers").not_enforced_because, None);
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
    // What is accepted; port 5777 has a rule of its own.
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
fn every_new_connection_has_its_rules_algorithm_from_the_first_packet_bridged() {
    if ready() {
        every_connection_of(Mode::Bridged);
    }
}

#[test]
fn every_new_connection_has_its_rules_algorithm_from_the_first_packet_routed() {
    if ready() {
        every_connection_of(Mode::Routed);
    }
}

#[test]
fn a_flow_changes_its_algorithm_where_the_rule_says_and_loses_nothing() {
    if !ready() {
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
    for (label, family, first) in
        [("C1", Family::V4, "reno"), ("C1", Family::V6, "reno"), ("C2", Family::V4, "bbr")]
    {
        let (srv, address) = (node.topology.srv(), node.topology.server_address(family));
        let mut ports = Vec::new();
        for (bytes, last) in [(MIB / 2, first), (8 * MIB, "cubic")] {
            let mut pair = Pair::new(node.netns(label), srv, address, 0);
            pair.send(bytes);
            // What is acknowledged is known a moment later here.
            wait_for("the algorithm at the end", || (algorithm(&pair.opened) == last).then_some(()));
            ports.push(pair.port());
        }
        let mut flows = records(&node, &ports, Direction::Out);
        flows.sort_by_key(|flow| flow.sent);
        let (small, large) = (&flows[0], &flows[1]);
        assert_eq!(
            (small.sent.0, small.algorithms(), small.switched_at),
            ((MIB / 2) as u64, first.to_owned(), None)
        );
        assert_eq!((large.sent.0, large.algorithms()), (8 * MIB as u64, format!("{first}>cubic")));
        let at = large.switched_at.expect("it changed").0;
        println!(
            "{label} {family:?}: {} at {at} bytes, {} over the threshold",
            large.algorithms(),
            at - MIB as u64
        );
        // Within a round trip, at the rate at which the path delivers; a super-packet is
        // acknowledged at once.
        let round_trip = large.delivery_rate.0 / 8 * u64::from(large.most_rtt_us) / 1_000_000;
        let most = MIB as u64 + round_trip + 2 * 65_536;
        // BBR goes when its start-up is over.
        let is_at_once = at <= most || first == "bbr";
        assert!(at >= MIB as u64 && is_at_once, "changed at {at}, {most} at the latest: {large:?}");
    }
    assert_eq!(node.client().congestion().expect("it answers").switched, 3);

    // What the verbs show of it.
    let (c1, server) = (node.name("C1"), node.topology.server_address(Family::V4));
    let list = node.weir(&["cc", "ls"]);
    assert!(list.contains("reno, cubic after 1MiB") && list.contains("bbr, cubic after 1MiB"), "{list}");
    let why = node.weir(&["cc", "explain", &server.to_string(), "--container", &c1]);
    assert!(why.contains("uses reno, cubic after 1MiB, by rule 1"), "{why}");
    assert!(why.contains("but rule 1 names the container"), "{why}");
    assert!(node.weir(&["cc", "flows"]).contains("bbr>cubic"));
    let stats = node.weir(&["cc", "stats"]);
    assert!(stats.contains("bbr>cubic") && stats.contains("10MB"), "{stats}");
    assert!(node.client().congestion_stats().expect("it answers").paths.len() >= 2);
    assert!(node.agent().stop());
}

#[test]
fn rules_that_cannot_be_are_refused_and_the_old_ones_stay() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let good = rule("start = \"reno\"");
    let config = node.config();
    started(&mut node, &config, &[good]);
    for (bad, why) in [
        (rule("start = \"fastest\""), "this kernel has no congestion control fastest; it has"),
        (rule("start = \"a-name-that-is-too-long\""), "is not the name of a congestion control"),
        (rule("to = \"10.0.0.1/8\"\nstart = \"reno\""), "has bits behind its prefix: write 10.0.0.0/8"),
        (rule("to = \"224.0.0.0/4\"\nstart = \"reno\""), "TCP has no multicast"),
        (
            [rule("start = \"reno\""), rule("start = \"cubic\"")].concat(),
            "rules 1 and 2 are about the same connections",
        ),
        (rule("start = \"reno\"\nafter = \"1MiB\""), "after needs then beside it"),
    ] {
        node.agent().rewrite(&config.clone().sections(&bad)).expect("can write");
        let said = wait_for("the configuration is refused", || {
            node.client().status().expect("it answers").config_error.filter(|said| said.contains(why))
        });
        println!("{}", said.lines().last().unwrap_or_default());
        let pair =
            Pair::new(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4), 0);
        assert_eq!(algorithm(&pair.opened), "reno", "the old rule is in force");
        let path = node.agent().config_path();
        let checked = node.ran(&["agent", "--check", "--config", path.to_str().expect("UTF-8")]);
        assert!(checked.code != Some(0) && checked.stderr.contains(why), "{checked:?}");
    }
    assert!(node.agent().stop());
}

#[test]
fn other_owners_programs_go_on_and_a_cgroup_can_have_rules_of_its_own() {
    if !ready() {
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
        let port = group.connect(node.topology.node(), node.topology.srv(), address);
        let flow = records(&node, &[port], Direction::Out).remove(0);
        assert_eq!((flow.class.as_deref(), flow.first.as_str()), (Some(class), wanted));
        let runs = counting.runs(foreign.id()).0 - before;
        println!("{class}: {} by weir's rule, {runs} calls of the other's program", flow.first);
        assert!(foreign.is_attached() && runs > 0, "the other's program ran {runs} times");
    }
    // And one at the root, where weir's is too.
    let at_root = Foreign::attach_beside(Cgroup2::find().expect("asked for").mount());
    let before = counting.runs(at_root.id()).0;
    let port = group.connect(node.topology.node(), node.topology.srv(), address);
    assert_eq!(records(&node, &[port], Direction::Out)[0].first.as_str(), "reno");
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

#[test]
fn flows_go_on_when_the_agent_is_killed_before_they_change() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let before = usual(node.netns("C1"));
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"")]);
    let connect = |node: &Node| {
        Pair::new(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4), 0)
    };
    let (mut changes, mut ends, mut stays) = (connect(&node), connect(&node), connect(&node));
    for pair in [&mut changes, &mut ends, &mut stays] {
        pair.send(MIB / 2);
    }
    node.agent().kill();
    assert_eq!(programs(&node).len(), 1, "the program outlives the agent");
    changes.send(2 * MIB);
    wait_for("it changes without an agent", || (algorithm(&changes.opened) == "cubic").then_some(()));
    assert_eq!(algorithm(&connect(&node).opened), "reno", "so does a new connection");
    node.restart();
    wait_for("the agent takes over", || (programs(&node).len() == 1).then_some(()));
    ends.send(2 * MIB);
    wait_for("it changes under the next agent", || (algorithm(&ends.opened) == "cubic").then_some(()));
    let port = ends.port();
    drop(ends);
    let flow = records(&node, &[port], Direction::Out).remove(0);
    assert_eq!((flow.sent.0, flow.algorithms().as_str()), ((MIB / 2 + 2 * MIB) as u64, "reno>cubic"));

    assert!(node.agent().stop(), "the agent puts everything back");
    assert!(programs(&node).is_empty(), "the program goes with the agent");
    for pair in [&mut changes, &mut stays] {
        assert_eq!(algorithm(&pair.opened), before, "connections get back what they had");
        pair.send(2 * MIB);
        assert_eq!(algorithm(&pair.opened), before);
    }
}

#[test]
fn a_rule_that_is_removed_in_the_flow_changes_nothing_more_and_connections_can_be_moved() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let (before, address) = (usual(node.netns("C1")), node.topology.server_address(Family::V4));
    let connect = |node: &Node| Pair::new(node.netns("C1"), node.topology.srv(), address, 0);
    let mut old = connect(&node);
    let (config, name) = (node.config(), node.name("C1"));
    let wanted = format!("container = \"{name}\"\nstart = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"");
    started(&mut node, &config, &[rule(&wanted)]);
    let mut flow = connect(&node);
    flow.send(MIB / 2);
    old.send(1000);
    assert_eq!((algorithm(&flow.opened), algorithm(&old.opened)), ("reno".to_owned(), before.clone()));

    let said = node.weir(&["cc", "move"]);
    assert_eq!(
        (said.as_str(), algorithm(&old.opened)),
        ("1 connection has another algorithm now\n", "reno".to_owned())
    );
    old.send(2 * MIB);
    wait_for("what was moved changes too", || (algorithm(&old.opened) == "cubic").then_some(()));

    // Another rule in its place.
    let other = rule(&format!("container = \"{}\"\nstart = \"cubic\"", node.name("C2")));
    node.agent()
        .rewrite(&config.clone().sections(&[other.clone(), rule("container = \"host\"")].concat()))
        .expect("can write");
    wait_for_rules(&node, 2);
    flow.send(4 * MIB);
    assert_eq!(algorithm(&flow.opened), "reno", "it stays as it is, and does not change any more");
    assert_eq!(algorithm(&connect(&node).opened), before, "a new one has no rule");
    node.weir(&["cc", "move"]);
    assert_eq!(algorithm(&flow.opened), before, "when moved, it has none either");

    // None at all.
    node.agent().rewrite(&config).expect("can write");
    wait_for("the program goes with the rules", || programs(&node).is_empty().then_some(()));
    flow.send(MIB);
    old.send(MIB);
    assert_eq!((algorithm(&flow.opened), algorithm(&old.opened)), (before.clone(), before));
    let said = node.ran(&["cc", "move"]);
    assert!(said.code == Some(1) && said.stderr.contains("there are no rules"), "{said:?}");
    assert!(node.agent().stop());
}

#[test]
fn a_rule_is_set_at_run_time_outlives_the_agent_and_is_taken_back() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"cubic\"")]);
    let (server, name) = (node.topology.server_address(Family::V4), node.name("C1"));
    let used = |node: &Node| algorithm(&Pair::new(node.netns("C1"), node.topology.srv(), server, 0).opened);
    let network = format!("to={server}/32");
    assert_eq!(used(&node), "cubic");
    let said = node.weir(&["cc", "set", &network, "start=reno"]);
    assert_eq!((said, used(&node)), (format!("rule 2, to {server}/32: reno\n"), "reno".to_owned()));
    // In place of the file's, and of what was set before.
    node.weir(&["cc", "set", "start=bbr"]);
    node.weir(&["cc", "set", &network, "start=bbr"]);
    assert_eq!(used(&node), "bbr");
    let why = node.weir(&["cc", "explain", &server.to_string()]);
    assert!(why.contains("was set instead of it") && why.contains("config"), "{why}");

    for (parts, why) in [
        (vec!["start=fastest"], "this kernel has no congestion control fastest; it has"),
        (vec!["to=10.0.0.1/8", "start=reno"], "write 10.0.0.0/8"),
        (vec!["to=224.0.0.0/4", "start=reno"], "TCP has no multicast"),
    ] {
        let said = node.ran(&[&["cc", "set"][..], &parts].concat());
        assert!(said.code != Some(0) && said.stderr.contains(why), "{said:?}");
    }
    node.weir(&["cc", "set", &format!("container={name}"), "start=reno"]);
    let said = node.ran(&["cc", "set", &format!("container=netns:{name}"), "start=bbr"]);
    assert!(said.stderr.contains("is about the same connections"), "{said:?}");
    node.weir(&["cc", "unset", &format!("container={name}")]);

    node.agent().kill();
    node.restart();
    wait_for("rules are in force again", || (programs(&node).len() == 1).then_some(()));
    let shown = node.client().congestion().expect("it answers");
    assert!(shown.rules.len() == 2 && shown.rules.iter().all(|rule| rule.origin == Origin::Set), "{shown:?}");
    assert_eq!(used(&node), "bbr");
    node.weir(&["cc", "unset", &network]);
    node.weir(&["cc", "unset"]);
    assert_eq!(used(&node), "cubic", "the file's rule counts again");
    let said = node.ran(&["cc", "unset", &network]);
    assert!(said.code == Some(1) && said.stderr.contains("was set at run time"), "{said:?}");
    assert!(node.agent().stop());
}

#[test]
fn few_connections_try_another_algorithm_and_what_is_known_of_them_outlives_the_agent() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let server = node.topology.server_address(Family::V4);
    let advice = format!(
        "[advice]\nto = [\"{server}/32\"]\nshare = 0.25\nturn_s = 1\ntry = [{{ start = \"reno\" }}]\n"
    );
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"cubic\""), advice]);
    let srv = node.topology.srv();
    let stage = |node: &Node| {
        let trials = node.client().congestion_advice().expect("it answers");
        trials.first().map(|trial| trial.stage.clone()).unwrap_or_default()
    };
    wait_for("the trial begins", || (stage(&node) == "baseline").then_some(()));
    // Each at a port of its own: at one port the ends of thousands use up the ports to come from.
    let batch = |node: &Node| {
        let listener = srv.within(|| TcpListener::bind((server, 0))).expect("is there").expect("free");
        for _ in 0..250 {
            Pair::to(node.netns("C1"), &listener).send(100);
        }
        let flows = node.client().congestion_flows().expect("it answers");
        flows.into_iter().filter(|flow| flow.direction == Some(Direction::Out)).collect::<Vec<_>>()
    };
    let begin = Instant::now();
    let mut made = 0;
    while stage(&node) == "baseline" {
        let flows = batch(&node);
        made += 250;
        // It may have ended while these were made.
        let is_over = stage(&node) != "baseline";
        let none_tried = flows.iter().all(|flow| !flow.tried);
        assert!(none_tried || is_over, "nothing is tried before it is known what is usual");
        assert!(begin.elapsed() < 10 * PATIENCE, "{made} connections say what is usual");
    }
    assert!(made >= 4000, "{made} connections were enough");
    let tried = loop {
        let flows = batch(&node);
        made += 250;
        if let Some(flow) = flows.iter().find(|flow| flow.tried) {
            assert!(flows.iter().filter(|f| !f.tried).all(|f| f.first.as_str() == "cubic"));
            break flow.clone();
        }
        assert!(begin.elapsed() < 20 * PATIENCE, "of {made} connections none tried anything");
    };
    let view = node.client().congestion().expect("it answers");
    println!("{made} connections, {} tried reno: {tried:?}", view.tried);
    assert_eq!((tried.first.as_str(), tried.rule), ("reno", None));
    assert!(view.tried * 10 < made, "{} of {made} tried it", view.tried);

    node.agent().kill();
    node.restart();
    wait_for("trials go on", || (stage(&node) == "trying").then_some(()));
    node.weir(&["cc", "advise", "--apply"]);
    assert!(node.weir(&["cc", "advise"]).contains("becomes the rule"));
    let said = node.ran(&["cc", "advise", "--rollback", &format!("{server}/32")]);
    assert!(said.code == Some(1) && said.stderr.contains("nothing to take back"), "{said:?}");
    node.weir(&["cc", "advise", "--again"]);
    wait_for("they begin anew", || (stage(&node) == "baseline").then_some(()));
    let said = node.weir(&["cc", "explain", &server.to_string()]);
    assert!(said.contains("uses cubic"), "{said}");
    assert!(node.agent().stop());
}
