//! `weir test uplink` on a node with a router: it passes, it misses on a device that is too slow, and it leaves nothing,
//! also if it is killed.

use std::{
    collections::BTreeMap,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use weir_netlab::topology::{Family, Mode, Output, Proc, Spec, UPLINK};
use weir_netns_tests::{Need, Node, as_user, binary, can_run, kernel::traces};
use weir_units::BitRate;

const CAPACITY: BitRate = BitRate::mbit(40);
/// The time that a test takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);
/// The time after which nothing of a killed test may be there.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);

fn ready() -> bool {
    can_run(&Need::TRAFFIC) && can_run(&[Need::Cgroup2])
}

/// A node whose default route leads to the server, and a configuration that no agent has.
struct Site {
    node: Node,
    config: PathBuf,
    before: BTreeMap<String, String>,
    _directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
        let router = node.topology.server_address(Family::V4).to_string();
        node.sh(&["ip", "route", "add", "default", "via", &router, "dev", UPLINK]);
        let directory = tempfile::tempdir().expect("a directory can be made");
        let config = directory.path().join("weir.toml");
        // The sections that reach beyond the link are left out, and the state of the node's agent is not touched.
        let sections = "[api]\nlisten = \"127.0.0.1:1\"\n";
        let text = node.config().netns(&[]).capacity(CAPACITY).sections(sections);
        fs::write(&config, text.to_toml(directory.path())).expect("it can be written");
        let before = traces(node.topology.node());
        Site { node, config, before, _directory: directory }
    }

    fn words(&self) -> Vec<String> {
        let words = [binary().to_str().expect("it is text"), "test", "uplink", "--config"].map(str::to_owned);
        words.into_iter().chain([self.config.display().to_string()]).collect()
    }

    /// Starts the test with more arguments.
    fn start(&self, more: &[&str]) -> Proc {
        let mut argv = self.words();
        argv.extend(more.iter().map(|word| (*word).to_owned()));
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        self.node.topology.node().spawn(&argv).expect("it starts")
    }

    /// Runs the test to its end.
    fn run(&self, more: &[&str]) -> (Option<i32>, Output) {
        let mut test = self.start(more);
        let code = ended(&mut test);
        (code, test.output().expect("it has an output"))
    }

    /// Nothing of a test with this process is on the node.
    #[track_caller]
    fn is_as_before(&self, test: u32) {
        let left = || {
            let places = cgroup_mounts().into_iter().chain([PathBuf::from("/run")]);
            let place =
                places.map(|place| place.join(format!("weir-test-{test}"))).find(|place| place.exists());
            let process = self.node.topology.node().pids().into_iter().find(|pid| is_weir(*pid));
            let traces = traces(self.node.topology.node());
            let changed = traces.iter().find(|(what, now)| self.before.get(*what) != Some(now));
            place
                .map(|place| place.display().to_string())
                .or(process.map(|pid| format!("process {pid}")))
                .or(changed.map(|(what, now)| format!("{what}: {now}")))
        };
        let begin = Instant::now();
        while let Some(left) = left() {
            assert!(begin.elapsed() < GONE_TIMEOUT, "left after {GONE_TIMEOUT:?}: {left}");
            sleep(Duration::from_millis(50));
        }
        println!("nothing is left {:.1?} after the end", begin.elapsed());
    }

    /// Waits until a test sends.
    #[track_caller]
    fn until_it_sends(&self, test: &mut Proc) {
        let begin = Instant::now();
        let class = format!("weir-test-{}/weir-test-a/cgroup.procs", test.id());
        let sends = |mount: &PathBuf| {
            fs::read_to_string(mount.join(&class)).is_ok_and(|processes| !processes.is_empty())
        };
        while !cgroup_mounts().iter().any(sends) {
            let ended = test.ended().expect("it is a child");
            assert_eq!(ended, None, "the test ended: {:?}", test.output());
            assert!(begin.elapsed() < TEST_TIMEOUT, "it does not send: {:?}", test.output());
            sleep(Duration::from_millis(20));
        }
    }
}

