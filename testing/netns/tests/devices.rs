//! Uplinks that stand on another device: a VLAN, a VLAN in a service provider's, a bond of two.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread::sleep,
    time::Duration,
};

use weir_netlab::{
    topology::{Mode, Spec},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{
    EngineBounds, EngineKind, Node, Rate, Stream, containers, for_each_engine, measure_once, skip,
};
use weir_units::BitRate;

for_each_engine!(queues: vlan_is_shared, vlan_in_a_vlan_is_shared, bond_is_shared_also_after_a_port_has_failed);

const CAPACITY_MBIT: u64 = 40;
const MEASURED: Duration = Duration::from_secs(2);
/// A destination that the default route by the device leads to.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 7, 7));

/// A node whose default route goes by `device`. Each side makes it with its lines of `ip -batch`. None if this kernel
/// has no such device, which the output says.
fn node(device: &str, module: &str, home: &str, srv: &str) -> Option<Node> {
    let node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    // A new device has the default.
    for netns in [node.topology.node(), node.topology.srv()] {
        for name in ["all", "default"] {
            netns.sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "0").expect("it can be set");
        }
    }
    if let Err(e) = node.topology.node().ip(home) {
        skip(format!("this kernel has no {module} ({e:#})"));
        return None;
    }
    let both = [(node.topology.node(), "10.95.0.1", ""), (node.topology.srv(), "10.95.0.2", srv)];
    for (netns, address, made) in both {
        if !made.is_empty() {
            netns.ip(made).expect("the server has what the node has");
        }
        let there = if made.is_empty() { device } else { "far0" };
        netns
            .ip(&format!("link set dev {there} up\naddr add {address}/30 dev {there}\n"))
            .expect("it can have an address");
    }
    node.topology
        .srv()
        .ip(&format!("addr add {FAR}/32 dev lo\nlink set dev lo up\n"))
        .expect("it can have one more");
    node.sh(&["ip", "route", "add", "default", "via", "10.95.0.2", "dev", device]);
    Some(node)
}

fn exact(node: &Node, what: &str, streams: &[&Stream], engine: EngineKind) {
    let wanted = [10.0, 30.0];
    let tolerance = engine.tolerance(false).max(0.02);
    let measure = || {
        let frame = (UDP_PAYLOAD as f64 + 42.0) / UDP_PAYLOAD as f64;
        let got: Vec<f64> = Stream::goodputs(streams, MEASURED).iter().map(|mbit| mbit * frame).collect();
        println!("{engine} on {what}: {got:.2?} of {wanted:?} Mbit/s");
        got.iter().zip(wanted).map(|(got, wanted)| (got / wanted - 1.0).abs()).fold(0.0, f64::max)
    };
    let off = measure_once(measure, |off| *off <= tolerance);
    assert!(off <= tolerance, "{what}: {:.1} % off, {}", off * 100.0, node.weir(&["ps"]));
}

/// Shares the device between two containers that send more.
fn share(node: &mut Node, device: &str, engine: EngineKind) -> [Stream; 2] {
    let config = node.config().on(device).engine(engine).capacity(BitRate::mbit(CAPACITY_MBIT));
    node.start(&config.awaiting(&["C1", "C2"].map(|label| node.name(label))));
    node.weir(&["set", &node.name("C2"), "weight=3"]);
    let send = |label| Stream::udp(node.netns(label), node.topology.srv(), FAR, Rate::Unlimited);
    let streams = ["C1", "C2"].map(send);
    sleep(engine.settles() + Duration::from_millis(1_500));
    exact(node, device, &streams.each_ref(), engine);
    streams
}

fn stop(node: &mut Node, device: &str) {
    assert!(node.agent().stop(), "it puts everything back");
    let qdiscs = node.sh(&["tc", "qdisc", "show", "dev", device]);
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
}

fn vlan_is_shared(engine: EngineKind) {
    let made = ["up0", "eth0"].map(|below| format!("link add link {below} name NAME type vlan id 7\n"));
    let [home, srv] = [made[0].replace("NAME", "up0.7"), made[1].replace("NAME", "far0")];
    let Some(mut node) = node("up0.7", "8021q", &home, &srv) else { return };
    drop(share(&mut node, "up0.7", engine));
    stop(&mut node, "up0.7");
}

fn vlan_in_a_vlan_is_shared(engine: EngineKind) {
    let made = |below: &str, name: &str| {
        format!(
            "link add link {below} name outer type vlan proto 802.1ad id 100\nlink set dev outer up\n\
             link add link outer name {name} type vlan id 7\n"
        )
    };
    let Some(mut node) = node("qinq0", "8021q", &made("up0", "qinq0"), &made("eth0", "far0")) else { return };
    drop(share(&mut node, "qinq0", engine));
    stop(&mut node, "qinq0");
}

fn bond_is_shared_also_after_a_port_has_failed(engine: EngineKind) {
    // The ports of both sides are the two ends of two wires, in a bridge at the far side.
    let home = "link add bond0 type bond mode active-backup miimon 20\n\
                link add w0 type veth peer name x0\nlink add w1 type veth peer name x1\n\
                link set dev w0 master bond0\nlink set dev w1 master bond0\n";
    let Some(mut node) = node("bond0", "bonding", home, "link add far0 type bridge\n") else { return };
    for (near, far) in [("w0", "x0"), ("w1", "x1")] {
        node.sh(&["ip", "link", "set", "dev", far, "netns", node.topology.srv().name()]);
        node.topology
            .srv()
            .ip(&format!("link set dev {far} master far0\nlink set dev {far} up\n"))
            .expect("it is a port");
        node.sh(&["ip", "link", "set", "dev", near, "up"]);
    }
    sleep(Duration::from_millis(200));
    let streams = share(&mut node, "bond0", engine);
    node.topology.srv().ip("link set dev x0 down\n").expect("a wire can be cut");
    sleep(Duration::from_millis(1_000));
    exact(&node, "bond0 with one port", &streams.each_ref(), engine);
    drop(streams);
    stop(&mut node, "bond0");
}
