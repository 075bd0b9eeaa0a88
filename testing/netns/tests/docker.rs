//! A real dockerd: containers on its default and on a user's network, behind its NAT, with
//! labels; containers that come again, daemons that die, containers on the host's network.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use weir_api::{Class, ClassKind};
use weir_netlab::{
    topology::{Family, Mode, Proc, Spec},
    traffic::{Load, wait_until_listening},
};
use weir_netns_tests::{
    CAPACITY, Config, Division, Need, Node, TOLERANCE, can_run, compare, kernel, measure_once, party, skip,
};
use weir_testkit::Dockerd;
use weir_units::BitRate;

/// How soon after `docker run` has returned a container's traffic must be its class's.
const CLASS_TIMEOUT: Duration = Duration::from_secs(1);
/// The first of iperf3's ports.
const PORT: u16 = 5301;

/// A node with a daemon and an agent that listens to it.
struct Docked {
    // Before the node: it is in its namespace.
    docker: Dockerd,
    node: Node,
}

/// None, with the reason printed, if no daemon can run here.
fn docked() -> Option<Docked> {
    if !can_run(&Need::TRAFFIC) {
        return None;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let docker = match Dockerd::start(node.topology.node().name()) {
        Ok(docker) => docker,
        Err(why) => {
            skip(why);
            return None;
        }
    };
    node.start(&Config::new(CAPACITY).docker(&docker.socket()));
    Some(Docked { docker, node })
}

impl Docked {
    /// Starts a container that does nothing; returns how long after that it was enforced.
    fn run(&self, name: &str, labels: &[(&str, &str)], options: &[&str]) -> Duration {
        self.docker.run(name, labels, options, &["sleep", "1000"]).unwrap_or_else(|e| panic!("{e}"));
        let start = Instant::now();
        while !self.known(name).is_some_and(|c| c.handle.is_some() && is_caught(&c)) {
            assert!(
                start.elapsed() <= CLASS_TIMEOUT,
                "{name} has no class after {CLASS_TIMEOUT:?}: {:?}",
                self.known(name)
            );
            sleep(Duration::from_millis(2));
        }
        let took = start.elapsed();
        println!("{name:<10} has its class {:>4} ms after `docker run`", took.as_millis());
        took
    }

    fn known(&self, name: &str) -> Option<Class> {
        self.node.client().class(name).ok()
    }

    fn class(&self, name: &str) -> Class {
        self.node.client().class(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Lets these containers send TCP at once for five seconds; what arrives in the last
    /// three, Mbit/s of payload.
    fn send(&self, names: &[&str]) -> Vec<(String, f64)> {
        let address = self.node.topology.server_address(Family::V4).to_string();
        let ports: Vec<String> = (PORT..).take(names.len()).map(|port| port.to_string()).collect();
        let listen = |port: &String| {
            let line = ["iperf3", "-s", "-1", "-J", "-i", "0.1", "-p", port];
            self.node.topology.srv().spawn(&line).unwrap_or_else(|e| panic!("{e:#}"))
        };
        let mut servers: Vec<Proc> = ports.iter().map(listen).collect();
        for (server, port) in servers.iter_mut().zip(PORT..) {
            wait_until_listening(server, port).unwrap_or_else(|e| panic!("{e:#}"));
        }
        for (name, port) in names.iter().zip(&ports) {
            let line =
                ["exec", "--detach", name, "iperf3", "-c", &address, "-p", port, "-t", "5", "-l", "16K"];
            self.docker.docker(&line).unwrap_or_else(|e| panic!("{e}"));
        }
        let deadline = Instant::now() + Duration::from_secs(15);
        let goodput = |server: &mut Proc| {
            let said = server.finish(deadline).unwrap_or_else(|e| panic!("{e:#}")).stdout;
            let said: serde_json::Value = serde_json::from_str(&said).expect("iperf3 writes JSON");
            let sums = said["intervals"].as_array().expect("intervals").iter().map(|i| &i["sum"]);
            let number = |sum: &serde_json::Value, key: &str| sum[key].as_f64().expect("a number");
            let steady = sums.filter(|sum| (2.0..4.8).contains(&number(sum, "start")));
            let (bytes, seconds) = steady.fold((0.0, 0.0), |(b, s), sum| {
                (b + number(sum, "bytes"), s + number(sum, "end") - number(sum, "start"))
            });
            bytes * 8e-6 / seconds
        };
        names.iter().map(|n| (*n).to_owned()).zip(servers.iter_mut().map(goodput)).collect()
    }

    fn handles(&self) -> BTreeMap<String, Option<String>> {
        let classes = self.node.client().classes().expect("it answers");
        classes.into_iter().map(|c| (c.name, c.handle)).collect()
    }

    fn told(&self, kind: &str) -> usize {
        let events = self.node.client().events(false).expect("it tells");
        events.filter(|e| e.as_ref().is_ok_and(|e| e.what == kind)).count()
    }
}

/// Whether its packets reach its class, even if a label was refused.
fn is_caught(class: &Class) -> bool {
    class.enforced || class.not_enforced_because.as_ref().is_some_and(|why| why.contains("label"))
}

#[test]
fn containers_of_docker_share_the_link_by_their_labels() {
    let Some(docked) = docked() else { return };
    docked.docker.docker(&["network", "create", "lan"]).unwrap_or_else(|e| panic!("{e}"));
    let lan = ["--network", "lan"];
    docked.run("one", &[("weir.min", "30mbit")], &[]);
    docked.run("two", &[("weir.weight", "3")], &[]);
    docked.run("three", &[("weir.weight", "5"), ("weir.max", "20mbit")], &lan);
    docked.run("greedy", &[("weir.min", "200mbit"), ("weir.weight", "2")], &lan);

    let listed: serde_json::Value =
        serde_json::from_str(&docked.node.weir(&["ps", "--json"])).expect("weir writes JSON");
    let of = |name: &str| {
        listed.as_array().expect("a list").iter().find(|c| c["name"] == name).expect("it is listed").clone()
    };
    let greedy = of("greedy");
    println!("greedy: {}", greedy["not_enforced_because"]);
    assert_eq!(greedy["enforced"], false);
    let why = greedy["not_enforced_because"].as_str().expect("a reason");
    assert!(why.contains("200mbit") && why.contains("60.25mbit are free"), "{why}");
    assert_eq!(greedy["policy"]["min"], serde_json::Value::Null);
    assert_eq!(greedy["policy"]["weight"], 2, "the rest of its labels counts");
    for (name, key, value) in [("one", "min", 30_000_000), ("two", "weight", 3), ("three", "max", 20_000_000)]
    {
        assert_eq!(of(name)["policy"][key], value, "{name}");
        assert_eq!(of(name)["policy"][format!("{key}_origin")], "label", "{name}");
        assert_eq!(of(name)["enforced"], true, "{name}");
    }

    let division = Division::of([
        party("one").min(30).sends(Load::Tcp),
        party("two").weight(3).sends(Load::Tcp),
        party("three").weight(5).max(20).sends(Load::Tcp),
    ]);
    let expected = division.expected(CAPACITY, Family::V4);
    let measure =
        || compare("by labels, two networks, NAT", &docked.send(&["one", "two", "three"]), &expected);
    let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
    assert!(worst <= TOLERANCE, "{:.2} % off", worst * 100.0);
}

#[test]
fn what_was_set_by_hand_waits_for_a_container_and_outlives_daemons() {
    let Some(mut docked) = docked() else { return };
    docked.run("web", &[], &[]);
    docked.run("other", &[("weir.weight", "2")], &[]);
    docked.node.weir(&["set", "web", "weight=4", "max=25mbit"]);
    let policy = docked.class("web").policy;

    // Removed, and made again under the same name.
    docked.docker.rm("web").unwrap_or_else(|e| panic!("{e}"));
    let start = Instant::now();
    while docked.known("web").is_some_and(|c| c.handle.is_some()) {
        assert!(start.elapsed() < CLASS_TIMEOUT, "web is still here");
        sleep(Duration::from_millis(2));
    }
    println!("web is gone {} ms after `docker rm`", start.elapsed().as_millis());
    docked.run("web", &[], &[]);
    assert_eq!(docked.class("web").policy, policy);
    // Stopped and started.
    docked.docker.stop("web").unwrap_or_else(|e| panic!("{e}"));
    docked.docker.docker(&["start", "web"]).unwrap_or_else(|e| panic!("{e}"));
    sleep(CLASS_TIMEOUT);
    assert_eq!((docked.class("web").policy, docked.class("web").enforced), (policy, true));

    // The daemon crashes; its containers run on, and so do their classes.
    let (handles, gone) = (docked.handles(), docked.told("class-removed"));
    docked.docker.kill_daemon();
    sleep(Duration::from_secs(2));
    assert_eq!(docked.handles(), handles, "a class was lost with the daemon");
    let warned = docked.node.client().status().expect("it answers").warnings;
    println!("without a daemon: {warned:?}");
    assert!(warned.iter().any(|w| w.contains("docker")), "nobody is told that Docker is away: {warned:?}");
    docked.docker.restart_daemon().unwrap_or_else(|e| panic!("{e}"));
    let start = Instant::now();
    while docked.node.client().status().expect("it answers").warnings.iter().any(|w| w.contains("docker")) {
        assert!(start.elapsed() < Duration::from_secs(5), "Docker is not found again");
        sleep(Duration::from_millis(20));
    }
    println!("the daemon is found again {:?} after it answers", start.elapsed());
    assert_eq!((docked.handles(), docked.told("class-removed")), (handles.clone(), gone));
    docked.run("late", &[], &[]);
    docked.docker.rm("late").unwrap_or_else(|e| panic!("{e}"));
    sleep(CLASS_TIMEOUT);

    // The agent crashes: the next one knows the containers before it divides anything.
    let address = docked.node.topology.server_address(Family::V4).to_string();
    docked.docker.exec("web", &["ping", "-c", "1", &address]).unwrap_or_else(|e| panic!("{e}"));
    let before = kernel::classes(docked.node.topology.node());
    let own = docked.class("web").handle.expect("it is here");
    assert!(before[&own].counters.bytes > 0, "a class that was made anew could not be told");
    docked.node.agent().kill();
    docked.node.restart();
    sleep(Duration::from_millis(500));
    assert_eq!(docked.handles(), handles);
    assert_eq!(docked.told("class-removed"), 0);
    let after = kernel::classes(docked.node.topology.node());
    for (handle, was) in &before {
        let now = &after[handle].counters;
        assert!(now.bytes >= was.counters.bytes, "class {handle} was made anew");
    }
    assert_eq!(docked.class("web").policy, policy);

    let division =
        Division::of([party("web").weight(4).max(25).sends(Load::Tcp), party("other").sends(Load::Tcp)]);
    let expected = division.expected(CAPACITY, Family::V4);
    let measure = || compare("after all that", &docked.send(&["web", "other"]), &expected);
    let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
    assert!(worst <= TOLERANCE, "{:.2} % off", worst * 100.0);
}

#[test]
fn a_container_on_the_hosts_network_has_a_class_of_its_own() {
    if !can_run(&[Need::Cgroup2]) {
        return;
    }
    let Some(docked) = docked() else { return };
    docked.run("hosted", &[("weir.max", "10mbit")], &["--network", "host"]);
    let class = docked.class("hosted");
    assert_eq!((class.kind, class.policy.max), (ClassKind::Cgroup, Some(BitRate::mbit(10))));
    let host = docked.class("host").bytes;
    let division = Division::of([party("hosted").max(10).sends(Load::Tcp)]);
    let expected = division.expected(CAPACITY, Family::V4);
    let measure = || compare("on the host's network", &docked.send(&["hosted"]), &expected);
    let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
    let (own, host) = (docked.class("hosted").bytes, docked.class("host").bytes.0 - host.0);
    println!("hosted's class has {own} of it, the host's {host} bytes");
    assert!(own.0 > 5_000_000 && host < 100_000, "its traffic counts as the host's");
    assert!(worst <= TOLERANCE, "{:.2} % off", worst * 100.0);
}
