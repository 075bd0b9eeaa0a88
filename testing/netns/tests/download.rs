//! The download is shared as the upload is: by classes, with weights, minima and maxima.
//!
//! The server is behind a wire with a FIFO, as behind an ISP's router. The node stands for its containers
//! (MASQUERADE), or routes to them.

use std::{
    net::{IpAddr, SocketAddr},
    thread::sleep,
    time::Duration,
};

use weir_agree::{Direction, Directions, Document, Language, Offer};
use weir_api::{ClientError, ConfigurationText, Download};
use weir_netlab::{
    topology::{BRIDGE, Family, Mode, Netns, Spec, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{
    Config, Need, Node, Rate, RawFrames, Stream, can_run, containers, measure_once, wait_within,
};
use weir_testkit::frames::{self, Mac};
use weir_units::BitRate;

/// The download's capacity.
const CAPACITY: f64 = 40.0;
/// As `htb` is held to elsewhere, with room for demands that the agent sees late.
const TOLERANCE: f64 = 0.03;
/// `htb` needs a second to be exact, longer on a busy machine, and TCP some time to have its window.
const SETTLES: Duration = Duration::from_millis(2500);
/// Some rounds of borrowed packets, of up to a second each.
const MEASURED: Duration = Duration::from_secs(3);

/// A node of `count` containers whose download is shared with these policies, by label.
fn node(count: usize, mode: Mode, down: &[(&str, &str)]) -> Node {
    let mut node = Node::build(&Spec { containers: containers(count), mode, ..Spec::default() });
    let config = shared(&node, down);
    node.start(&config);
    node
}

fn shared(node: &Node, down: &[(&str, &str)]) -> Config {
    let section = |(label, policy): &(&str, &str)| match *label {
        "host" => format!("[host]\ndown = {{ {policy} }}\n"),
        _ => format!("[[class]]\nname = \"{}\"\ndown = {{ {policy} }}\n", node.name(label)),
    };
    let sections: String = down.iter().map(section).collect();
    node.config().link(&format!("download = \"{CAPACITY}mbit\"")).sections(&sections)
}

fn back(node: &Node, label: &str, family: Family) -> Stream {
    let address = node.topology.server_address(family);
    Stream::tcp_back(node.netns(label), node.topology.srv(), address)
}

/// Flows of a receiver: one alone does not fill its share at each moment.
const FLOWS: usize = 4;
/// Payload of a datagram that is a full packet with IPv6's headers too.
const DATAGRAM: usize = 1400;

fn flows(node: &Node, label: &str, family: Family) -> [Stream; FLOWS] {
    [(); FLOWS].map(|()| back(node, label, family))
}

/// More datagrams than a class may have. They have no memory of losses, so that shares are exact on a busy
/// machine too.
fn flood(node: &Node, label: &str, family: Family) -> [Stream; 1] {
    flood_of(node, label, family, BitRate::mbit(28))
}

/// The wire carries 120 Mbit/s. A flood above that takes the others' packets before they arrive.
fn flood_of(node: &Node, label: &str, family: Family, rate: BitRate) -> [Stream; 1] {
    let address = node.topology.server_address(family);
    [Stream::udp_back(node.netns(label), node.topology.srv(), address, rate, DATAGRAM)]
}

/// The payload's part of a flood.
fn part(family: Family) -> f64 {
    let headers = if family == Family::V6 { 62.0 } else { 42.0 };
    DATAGRAM as f64 / (DATAGRAM as f64 + headers)
}

fn down(node: &Node, label: &str) -> Download {
    node.class(label).down.unwrap_or_else(|| panic!("{label} has no part of the download"))
}

/// Measures the goodputs of these, and compares each with what is due, Mbit/s.
#[track_caller]
fn assert_goodputs(what: &str, streams: &[&[Stream]], due: &[f64]) {
    let measure = || {
        let all: Vec<&Stream> = streams.iter().copied().flatten().collect();
        let mut got = Stream::goodputs(&all, MEASURED).into_iter();
        let sums: Vec<f64> = streams.iter().map(|of| got.by_ref().take(of.len()).sum()).collect();
        let off = sums.iter().zip(due).map(|(got, due)| (got - due).abs() / due).fold(0.0, f64::max);
        println!("{what}: {sums:.2?} of {due:.2?} Mbit/s, {:.2} % off", off * 100.0);
        off
    };
    let off = measure_once(measure, |off| *off <= TOLERANCE);
    assert!(off <= TOLERANCE, "{what}: {:.2} % off", off * 100.0);
}

fn filters(node: &Node) -> String {
    node.sh(&["tc", "filter", "show", "dev", UPLINK, "ingress"])
        + &node.sh(&["tc", "filter", "show", "dev", UPLINK, "egress"])
}

/// Waits until something holds.
#[track_caller]
fn wait(what: &str, most: Duration, holds: impl Fn() -> bool) {
    let took = wait_within(most, || if holds() { Ok(()) } else { Err(()) });
    println!(
        "{what}: within {:?}",
        took.unwrap_or_else(|late| panic!("{what}: not within {most:?}: {late}"))
    );
}

#[test]
fn containers_and_the_host_receive_by_weight_behind_nat() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let policies = [("C1", "weight = 1"), ("C2", "weight = 2"), ("C3", "weight = 3"), ("host", "weight = 1")];
    let node = node(3, Mode::Nat, &policies);
    let weights = [1.0, 2.0, 3.0, 1.0];
    for family in [Family::V4, Family::V6] {
        let due: Vec<f64> = weights.iter().map(|w| w / 7.0 * CAPACITY * part(family)).collect();
        let streams: Vec<[Stream; 1]> =
            policies.iter().map(|(label, _)| flood(&node, label, family)).collect();
        sleep(SETTLES);
        let all: Vec<&[Stream]> = streams.iter().map(<[Stream; 1]>::as_slice).collect();
        assert_goodputs(&format!("{family}"), &all, &due);
        assert_eq!(down(&node, "C3").policy.weight.get(), 3);
    }
    let status = node.client().status().unwrap();
    let download = status.download.expect("the download is shared");
    assert_eq!((download.capacity, download.engine.as_str()), (BitRate::mbit(40), "htb"));
    assert_eq!(status.warnings, Vec::<String>::new());
}

#[test]
fn a_minimum_and_a_maximum_hold_beside_eight_flows_of_another() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let policies = [("C1", "min = \"20mbit\""), ("C2", "max = \"5mbit\""), ("C3", "weight = 2")];
    let node = node(3, Mode::Nat, &policies);
    let [one, two] = ["C1", "C2"].map(|label| flood(&node, label, Family::V4));
    let three: Vec<Stream> =
        (0..8).flat_map(|_| flood_of(&node, "C3", Family::V4, BitRate::mbit(6))).collect();
    sleep(SETTLES);
    let due = [20.0, 5.0, 15.0].map(|mbit| mbit * part(Family::V4));
    assert_goodputs("minimum, maximum, rest", &[&one, &two, &three], &due);
    // A minimum that does not fit is refused, and nothing changes.
    let name = node.name("C3");
    let refused = node.ran(&["set", &name, "down.min=19mbit", "max=3mbit"]);
    assert_ne!(refused.code, Some(0), "{}", refused.stdout);
    assert!(refused.stderr.contains("download: "), "{}", refused.stderr);
    assert_eq!(node.class("C3").policy.max, None);
    // A change at run time holds at once.
    node.weir(&["set", &name, "down.max=10mbit"]);
    node.weir(&["set", &node.name("C1"), "down.min=none"]);
    sleep(SETTLES);
    let due = [25.0, 5.0, 10.0].map(|mbit| mbit * part(Family::V4));
    assert_goodputs("after changes", &[&one, &two, &three], &due);
    assert!(node.weir(&["ps"]).contains("RECEIVING"));
    let why = node.weir(&["explain", &name]);
    assert!(why.contains("download: ") && why.contains("its maximum"), "{why}");
    let set = format!("\n  down.max 10mbit: set by hand (`weir unset {name}` takes it away)\n");
    assert!(why.contains(&set), "{why}");
}

