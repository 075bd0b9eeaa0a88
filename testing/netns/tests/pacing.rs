//! With `pacing = true` a loaded container's bulk flow has nearly no queue; shares stay what they are; and no rate
//! outlives the agent.

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::MetadataExt},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use weir_bpf::EarlierPacing;
use weir_discovery::cgroup::Cgroup2;
use weir_netlab::{
    stats,
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, Stream, TOLERANCE, can_run, compare, containers, measure_once, party,
};

fn ready() -> bool {
    can_run(&Need::TRAFFIC) && can_run(&[Need::Cgroup2, Need::Program("ss")])
}

fn node(n: usize) -> Node {
    Node::build(&Spec { containers: containers(n), ..Spec::default() })
}

/// The bytes of a full Ethernet frame.
const FULL_FRAME: f64 = 1514.0;

/// The queue at which pacing settles, ms: the agent aims at 1 % above the share, less 1 % for each 2 ms of queue.
const SETTLED: f64 = 2.0;

/// Whether a pacing program of this node's agent is attached.
fn is_attached(node: &Node) -> bool {
    let root = Cgroup2::find().expect("asked for above");
    let dir = File::open(root.mount()).expect("a directory");
    let netns = std::fs::metadata(node.topology.node().path()).expect("the namespace is there");
    EarlierPacing::find(dir.as_fd(), netns.ino()).is_some()
}

/// The limits of pacing that bulk connections from a namespace have now, as `ss` tells: one word
/// a connection that has one.
fn limits(node: &Node, label: &str) -> Vec<String> {
    let sockets = node.netns(label).exec(&["ss", "-tin", "state", "established"]).expect("ss runs").stdout;
    let rates = sockets.split_whitespace().skip_while(|word| *word != "pacing_rate").skip(1).take(1);
    rates.filter_map(|rate| rate.split_once('/').map(|(_, limit)| limit.to_owned())).collect()
}

/// Waits until the connections from a namespace are limited, or no longer; how long it took.
fn wait_until_limited(node: &Node, label: &str, limited: bool) -> Duration {
    let begin = Instant::now();
    while limits(node, label).is_empty() == limited {
        if begin.elapsed() > Duration::from_secs(8) {
            let seen =
                node.netns(label).exec(&["ss", "-tinO", "state", "established"]).expect("ss runs").stdout;
            panic!("{label} is limited: {} after 8 s: {seen}", !limited);
        }
        sleep(Duration::from_millis(50));
    }
    begin.elapsed()
}