fn cgroup_mounts() -> [PathBuf; 2] {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from)
}

fn is_weir(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == binary())
}

#[track_caller]
fn ended(test: &mut Proc) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = test.ended().expect("it is a child") {
            return status.code();
        }
        assert!(begin.elapsed() < TEST_TIMEOUT, "the test does not end: {:?}", test.output());
        sleep(Duration::from_millis(20));
    }
}

/// The verdicts by phase and class.
fn verdicts(outcome: &Value) -> Vec<[&str; 3]> {
    let lines = outcome["lines"].as_array().expect("it is a list");
    lines
        .iter()
        .map(|line| ["phase", "class", "verdict"].map(|key| line[key].as_str().expect("text")))
        .collect()
}

#[test]
fn test_of_an_uplink_passes_and_leaves_nothing() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let mut test = site.start(&["--yes", "--json", "--seconds", "5"]);
    let code = ended(&mut test);
    let output = test.output().expect("it has an output");
    println!("{}", output.stdout);
    assert_eq!((code, output.stderr.as_str()), (Some(0), ""), "{}", output.stdout);
    let outcome: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    assert_eq!(
        verdicts(&outcome),
        [
            ["alone", UPLINK, "holds"],
            ["weights", UPLINK, "holds"],
            ["weights", "weir-test-a:b", "holds"],
            ["maximum", UPLINK, "holds"],
            ["maximum", "weir-test-a", "holds"],
            ["minimum", UPLINK, "holds"],
            ["minimum", "weir-test-a", "holds"],
        ]
    );
    assert_eq!((&outcome["holds"], &outcome["faults"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    site.is_as_before(test.id());
}

/// The device carries less than its configured capacity, so the phases miss. Its foreign qdisc stays.
#[test]
fn test_of_a_device_below_its_capacity_misses() {
    if !ready() {
        return;
    }
    let mut site = Site::new();
    let slow = [
        "tc", "qdisc", "add", "dev", UPLINK, "root", "tbf", "rate", "20mbit", "burst", "20k", "limit", "60k",
    ];
    site.node.sh(&slow);
    site.before = traces(site.node.topology.node());
    let mut test = site.start(&["--yes", "--seconds", "2"]);
    let code = ended(&mut test);
    let output = test.output().expect("it has an output");
    println!("{}", output.stdout);
    assert_eq!(code, Some(1), "{output:?}");
    assert!(output.stdout.contains("MISSES"), "{}", output.stdout);
    assert!(output.stdout.contains("\nrolled back: "), "{}", output.stdout);
    assert!(output.stdout.contains("\nthe link is not divided as configured"), "{}", output.stdout);
    site.is_as_before(test.id());
}

#[test]
fn killed_test_of_an_uplink_leaves_nothing() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let mut test = site.start(&["--yes"]);
    site.until_it_sends(&mut test);
    test.signal(Signal::SIGKILL);
    assert_eq!(ended(&mut test), None);
    site.is_as_before(test.id());
}

#[test]
fn interrupted_test_of_an_uplink_ends_in_order() {
    if !ready() {
        return;
    }
    let site = Site::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut test = site.start(&["--yes"]);
        site.until_it_sends(&mut test);
        test.signal(signal);
        assert_eq!(ended(&mut test), Some(1));
        let output = test.output().expect("it has an output");
        assert_eq!(output.stderr, "weir: the test was interrupted: what it made is removed\n");
        // The command has cleared up before it ended.
        assert!(!Path::new(&format!("/run/weir-test-{}", test.id())).exists());
        site.is_as_before(test.id());
    }
}