/// An offer of what arrives for a container, in Mbit/s.
fn offer(container: &str, min: u64, max: u64, direction: Directions) -> Offer {
    let text = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{container}"}},
            "terms":{{"min":"{min}mbit","max":"{max}mbit","direction":"{direction}"}}}}"#,
    );
    Offer::read(&text, Language::Json).expect("it is an offer")
}

#[test]
fn agreement_on_what_arrives_holds_beside_a_flood_and_after_a_crash() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Nat, ..Spec::default() });
    let config = shared(&node, &[]).sections("[agreements]\n");
    node.start(&config);
    let name = node.name("C1");
    let refused = node.client().offer(&offer(&name, 30, 37, Directions::Download)).unwrap_err();
    let ClientError::Fault(fault) = refused else { panic!("{refused}") };
    assert_eq!(
        fault.counter_offer.and_then(|counter| counter.max),
        Some(BitRate::mbit(36)),
        "{}",
        fault.message
    );
    let answer = node.client().offer(&offer(&name, 28, 32, Directions::Download)).expect("it fits");
    let id = answer.agreement.id.to_string();
    let reserved = |direction| node.client().calendar(direction, None, None).unwrap().steps[0].reserved;
    assert_eq!(Direction::ALL.map(reserved), [BitRate::ZERO, BitRate::mbit(28)]);

    let streams = ["C1", "C2"].map(|label| flood_of(&node, label, Family::V4, BitRate::mbit(40)));
    let all: Vec<&[Stream]> = streams.iter().map(<[Stream; 1]>::as_slice).collect();
    let payload = part(Family::V4);
    sleep(SETTLES);
    assert_goodputs("agreed", &all, &[28.0, 12.0].map(|mbit| mbit * payload));
    let status = node.client().agreement(&id).unwrap();
    assert_eq!((status.not_enforced_because, status.class.is_some()), (None, true));
    assert_eq!(node.class("C1").policy.min, None, "what leaves is not promised");
    assert_eq!(down(&node, "C1").policy.min, Some(BitRate::mbit(28)));
    assert_eq!(node.client().status().unwrap().download.unwrap().reserved, BitRate::mbit(28));
    node.agent().kill();
    node.restart();
    sleep(SETTLES);
    assert_goodputs("after a crash", &all, &[28.0, 12.0].map(|mbit| mbit * payload));
    let status = node.client().agreement(&id).unwrap();
    assert_eq!(status.violations, [], "its guarantee held");
    assert!(status.sent_today.0 > 3_000_000, "{}", status.sent_today);

    // There is no room for another one, and a promise about both directions needs room in both.
    for direction in [Directions::Download, Directions::Both] {
        let refused = node.client().offer(&offer(&node.name("C2"), 9, 9, direction)).unwrap_err();
        assert!(refused.to_string().starts_with("download: cannot promise 9mbit"), "{refused}");
    }
    node.weir(&["agree", "terminate", &id]);
    assert_eq!(down(&node, "C1").policy.min, None);
    sleep(SETTLES);
    assert_goodputs("terminated", &all, &[20.0, 20.0].map(|mbit| mbit * payload));
    let both = node.client().offer(&offer(&node.name("C2"), 9, 9, Directions::Both)).expect("it fits");
    assert_eq!(
        Direction::ALL.map(|one| node.client().calendar(one, None, None).unwrap().steps[0].reserved),
        [BitRate::mbit(9); 2]
    );
    assert_eq!(
        (node.class("C2").policy.min, down(&node, "C2").policy.max),
        (Some(BitRate::mbit(9)), Some(BitRate::mbit(9)))
    );
    assert_eq!(node.client().agreement(both.agreement.id.as_str()).unwrap().not_enforced_because, None);
}

