//! Agents that die, come back, end in order, and meet each other.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use weir_api::Client;
use weir_netlab::{
    topology::{Family, Spec, UPLINK},
    traffic::Load,
};
use weir_netlink::tc::FoundClass;
use weir_netns_tests::{
    Agent, CAPACITY, Config, Division, Need, Node, Rate, Record, Stream, TOLERANCE, can_run, compare,
    containers,
    kernel::{self, SCHEDULER, traces},
    measure_once, party,
};
use weir_units::BitRate;

/// The kernel's counters of a class, by its handle: bytes, packets, drops.
fn counters(node: &Node) -> BTreeMap<String, [u64; 3]> {
    let of = |f: FoundClass| [f.counters.bytes, f.counters.packets, f.counters.drops];
    kernel::classes(node.topology.node()).into_iter().map(|(handle, f)| (handle, of(f))).collect()
}

fn handles(client: &Client) -> BTreeMap<String, Option<String>> {
    client.classes().expect("it answers").into_iter().map(|c| (c.name, c.handle)).collect()
}

#[test]
fn killed_agent_interrupts_nothing_and_the_next_loses_no_packet() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(4), ..Spec::default() });
    let offered = BitRate::mbit(5);
    // C1 is at its maximum, C2 at its minimum, C4 below its share; C3 takes what is left.
    let division = Division::of([
        party("C1").max(15).sends(Load::Tcp),
        party("C2").min(40).sends(Load::Tcp),
        party("C3").sends(Load::Tcp),
        party("C4").sends(Load::Udp(offered)),
    ]);
    let config = node.config();
    node.start(&config);
    // One that comes late and is first by name: who has which class is not told by an order.
    node.topology.add_container("A0").expect("can add one");
    let late = node.name("A0");
    let here = |client: &Client| client.class(&late).map(drop).err().map(|e| e.to_string());
    node.agent().wait_until("find the late one", here).expect("it does");
    // By hand, so that only the agent's state knows it.
    node.weir(&["set", &node.name("C1"), "max=15mbit"]);
    node.weir(&["set", &node.name("C2"), "min=40mbit"]);

    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let mut streams: Vec<Stream> =
        ["C1", "C2", "C3"].iter().map(|c| Stream::tcp(node.netns(c), srv, address)).collect();
    streams.push(Stream::udp(node.netns("C4"), srv, address, Rate::Of(offered)));
    let all: Vec<&Stream> = streams.iter().collect();
    let record = Record::of(&all);
    let labels = ["C1", "C2", "C3", "C4"];
    let expected = division.expected(CAPACITY, Family::V4);
    let shares_hold = |what: &str| {
        let measure = || {
            let got = Stream::goodputs(&all, Duration::from_secs(3));
            let got: Vec<(String, f64)> = labels.map(str::to_owned).into_iter().zip(got).collect();
            compare(what, &got, &expected)
        };
        let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
        assert!(worst <= TOLERANCE, "{what}: {:.2} % off", worst * 100.0);
    };
    let flows_on = |what: &str, from: Instant, to: Instant| {
        for (i, label) in labels.iter().enumerate() {
            let (mean, lowest) = (record.goodput(i, from, to), record.lowest(i, from, to));
            println!("{what:<44} {label:<5} mean {mean:7.2} Mbit/s  lowest 0.1 s {lowest:7.2}");
            assert!(lowest > 0.0, "{what}: nothing of {label} arrived for a tenth of a second");
        }
    };
    sleep(Duration::from_secs(2));
    shares_hold("before");

    let (index, known, before) =
        (kernel::index_of(node.topology.node(), SCHEDULER), handles(node.client()), counters(&node));
    let killed = Instant::now();
    node.agent().kill();
    sleep(Duration::from_secs(5));
    let dead = Instant::now();
    flows_on("5 s without an agent", killed, dead);
    let [c1, c2] = [0, 1].map(|i| record.goodput(i, killed, dead));
    assert!(c1 <= expected[0].goodput * (1.0 + TOLERANCE), "C1 is above its maximum: {c1}");
    assert!(c2 >= expected[1].goodput * (1.0 - TOLERANCE), "C2 is below its minimum: {c2}");

    let meanwhile = counters(&node);
    node.restart();
    let ready = Instant::now();
    sleep(Duration::from_secs(1));
    let after = counters(&node);
    println!("the next agent holds all classes after {:?}", ready - dead);
    flows_on("taking over", dead, Instant::now());
    assert_eq!(
        kernel::index_of(node.topology.node(), SCHEDULER),
        index,
        "the scheduler's device is another one"
    );
    assert_eq!(handles(node.client()), known, "classes have other handles");
    for (handle, [bytes, packets, drops]) in &before {
        let [bytes_now, packets_now, drops_now] = after[handle];
        assert!(bytes_now >= *bytes && packets_now >= *packets, "the counters of {handle} were reset");
        assert_eq!(drops_now, *drops, "class {handle} dropped packets");
        println!(
            "class {handle:<5} {bytes:>10} bytes before, {:>10} when the next agent starts, {bytes_now:>10} \
             after; {drops_now} drops",
            meanwhile[handle][0]
        );
    }
    assert_eq!(before.len(), after.len(), "{before:?} {after:?}");
    let events = node.client().events(false).expect("it tells").flatten();
    let trouble: Vec<_> =
        events.filter(|e| ["not-enforced", "repaired"].contains(&e.what.as_str())).collect();
    assert!(trouble.is_empty(), "{trouble:?}");
    shares_hold("taken over");
    let found = (node.class("C1").policy.max, node.class("C2").policy.min);
    assert_eq!(found, (Some(BitRate::mbit(15)), Some(BitRate::mbit(40))), "what was set by hand is lost");

    // The receiver does not even feel it.
    let mut felt = || {
        node.agent().kill();
        sleep(Duration::from_millis(200));
        let from = Instant::now();
        node.restart();
        sleep(Duration::from_millis(800));
        let part = |i: usize| record.lowest(i, from, Instant::now()) / expected[i].goodput;
        (0..labels.len()).map(part).fold(f64::INFINITY, f64::min)
    };
    let four_times = || (0..4).map(|_| felt()).fold(f64::INFINITY, f64::min);
    let least = measure_once(four_times, |least| *least >= 0.8);
    println!("in the worst tenth of a second of four more takeovers {:.0} % of a share came", least * 100.0);
    assert!(least >= 0.8, "{least}");

    let udp = streams.pop().expect("the last one");
    let (sent, arrived) = udp.finish();
    println!("UDP below its share, through death and takeover: {sent} bytes sent, {arrived} arrived");
    assert_eq!(sent, arrived, "datagrams were lost");
}

