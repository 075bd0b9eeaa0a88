//! Several links at a time: each divides its own capacity between what its routes send there.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread::sleep,
    time::{Duration, Instant},
};

use weir_api::{Class, LinkView, OnLink};
use weir_netlab::{
    topology::{Family, Mode, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{
    Agent, EngineBounds, EngineKind, Need, Node, Rate, Stream, can_run, for_each_engine, measure_once,
    two_links::{BY_SECOND, BY_SECOND_V6, FAR, SECOND, node, node_in, plug_in, route},
};
use weir_units::BitRate;

for_each_engine!(queues: links_that_routes_take_are_shared_each_by_itself);

const FIRST_MBIT: u64 = 40;
const SECOND_MBIT: u64 = 10;
const MEASURED: Duration = Duration::from_secs(2);

/// A datagram's bytes on layer 2 as a part of its payload.
const FRAME: f64 = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;

/// HTB needs a second to be exact, longer on a busy machine.
const SETTLES: Duration = Duration::from_millis(2_500);

fn send(node: &Node, label: &str, to: IpAddr) -> Stream {
    Stream::udp(node.netns(label), node.topology.srv(), to, Rate::Unlimited)
}

fn link(node: &Node) -> LinkView {
    serde_json::from_str(&node.weir(&["link", "--json"])).expect("it is a view")
}

/// Waits until what `weir link` shows is so. A reload and the next look take a second or two of a busy machine.
#[track_caller]
fn await_links(node: &Node, what: &str, is_so: impl Fn(&LinkView) -> bool) {
    let begin = Instant::now();
    while !is_so(&link(node)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}: not after {:?}", begin.elapsed());
        sleep(Duration::from_millis(50));
    }
    println!("{what} after {:?}", begin.elapsed());
}

/// A class's part of the second link.
fn on_second(class: &Class) -> &OnLink {
    class.on_links.iter().find(|part| part.link == SECOND).expect("it has a part of the second link")
}

/// Starts the agent on both links.
fn start(node: &mut Node, engine: EngineKind, awaited: &[&str]) {
    let names: Vec<String> = awaited.iter().map(|label| node.name(label)).collect();
    let config = node.config().engine(engine).capacity(BitRate::mbit(FIRST_MBIT));
    let config = config.beside(SECOND, BitRate::mbit(SECOND_MBIT)).awaiting(&names);
    node.start(&config);
}

/// Measures that streams get these shares, Mbit/s of layer 2.
fn exact(what: &str, streams: &[&Stream], wanted: &[f64], tolerance: f64) {
    let measure = || {
        let got = Stream::goodputs(streams, MEASURED);
        let got: Vec<f64> = got.iter().map(|mbit| mbit * FRAME).collect();
        println!("{what}: {got:.2?} of {wanted:.2?} Mbit/s");
        got.iter().zip(wanted).map(|(got, wanted)| (got / wanted - 1.0).abs()).fold(0.0, f64::max)
    };
    let off = measure_once(measure, |off| *off <= tolerance);
    assert!(off <= tolerance, "{what}: {:.1} % off", off * 100.0);
}

/// The devices of weir on the node.
fn devices(node: &Node) -> Vec<String> {
    let shown = node.sh(&["ip", "-o", "link", "show", "type", "ifb"]);
    shown.lines().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned())).collect()
}

fn links_that_routes_take_are_shared_each_by_itself(engine: EngineKind) {
    let mut node = node(2);
    start(&mut node, engine, &["C1", "C2"]);
    assert_eq!(devices(&node), ["weir0", "weir1"]);
    node.weir(&["set", &node.name("C1"), "max=30mbit"]);
    node.weir(&["set", &node.name("C2"), "weight=4"]);
    let streams = [("C1", FAR), ("C2", FAR), ("C1", BY_SECOND), ("C2", BY_SECOND)];
    let streams = streams.map(|(label, to)| send(&node, label, to));
    let all = streams.each_ref();
    let tolerance = engine.tolerance(false).max(0.02);
    sleep(engine.settles() + Duration::from_millis(1_500));
    exact("on both links", &all, &[8.0, 32.0, 2.0, 8.0], tolerance);

    // A class that leaves one link alone leaves the other one as it is.
    streams[1].set(Rate::Of(BitRate::ZERO));
    sleep(engine.settles() + Duration::from_millis(1_500));
    exact("one of the first link is silent", &[all[0], all[2], all[3]], &[30.0, 2.0, 8.0], tolerance);

    // The next agent takes both schedulers over.
    node.agent().kill();
    node.restart();
    sleep(Duration::from_millis(500));
    exact("after a crash", &[all[0], all[2], all[3]], &[30.0, 2.0, 8.0], tolerance);
    drop(streams);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!(devices(&node), Vec::<String>::new());
    for device in [UPLINK, SECOND] {
        let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", device]);
        assert!(!qdiscs.contains("clsact"), "{device}: {qdiscs}");
    }
}

