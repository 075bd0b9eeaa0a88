//! The address plan: which address each end of each link has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Family, Mode};

/// The server's address, as the containers reach it.
pub(super) fn server(mode: Mode, family: Family) -> IpAddr {
    match (mode, family) {
        (Mode::Bridged, Family::V4) => Ipv4Addr::new(10, 97, 0, 2).into(),
        (Mode::Bridged, Family::V6) => Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 0, 2).into(),
        (_, Family::V4) => Ipv4Addr::new(10, 98, 0, 2).into(),
        (_, Family::V6) => Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 2).into(),
    }
}

/// The node's address on the containers' bridge.
pub(super) fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 97, 0, 1).into(),
        Family::V6 => Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// The node's address on the uplink, unless bridged.
pub(super) fn uplink_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 98, 0, 1).into(),
        Family::V6 => Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1).into(),
    }
}

pub(super) fn container_net(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.97.0.0/16",
        Family::V6 => "fd97::/64",
    }
}

/// 10.97.1.1, 10.97.1.2, ... 10.97.1.250, 10.97.2.1, ...; the same digits in `fd97::/64`.
pub(super) fn container_address(index: usize, family: Family) -> IpAddr {
    let (high, low) =
        (u8::try_from(1 + index / 250).expect("few"), u8::try_from(1 + index % 250).expect("few"));
    match family {
        Family::V4 => Ipv4Addr::new(10, 97, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, u16::from(high), u16::from(low)).into(),
    }
}

pub(super) fn prefix_length(family: Family) -> u8 {
    match family {
        Family::V4 => 16,
        Family::V6 => 64,
    }
}

/// Duplicate address detection would keep an IPv6 address unusable for a second.
pub(super) fn nodad(family: Family) -> &'static str {
    match family {
        Family::V4 => "",
        Family::V6 => " nodad",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::MAX_CONTAINERS, *};

    #[test]
    fn every_container_has_addresses_of_its_own_inside_the_network() {
        let all: HashSet<IpAddr> = (0..MAX_CONTAINERS)
            .flat_map(|i| [container_address(i, Family::V4), container_address(i, Family::V6)])
            .chain([gateway(Family::V4), gateway(Family::V6)])
            .chain([Ipv4Addr::new(10, 97, 0, 2).into()])
            .collect();
        assert_eq!(all.len(), 2 * MAX_CONTAINERS + 3);
        assert_eq!(container_address(250, Family::V4).to_string(), "10.97.2.1");
    }
}
