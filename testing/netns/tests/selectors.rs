//! Packets belong to the class that selects them: by port, protocol, network, code point and
//! sender, each with a share of its own, from any sender.

use std::{thread::sleep, time::Duration};

use weir_netlab::{
    topology::{Family, Mode, Netns, Spec},
    traffic::{Load, UDP_PAYLOAD},
};
use weir_netns_tests::{
    CAPACITY, Config, Division, EngineBounds, EngineKind, FLOOD, Need, Node, Origin, Rate, Share, Stream,
    can_run, compare, containers, for_each_engine, kernel, measure_once, party,
};
use weir_units::BitRate;

for_each_engine!(each_selected_service_has_its_share);

/// A class's configuration.
fn class(name: &str, policy: &str, selectors: &str) -> String {
    format!("[[class]]\nname = \"{name}\"\n{policy}\nmatch = {selectors}\n")
}

/// More than any share here.
const MUCH: Rate = Rate::Of(BitRate::mbit(80));

/// The packets, and their sender.
#[derive(Clone, Copy)]
struct Flow<'a> {
    /// The class that it belongs to.
    label: &'a str,
    from: &'a Netns,
    origin: Origin,
    load: Load,
}

impl Flow<'_> {
    fn stream(&self, node: &Node, address: std::net::IpAddr) -> Stream {
        let srv = node.topology.srv();
        match self.load {
            Load::Udp(_) => {
                Stream::udp_from(self.from, self.origin, srv, address, MUCH, UDP_PAYLOAD as usize)
            }
            _ => Stream::tcp_from(self.from, self.origin, srv, address),
        }
    }
}

fn port(port: u16) -> Origin {
    Origin { port, dscp: 0 }
}

/// Lets them all send and compares what arrives of each class with what it must get.
#[track_caller]
fn check(what: &str, node: &Node, flows: &[Flow<'_>], expected: &[Share], family: Family, tolerance: f64) {
    let address = node.topology.server_address(family);
    let streams: Vec<Stream> = flows.iter().map(|flow| flow.stream(node, address)).collect();
    sleep(Duration::from_millis(2000));
    let measure = || {
        let goodputs = Stream::goodputs(&streams.iter().collect::<Vec<_>>(), Duration::from_millis(2500));
        let mut of_classes: Vec<(String, f64)> = Vec::new();
        for (flow, goodput) in flows.iter().zip(goodputs) {
            match of_classes.iter_mut().find(|(label, _)| label == flow.label) {
                Some((_, sum)) => *sum += goodput,
                None => of_classes.push((flow.label.to_owned(), goodput)),
            }
        }
        compare(what, &of_classes, expected)
    };
    let worst = measure_once(measure, |worst| *worst <= tolerance);
    assert!(worst <= tolerance, "{what}: a share is {:.2} % off", worst * 100.0);
}

/// Three services of C1 by their ports: one with a minimum, one of twice the weight, one in a range
/// with a maximum; what else C1 sends stays C1's. C2 competes.
fn services() -> String {
    [
        class("web", "min = \"30mbit\"", "{ port = 8081 }"),
        class(
            "api",
            "weight = 2",
            "[{ protocol = \"tcp\", port = 8082 }, { protocol = \"udp\", port = 8082 }]",
        ),
        class("feed", "max = \"6mbit\"", "{ port = \"8090-8101\" }"),
    ]
    .concat()
}

fn shares(load: Load, family: Family) -> Vec<Share> {
    let division = Division::of([
        party("web").min(30).sends(load),
        party("api").weight(2).sends(load),
        party("feed").max(6).sends(load),
        party("C1").sends(load),
        party("C2").sends(load),
    ]);
    division.expected(CAPACITY, family)
}

fn each_selected_service_has_its_share(engine: EngineKind) {
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    let config = node.config().engine(engine).sections(&services());
    node.start(&config);
    let (one, two) = (node.netns("C1"), node.netns("C2"));
    for (family, load) in [(Family::V4, Load::Tcp), (Family::V6, FLOOD)] {
        let flow = |label, from, number| Flow { label, from, origin: port(number), load };
        let flows = [
            flow("web", one, 8081),
            flow("api", one, 8082),
            flow("feed", one, 8090),
            flow("feed", one, 8101),
            flow("C1", one, 8089),
            flow("C2", two, 0),
        ];
        // Of a small share, a super-packet more or less counts.
        let tolerance = engine.tolerance(true).max(0.03);
        check(&format!("{engine} {family} {load}"), &node, &flows, &shares(load, family), family, tolerance);
    }
}

#[test]
fn without_selectors_the_same_services_share_one_class() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let (one, two) = (node.netns("C1"), node.netns("C2"));
    let flow = |label, from, number| Flow { label, from, origin: port(number), load: Load::Tcp };
    let flows = [
        flow("C1", one, 8081),
        flow("C1", one, 8082),
        flow("C1", one, 8090),
        flow("C1", one, 8089),
        flow("C2", two, 0),
    ];
    let both = Division::of([party("C1").sends(Load::Tcp), party("C2").sends(Load::Tcp)]);
    check("no selectors", &node, &flows, &both.expected(CAPACITY, Family::V4), Family::V4, 0.03);
}