#[test]
fn what_arrives_and_the_hosts_traffic_are_shared_on_each_link() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node_in(2, Mode::Nat);
    node.sh(&["iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-o", SECOND, "-j", "MASQUERADE"]);
    let config = node.config().capacity(BitRate::mbit(FIRST_MBIT)).link("download = \"20mbit\"");
    let config = config.beside_with(SECOND, BitRate::mbit(SECOND_MBIT), "download = \"12mbit\"");
    let names = [node.name("C1"), node.name("C2")];
    let sections = format!("[[class]]\nname = \"{}\"\ndown = {{ weight = 3 }}\n", names[1]);
    node.start(&config.sections(&sections).awaiting(&names));
    // A datagram of a flood above a link's capacity is dropped here, and not before.
    let back = |label, address, mbit| {
        Stream::udp_back(
            node.netns(label),
            node.topology.srv(),
            address,
            BitRate::mbit(mbit),
            UDP_PAYLOAD as usize,
        )
    };
    let first = node.topology.server_address(Family::V4);
    let streams =
        [back("C1", first, 19), back("C2", first, 19), back("C1", BY_SECOND, 11), back("C2", BY_SECOND, 11)];
    sleep(SETTLES);
    exact("what arrives", &streams.each_ref(), &[5.0, 15.0, 3.0, 9.0], 0.03);
    let class = node.class("C2");
    let rate = on_second(&class).down.as_ref().map_or(0.0, |down| down.rate.as_mbit());
    assert!((rate - 9.0).abs() < 0.5, "{rate} Mbit/s are shown for the second link");
    drop(streams);

    let host = |to| Stream::udp(node.topology.node(), node.topology.srv(), to, Rate::Unlimited);
    let streams = [host(first), send(&node, "C1", first), host(BY_SECOND), send(&node, "C1", BY_SECOND)];
    sleep(SETTLES);
    exact("what leaves, beside the host", &streams.each_ref(), &[20.0, 20.0, 5.0, 5.0], 0.03);
    let shown = node.weir(&["ps", "--link", SECOND]);
    let line = shown.lines().find(|line| line.starts_with("host ")).expect("the host has a line");
    assert!(line.contains(" 5mbit "), "{shown}");
    let wrong = node.ran(&["ps", "--link", "eth9"]);
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("no link eth9 is shared, but up0, up1"),
        "{wrong:?}"
    );
}

#[test]
fn link_whose_device_name_is_taken_is_told_of_and_shared_when_it_is_free() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1);
    for taken in ["weir1", "weir2", "weir3"] {
        node.sh(&["ip", "link", "add", taken, "type", "bridge"]);
    }
    let one = node.config().capacity(BitRate::mbit(FIRST_MBIT)).awaiting(&[node.name("C1")]);
    let two = one.clone().beside(SECOND, BitRate::mbit(SECOND_MBIT));
    // An agent that starts refuses it, and leaves nothing.
    let refused = Agent::start(node.topology.node(), &two).map(drop).expect_err("the name is taken");
    let refused = format!("{refused:#}");
    assert!(refused.contains("cannot share link up1: cannot create device weir1"), "{refused}");
    assert_eq!(devices(&node), Vec::<String>::new());

    node.start(&one);
    node.agent().rewrite(&two).expect("it is written");
    await_links(&node, "the second link is there", |link| link.others.len() == 1);
    let [other] = &link(&node).others[..] else { panic!("one is beside the main link") };
    let why = other.not_enforced_because.as_ref().expect("it is not shared");
    assert!(why.contains("rename it, or remove it with `ip link del weir1`"), "{why}");
    assert_eq!(other.capacity, BitRate::mbit(SECOND_MBIT));
    for shown in [node.weir(&["status"]), node.weir(&["ps"]), node.weir(&["link"])] {
        assert!(shown.contains("cannot share link up1"), "{shown}");
    }
    assert!(node.class("C1").enforced, "the main link is shared");
    node.sh(&["ip", "link", "del", "weir1"]);
    await_links(&node, "the second link is shared", |link| link.others[0].not_enforced_because.is_none());
    let stream = send(&node, "C1", BY_SECOND);
    sleep(SETTLES);
    exact("on the link that has its device", &[&stream], &[SECOND_MBIT as f64], 0.03);
}