/// Starts an agent on `node`, under load, ends it by SIGTERM, perhaps after a crash and a
/// restart, and compares what is there with what was.
fn leaves_nothing(node: &mut Node, what: &str, config: &Config, crash: bool) {
    let before = traces(node.topology.node());
    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let stream = Stream::tcp(node.netns("C1"), srv, address);
    node.start(config);
    sleep(Duration::from_millis(300));
    let during = traces(node.topology.node());
    assert_ne!(during, before, "{what}: an agent that changes nothing cannot show anything");
    if crash {
        node.agent().kill();
        node.restart();
        sleep(Duration::from_millis(300));
    }
    let state = node.agent().state_path();
    let started = Instant::now();
    assert!(node.agent().stop(), "{what}: it did not end well: {}", node.agent().log());
    let took = started.elapsed();
    let after = traces(node.topology.node());
    let goes_on = stream.goodput(Duration::from_millis(500));
    let altered: Vec<&String> =
        before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).collect();
    println!(
        "{what:<44} ended in {took:?}; {} things compared, {} altered; traffic goes on with {goes_on:.1} Mbit/s",
        before.len(),
        altered.len()
    );
    for key in &altered {
        println!("{key}\n  before: {:?}\n  after:  {:?}", before.get(*key), after.get(*key));
    }
    assert!(altered.is_empty(), "{what}: not as it was: {altered:?}");
    assert!(goes_on > 10.0, "{what}: traffic stopped with the agent: {goes_on} Mbit/s");
    assert!(state.join("weir.redb").exists(), "{what}: the state is gone");
}