/// The host's own services, where packets leave by the uplink: by code point, network and port;
/// and a container's, picked by its name.
#[test]
fn code_points_networks_and_senders_select_at_the_uplink_and_at_ports() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for attach in ["auto", "clsact"] {
        let mut node =
            Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
        // C2's are of another class, though they have the same code point: the first match takes them.
        let sections = [
            class("of-C2", "weight = 1", &format!("{{ container = \"{}\" }}", node.name("C2"))),
            class("voice", "min = \"25mbit\"", "{ dscp = 46 }"),
            class("near", "weight = 3", "[{ remote = \"10.98.0.64/26\" }, { remote = \"fd98::64/128\" }]"),
            class("service", "max = \"8mbit\"", "{ container = \"host\", protocol = \"tcp\", port = 8081 }"),
        ];
        let config = node.config().link(&format!("attach = \"{attach}\"")).sections(&sections.concat());
        node.start(&config);
        let srv = node.topology.srv();
        srv.ip("addr add 10.98.0.100/32 dev eth0\naddr add fd98::64/128 dev eth0 nodad\n")
            .expect("it takes it");
        for (family, near) in [(Family::V4, "10.98.0.100"), (Family::V6, "fd98::64")] {
            let (address, near) = (node.topology.server_address(family), near.parse().expect("an address"));
            let (host, one, two) = (node.topology.node(), node.netns("C1"), node.netns("C2"));
            let voice = Origin { port: 0, dscp: 46 };
            let streams = [
                Stream::tcp_from(one, voice, srv, address),
                Stream::tcp_from(host, port(0), srv, near),
                Stream::tcp_from(host, port(8081), srv, address),
                Stream::tcp_from(host, port(8080), srv, address),
                // The container's port is not the host's.
                Stream::tcp_from(one, port(8081), srv, address),
                Stream::tcp_from(two, voice, srv, address),
            ];
            let labels = ["voice", "near", "service", "host", "C1", "of-C2"];
            let division = Division::of([
                party("voice").min(25).sends(Load::Tcp),
                party("near").weight(3).sends(Load::Tcp),
                party("service").max(8).sends(Load::Tcp),
                party("host").sends(Load::Tcp),
                party("C1").sends(Load::Tcp),
                party("of-C2").sends(Load::Tcp),
            ]);
            let expected = division.expected(CAPACITY, family);
            sleep(Duration::from_millis(2500));
            // The host's own connections lose packets at the queue's end: the kernel's counters tell.
            let measure = || {
                let handles = labels.map(|label| node.class(label).handle.expect("it is here"));
                let look = || {
                    let classes = kernel::classes(host);
                    handles.each_ref().map(|handle| classes[handle].counters.bytes)
                };
                let (start, before) = (std::time::Instant::now(), look());
                sleep(Duration::from_millis(3000));
                let (after, time) = (look(), start.elapsed().as_secs_f64());
                let part = Load::Tcp.payload_share(family);
                let rate =
                    |i: usize| (labels[i].to_owned(), (after[i] - before[i]) as f64 * 8e-6 * part / time);
                compare(&format!("{attach} {family}"), &[0, 1, 2, 3, 4, 5].map(rate), &expected)
            };
            let worst = measure_once(measure, |worst| *worst <= 0.03);
            assert!(worst <= 0.03, "{attach} {family}: a share is {:.2} % off", worst * 100.0);
            drop(streams);
        }
    }
}

/// Bytes that the kernel has counted for a class.
fn bytes(node: &Node, label: &str) -> u64 {
    let handle = node.class(label).handle.expect("it is here");
    kernel::classes(node.topology.node())[&handle].counters.bytes
}

