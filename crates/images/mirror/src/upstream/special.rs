//! Special addresses: the rows of IANA's special-purpose registries that are not globally reachable, and the
//! metadata services of clouds.
//!
//! Sources: <https://www.iana.org/assignments/iana-ipv4-special-registry> and
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>. The first row that fits counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The use of a special address in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressClass {
    /// No registry is there.
    Never,
    /// Of this node or of a private network: only for places that the operator has named.
    Private,
}
use AddressClass::{Never, Private};

/// Addresses with one prefix.
#[derive(Debug)]
pub(super) struct Row<T> {
    prefix: T,
    bits: u32,
    class: AddressClass,
    /// Its name in the registry, and the RFC.
    why: &'static str,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u32, class: AddressClass, why: &'static str) -> Row<Ipv4Addr> {
    Row { prefix: Ipv4Addr::new(a, b, c, d), bits, class, why }
}

const fn v6(head: [u16; 4], bits: u32, class: AddressClass, why: &'static str) -> Row<Ipv6Addr> {
    let [a, b, c, d] = head;
    Row { prefix: Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), bits, class, why }
}

const V4: [Row<Ipv4Addr>; 18] = [
    v4(0, 0, 0, 0, 8, Never, "this network (RFC 791)"),
    v4(10, 0, 0, 0, 8, Private, "private use (RFC 1918)"),
    v4(100, 100, 100, 200, 32, Never, "a cloud's metadata"),
    v4(100, 64, 0, 0, 10, Private, "shared address space (RFC 6598)"),
    v4(127, 0, 0, 0, 8, Private, "loopback (RFC 1122)"),
    v4(168, 63, 129, 16, 32, Never, "a cloud's metadata"),
    v4(169, 254, 0, 0, 16, Never, "link-local (RFC 3927)"),
    v4(172, 16, 0, 0, 12, Private, "private use (RFC 1918)"),
    v4(192, 0, 0, 0, 24, Never, "IETF protocol assignments (RFC 6890)"),
    v4(192, 0, 2, 0, 24, Private, "documentation (RFC 5737)"),
    v4(192, 88, 99, 0, 24, Never, "6to4 relays (RFC 7526)"),
    v4(192, 168, 0, 0, 16, Private, "private use (RFC 1918)"),
    v4(198, 18, 0, 0, 15, Private, "benchmarking (RFC 2544)"),
    v4(198, 51, 100, 0, 24, Private, "documentation (RFC 5737)"),
    v4(203, 0, 113, 0, 24, Private, "documentation (RFC 5737)"),
    v4(224, 0, 0, 0, 4, Never, "multicast (RFC 5771)"),
    v4(255, 255, 255, 255, 32, Never, "limited broadcast (RFC 8190)"),
    v4(240, 0, 0, 0, 4, Never, "reserved (RFC 1112)"),
];

const V6: [Row<Ipv6Addr>; 16] = [
    Row { prefix: Ipv6Addr::LOCALHOST, bits: 128, class: Private, why: "loopback (RFC 4291)" },
    Row { prefix: Ipv6Addr::UNSPECIFIED, bits: 128, class: Never, why: "unspecified (RFC 4291)" },
    v6([0x64, 0xff9b, 1, 0], 48, Private, "local translation (RFC 8215)"),
    v6([0x100, 0, 0, 0], 64, Never, "discard only (RFC 6666)"),
    v6([0x100, 0, 0, 1], 64, Never, "dummy prefix (RFC 9780)"),
    v6([0x2001, 0, 0, 0], 23, Never, "IETF protocol assignments, Teredo too (RFC 2928, RFC 4380)"),
    v6([0x2001, 0xdb8, 0, 0], 32, Private, "documentation (RFC 3849)"),
    v6([0x3fff, 0, 0, 0], 20, Private, "documentation (RFC 9637)"),
    v6([0x5f00, 0, 0, 0], 16, Never, "segment routing (RFC 9602)"),
    Row { prefix: AWS, bits: 128, class: Never, why: "a cloud's metadata" },
    Row { prefix: GOOGLE, bits: 128, class: Never, why: "a cloud's metadata" },
    v6([0xfc00, 0, 0, 0], 7, Private, "unique-local (RFC 4193)"),
    v6([0xfe80, 0, 0, 0], 10, Never, "link-local (RFC 4291)"),
    v6([0xfec0, 0, 0, 0], 10, Never, "site-local (RFC 3879)"),
    v6([0xff00, 0, 0, 0], 8, Never, "multicast (RFC 4291)"),
    // After those of ::/96 that have a row of their own.
    v6([0, 0, 0, 0], 96, Never, "IPv4-compatible (RFC 4291)"),
];

const AWS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// The IPv4 address that a request to an IPv6 address reaches: mapped (RFC 4291), NAT64 (RFC 6052), 6to4 (RFC 3056).
fn inner(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |a: u16, b: u16| Ipv4Addr::from(u32::from(a) << 16 | u32::from(b));
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => Some(of(a, b)),
        [0x2002, a, b, ..] => Some(of(a, b)),
        _ => None,
    }
}

/// The class of an address, and its row; none for addresses that everybody can reach.
pub(super) fn classify(ip: IpAddr) -> Option<(AddressClass, &'static str)> {
    let ip = match ip {
        IpAddr::V6(v6) => inner(v6).map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    };
    match ip {
        IpAddr::V4(ip) => {
            let fits = |row: &&Row<Ipv4Addr>| (ip.to_bits() ^ row.prefix.to_bits()) >> (32 - row.bits) == 0;
            V4.iter().find(fits).map(|row| (row.class, row.why))
        }
        IpAddr::V6(ip) => {
            let fits = |row: &&Row<Ipv6Addr>| (ip.to_bits() ^ row.prefix.to_bits()) >> (128 - row.bits) == 0;
            V6.iter().find(fits).map(|row| (row.class, row.why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ip: &str) -> Option<AddressClass> {
        classify(ip.parse().unwrap()).map(|(class, _)| class)
    }

    #[test]
    fn special_addresses_have_their_class_and_others_none() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "100.100.100.200",
            "168.63.129.16",
            "169.254.169.254",
            "192.0.0.192",
            "192.88.99.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::7f00:1",
            "100::1",
            "2001::1",
            "2001:0:5ef5:79fb::1",
            "5f00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:169.254.1.1",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "2002:a83f:8110::1",
        ] {
            assert_eq!(of(ip), Some(Never), "{ip}");
        }
        for ip in [
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "::1",
            "64:ff9b:1::1",
            "2001:db8::1",
            "3fff:fff::1",
            "fc00::1",
            "fd12::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
        ] {
            assert_eq!(of(ip), Some(Private), "{ip}");
        }
        for ip in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "140.82.121.33",
            "168.63.129.17",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.52.193.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::8c52:7921",
            "2002:8c52:7921::1",
            "::ffff:140.82.121.33",
            "2001:200::1",
            "3ffe::1",
        ] {
            assert_eq!(of(ip), None, "{ip}");
        }
    }

    #[test]
    fn rows_are_prefixes_without_bits_behind_them() {
        assert!(V4.iter().all(|row| row.bits == 32 || row.prefix.to_bits() << row.bits == 0));
        assert!(V6.iter().all(|row| row.bits == 128 || row.prefix.to_bits() << row.bits == 0));
    }
}
