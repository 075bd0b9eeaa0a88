//! Real runtimes beside Docker: containerd with its own client, Podman and LXD with their sockets. They have roots of
//! their own. `scripts/install-deps.sh runtimes` installs them.

#[path = "runtimes/incus.rs"]
mod incus;
#[path = "runtimes/libvirt.rs"]
mod libvirt;
#[path = "runtimes/lxc.rs"]
mod lxc;
#[path = "runtimes/mirror.rs"]
mod mirror;
#[allow(dead_code, reason = "suite `images` uses all of it")]
#[path = "images/site.rs"]
mod site;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_api::{Class, Origin};
use weir_netlab::{
    topology::{Family, Mode, Proc, Spec},
    traffic::wait_until_listening,
};
use weir_netns_tests::{CAPACITY, Config, Need, Node, Stream, can_run, measure_once, skip};
use weir_units::BitRate;

/// How soon after the start of a container its class must be enforced.
const CLASS_TIMEOUT: Duration = Duration::from_millis(500);

/// Whether these programs are there. The missing one is named.
fn have(programs: &[&str]) -> bool {
    let is_there = |program: &str| {
        ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|dir| Path::new(dir).join(program).exists())
    };
    match programs.iter().find(|program| !is_there(program)) {
        Some(program) => {
            skip(format!("there is no {program} (`scripts/install-deps.sh runtimes`)"));
            false
        }
        None => true,
    }
}

/// A root file system with a shell.
fn root(dir: &Path) -> PathBuf {
    let bin = dir.join("rootfs/bin");
    fs::create_dir_all(&bin).expect("a directory");
    fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox-static is installed");
    for name in ["sh", "sleep", "nc"] {
        symlink("busybox", bin.join(name)).expect("a link");
    }
    dir.join("rootfs")
}

/// Waits until a file is there.
fn wait_for(path: &Path, daemon: &mut Proc) {
    let begin = Instant::now();
    while !path.exists() {
        assert!(begin.elapsed() < Duration::from_secs(15), "no {}: {daemon:?}", path.display());
        sleep(Duration::from_millis(20));
    }
}

fn known(node: &Node, name: &str) -> Option<Class> {
    node.client().class(name).ok()
}

/// The longest time from a runtime's answer to an enforced class. Podman's own events come after a fifth of a second.
const SOON: Duration = Duration::from_millis(100);

/// The time until a class is enforced.
fn until_enforced(node: &Node, name: &str) -> Duration {
    let begin = Instant::now();
    while !known(node, name).is_some_and(|c| c.handle.is_some() && c.not_enforced_because.is_none()) {
        assert!(begin.elapsed() < CLASS_TIMEOUT, "{name} is not enforced: {:?}", known(node, name));
        sleep(Duration::from_millis(2));
    }
    begin.elapsed()
}

fn until_gone(node: &Node, name: &str) {
    let begin = Instant::now();
    // A class with a policy by hand stays as an absent one.
    while known(node, name).is_some_and(|class| class.handle.is_some()) {
        assert!(begin.elapsed() < Duration::from_secs(2), "{name} is still a class");
        sleep(Duration::from_millis(10));
    }
}

/// Asserts that a busy sender is held to its maximum, and then to another one that is set while it sends.
fn assert_held(node: &Node, name: &str, max: BitRate) {
    // The agent counts each 100 ms: right after it has counted, the bytes are those of this moment.
    let bytes = || {
        let counted = node.class(name).bytes.0;
        loop {
            let (now, bytes) = (Instant::now(), node.class(name).bytes.0);
            if bytes != counted {
                return (now, bytes);
            }
            sleep(Duration::from_millis(2));
        }
    };
    let measure = || {
        let before = bytes();
        sleep(Duration::from_secs(2));
        let after = bytes();
        (after.1 - before.1) as f64 * 8e-6 / (after.0 - before.0).as_secs_f64()
    };
    sleep(Duration::from_secs(1));
    for (max, is_set) in [(max, false), (BitRate::mbit(12), true)] {
        if is_set {
            node.weir(&["set", name, &format!("max={max}")]);
            sleep(Duration::from_millis(900));
        }
        let want = max.bits_per_sec() as f64 / 1e6;
        let rate = measure_once(measure, |rate| (rate / want - 1.0).abs() < 0.02);
        println!("{name}: {rate:.2} Mbit/s with a maximum of {max}");
        assert!((rate / want - 1.0).abs() < 0.02, "{rate:.2} Mbit/s with a maximum of {max}");
    }
}

/// containerd without CRI, in the node's namespace.
struct Containerd {
    daemon: Option<Proc>,
    dir: TempDir,
}