fn upload(node: &Node, label: &str) -> Stream {
    let (to, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    Stream::tcp(node.netns(label), to, address)
}

#[derive(Debug)]
struct Seen {
    /// The queue of C5, in time at its share, ms.
    queue: f64,
    /// The time of a full frame at that share, ms.
    frame: f64,
    loaded: [f64; 2],
    idle: [f64; 2],
    worst: f64,
    used: f64,
    again: u64,
}

impl Seen {
    /// The longest queue of a paced flow, in ms. TCP sends two frames at once at these rates.
    fn longest(&self) -> f64 {
        SETTLED + 2.0 * self.frame
    }
}

/// Five containers with weights 1 to 5 send all they can; C5 and the idle C6 ping.
fn measure(node: &Node, what: &str) -> Seen {
    let division = Division::of(
        (1..=5).map(|i| party(&format!("C{i}")).weight(i).sends(Load::Tcp)).chain([party("C6")]),
    );
    let expected = division.expected(CAPACITY, Family::V4);
    let (outcome, backlogs) = thread::scope(|scope| {
        let traffic = scope.spawn(|| division.run(node, &["C5", "C6"], Family::V4, 8));
        sleep(Duration::from_secs(4));
        let look = |()| {
            sleep(Duration::from_millis(100));
            node.class("C5").backlog.0 as f64
        };
        let backlogs = [(); 25].map(look);
        (traffic.join().expect("traffic flows"), backlogs)
    });
    let ms = |bytes: f64| bytes * 8e-3 / expected[4].allocation.as_mbit();
    let (queue, frame) = (ms(stats::median(&backlogs).expect("there are looks")), ms(FULL_FRAME));
    let measured: Vec<(String, f64)> =
        outcome.flows.iter().map(|flow| (flow.label.clone(), flow.goodput)).collect();
    let worst = compare(what, &measured, &expected);
    let total: f64 = measured.iter().map(|(_, rate)| rate).sum();
    let ideal: f64 = expected.iter().map(|share| share.goodput).sum();
    let times = |i: usize| {
        let ms = &outcome.pings[i].ms;
        [50.0, 99.0].map(|p| stats::percentile(ms, p).expect("there are answers"))
    };
    let again = outcome.flows.iter().filter_map(|flow| flow.retransmits).sum();
    let seen = Seen { queue, frame, loaded: times(0), idle: times(1), worst, used: total / ideal, again };
    let ([l50, l99], [i50, i99]) = (seen.loaded, seen.idle);
    println!(
        "{what:<12} in C5 {l50:.2}/{l99:.2} ms, queue {queue:.2} ms, idle C6 {i50:.2}/{i99:.2} ms; worst share {:.2} %, \
         total {:.4}, {again} segments sent again",
        worst * 100.0,
        seen.used
    );
    seen
}

#[test]
fn the_queue_of_a_loaded_container_falls_and_shares_stay() {
    if !ready() {
        return;
    }
    let mut node = node(6);
    let weights: String = (1..=5)
        .map(|i| format!("[[class]]\nname = \"{}\"\nweight = {i}\n", node.name(&format!("C{i}"))))
        .collect();
    let config = node.config().sections(&weights);
    let run = |node: &mut Node| {
        let mut seen = Vec::new();
        for (what, pacing) in [("queue alone", "pacing = false"), ("paced", "pacing = true")] {
            node.start(&config.clone().link(pacing));
            seen.push(measure(node, what));
            assert!(node.agent().stop(), "the agent puts everything back");
        }
        seen
    };
    let quick = |s: &[Seen]| s[1].queue <= s[1].longest() && s[1].queue * 2.0 <= s[0].queue;
    let short = |s: &[Seen]| s[1].loaded[0] <= s[1].longest() && s[1].idle[0] <= s[0].idle[0] + 1.0;
    let good = |s: &Vec<Seen>| {
        quick(s) && short(s) && s[1].worst <= TOLERANCE && s[1].used >= 0.97 && s[1].again <= s[0].again + 20
    };
    let seen = measure_once(|| run(&mut node), good);
    assert!(quick(&seen), "{} ms, {} ms when paced", seen[0].queue, seen[1].queue);
    assert!(seen[1].loaded[0] <= seen[1].longest(), "{:?}, {:?}", seen[0].loaded, seen[1].loaded);
    assert!(seen[1].worst <= TOLERANCE, "a share is {:.2} % off", seen[1].worst * 100.0);
    assert!(seen[1].used >= 0.97, "{:.3} of the link are used", seen[1].used);
    assert!(seen[1].idle[0] <= seen[0].idle[0] + 1.0, "{:?}, {:?}", seen[0].idle, seen[1].idle);
    assert!(seen[1].again <= seen[0].again + 20, "{} segments are sent again", seen[1].again);
}

#[test]
fn connections_older_than_the_agent_are_paced_and_freed_when_it_goes() {
    if !ready() {
        return;
    }
    let mut node = node(2);
    let _old = [upload(&node, "C1"), upload(&node, "C2")];
    sleep(Duration::from_millis(500));
    assert!(limits(&node, "C1").is_empty(), "nobody paces yet");
    let config = node.config().link("pacing = true");
    node.start(&config);
    for label in ["C1", "C2"] {
        let took = wait_until_limited(&node, label, true);
        println!("{label} was paced after {took:?}: {:?}", limits(&node, label));
    }
    assert!(node.weir(&["status"]).contains("TCP paced"));

    // Only the program itself takes the rates back.
    node.agent().kill();
    for label in ["C1", "C2"] {
        println!("{label} was free {:?} after the agent's death", wait_until_limited(&node, label, false));
    }
    assert!(is_attached(&node), "the program outlives the agent");

    node.restart();
    wait_until_limited(&node, "C1", true);
    assert!(node.agent().stop(), "the agent puts everything back");
    assert!(limits(&node, "C1").is_empty() && limits(&node, "C2").is_empty(), "rates go with the agent");
    assert!(!is_attached(&node), "so does the program");
}

#[test]
fn a_rate_that_the_application_has_set_is_left_alone() {
    if !ready() {
        return;
    }
    let mut node = node(1);
    let config = node.config().link("pacing = true");
    node.start(&config);
    let own = Stream::paced(
        node.netns("C1"),
        node.topology.srv(),
        node.topology.server_address(Family::V4),
        1_000_000,
    );
    sleep(Duration::from_secs(2));
    assert_eq!(limits(&node, "C1"), ["8000000bps"], "ss of the application's own");
    drop(own);
    assert!(node.agent().stop());
}

#[test]
fn a_program_that_someone_took_away_is_put_back() {
    if !ready() {
        return;
    }
    let mut node = node(1);
    let config = node.config().link("pacing = true");
    node.start(&config);
    let root = Cgroup2::find().expect("asked for above");
    let dir = File::open(root.mount()).expect("a directory");
    let netns = std::fs::metadata(node.topology.node().path()).expect("the namespace is there");
    let ours = EarlierPacing::find(dir.as_fd(), netns.ino()).expect("it is attached");
    weir_bpf::attach::detach_sock_ops(ours.program, dir.as_fd()).expect("it is there");
    let begin = Instant::now();
    while !is_attached(&node) {
        assert!(begin.elapsed() < Duration::from_secs(4), "it is not put back");
        sleep(Duration::from_millis(50));
    }
    let _flow = upload(&node, "C1");
    wait_until_limited(&node, "C1", true);
    assert!(node.agent().stop());
}

#[test]
fn nothing_is_attached_unless_asked_for() {
    if !ready() {
        return;
    }
    let mut node = node(1);
    let config = node.config();
    node.start(&config);
    let _flow = upload(&node, "C1");
    sleep(Duration::from_secs(1));
    assert!(!is_attached(&node), "a program is at the root of the cgroups");
    assert!(limits(&node, "C1").is_empty());
    assert!(!node.weir(&["status"]).contains("paced"));
}