#[test]
fn fragments_without_ports_follow_the_one_that_has_them() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let config =
        node.config().sections(&class("big", "max = \"20mbit\"", "{ protocol = \"udp\", port = 8081 }"));
    node.start(&config);
    for family in [Family::V4, Family::V6] {
        let before = ["big", "C1"].map(|label| bytes(&node, label));
        let (one, srv) = (node.netns("C1"), node.topology.srv());
        let address = node.topology.server_address(family);
        let stream = Stream::udp_from(one, port(8081), srv, address, Rate::Of(BitRate::mbit(10)), 12_500);
        sleep(Duration::from_millis(1500));
        let (sent, arrived) = stream.finish();
        let after = ["big", "C1"].map(|label| bytes(&node, label));
        let (selected, others) = (after[0] - before[0], after[1] - before[1]);
        println!(
            "{family}: {sent} B sent, {arrived} arrived, {selected} were the class's, {others} the container's"
        );
        assert!(arrived > 1_000_000 && selected > sent, "{family}: it takes all fragments");
        assert!(others < 2000, "{family}: {others} B of fragments were the container's");
    }
}

#[test]
fn packets_stay_in_their_class_while_the_agent_dies_and_comes_back() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let config = node.config().sections(&class("web", "max = \"20mbit\"", "{ port = 8081 }"));
    node.start(&config);
    let (handle, other) = (node.class("web").handle, node.class("C1").handle);
    let (one, srv) = (node.netns("C1"), node.topology.srv());
    let stream = Stream::tcp_from(one, port(8081), srv, node.topology.server_address(Family::V4));
    sleep(Duration::from_millis(1000));
    let look = |node: &Node| {
        let classes = kernel::classes(node.topology.node());
        [&handle, &other].map(|h| classes[h.as_ref().expect("it is here")].counters.bytes)
    };
    let before = look(&node);
    node.agent().kill();
    sleep(Duration::from_millis(1500));
    let dead = look(&node);
    println!("while dead {} B the class's, {} B the container's", dead[0] - before[0], dead[1] - before[1]);
    assert!(dead[0] - before[0] > 2_500_000, "rules work without an agent");
    for _ in 0..3 {
        node.restart();
        sleep(Duration::from_millis(300));
        node.agent().kill();
    }
    node.restart();
    sleep(Duration::from_millis(1000));
    let back = look(&node);
    println!("while it came back {} B, {} B", back[0] - dead[0], back[1] - dead[1]);
    assert_eq!(node.class("web").handle, handle, "it keeps its class");
    assert!(back[1] - before[1] < 2000, "{} B went to the container's class", back[1] - before[1]);
    assert!(stream.goodput(Duration::from_secs(1)) > 17.0);
}

#[test]
fn changed_selector_moves_its_packets() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let with = |node: &Node, selector: &str| -> Config {
        node.config().sections(&class("web", "max = \"20mbit\"", selector))
    };
    let config = with(&node, "{ port = 8081 }");
    node.start(&config);
    let address = node.topology.server_address(Family::V4);
    let stream = Stream::tcp_from(node.netns("C1"), port(8082), node.topology.srv(), address);
    sleep(Duration::from_secs(2));
    assert!(stream.goodput(Duration::from_secs(1)) > 80.0, "another port's packets are not its");
    let config = with(&node, "{ port = 8082 }");
    node.agent().rewrite(&config).expect("it can be written");
    sleep(Duration::from_secs(2));
    let held = stream.goodput(Duration::from_secs(1));
    assert!((17.0..20.0).contains(&held), "{held:.1} Mbit/s: now they are");
    let text = node.weir(&["explain", "web"]);
    assert!(text.contains("port 8082"), "{text}");
    let config = with(&node, "{ container = \"nobody\" }");
    node.agent().rewrite(&config).expect("it can be written");
    sleep(Duration::from_secs(2));
    let why = node.class("web").not_enforced_because.expect("nobody sends its packets");
    assert!(why.contains("there is no container nobody"), "{why}");
    assert!(stream.goodput(Duration::from_secs(1)) > 80.0, "nobody is selected");
    let config = with(&node, "{ port = 0 }");
    node.agent().rewrite(&config).expect("it can be written");
    sleep(Duration::from_secs(1));
    let error = node.client().status().expect("it answers").config_error.expect("port 0 is refused");
    assert!(error.contains("write 1 to 65535") && error.contains("match = { port = 0 }"), "{error}");
}