#[test]
fn second_link_goes_on_alone_with_its_scheduler() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(2);
    start(&mut node, EngineKind::Htb, &["C1", "C2"]);
    let streams = ["C1", "C2"].map(|label| send(&node, label, BY_SECOND));
    route(&node, "del", UPLINK);
    sleep(Duration::from_millis(800));
    let alone = node.config().on(SECOND).capacity(BitRate::mbit(SECOND_MBIT)).awaiting(&[node.name("C1")]);
    node.agent().rewrite(&alone).expect("it is written");
    sleep(SETTLES);
    assert_eq!(devices(&node), ["weir1"]);
    exact("after a reload", &streams.each_ref(), &[5.0, 5.0], 0.03);
    node.agent().kill();
    node.restart();
    sleep(SETTLES);
    assert_eq!(devices(&node), ["weir1"], "the device keeps its number");
    exact("after a crash", &streams.each_ref(), &[5.0, 5.0], 0.03);
}

/// A filter has one target, the main link's scheduler: what leaves by the other link waits at that one's egress.
#[test]
fn filters_in_place_of_tcx_share_both_links() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(2);
    let config = node.config().link("attach = \"clsact\"").capacity(BitRate::mbit(FIRST_MBIT));
    let config = config.beside_with(SECOND, BitRate::mbit(SECOND_MBIT), "attach = \"clsact\"");
    node.start(&config.awaiting(&[node.name("C1"), node.name("C2")]));
    node.weir(&["set", &node.name("C2"), "weight=4"]);
    // Nothing holds a sender back there, so that it sends no more than a little too much.
    let rate = Rate::Of(BitRate::mbit(12));
    let second =
        ["C1", "C2"].map(|label| Stream::udp(node.netns(label), node.topology.srv(), BY_SECOND, rate));
    let streams = [send(&node, "C1", FAR), send(&node, "C2", FAR)];
    sleep(SETTLES);
    let all = [&streams[0], &streams[1], &second[0], &second[1]];
    exact("on both links", &all, &[8.0, 32.0, 2.0, 8.0], 0.03);
    assert_eq!(node.class("C1").moved_packets, 0, "they had no other link's mark");
}

#[test]
fn modem_that_is_unplugged_and_comes_back_is_shared_again() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(2);
    start(&mut node, EngineKind::Htb, &["C1", "C2"]);
    node.sh(&["ip", "link", "del", SECOND]);
    sleep(Duration::from_millis(1_200));
    let view = link(&node);
    assert!(!view.others[0].is_here && view.others[0].not_enforced_because.is_none(), "{view:?}");
    assert!(node.class("C1").enforced && node.class("C1").on_links[0].enforced);
    assert!(node.client().status().expect("it answers").not_ready.is_empty());
    // The next one of that name has no Ethernet header, as a modem's raw packets have none.
    node.sh(&["ip", "tuntap", "add", "dev", SECOND, "mode", "tun"]);
    node.sh(&["ip", "link", "set", "dev", SECOND, "up"]);
    sleep(Duration::from_millis(1_200));
    let view = link(&node);
    assert!(view.others[0].is_here && view.others[0].not_enforced_because.is_none(), "{view:?}");
    let events = node.weir(&["events"]);
    assert!(events.contains(&format!("packets of {SECOND} have no Ethernet header now")), "{events}");
    node.sh(&["ip", "link", "del", SECOND]);
    plug_in(&node);
    sleep(Duration::from_millis(1_200));
    let streams = ["C1", "C2"].map(|label| send(&node, label, BY_SECOND));
    sleep(SETTLES);
    exact("on the link that is back", &streams.each_ref(), &[5.0, 5.0], 0.03);
    drop(streams);
    assert!(node.agent().stop(), "it puts everything back");
    assert_eq!(devices(&node), Vec::<String>::new());
}

