//! Finding containers of a real Docker daemon, and the interfaces that lead to them.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    process::Command,
    time::{Duration, Instant},
};

use tokio::{sync::watch::Receiver, time::timeout};
use weir_discovery::{
    Found, Location, NetnsRef, Warning,
    cgroup::{self, Cgroup2},
    docker::{self, Options, Snapshot, Unavailable},
    netns, ports,
};
use weir_netlink::Netlink;
use weir_testkit::{Dockerd, Netns};

/// Longest time between Docker's answer to a command and the snapshot that shows its effect.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(1);
const IDLE: &[&str] = &["sleep", "600"];

/// Runs a test as the agent runs: in a node's namespace, on one thread, beside a daemon.
fn on_a_node(test: impl AsyncFnOnce(Dockerd, Receiver<Snapshot>) + Send) {
    let node = match Netns::new("node") {
        Ok(node) => node,
        Err(why) => return println!("skipped: {why}"),
    };
    let docker = match Dockerd::start(node.name()) {
        Ok(docker) => docker,
        Err(why) => return println!("skipped: {why}"),
    };
    let inside = node.run_in(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("can start a runtime").block_on(async {
            let watcher = docker::watch(Options::at(docker.socket()));
            test(docker, watcher.snapshots()).await;
        });
    });
    inside.expect("can enter the node");
}

/// The first snapshot that is as `wanted`, and how long it took.
async fn until(
    snapshots: &mut Receiver<Snapshot>,
    wanted: impl Fn(&Snapshot) -> bool,
) -> (Snapshot, Duration) {
    let asked = Instant::now();
    let found = timeout(Duration::from_secs(20), snapshots.wait_for(|snapshot| wanted(snapshot))).await;
    let found = found.map(|found| found.expect("the watcher lives").clone());
    let found = found.unwrap_or_else(|_| panic!("never came; the last: {:?}", snapshots.borrow().clone()));
    (found, asked.elapsed())
}

fn named<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a Found> {
    snapshot.containers.iter().find(|found| found.name == name)
}

fn netns_of<'a>(snapshot: &'a Snapshot, name: &str) -> &'a NetnsRef {
    match &named(snapshot, name).expect("is found").location {
        Location::Netns(netns) => netns,
        other => panic!("{name} is at {other:?}"),
    }
}

/// The index of the host side of a container's interface, as the container itself sees it.
fn iflink(docker: &Dockerd, name: &str, interface: &str) -> u32 {
    let text = docker.exec(name, &["cat", &format!("/sys/class/net/{interface}/iflink")]);
    text.expect("can look inside").parse().expect("is a number")
}

/// Host-side interfaces of all containers of a snapshot, by name.
fn ports_of(snapshot: &Snapshot) -> ports::Ports<&str> {
    let mut netlink = Netlink::open().expect("can open netlink");
    let namespaces = snapshot.containers.iter().filter_map(|found| match &found.location {
        Location::Netns(netns) => Some((found.name.as_str(), netns)),
        _ => None,
    });
    ports::find(&mut netlink, namespaces).expect("can read links")
}

fn indices(ports: &ports::Ports<&str>, name: &str) -> Vec<u32> {
    ports.of[name].iter().map(|port| port.index).collect()
}