#[test]
fn datagrams_to_published_ports_belong_to_the_container() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(2, Mode::Nat, &[("C1", "max = \"4mbit\""), ("C2", "max = \"8mbit\"")]);
    let srv = node.topology.srv();
    let conntrack = node.client().status().unwrap().download.unwrap().conntrack;
    assert!(conntrack, "this kernel has bpf_skb_ct_lookup, and nf_conntrack is there with MASQUERADE");
    let uplink = "10.98.0.1".parse().unwrap();
    let streams: Vec<Stream> = [("C1", 4001), ("C2", 4002)]
        .into_iter()
        .map(|(label, port)| {
            let inner = node.topology.container(label).unwrap().address(Family::V4);
            let to = format!("{inner}:{port}");
            let port_text = port.to_string();
            let rule = ["-t", "nat", "-A", "PREROUTING", "-i", UPLINK, "-p", "udp", "--dport", &port_text];
            node.sh(&[&["iptables", "-w"], &rule[..], &["-j", "DNAT", "--to-destination", &to]].concat());
            let target = SocketAddr::new(uplink, port);
            let sink = SocketAddr::new(inner, port);
            Stream::udp_through(srv, target, node.netns(label), sink, BitRate::mbit(12))
        })
        .collect();
    sleep(SETTLES);
    let payload = UDP_PAYLOAD as f64 / (UDP_PAYLOAD + 42) as f64;
    let due = [4.0, 8.0].map(|mbit| mbit * payload);
    let each: Vec<&[Stream]> = streams.iter().map(std::slice::from_ref).collect();
    assert_goodputs("one-way datagrams", &each, &due);
    // Neighbour discovery is the host's. It grows with the time of the test, as the datagrams do.
    let host = down(&node, "host");
    let all: u64 = ["C1", "C2"].iter().map(|label| down(&node, label).packets).sum();
    println!("{} packets are the host's, and {all} of containers", host.packets);
    assert!(host.packets < all / 100, "they are not the host's: {host:?}, {all} of containers");
}