/// The route goes by a device's index, and weir keeps the device by it.
#[test]
fn renamed_device_keeps_the_main_role_with_the_default_route() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1);
    start(&mut node, EngineKind::Htb, &["C1"]);
    node.weir(&["set", &node.name("C1"), "min=30mbit"]);
    node.sh(&["ip", "link", "set", "dev", UPLINK, "name", "wan"]);
    let told = || node.weir(&["events"]).contains(&format!("{UPLINK} is called wan now, and stays the link"));
    let begin = Instant::now();
    while !told() {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is not told: {}", node.weir(&["events"]));
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_millis(500));
    let view = link(&node);
    let events = node.weir(&["events"]);
    assert_eq!(view.device, UPLINK, "{events}");
    assert!(!events.contains("the default route goes by"), "{events}");
    assert_eq!(node.class("C1").policy.min, Some(BitRate::mbit(30)), "the minimum is promised as before");
}

/// Its filters send packets to a device of the earlier agent, which the next one removes.
#[test]
fn uplink_of_a_killed_agent_that_is_a_class_now_lets_packets_pass() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1);
    let capacity = BitRate::mbit(SECOND_MBIT);
    node.start(&node.config().link("download = \"50mbit\"").awaiting(&[node.name("C1")]));
    let hooks = |node: &Node| {
        let shown = |hook| node.sh(&["tc", "filter", "show", "dev", UPLINK, hook]);
        let is_ours = |line: &&str| line.contains("handle") && line.contains("weir_");
        ["ingress", "egress"].map(|hook| shown(hook).lines().filter(is_ours).count())
    };
    assert_eq!(hooks(&node), [1, 2]);
    for attach in ["attach = \"tcx\"", "attach = \"clsact\""] {
        node.agent().kill();
        let lan = format!("[[class]]\nname = \"lan\"\ninterface = \"{UPLINK}\"\n");
        let config = node.config().on(SECOND).capacity(capacity).link(attach).sections(&lan);
        node.agent().rewrite(&config.awaiting(&["lan".to_owned()])).expect("it is written");
        node.restart();
        sleep(Duration::from_millis(500));
        let port = usize::from(attach.contains("clsact"));
        assert_eq!(hooks(&node), [port, 0], "{attach}: filters of the earlier agent stay");
        node.sh(&["ping", "-c", "3", "-i", "0.1", "-W", "1", "10.98.0.2"]);
        let earlier = node.config().link("download = \"50mbit\"").awaiting(&[node.name("C1")]);
        node.agent().kill();
        node.agent().rewrite(&earlier).expect("it is written");
        node.restart();
    }
}

/// The kernel chooses a path of the route by a packet's addresses, and rules may look at its ports.
#[test]
fn flows_of_a_multipath_route_and_of_a_rule_are_known_at_their_port() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1);
    start(&mut node, EngineKind::Htb, &["C1"]);
    node.sh(&[
        "ip",
        "route",
        "replace",
        "10.99.6.0/24",
        "nexthop",
        "via",
        "10.98.0.2",
        "dev",
        UPLINK,
        "nexthop",
        "via",
        "10.96.0.2",
        "dev",
        SECOND,
    ]);
    let to = |nth: u8| {
        let address = Ipv4Addr::new(10, 99, 6, nth);
        node.topology.srv().ip(&format!("addr add {address}/32 dev lo\n")).expect("it can have one more");
        let rate = Rate::Of(BitRate::kbit(400));
        Stream::udp(node.netns("C1"), node.topology.srv(), address.into(), rate)
    };
    let streams: Vec<Stream> = (1..=16).map(to).collect();
    sleep(Duration::from_millis(1_500));
    let class = node.class("C1");
    let both = [class.rate, on_second(&class).rate].map(BitRate::as_mbit);
    println!("by both links: {both:.2?} Mbit/s, {} packets moved", class.moved_packets);
    assert!(both.iter().all(|mbit| *mbit > 0.3), "the flows go by both links: {both:?}");
    assert!((both[0] + both[1] - 16.0 * 0.4 * FRAME).abs() < 0.5, "{both:?}");
    assert_eq!(class.moved_packets, 0);
    drop(streams);
    node.sh(&["ip", "rule", "add", "ipproto", "udp", "sport", "1024-65000", "lookup", "107"]);
    node.sh(&["ip", "route", "add", "default", "via", "10.96.0.2", "dev", SECOND, "table", "107"]);
    let stream = send(&node, "C1", FAR);
    sleep(SETTLES);
    exact("by a rule of ports", &[&stream], &[SECOND_MBIT as f64], 0.03);
    assert_eq!(node.class("C1").moved_packets, 0);
}

