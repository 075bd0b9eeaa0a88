//! Networks of the configuration.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// A network, `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

/// The text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as a network: write it as 10.0.0.0/8 or fd12::/48, without bits behind the prefix"
)]
pub struct BadNetwork(String);

impl Network {
    /// Whether an address is in it. An IPv4 address that is mapped into IPv6 is an IPv4 address.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip.to_canonical())
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Network, BadNetwork> {
        let network = text.parse().ok().filter(|network: &IpNet| network.trunc() == *network);
        network.map(Network).ok_or_else(|| BadNetwork(text.chars().take(60).collect()))
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
}