#[test]
fn an_agent_that_is_ended_leaves_the_node_as_it_found_it() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let clsact = |config: Config| config.link("attach = \"clsact\"");
    let config = node.config();
    leaves_nothing(&mut node, "ended", &config, false);
    leaves_nothing(&mut node, "ended after a crash and a restart", &config, true);
    let config = clsact(node.config());
    leaves_nothing(&mut node, "ended, attach = clsact", &config, false);
    leaves_nothing(&mut node, "ended after a crash, attach = clsact", &config, true);

    // A foreign clsact, with a filter of its own, stays with it.
    let veth = node.topology.containers()[0].host_interface();
    for (device, hook) in [(UPLINK, "egress"), (veth.as_str(), "ingress")] {
        node.sh(&["tc", "qdisc", "add", "dev", device, "clsact"]);
        let rule = "pref 77 protocol ip u32 match ip dst 192.0.2.1/32 flowid 1:7";
        let words: Vec<&str> = rule.split(' ').collect();
        node.sh(&[&["tc", "filter", "add", "dev", device, hook], &words[..]].concat());
    }
    for (what, config) in [("tcx", node.config()), ("clsact", clsact(node.config()))] {
        leaves_nothing(&mut node, &format!("ended, beside others' filters, {what}"), &config, false);
        leaves_nothing(&mut node, &format!("crashed, beside others' filters, {what}"), &config, true);
    }
    let kept = node.sh(&["tc", "filter", "show", "dev", &veth, "ingress"]);
    assert!(kept.contains("pref 77"), "their filter is gone: {kept}");
}

#[test]
fn foreign_device_of_weirs_name_is_left_alone_and_another_name_is_taken() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    node.sh(&["ip", "link", "add", "weir0", "type", "ifb"]);
    node.sh(&["ip", "link", "add", "weir1d", "type", "bridge"]);
    let index = |node: &Node, device: &str| kernel::index_of(node.topology.node(), device);
    let foreign = ["weir0", "weir1d"].map(|device| index(&node, device));
    let config = node.config().link("download = \"50mbit\"");
    node.start(&config);
    let own = ["weir2", "weir2d"].map(|device| index(&node, device));
    assert!(own.iter().all(Option::is_some), "{own:?}");
    let doctor = node.client().doctor().expect("the agent answers");
    let scheduler = doctor.checks.iter().find(|check| check.name == "scheduler").expect("it is checked");
    assert_eq!(scheduler.found, "htb on weir2");
    // The next agent takes over the same devices.
    node.agent().kill();
    node.restart();
    assert_eq!(["weir2", "weir2d"].map(|device| index(&node, device)), own);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!(["weir0", "weir1d"].map(|device| index(&node, device)), foreign);
    assert_eq!(["weir2", "weir2d"].map(|device| index(&node, device)), [None, None]);
}

#[test]
fn an_ingress_qdisc_on_the_uplink_is_not_taken_for_a_place_at_egress() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    node.sh(&["tc", "qdisc", "add", "dev", UPLINK, "handle", "ffff:", "ingress"]);
    let config = node.config();
    node.start(&config);
    // The kernel would take the filter, and show it what arrives.
    let caught = node.sh(&["tc", "filter", "show", "dev", UPLINK, "ingress"]);
    assert_eq!(caught, "", "weir's filter sees what arrives");
    let host = node.class("host");
    let why = host.not_enforced_because.unwrap_or_default();
    println!("host: {why}");
    assert!(!host.enforced && why.contains("an ingress qdisc is in its place"), "{why}");
    assert!(node.class("C1").enforced);

    node.sh(&["tc", "qdisc", "del", "dev", UPLINK, "ingress"]);
    let caught = |client: &Client| client.class("host").ok()?.not_enforced_because;
    node.agent().wait_until("catch the host's traffic", caught).expect("it does");
    assert!(node.agent().stop());
    assert!(!node.sh(&["tc", "qdisc", "show", "dev", UPLINK]).contains("clsact"));
}

#[test]
fn uplink_that_loses_its_place_at_egress_is_told_of_until_it_has_it_again() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let unshared = |client: &Client| client.class("host").ok()?.not_enforced_because;
    node.agent().wait_until("catch the host's traffic", unshared).expect("it does");
    let taken = format!("tc qdisc del dev {UPLINK} clsact && tc qdisc add dev {UPLINK} handle ffff: ingress");
    node.sh(&["sh", "-c", &taken]);
    let shared = |client: &Client| client.class("host").ok()?.enforced.then(|| "it counts as shared".into());
    node.agent().wait_until("tell that the host is not shared", shared).expect("it does");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        sleep(Duration::from_millis(100));
        assert!(!node.class("host").enforced, "it says so no longer after {:?}", begin.elapsed());
    }
    let why = node.class("host").not_enforced_because.unwrap_or_default();
    assert!(why.contains("an ingress qdisc is in its place"), "{why}");
    assert!(node.class("C1").enforced, "{:?}", node.class("C1").not_enforced_because);
    node.sh(&["tc", "qdisc", "del", "dev", UPLINK, "ingress"]);
    node.agent().wait_until("catch the host's traffic again", unshared).expect("it does");
    assert!(node.agent().stop());
}