/// The ISP's router drops late: 1 MB are 160 ms. Weir keeps that queue empty, and each class has its own.
#[test]
fn ping_is_short_beside_bulk_downloads_of_another_and_its_own() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(2, Mode::Nat, &[("C1", "weight = 1")]);
    node.topology.wire().tc("qdisc replace dev wn root tbf rate 42mbit burst 32k limit 1000000\n").unwrap();
    let bulk = [(); 2].map(|()| flows(&node, "C1", Family::V4));
    sleep(SETTLES);
    let server = node.topology.server_address(Family::V4).to_string();
    let ping = |label: &str| {
        let out = node.netns(label).exec(&["ping", "-q", "-i", "0.02", "-c", "60", &server]).unwrap().stdout;
        // rtt min/avg/max/mdev = 0.1/0.2/0.3/0.4 ms
        let times = out.rsplit(" = ").next().and_then(|t| t.split('/').nth(1)?.parse::<f64>().ok());
        times.unwrap_or_else(|| panic!("{out}"))
    };
    let average = measure_once(|| ping("C2"), |ms| *ms < 15.0);
    println!("ping of the idle container: {average} ms on average");
    assert!(average < 15.0, "{average} ms");
    let inside = measure_once(|| ping("C1"), |ms| *ms < average + 5.0);
    println!("ping of the container that downloads: {inside} ms on average");
    assert!(inside < average + 5.0, "{inside} ms, {average} ms in an idle container");
    // Echoes of NAT belong to the container, not to the host.
    wait("all echoes are counted", Duration::from_secs(1), || down(&node, "C2").packets >= 60);
    assert!(down(&node, "C1").drops > 0, "it is this queue that holds the bulk back");
    drop(bulk);
}

