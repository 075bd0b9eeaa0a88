//! A tunnel of WireGuard between a node and its server, over the uplink.

use std::net::{IpAddr, Ipv4Addr};

use weir_netlab::topology::{Family, Netns};

use crate::Node;

/// The server's address in the tunnel.
pub const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));
/// The tunnel's MTU, bytes.
pub const TUNNEL_MTU: usize = 1420;

/// Makes it over the server's link, with addresses of this family. Its device at both ends is `wg0`.
///
/// # Panics
/// If this machine has no WireGuard.
#[track_caller]
pub fn connect(node: &Node, family: Family) {
    match family {
        Family::V4 => connect_between(node, "10.98.0.1", "10.98.0.2"),
        Family::V6 => connect_between(node, "[fd98::1]", "[fd98::2]"),
    }
}

/// The same between these addresses of the node and of the server.
///
/// # Panics
/// As [`connect`].
#[track_caller]
pub fn connect_between(node: &Node, near: &str, far: &str) {
    let key = |netns: &Netns| netns.exec(&["wg", "genkey"]).expect("wg runs").stdout.trim().to_owned();
    let public = |netns: &Netns, key: &str| {
        let text = netns.exec(&["sh", "-ec", &format!("echo {key} | wg pubkey")]).expect("wg runs").stdout;
        text.trim().to_owned()
    };
    let (home, srv) = (node.topology.node(), node.topology.srv());
    let keys = [key(home), key(srv)];
    for (netns, own, other, endpoint, address) in
        [(home, &keys[0], &keys[1], far, "10.78.0.1"), (srv, &keys[1], &keys[0], near, "10.78.0.2")]
    {
        let peer = public(netns, other);
        let script = format!(
            "ip link add wg0 type wireguard\n\
             printf '[Interface]\\nPrivateKey = {own}\\nListenPort = 51820\\n[Peer]\\nPublicKey = {peer}\\n\
             Endpoint = {endpoint}:51820\\nAllowedIPs = 0.0.0.0/0, ::/0\\n' | wg setconf wg0 /proc/self/fd/0\n\
             ip addr add {address}/24 dev wg0\nip link set dev wg0 mtu {TUNNEL_MTU} up"
        );
        netns.exec(&["sh", "-euc", &script]).unwrap_or_else(|e| panic!("no tunnel: {e:#}"));
        for name in ["all", "wg0"] {
            netns.sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "0").expect("it can be set");
        }
    }
    // The first packets wait for keys.
    home.exec(&["ping", "-c", "1", "-W", "2", &FAR.to_string()]).expect("the far end answers");
}