#[test]
fn packets_that_netfilter_sends_by_another_link_are_charged_there() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("iptables")]) {
        return;
    }
    let mut node = node(2);
    start(&mut node, EngineKind::Htb, &["C1", "C2"]);
    node.weir(&["set", &node.name("C2"), "weight=4"]);
    // No route knows this mark when the packet is at its port.
    node.sh(&["ip", "rule", "add", "fwmark", "7", "lookup", "107"]);
    node.sh(&["ip", "route", "add", "default", "via", "10.96.0.2", "dev", SECOND, "table", "107"]);
    let to = FAR.to_string();
    node.sh(&[
        "iptables",
        "-w",
        "-t",
        "mangle",
        "-A",
        "PREROUTING",
        "-i",
        "br0",
        "-d",
        &to,
        "-j",
        "MARK",
        "--set-mark",
        "7",
    ]);
    let streams = [send(&node, "C1", BY_SECOND), send(&node, "C2", FAR)];
    sleep(SETTLES);
    exact("on the second link", &streams.each_ref(), &[2.0, 8.0], 0.03);
    let (routed, moved) = (node.class("C1"), node.class("C2"));
    assert_eq!(routed.moved_packets, 0);
    assert!(moved.moved_packets > 1_000, "{} packets are counted", moved.moved_packets);
    let why = node.weir(&["explain", &node.name("C2")]);
    assert!(why.contains("packets left by another link than their route said"), "{why}");
}

#[test]
fn ports_of_the_uplinks_bridge_leave_by_it_and_ipv6_by_its_route() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node_in(2, Mode::Bridged);
    start(&mut node, EngineKind::Htb, &["C1", "C2"]);
    node.weir(&["set", &node.name("C2"), "weight=3"]);
    let host = |to| Stream::udp(node.topology.node(), node.topology.srv(), to, Rate::Unlimited);
    let server = node.topology.server_address(Family::V4);
    for label in ["C1", "C2"] {
        node.netns(label).ip(&format!("route add {FAR}/32 via {server}\n")).expect("it can have a route");
    }
    // The node's own routes would send the containers' packets by the second link.
    let streams = [send(&node, "C1", FAR), send(&node, "C2", FAR), host(BY_SECOND_V6)];
    sleep(SETTLES);
    let v6 = SECOND_MBIT as f64 * (UDP_PAYLOAD as f64 + 42.0) / (UDP_PAYLOAD as f64 + 62.0);
    exact("bridged, and the host by the other link", &streams.each_ref(), &[10.0, 30.0, v6], 0.03);
}

#[test]
fn link_that_a_reload_adds_is_shared_and_a_removed_one_is_left_alone() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(1);
    let one = node.config().capacity(BitRate::mbit(FIRST_MBIT)).awaiting(&[node.name("C1")]);
    node.start(&one);
    assert!(link(&node).others.is_empty());
    let stream = send(&node, "C1", BY_SECOND);
    sleep(Duration::from_millis(500));
    let two = one.clone().beside(SECOND, BitRate::mbit(SECOND_MBIT));
    node.agent().rewrite(&two).expect("it is written");
    sleep(SETTLES);
    assert_eq!(link(&node).others.len(), 1, "{}", node.agent().log());
    exact("after a reload", &[&stream], &[10.0], 0.03);
    // Each link begins to share what arrives.
    let down = one.clone().link("download = \"20mbit\"");
    let down = down.beside_with(SECOND, BitRate::mbit(SECOND_MBIT), "download = \"6mbit\"");
    node.agent().rewrite(&down).expect("it is written");
    sleep(SETTLES);
    let download = link(&node).others[0].download.clone().expect("it is shared");
    assert_eq!((download.capacity, download.device.as_str()), (BitRate::mbit(6), "weir1d"));
    let filters = node.sh(&["tc", "filter", "show", "dev", SECOND, "ingress"]);
    assert!(filters.contains("weir_down"), "{filters}");
    node.agent().rewrite(&one).expect("it is written");
    sleep(SETTLES);
    assert_eq!(devices(&node), ["weir0"]);
    let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", SECOND]);
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    assert!(node.class("C1").on_links.is_empty());
}