/// The flood has more than its share of the line, and the ISP's queue would be full of it.
#[test]
fn beside_a_flood_charged_drops_keep_weights_and_a_short_queue() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(4), mode: Mode::Nat, ..Spec::default() });
    let config = shared(&node, &[("C3", "weight = 2")]).link("charge_drops = true");
    node.start(&config);
    node.topology.wire().tc("qdisc replace dev wn root tbf rate 42mbit burst 32k limit 1000000\n").unwrap();
    let flood = flood_of(&node, "C1", Family::V4, BitRate::mbit(20));
    let [two, three] = ["C2", "C3"].map(|label| flows(&node, label, Family::V4));
    // The start fills the ISP's queue, and a surplus of 2 Mbit/s empties it.
    sleep(Duration::from_secs(6));
    let server = node.topology.server_address(Family::V4).to_string();
    let measure = || {
        let all: Vec<&Stream> = two.iter().chain(&three).collect();
        let got = Stream::goodputs(&all, Duration::from_secs(4));
        let sums = [got[..FLOWS].iter().sum::<f64>(), got[FLOWS..].iter().sum()];
        let ping = ["ping", "-q", "-i", "0.02", "-c", "60", &server];
        let out = node.netns("C4").exec(&ping).unwrap().stdout;
        let average = out.rsplit(" = ").next().and_then(|t| t.split('/').nth(1)?.parse::<f64>().ok());
        (sums, average.unwrap_or_else(|| panic!("{out}")))
    };
    let left = (CAPACITY - 20.0 / part(Family::V4)) * 0.957;
    let good = |([two, three], ping): &([f64; 2], f64)| {
        let (sum, ratio) = (two + three, three / two);
        (0.8..=1.08).contains(&(sum / left)) && (1.5..=2.6).contains(&ratio) && *ping < 20.0
    };
    let found = measure_once(measure, good);
    println!("beside a flood: {:.2?} of {left:.2} Mbit/s, ping {:.1} ms", found.0, found.1);
    assert!(good(&found), "{found:?} of {left:.2}");
    let why = node.weir(&["explain", &node.name("C1")]);
    assert!(why.contains("pay for packets that queues dropped"), "{why}");
    assert!(!why.contains("its maximum"), "it has none: {why}");
    let status = node.client().status().unwrap().download.expect("the download is shared");
    let paid = [down(&node, "C1").charged, status.charged];
    assert!(paid.iter().all(|rate| *rate > BitRate::kbit(500)), "{paid:?}");
    assert!(node.weir(&["status"]).contains("of the download pay for dropped packets"));
    drop(flood);
}

#[test]
fn routed_and_bridged_containers_are_known_by_their_addresses() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let cases = [(Mode::Routed, Family::V4), (Mode::Routed, Family::V6), (Mode::Bridged, Family::V4)];
    for (mode, family) in cases {
        let node = node(2, mode, &[("C1", "max = \"4mbit\""), ("C2", "max = \"6mbit\"")]);
        let one_way = |label: &str| {
            let to = node.topology.container(label).unwrap().address(family);
            let rate = Rate::Of(BitRate::mbit(10));
            Stream::udp_from(
                node.topology.srv(),
                Default::default(),
                node.netns(label),
                to,
                rate,
                UDP_PAYLOAD as usize - 20,
            )
        };
        let streams = [[one_way("C1")], [one_way("C2")]];
        sleep(SETTLES);
        let headers = if family == Family::V4 { 42.0 } else { 62.0 };
        let payload = f64::from(UDP_PAYLOAD) - 20.0;
        let due = [4.0, 6.0].map(|mbit| mbit * payload / (payload + headers));
        let what = format!("{mode} {family} without an answer");
        assert_goodputs(&what, &[&streams[0], &streams[1]], &due);
        assert!(down(&node, "default").bytes.0 < 20_000);
    }
}

/// The hosts of a LAN have a class by its interface. Weir does not know their addresses.
#[test]
fn a_container_takes_no_arrivals_of_the_lan_by_its_address() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let lan = Netns::create(&format!("{}lan", node.topology.prefix())).unwrap();
    let link = format!("link add lan0 type veth peer name eth0 netns {}\n", lan.name());
    let up = "addr add 10.78.2.1/24 dev lan0\nlink set dev lan0 up\n";
    node.topology.node().ip(&(link + up)).unwrap();
    lan.ip("addr add 10.78.2.2/24 dev eth0\nlink set dev eth0 up\nroute add default via 10.78.2.1\n")
        .unwrap();
    node.topology.srv().ip("route add 10.78.2.0/24 via 10.98.0.1\n").unwrap();
    let class = "[[class]]\nname = \"lan\"\ninterface = \"lan0\"\ndown = { max = \"20mbit\" }\n";
    let config = shared(&node, &[("C1", "max = \"1mbit\"")]).sections(class);
    node.start(&config);
    let server = node.topology.server_address(Family::V4);
    let stream = [Stream::udp_back(&lan, node.topology.srv(), server, BitRate::mbit(28), DATAGRAM)];
    let due = [20.0 * part(Family::V4)];
    sleep(SETTLES);
    assert_goodputs("the LAN alone", &[&stream], &due);
    node.netns("C1").ip("addr add 10.78.2.2/32 dev lo\n").unwrap();
    // The agent looks at addresses each 5 s.
    sleep(Duration::from_secs(6));
    let before = down(&node, "C1").bytes.0;
    assert_goodputs("the LAN beside a container with its address", &[&stream], &due);
    let taken = down(&node, "C1").bytes.0 - before;
    assert!(taken < 100_000, "C1 has taken {taken} bytes");
}