impl Containerd {
    fn new() -> Containerd {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().display();
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{at}/c.sock\"\n[ttrpc]\naddress = \"{at}/t.sock\"\n"
        );
        fs::write(dir.path().join("config.toml"), config).expect("a file");
        Containerd { daemon: None, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    fn start(&mut self, node: &Node) {
        let config = self.dir.path().join("config.toml");
        let line = ["containerd", "-c", config.to_str().expect("UTF-8")];
        let mut daemon = node.topology.node().spawn(&line).expect("it starts");
        wait_for(&self.socket(), &mut daemon);
        self.daemon = Some(daemon);
    }

    fn ctr(&self, node: &Node, arguments: &[&str]) {
        let socket = self.socket();
        let line = [&["ctr", "-a", socket.to_str().expect("UTF-8")], arguments].concat();
        // The answer has no use where a container is gone already.
        if let Err(why) = node.topology.node().exec(&line) {
            println!("{why:#}");
        }
    }

    /// Runs a container in a container of the topology, whose network it has.
    fn run(&self, node: &Node, (namespace, id): (&str, &str), label: &str, options: &[&str]) {
        let network = format!("network:{}", node.netns(label).path().display());
        let rootfs = self.dir.path().join("rootfs");
        let rootfs = rootfs.to_str().expect("UTF-8");
        let head = ["-n", namespace, "run", "--detach", "--rootfs", "--with-ns", &network];
        let line = [&head[..], options, &[rootfs, id, "/bin/sleep", "1000"]].concat();
        self.ctr(node, &line);
    }

    fn end(&self, node: &Node, (namespace, id): (&str, &str)) {
        self.ctr(node, &["-n", namespace, "task", "kill", "-s", "9", id]);
        sleep(Duration::from_millis(300));
        self.ctr(node, &["-n", namespace, "task", "rm", id]);
        self.ctr(node, &["-n", namespace, "container", "rm", id]);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for (namespace, id) in [("default", "web"), ("other", "evil")] {
            let ctr = || {
                let mut ctr = Command::new("ctr");
                ctr.arg("-a").arg(self.socket()).args(["-n", namespace]);
                ctr
            };
            // They are gone if the test has passed.
            let _ = ctr().args(["task", "rm", "--force", id]).output();
            let _ = ctr().args(["container", "rm", id]).output();
        }
    }
}

/// A container of `ctr` is a class at once, with its labels and annotations, in any of containerd's namespaces.
/// Hostile labels of one harm no other. A container stays while containerd restarts, and its end is seen.
#[test]
fn containers_of_containerd_are_classes_over_its_restart() {
    if !can_run(&Need::TRAFFIC) || !have(&["containerd", "ctr", "runc"]) {
        return;
    }
    let mut node = Node::build(&Spec {
        mode: Mode::Routed,
        containers: weir_netns_tests::containers(2),
        ..Spec::default()
    });
    let mut containerd = Containerd::new();
    root(containerd.dir.path());
    containerd.start(&node);
    let discover = format!("containerd = {:?}", containerd.socket());
    node.start(&Config::new(CAPACITY).discover(&discover));

    let wishes = ["--label", "weir.max=5mbit", "--annotation", "weir.weight=3"];
    containerd.run(&node, ("default", "web"), "C1", &wishes);
    let late = until_enforced(&node, "web");
    println!("web is enforced {late:.1?} after `ctr run`");
    assert!(late < SOON);
    let web = known(&node, "containerd:web").expect("it is a class");
    assert_eq!((web.source.as_str(), web.policy.max), ("containerd", Some(BitRate::mbit(5))));
    assert_eq!((web.policy.weight.get(), web.policy.weight_origin), (3, Origin::Label));
    let explained = node.weir(&["explain", "web"]);
    assert!(explained.contains("weight 3: annotation weir.weight"), "{explained}");

    let many: Vec<String> = (0..90).map(|i| format!("weir.absurd{i}=-1e99")).collect();
    let mut hostile = vec!["--label", "weir.weight=99999999999999999999", "--label", "nerdctl/name=../web"];
    hostile.extend(many.iter().flat_map(|label| ["--label", label.as_str()]));
    containerd.run(&node, ("other", "evil"), "C2", &hostile);
    until_enforced(&node, "evil@other");
    assert_eq!(known(&node, "evil@other").expect("it is a class").policy.weight.get(), 1);

    let server = node.topology.server_address(Family::V4);
    let stream = Stream::tcp(node.netns("C1"), node.topology.srv(), server);
    assert_held(&node, "web", BitRate::mbit(5));

    let before = known(&node, "web").and_then(|class| class.handle);
    containerd.daemon = None;
    sleep(Duration::from_millis(500));
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(
        doctor.lines().any(|line| line.starts_with("containerd at") && line.contains("warn")),
        "{doctor}"
    );
    assert_eq!(known(&node, "web").and_then(|class| class.handle), before, "it stays");
    fs::remove_file(containerd.socket()).expect("it was there");
    containerd.start(&node);
    sleep(Duration::from_secs(3));
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(doctor.contains("2 containers are followed"), "{doctor}");
    assert_eq!(known(&node, "web").and_then(|class| class.handle), before, "it is the same class");
    drop(stream);
    for container in [("default", "web"), ("other", "evil")] {
        containerd.end(&node, container);
    }
    until_gone(&node, "web");
    until_gone(&node, "evil@other");
}

/// Podman with stores of its own, in the node's namespace.
struct Podman {
    service: Option<Proc>,
    /// The node's namespace.
    netns: Option<PathBuf>,
    dir: TempDir,
}

impl Podman {
    fn new() -> Podman {
        let dir = tempfile::tempdir().expect("a directory");
        let config = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
                      [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
        fs::write(dir.path().join("containers.conf"), config).expect("a file");
        Podman { service: None, netns: None, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("p.sock")
    }

    /// The words of a command, without Podman's environment of this machine.
    fn line(&self, arguments: &[&str]) -> Vec<String> {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let mut line = vec!["env".to_owned(), format!("CONTAINERS_CONF={}", at("containers.conf"))];
        line.push("podman".to_owned());
        for option in ["root", "runroot", "tmpdir", "network-config-dir"] {
            line.extend([format!("--{option}"), at(option)]);
        }
        line.extend(arguments.iter().map(|&word| word.to_owned()));
        line
    }

    fn start(&mut self, node: &Node) {
        let url = format!("unix://{}", self.socket().display());
        let line = self.line(&["system", "service", "-t", "0", &url]);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let mut service = node.topology.node().spawn(&line).expect("it starts");
        wait_for(&self.socket(), &mut service);
        self.netns = Some(node.topology.node().path());
        self.service = Some(service);
    }

    #[track_caller]
    fn podman(&self, node: &Node, arguments: &[&str]) {
        let line = self.line(arguments);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        node.topology.node().exec(&line).unwrap_or_else(|why| panic!("podman {arguments:?}: {why:#}"));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let Some(netns) = &self.netns else { return };
        let line = self.line(&["rm", "--all", "--force", "--time", "0"]);
        let _ = Command::new("nsenter").arg(format!("--net={}", netns.display())).args(line).output();
    }
}

/// A container of Podman is a class by Podman's socket, with its labels. It stays while the service restarts, and its
/// end is seen.
#[test]
fn containers_of_podman_are_classes_over_its_restart() {
    if !can_run(&Need::TRAFFIC) || !have(&["podman", "runc"]) {
        return;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let mut podman = Podman::new();
    let rootfs = root(podman.dir.path());
    podman.start(&node);
    // The second socket is that of a user without Podman: it holds up nothing.
    let absent = podman.dir.path().join("absent.sock");
    let discover = format!("podman = [{:?}, {absent:?}]", podman.socket());
    node.start(&Config::new(CAPACITY).discover(&discover).netns(&["netns-*".to_owned()]));
    let rootfs = rootfs.to_str().expect("UTF-8");
    let run = ["run", "--detach", "--name", "web", "--label", "weir.max=5mbit", "--rootfs", rootfs];
    podman.podman(&node, &[&run[..], &["/bin/sleep", "1000"]].concat());
    let late = until_enforced(&node, "web");
    println!("web is enforced {late:.1?} after `podman run`");
    assert!(late < SOON);
    let web = known(&node, "podman:web").expect("it is a class");
    assert_eq!((web.source.as_str(), web.policy.max), ("podman", Some(BitRate::mbit(5))));
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(doctor.contains("1 container is followed"), "{doctor}");
    assert!(doctor.contains("cannot connect to") && doctor.contains("absent.sock"), "{doctor}");

    let server = node.topology.server_address(Family::V4).to_string();
    let sink = "import socket\nc = socket.create_server(('', 5401)).accept()[0]\nwhile c.recv(65536): pass";
    let mut sink = node.topology.srv().spawn(&["python3", "-c", sink]).expect("it starts");
    wait_until_listening(&mut sink, 5401).expect("it listens");
    podman.podman(
        &node,
        &["exec", "--detach", "web", "/bin/sh", "-c", &format!("nc {server} 5401 < /dev/zero")],
    );
    assert_held(&node, "web", BitRate::mbit(5));
    drop(sink);

    let before = known(&node, "web").and_then(|class| class.handle);
    podman.service = None;
    sleep(Duration::from_millis(500));
    assert_eq!(known(&node, "web").and_then(|class| class.handle), before, "it stays");
    let _ = fs::remove_file(podman.socket());
    podman.start(&node);
    sleep(Duration::from_millis(2500));
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(doctor.contains("1 container is followed"), "{doctor}");
    assert_eq!(known(&node, "web").and_then(|class| class.handle), before, "it is the same class");
    podman.podman(&node, &["rm", "--force", "--time", "0", "web"]);
    until_gone(&node, "web");
}