#[test]
fn device_that_a_killed_agent_made_by_half_is_made_again() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let before = traces(node.topology.node());
    node.sh(&["ip", "link", "add", "weir0", "address", "02:77:65:69:72:30", "type", "ifb"]);
    let config = node.config();
    node.start(&config);
    assert!(node.class("C1").enforced, "{:?}", node.class("C1").not_enforced_because);
    assert!(node.agent().stop());
    assert_eq!(traces(node.topology.node()), before);
}

#[test]
fn agent_with_another_hook_after_a_crash_leaves_no_old_program() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let before = traces(node.topology.node());
    let (tcx, clsact) = (node.config(), node.config().link("attach = \"clsact\""));
    node.start(&tcx);
    let veth = node.topology.containers()[0].host_interface();
    // One way has the program at TCX, the other as a filter.
    let attached = |node: &Node| {
        let tcx = kernel::tcx_programs(node.topology.node(), &veth).len();
        let filters = node.sh(&["tc", "filter", "show", "dev", &veth, "ingress"]);
        (tcx, filters.lines().filter(|line| line.contains("handle") && line.contains("weir_port")).count())
    };
    assert_eq!(attached(&node), (1, 0));
    for (config, wanted) in [(&clsact, (0, 1)), (&tcx, (1, 0))] {
        node.agent().kill();
        node.agent().rewrite(config).expect("can write");
        node.restart();
        println!("programs at {veth} (tcx, filters): {:?}", attached(&node));
        assert_eq!(attached(&node), wanted);
    }
    assert!(node.agent().stop());
    let after = traces(node.topology.node());
    assert_eq!(after, before);
}

#[test]
fn containers_stay_while_the_agent_has_no_free_descriptor() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("prlimit")]) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let pid = node.agent().id().to_string();
    let limit = |node: &Node, most: u32| node.sh(&["prlimit", "--pid", &pid, &format!("--nofile={most}:")]);
    let in_kernel = |node: &Node| counters(node).into_keys().collect::<Vec<_>>();
    let (known, classes) = (handles(node.client()), in_kernel(&node));

    // Below those that are open, so that no number is free.
    limit(&node, 3);
    node.sh(&["ip", "link", "add", "new0", "type", "bridge"]);
    sleep(Duration::from_secs(2));
    assert_eq!(in_kernel(&node), classes, "no class is taken away");
    limit(&node, 1024);
    let failing = |client: &Client| {
        let warnings = client.status().map_or_else(|e| vec![e.to_string()], |status| status.warnings);
        warnings.into_iter().find(|warning| warning.contains("cannot look at this node"))
    };
    node.agent().wait_until("look at the node again", failing).expect("it does");
    assert_eq!(handles(node.client()), known);
    let log = node.agent().log();
    assert!(log.contains("cannot look at this node, so its classes stay as they were"), "{log}");
}

#[test]
fn second_agent_in_a_namespace_refuses_to_start() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let config = node.config();
    node.start(&config);
    node.weir(&["set", &node.name("C1"), "weight=7"]);
    sleep(Duration::from_millis(300));
    // The rates of classes follow demand, so they are left out here.
    let unchanging = |node: &Node| {
        let mut traces = traces(node.topology.node());
        traces.retain(|key, _| !key.starts_with("tc class"));
        traces
    };
    let (before, known) = (unchanging(&node), handles(node.client()));

    let mut second = Agent::launch(node.topology.node(), &config).expect("can run it");
    let started = Instant::now();
    let status = loop {
        if let Some(status) = second.ended() {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "the second agent runs on");
        sleep(Duration::from_millis(5));
    };
    let said = second.log();
    println!("the second one ended with {status} after {:?}: {}", started.elapsed(), said.trim());
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("cannot start: another weir agent"), "{said}");

    assert_eq!(handles(node.client()), known);
    assert_eq!(unchanging(&node), before, "the second agent changed something");
    assert_eq!(node.class("C1").policy.weight.get(), 7);
    assert_eq!(node.client().status().expect("it answers").repairs, 0);

    // Its name goes with it: an agent can be started again, with the policies set by hand.
    node.agent().signal(Signal::SIGTERM);
    node.agent().stop();
    node.restart();
    assert_eq!(node.class("C1").policy.weight.get(), 7, "what was set by hand outlives an end in order too");
}