fn mac(netns: &Netns, device: &str) -> Mac {
    let text = netns.exec(&["ip", "-j", "link", "show", "dev", device]).unwrap().stdout;
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = links[0]["address"].as_str().unwrap().split(':').map(|b| u8::from_str_radix(b, 16).unwrap());
    bytes.collect::<Vec<u8>>().try_into().unwrap()
}

/// A frame of C1 with the source of another container.
fn forged(node: &Node, [from, to]: [IpAddr; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => unreachable!("the test is about IPv4"),
    };
    let mut ip = vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 1, 0, 0, 64, protocol, 0, 0];
    ip.extend(octets(from).iter().chain(&octets(to)));
    let sum = frames::checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let (bridge, own) = (mac(node.topology.node(), BRIDGE), mac(node.netns("C1"), "eth0"));
    [&bridge[..], &own, &[8, 0], &ip, payload].concat()
}

#[test]
fn a_container_takes_no_arrivals_by_the_source_of_another() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(2, Mode::Nat, &[("C1", "max = \"1mbit\""), ("C2", "max = \"20mbit\"")]);
    let stream = flood(&node, "C2", Family::V4);
    sleep(SETTLES);
    let due = [20.0 * part(Family::V4)];
    assert_goodputs("alone", &[&stream], &due);
    let sockets = node.netns("C2").exec(&["ss", "-Hun"]).unwrap().stdout;
    let ends: Vec<SocketAddr> = sockets.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    let [own, far] = ends[..] else { panic!("C2 has one socket: {sockets}") };
    let datagram = [own.port().to_be_bytes(), far.port().to_be_bytes(), [0, 8], [0, 0]].concat();
    let frame = forged(&node, [own.ip(), far.ip()], 17, &datagram);
    let (sent, received) = (node.class("C1").packets, down(&node, "C1").bytes.0);
    let forger = RawFrames::send(node.netns("C1"), &[frame], BitRate::kbit(200));
    sleep(Duration::from_secs(1));
    assert_goodputs("beside forged sources", &[&stream], &due);
    drop(forger);
    let sent = node.class("C1").packets - sent;
    assert!(sent > 100, "the forged packets leave as their sender's: {sent}");
    let received = down(&node, "C1").bytes.0 - received;
    assert!(received < 100_000, "C1 has taken {received} bytes");
}

/// Programs cannot ask conntrack about echoes. The class that sends a flow keeps it.
#[test]
fn a_container_takes_no_echoes_by_the_source_of_another() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(2, Mode::Nat, &[]);
    let server = node.topology.server_address(Family::V4);
    let to = server.to_string();
    let mut ping = node.netns("C2").spawn(&["ping", "-q", "-e", "77", "-i", "0.2", "-w", "6", &to]).unwrap();
    sleep(Duration::from_secs(1));
    let mut echo = vec![8, 0, 0, 0, 0, 77, 0, 1];
    let sum = frames::checksum(&echo);
    echo[2..4].copy_from_slice(&sum);
    let own = node.topology.container("C2").unwrap().address(Family::V4);
    let frame = forged(&node, [own, server], 1, &echo);
    let (sent, received) =
        (node.class("C1").packets, [down(&node, "C1"), down(&node, "C2")].map(|d| d.packets));
    let forger = RawFrames::send(node.netns("C1"), &[frame], BitRate::kbit(200));
    sleep(Duration::from_secs(3));
    drop(forger);
    ping.stop(Duration::from_secs(1));
    let sent = node.class("C1").packets - sent;
    let [one, two] = ["C1", "C2"].map(|label| down(&node, label).packets);
    let (one, two) = (one - received[0], two - received[1]);
    println!("{sent} forged echoes; answers: {one} of C1, {two} of C2");
    assert!(sent > 100 && two > 10, "{sent} left, {two} of C2");
    assert!(one < 10, "C1 has taken {one} answers");
}