#[test]
fn containers_appear_are_renamed_and_vanish_within_a_second() {
    on_a_node(async |docker, mut snapshots| {
        let (first, _) = until(&mut snapshots, |snapshot| snapshot.error.is_none()).await;
        assert_eq!(first.containers, []);

        let labels = [("weir.weight", "2"), ("weir.min", "20mbit"), ("weir.group", "tenant-a")];
        let id = docker.run("web", &labels, &[], IDLE).expect("runs");
        let (snapshot, shown) = until(&mut snapshots, |snapshot| named(snapshot, "web").is_some()).await;
        let web = named(&snapshot, "web").expect("is there");
        assert_eq!(web.id, id);
        assert_eq!(web.policy.weight.map(|weight| weight.get()), Some(2));
        assert_eq!(web.policy.min.map(|min| min.bits_per_sec()), Some(20_000_000));
        assert_eq!(web.group.as_deref(), Some("tenant-a"));
        let seen = docker.exec("web", &["hostname", "-i"]).expect("can look inside");
        assert_eq!(web.addresses, [seen.parse::<IpAddr>().expect("is an address")]);

        docker.docker(&["rename", "web", "shop"]).expect("is renamed");
        let (_, renamed) = until(&mut snapshots, |snapshot| named(snapshot, "shop").is_some()).await;
        docker.docker(&["pause", "shop"]).expect("pauses");
        docker.run("bad", &[("weir.weight", "0")], &[], IDLE).expect("runs");
        let (snapshot, _) = until(&mut snapshots, |snapshot| named(snapshot, "bad").is_some()).await;
        assert!(named(&snapshot, "shop").is_some(), "a paused container has gone");
        let [Warning::Label { container, .. }] = &snapshot.warnings[..] else {
            panic!("{:?}", snapshot.warnings)
        };
        assert_eq!(container, "bad");
        docker.docker(&["unpause", "shop"]).expect("goes on");

        docker.rm("shop").expect("goes");
        let (_, gone) = until(&mut snapshots, |snapshot| named(snapshot, "shop").is_none()).await;
        docker.stop("bad").expect("stops");
        until(&mut snapshots, |snapshot| snapshot.containers.is_empty()).await;
        docker.docker(&["start", "bad"]).expect("starts");
        let (_, again) = until(&mut snapshots, |snapshot| named(snapshot, "bad").is_some()).await;

        println!("shown after {shown:?}, renamed {renamed:?}, gone {gone:?}, started again {again:?}");
        assert!(shown.max(renamed).max(gone).max(again) < SNAPSHOT_TIMEOUT);
    });
}

#[test]
fn each_container_gets_its_own_veths_through_churn_and_new_networks() {
    on_a_node(async |docker, mut snapshots| {
        let lan =
            ["network", "create", "--ipv6", "--subnet", "10.9.0.0/24", "--subnet", "fd00:9::/64", "lan"];
        docker.docker(&lan).expect("makes a network");
        docker.run("steady", &[], &[], IDLE).expect("runs");
        docker.run("alone", &[], &["--network", "none"], IDLE).expect("runs");
        for round in 0..6 {
            let name = format!("churn{round}");
            let network = if round % 2 == 0 { "lan" } else { "bridge" };
            docker.run(&name, &[], &["--network", network], IDLE).expect("runs");
            let (snapshot, _) = until(&mut snapshots, |snapshot| named(snapshot, &name).is_some()).await;
            let ports = ports_of(&snapshot);
            assert!(ports.shared.is_empty() && ports.gone.is_empty(), "{ports:?}");
            assert_eq!(indices(&ports, &name), [iflink(&docker, &name, "eth0")]);
            assert_eq!(indices(&ports, "steady"), [iflink(&docker, "steady", "eth0")]);
            assert!(ports.of["alone"].is_empty());
            docker.rm(&name).expect("goes");
        }
        docker.docker(&["network", "connect", "lan", "steady"]).expect("joins a network");
        let joined =
            |snapshot: &Snapshot| named(snapshot, "steady").is_some_and(|found| found.addresses.len() == 3);
        let (snapshot, took) = until(&mut snapshots, joined).await;
        assert!(took < SNAPSHOT_TIMEOUT, "{took:?}");
        let steady = named(&snapshot, "steady").expect("is there");
        assert!(steady.addresses.iter().any(IpAddr::is_ipv6), "{:?}", steady.addresses);
        let want = [iflink(&docker, "steady", "eth0"), iflink(&docker, "steady", "eth1")];
        assert_eq!(indices(&ports_of(&snapshot), "steady"), want);
    });
}

