//! A node with two links to one server, which is behind both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_netlab::topology::{Mode, Spec, UPLINK};

use crate::{Node, containers};

/// The second link's device on the node.
pub const SECOND: &str = "up1";
/// A destination that only default routes lead to.
pub const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 9, 9));
/// A destination that a route by the second link leads to, whatever the default route is.
pub const BY_SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 8, 8));
/// The same of IPv6.
pub const BY_SECOND_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 8));

/// A node with this number of routed containers, two links to a server, and a default route by each. The first
/// link's is better.
///
/// # Panics
/// Without the rights to make it.
#[must_use]
pub fn node(count: usize) -> Node {
    node_in(count, Mode::Routed)
}

/// The same with containers that reach the first link in another way. The server answers by the link of the address
/// that was asked.
///
/// # Panics
/// As [`node`].
#[must_use]
pub fn node_in(count: usize, mode: Mode) -> Node {
    let node = Node::build(&Spec { containers: containers(count), mode, ..Spec::default() });
    let (home, srv) = (node.topology.node(), node.topology.srv());
    for netns in [home, srv] {
        for device in ["all", "default"] {
            netns.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0").expect("it can be set");
        }
    }
    srv.sysctl("net.ipv4.conf.eth0.rp_filter", "0").expect("it can be set");
    let far = format!(
        "addr add {FAR}/32 dev lo\naddr add {BY_SECOND}/32 dev lo\naddr add {BY_SECOND_V6}/128 dev lo\n\
         link set dev lo up\nrule add from {BY_SECOND} lookup 200\n"
    );
    srv.ip(&far).expect("the server can have addresses and a rule");
    if mode != Mode::Bridged {
        route(&node, "add", UPLINK);
    }
    plug_in(&node);
    node
}

/// Makes the second link with its routes.
///
/// # Panics
/// As [`node`].
pub fn plug_in(node: &Node) {
    let (home, srv) = (node.topology.node(), node.topology.srv());
    let made = home
        .ip(&format!(
            "link add {SECOND} type veth peer name eth1 netns {}\n\
             link set dev {SECOND} up\naddr add 10.96.0.1/30 dev {SECOND}\naddr add fd96::1/64 dev {SECOND} nodad\n",
            srv.name()
        ))
        .and_then(|()| {
            srv.ip(
                "link set dev eth1 up\naddr add 10.96.0.2/30 dev eth1\naddr add fd96::2/64 dev eth1 nodad\n\
                 route add default via 10.96.0.1 dev eth1 table 200\n",
            )
        });
    made.expect("a second link can be made");
    srv.sysctl("net.ipv4.conf.eth1.rp_filter", "0").expect("it can be set");
    route(node, "add", SECOND);
    node.sh(&["ip", "route", "add", &format!("{BY_SECOND}/32"), "via", "10.96.0.2", "dev", SECOND]);
    node.sh(&["ip", "-6", "route", "add", &format!("{BY_SECOND_V6}/128"), "via", "fd96::2", "dev", SECOND]);
}

/// Adds or deletes the default route by a link.
///
/// # Panics
/// If the kernel refuses.
pub fn route(node: &Node, verb: &str, device: &str) {
    let (via, metric) = if device == UPLINK { ("10.98.0.2", "100") } else { ("10.96.0.2", "700") };
    node.sh(&["ip", "route", verb, "default", "via", via, "dev", device, "metric", metric]);
}