#[test]
fn limits_hold_without_the_agent_and_the_next_one_adopts_them() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let policies = [("C1", "weight = 1"), ("C2", "weight = 3")];
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Nat, ..Spec::default() });
    let host = |node: &Node| {
        filters(node)
            + &node.sh(&["tc", "qdisc", "show"])
            + &node.sh(&["ip", "-o", "link", "show", "type", "ifb"])
    };
    let before = host(&node);
    let config = shared(&node, &policies);
    node.start(&config);
    let rate = BitRate::mbit(45);
    let streams = ["C1", "C2"].map(|label| flood_of(&node, label, Family::V4, rate));
    sleep(SETTLES);
    let due = [0.25, 0.75].map(|share| share * CAPACITY * part(Family::V4));
    assert_goodputs("with the agent", &[&streams[0], &streams[1]], &due);
    let first = ifb(&node);
    node.agent().kill();
    assert_goodputs("without an agent", &[&streams[0], &streams[1]], &due);
    node.restart();
    assert_eq!(ifb(&node), first, "the scheduler's device is the same");
    sleep(Duration::from_millis(500));
    assert_goodputs("with the next agent", &[&streams[0], &streams[1]], &due);
    // Without `download` nothing of it stays, and the rest goes on.
    let without = node.config();
    node.agent().rewrite(&without).unwrap();
    wait("the download is given up", Duration::from_secs(3), || {
        node.client().status().is_ok_and(|status| status.download.is_none())
            && ifb(&node).is_empty()
            && !filters(&node).contains("weir_down")
            && !filters(&node).contains("weir_learn")
    });
    node.agent().rewrite(&config).unwrap();
    wait("the download is shared again", Duration::from_secs(3), || {
        filters(&node).contains("weir_down") && filters(&node).contains("weir_learn")
    });
    sleep(SETTLES);
    assert_goodputs("after two reloads", &[&streams[0], &streams[1]], &due);
    drop(streams);
    assert!(node.agent().stop(), "it ends well");
    assert_eq!(host(&node), before);
}

/// The index of the download's device. Empty without one.
fn ifb(node: &Node) -> String {
    let all = node.sh(&["ip", "-o", "link", "show", "type", "ifb"]);
    all.lines()
        .filter(|line| line.contains("weir0d"))
        .map(|line| line.split(' ').next().unwrap_or(""))
        .collect()
}

#[test]
fn what_others_remove_or_alter_is_repaired() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(1, Mode::Nat, &[("C1", "max = \"7mbit\"")]);
    let repairs = || node.client().status().unwrap().repairs;
    let within = Duration::from_millis(2500);
    let mut last = repairs();
    let mut is_counted = |what: &str| {
        wait(&format!("{what} is counted"), within, || repairs() > last);
        last = repairs();
    };
    node.sh(&["tc", "filter", "del", "dev", UPLINK, "ingress"]);
    wait("the filter of what arrives", within, || filters(&node).contains("weir_down"));
    is_counted("the filter of what arrives");
    node.sh(&["tc", "filter", "del", "dev", UPLINK, "egress", "pref", "32257"]);
    wait("the filter that learns", within, || filters(&node).contains("weir_learn"));
    is_counted("the filter that learns");
    node.sh(&["ip", "link", "del", "weir0d"]);
    wait("the device", within, || !ifb(&node).is_empty());
    is_counted("the device");
    node.sh(&["ip", "link", "set", "weir0d", "down"]);
    wait("the device is up", within, || node.sh(&["ip", "link", "show", "weir0d"]).contains(",UP"));
    let stream = flood(&node, "C1", Family::V4);
    sleep(SETTLES);
    assert_goodputs("after all", &[&stream], &[7.0 * part(Family::V4)]);
    let events: Vec<_> = node.client().events(false).unwrap().collect::<Result<_, _>>().unwrap();
    let told = events.iter().filter(|e| e.what == "repaired" && e.detail.starts_with("download: "));
    assert!(told.count() >= 1, "{events:?}");
}