#[test]
fn host_network_containers_have_a_cgroup_joined_ones_an_owner() {
    on_a_node(async |docker, mut snapshots| {
        let id = docker.run("hosted", &[], &["--network", "host"], IDLE).expect("runs");
        docker.run("owner", &[], &[], IDLE).expect("runs");
        docker.run("guest", &[("weir.weight", "9")], &["--network", "container:owner"], IDLE).expect("runs");
        docker.run("beside", &[], &["--network", "container:hosted"], IDLE).expect("runs");
        let all = |snapshot: &Snapshot| named(snapshot, "beside").is_some() && !snapshot.warnings.is_empty();
        let (snapshot, _) = until(&mut snapshots, all).await;

        let shares = Warning::SharesNetwork { container: "guest".into(), owner: "owner".into() };
        assert_eq!(snapshot.warnings, [shares]);
        assert!(named(&snapshot, "guest").is_none());
        assert_eq!(ports_of(&snapshot).of.len(), 1, "only the owner has a namespace of its own");

        let hosted = named(&snapshot, "hosted").expect("is there");
        let Location::HostNetwork { cgroup, pid } = &hosted.location else { panic!("{hosted:?}") };
        assert!(cgroup.ends_with(&id), "{}", cgroup.display());
        assert_eq!(cgroup::of_process(*pid).expect("lives"), *cgroup);
        let found = Cgroup2::find().expect("is mounted").resolve(cgroup).expect("is there");
        assert_eq!(found.id, fs::metadata(&found.dir).expect("is there").ino());
        assert_eq!(found.level, Some(2), "{}", found.dir.display());
        let inside = fs::read_to_string(found.dir.join("cgroup.procs")).expect("can read");
        assert!(inside.lines().any(|line| line == pid.to_string()), "{inside}");
        let beside = &named(&snapshot, "beside").expect("is there").location;
        assert!(
            matches!(beside, Location::HostNetwork { cgroup: other, .. } if other != cgroup),
            "{beside:?}"
        );
    });
}

#[test]
fn a_daemon_that_is_killed_and_comes_back_is_followed_again() {
    on_a_node(async |mut docker, mut snapshots| {
        docker.run("lasts", &[], &[], IDLE).expect("runs");
        docker.run("ends", &[], &[], IDLE).expect("runs");
        let (before, _) = until(&mut snapshots, |snapshot| snapshot.containers.len() == 2).await;
        let pid = docker.docker(&["inspect", "--format", "{{.State.Pid}}", "ends"]).expect("is there");

        docker.kill_daemon();
        let (lost, took) = until(&mut snapshots, |snapshot| snapshot.error.is_some()).await;
        println!("missed after {took:?}: {}", lost.error.as_ref().expect("is set"));
        assert_eq!(lost.containers, before.containers);
        assert!(took < SNAPSHOT_TIMEOUT, "{took:?}");
        until(&mut snapshots, |s| matches!(s.error, Some(Unavailable::NoConnection { .. }))).await;
        let killed = Command::new("kill").args(["-9", &pid]).status().expect("can run kill");
        assert!(killed.success());

        docker.restart_daemon().expect("starts again");
        let back = |snapshot: &Snapshot| snapshot.error.is_none() && named(snapshot, "ends").is_none();
        let (after, took) = until(&mut snapshots, back).await;
        println!("followed again {took:?} after it was ready");
        assert_eq!(named(&after, "lasts"), named(&before, "lasts"));
        assert_eq!(indices(&ports_of(&after), "lasts"), [iflink(&docker, "lasts", "eth0")]);
        docker.run("new", &[], &[], IDLE).expect("runs");
        let (_, took) = until(&mut snapshots, |snapshot| named(snapshot, "new").is_some()).await;
        assert!(took < SNAPSHOT_TIMEOUT, "{took:?}");
    });
}

#[test]
fn docker_sandboxes_among_named_namespaces_are_not_found_twice() {
    on_a_node(async |docker, mut snapshots| {
        docker.run("web", &[], &[], IDLE).expect("runs");
        let (snapshot, _) = until(&mut snapshots, |snapshot| named(snapshot, "web").is_some()).await;
        let netns = netns_of(&snapshot, "web");
        let sandboxes = netns.path.parent().expect("has a parent");
        let linked = tempfile::tempdir().expect("can make a directory");
        std::os::unix::fs::symlink(&netns.path, linked.path().join("web-by-hand")).expect("can link");
        let own = netns::NsId::own().expect("there is /proc");

        let scan = |dir| netns::scan(&[dir], &netns::Filter::All, own).0;
        assert!(scan(sandboxes).iter().all(|found| found.name != "default"), "the node's own is found");
        let names = scan(linked.path());
        assert!(matches!(&names[..], [found] if found.name == "web-by-hand"), "{names:?}");
        let all = weir_discovery::combine(&[], &snapshot.containers, &names);
        assert_eq!(all, snapshot.containers);
    });
}