/// A server of the operator's gets TCP instead.
#[test]
fn test_of_an_uplink_sends_tcp_to_a_given_server() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let address = site.node.topology.server_address(Family::V4);
    let bind = || TcpListener::bind((address, 0)).expect("the server has it");
    let listener = site.node.topology.srv().within(bind).expect("can enter");
    let to = listener.local_addr().expect("it is bound").to_string();
    let arrived = Arc::new(AtomicU64::new(0));
    let counted = arrived.clone();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let counted = counted.clone();
            let read = move || io::copy(&mut &connection, &mut io::sink());
            thread::spawn(move || read().map(|bytes| counted.fetch_add(bytes, Ordering::Relaxed)));
        }
    });
    let mut test = site.start(&["--yes", "--json", "--seconds", "2", "--to", &to]);
    ended(&mut test);
    let output = test.output().expect("it has an output");
    println!("{}", output.stdout);
    let outcome: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    assert_eq!(verdicts(&outcome)[0], ["alone", UPLINK, "holds"], "{output:?}");
    assert_eq!(verdicts(&outcome)[4], ["maximum", "weir-test-a", "holds"], "{output:?}");
    // The server counts a connection when its sender has ended it.
    let least = CAPACITY.bytes_in(Duration::from_secs(8)).0;
    let arrived = || arrived.load(Ordering::Relaxed);
    let begin = Instant::now();
    while arrived() < least {
        assert!(begin.elapsed() < GONE_TIMEOUT, "{} of {least} bytes have arrived", arrived());
        sleep(Duration::from_millis(20));
    }
    site.is_as_before(test.id());
}

/// A router that does not answer is named, and nothing is left.
#[test]
fn test_of_an_uplink_without_a_router_says_so() {
    if !ready() {
        return;
    }
    let mut site = Site::new();
    let router = site.node.topology.server_address(Family::V4).to_string();
    let (network, _) = router.rsplit_once('.').expect("it is an address");
    let silent = format!("{network}.77");
    site.node.sh(&["ip", "route", "replace", "default", "via", &silent, "dev", UPLINK]);
    site.before = traces(site.node.topology.node());
    let mut test = site.start(&["--yes", "--seconds", "2"]);
    let code = ended(&mut test);
    let output = test.output().expect("it has an output");
    assert_eq!(code, Some(1), "{output:?}");
    assert!(output.stderr.contains("its router does not answer (`ip neigh"), "{output:?}");
    site.is_as_before(test.id());
}

#[test]
fn test_of_an_uplink_is_refused_beside_an_agent_or_its_division() {
    if !ready() {
        return;
    }
    let mut site = Site::new();
    let config = site.node.config();
    site.node.start(&config);
    let divided = traces(site.node.topology.node());
    let (code, output) = site.run(&["--yes"]);
    assert_eq!(code, Some(1), "{output:?}");
    let pid = site.node.agent().id();
    for words in ["cannot test the uplink: ", &format!("process {pid},"), "`systemctl stop weir`"] {
        assert!(output.stderr.contains(words), "{output:?}");
    }
    assert_eq!(traces(site.node.topology.node()), divided);
    site.node.agent().kill();
    let divided = traces(site.node.topology.node());
    let (code, output) = site.run(&["--yes"]);
    assert_eq!(code, Some(1), "{output:?}");
    assert!(output.stderr.contains("`weir agent --restore` removes it"), "{output:?}");
    assert_eq!(traces(site.node.topology.node()), divided);
}

#[test]
fn test_of_an_uplink_is_refused_without_a_terminal_or_root() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let (code, output) = site.run(&[]);
    assert_eq!(code, Some(2), "{output:?}");
    assert!(output.stderr.starts_with("weir: --yes is missing: "), "{output:?}");
    let words = site.words();
    let refused = as_user(65_534, &[65_534], || {
        Command::new(&words[0]).args(&words[1..]).arg("--yes").output().expect("anyone may run it")
    });
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert_eq!(error, "weir: cannot test the uplink: this needs root (`sudo weir test uplink`)\n");
    let (code, output) = site.run(&["--yes", "--to", "nonsense"]);
    assert_eq!(code, Some(2), "{output:?}");
    assert!(output.stderr.contains("cannot use --to nonsense: "), "{output:?}");
}
