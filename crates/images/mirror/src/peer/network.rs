//! The networks of a site: a node asks only peers whose addresses are in them.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer};

use crate::upstream::is_private;

/// A network, `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    prefix: IpAddr,
    bits: u32,
}

/// The text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as a network: write it as 10.0.0.0/8 or fd12::/48, without bits behind the prefix"
)]
pub struct BadNetwork(String);

/// Of how many bits an address is, and what it is as a number, from the left of 128 bits.
fn bits(ip: IpAddr) -> (u32, u128) {
    match ip {
        IpAddr::V4(v4) => (32, u128::from(v4.to_bits()) << 96),
        IpAddr::V6(v6) => (128, v6.to_bits()),
    }
}

impl Network {
    /// Whether an address is in it. An IPv4 address that is mapped into IPv6 is an IPv4 address.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let ((kind, own), (of, other)) = (bits(self.prefix), bits(ip.to_canonical()));
        kind == of && (self.bits == 0 || (own ^ other) >> (128 - self.bits) == 0)
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Network, BadNetwork> {
        let bad = || BadNetwork(text.chars().take(60).collect());
        let (prefix, length) = text.split_once('/').ok_or_else(bad)?;
        let prefix: IpAddr = prefix.parse().map_err(|_| bad())?;
        let (most, number) = bits(prefix);
        let length = length.parse().ok().filter(|length| *length <= most).ok_or_else(bad)?;
        if number.checked_shl(length).unwrap_or(0) != 0 {
            return Err(bad());
        }
        Ok(Network { prefix, bits: length })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

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
        let ((kind, own), (of, other)) = (bits(self.own.ip().to_canonical()), bits(ip));
        let length = if kind == 32 { 24 } else { 64 };
        (kind == of && (own ^ other) >> (128 - length) == 0) || (is_private(ip) && !ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_has_the_addresses_of_its_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3/32", "::ffff:10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "9.9.9.9", "::1"),
            ("fd12::/48", "fd12:0:0:ffff::1", "fd12:0:1::1"),
            ("::/0", "fd12::1", "10.0.0.1"),
        ] {
            let of: Network = network.parse().unwrap();
            assert!(of.has(inside.parse().unwrap()) && !of.has(outside.parse().unwrap()), "{network}");
        }
        for bad in ["10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "fd12::1/64", "x/8", "10.0.0.0/-1", "::/129", ""]
        {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

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