/// `/metrics` has both counts, and a counter never falls.
#[test]
fn counts_of_writes_and_repairs_stay_when_a_download_ends() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1, Mode::Nat, &[]);
    let counts = |node: &Node| {
        let status = node.client().status().unwrap();
        (status.class_changes, status.repairs)
    };
    node.sh(&["ip", "link", "del", "weir0d"]);
    wait("the device is repaired", Duration::from_millis(2500), || {
        counts(&node).1 > 0 && !ifb(&node).is_empty()
    });
    sleep(Duration::from_millis(500));
    let before = counts(&node);
    let without = node.config();
    node.agent().rewrite(&without).unwrap();
    wait("the download is given up", Duration::from_secs(3), || {
        node.client().status().is_ok_and(|status| status.download.is_none())
    });
    let after = counts(&node);
    assert!(after.0 >= before.0 && after.1 >= before.1, "{after:?} after {before:?}");
}

#[test]
fn without_download_nothing_is_done_to_what_arrives() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Nat, ..Spec::default() });
    let config = node.config();
    node.start(&config);
    assert_eq!(node.sh(&["tc", "filter", "show", "dev", UPLINK, "ingress"]).trim(), "");
    assert_eq!(ifb(&node), "");
    let class = node.class("C1");
    assert_eq!(class.down, None);
    let refused = node.ran(&["set", &class.name, "down.max=5mbit"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("[link] download"), "{}", refused.stderr);
}

#[test]
fn undo_and_plan_are_about_both_directions() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1, Mode::Nat, &[]);
    let name = node.class("C1").name;
    let maxima = |node: &Node| (node.class("C1").policy.max, down(node, "C1").policy.max);
    assert_eq!(maxima(&node), (None, None));
    let words = ["set", &name, "max=9mbit", "down.max=5mbit"];
    let dry = node.weir(&[&words[..], &["--dry-run"]].concat());
    assert!(dry.contains("- -> 9mbit") && dry.contains("down.max - -> 5mbit"), "{dry}");
    assert_eq!(maxima(&node), (None, None), "a dry run changes nothing");
    node.weir(&words);
    let both = (Some(BitRate::mbit(9)), Some(BitRate::mbit(5)));
    assert_eq!(maxima(&node), both);
    node.weir(&["set", &name, "down.max=6mbit"]);
    assert_eq!(maxima(&node), (both.0, Some(BitRate::mbit(6))));
    node.weir(&["undo"]);
    assert_eq!(maxima(&node), both);

    let path = node.client().status().unwrap().config;
    let text = std::fs::read_to_string(&path).unwrap();
    let plan = |text: String| {
        node.client().plan_configuration(&ConfigurationText { path: path.clone(), text }).unwrap()
    };
    let same = plan(text.clone());
    assert!(same.settings.is_empty() && same.classes.is_empty(), "{same:?}");
    let without: String =
        text.lines().filter(|line| !line.starts_with("download =")).map(|l| format!("{l}\n")).collect();
    let ended = plan(without);
    assert!(
        ended.settings.iter().any(|s| s.key == "[link] download" && s.after == "not shared"),
        "{ended:?}"
    );
    let of_c1 = ended.classes.iter().find(|change| change.name == name).unwrap();
    assert!(of_c1.before.as_ref().unwrap().down.is_some() && of_c1.after.as_ref().unwrap().down.is_none());

    node.agent().kill();
    node.restart();
    let found = |client: &weir_api::Client| {
        client.class(&name).ok()?.down.is_none().then(|| "no download".to_owned())
    };
    node.agent().wait_until("find the class", found).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(maxima(&node), both);
    node.weir(&["undo"]);
    assert_eq!(maxima(&node), (None, None), "one change of both directions is taken back as one");
}
