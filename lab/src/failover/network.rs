//! A node with two links to a server, each a line of its own, and a default route by each.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};
use weir_netlab::topology::{Mode, Spec, Topology, UPLINK, Wire};
use weir_units::Bytes;

use super::scenario::{Link, Scenario};

/// The second link's device on the node.
pub(super) const SECOND: &str = "up1";
/// A destination that only default routes lead to.
pub(super) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 9, 9));
/// Burst of the second line, as of the first one on a quiet machine, bytes.
const BURST: u64 = 2 * 1514;

/// The line of a link, with a queue of 50 ms.
fn wire(link: Link) -> Wire {
    Wire::of(link.line, Bytes((link.line.bytes_per_sec() / 20).max(30_000)))
}

/// Builds the network. The first link's route is better.
pub(super) fn build(scenario: &Scenario) -> Result<Topology> {
    let topology = Topology::build(&Spec {
        containers: scenario.containers.keys().cloned().collect(),
        mode: Mode::Routed,
        wire: Some(wire(scenario.first)),
        ..Spec::default()
    })?;
    let (node, line, srv) = (topology.node(), topology.wire(), topology.srv());
    node.ip(&format!(
        "link add {SECOND} type veth peer name wn1 netns {}\nlink set dev {SECOND} up\naddr add 10.96.0.1/30 dev {SECOND}\n",
        line.name()
    ))?;
    line.ip(&format!(
        "link add ws1 type veth peer name eth1 netns {}\nlink add brw1 type bridge mcast_snooping 0\n\
         link set dev wn1 master brw1 up\nlink set dev ws1 master brw1 up\nlink set dev brw1 up\n",
        srv.name()
    ))?;
    let Wire { rate, queue, burst } = wire(scenario.second);
    let (rate, burst, limit) = (rate.bits_per_sec(), burst.0.max(BURST), queue.0);
    line.tc(&format!(
        "qdisc add dev wn1 root tbf rate {rate}bit burst {burst} limit {limit}\n\
         qdisc add dev ws1 root tbf rate {rate}bit burst {burst} limit {limit}\n"
    ))?;
    srv.ip(&format!(
        "link set dev eth1 up\naddr add 10.96.0.2/30 dev eth1\naddr add {FAR}/32 dev lo\nlink set dev lo up\n"
    ))?;
    // A packet may come by another link than the one that leads back.
    for netns in [node, srv] {
        for device in ["all", "default"] {
            netns.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0")?;
        }
    }
    for device in ["eth0", "eth1"] {
        srv.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0")?;
    }
    node.ip(&format!(
        "route add default via 10.98.0.2 dev {UPLINK} metric 100\nroute add default via 10.96.0.2 dev {SECOND} metric 700\n"
    ))?;
    Ok(topology)
}

/// The device of weir's scheduler for the first link.
const WEIRS: &str = "weir0";

/// Deletes the better route.
pub(super) fn move_route(topology: &Topology) -> Result<()> {
    topology.node().ip(&format!("route del default via 10.98.0.2 dev {UPLINK} metric 100\n"))
}

/// Bytes that wait for the first link, in its own qdiscs and in those of weir's scheduler for it.
pub(super) fn waiting(topology: &Topology) -> Result<u64> {
    let node = topology.node();
    let mut sum = 0;
    for device in [UPLINK, WEIRS] {
        // Without weir there is no such device, and tc fails.
        let Ok(shown) = node.exec(&["tc", "-s", "-j", "qdisc", "show", "dev", device]) else { continue };
        let qdiscs: Vec<serde_json::Value> = serde_json::from_str(&shown.stdout)
            .with_context(|| format!("tc tells of no qdiscs on {device}"))?;
        sum += qdiscs.iter().filter_map(|qdisc| qdisc["backlog"].as_u64()).sum::<u64>();
    }
    Ok(sum)
}
