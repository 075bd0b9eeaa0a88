//! The site of a node: it asks only peers whose addresses are in the site's networks.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::{network::Network, upstream::is_private};

/// The peers that a node asks.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// This node's address among them.
    pub(super) own: SocketAddr,
    /// None: [`Site::is_near`].
    pub(super) networks: Vec<Network>,
}

impl Site {
    /// A peer's address, of a text that anybody may have written; none if it is no address in the site's networks.
    pub(super) fn read(&self, text: &str) -> Option<SocketAddr> {
        let address: SocketAddr = text.parse().ok()?;
        let ip = address.ip().to_canonical();
        let is_in = match &*self.networks {
            [] => self.is_near(ip),
            networks => networks.iter().any(|network| network.has(ip)),
        };
        (is_in && address.port() != 0).then_some(address)
    }

    /// Whether an address is private, or a neighbour of this node's own: in one /24 with it, or one /64.
    fn is_near(&self, ip: IpAddr) -> bool {
        let own = self.own.ip().to_canonical();
        let length = if own.is_ipv4() { 24 } else { 64 };
        let is_neighbour = IpNet::new(own, length).is_ok_and(|network| network.contains(&ip));
        is_neighbour || (is_private(ip) && !ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_addresses_of_the_site() {
        let site = |own: &str, networks: &[&str]| Site {
            own: own.parse().unwrap(),
            networks: networks.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let near = site("203.0.114.7:5051", &[]);
        for good in ["203.0.114.9:5051", "10.0.0.2:5051", "192.168.1.1:1", "[fd12::1]:5051", "100.64.0.9:1"] {
            assert!(near.read(good).is_some(), "{good}");
        }
        for bad in [
            "203.0.115.9:5051",
            "127.0.0.1:6379",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
            "169.254.169.254:80",
            "8.8.8.8:53",
            "10.0.0.2",
            "10.0.0.2:0",
            "localhost:1",
            "x@10.0.0.2:1",
            "10.0.0.2:1/x",
            "node1",
            "",
        ] {
            assert_eq!(near.read(bad), None, "{bad}");
        }
        let listed = site("10.0.0.1:5051", &["10.0.0.0/24", "fd12::/48"]);
        assert!(listed.read("10.0.0.2:1").is_some() && listed.read("[fd12::9]:1").is_some());
        assert!(listed.read("10.0.1.2:1").is_none() && listed.read("192.168.1.1:1").is_none());
        assert!(site("127.1.2.3:5051", &[]).read("127.1.2.9:5051").is_some(), "a neighbour on loopback");
    }
}
