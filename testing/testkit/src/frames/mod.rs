//! Frames that a container makes by hand to leave its class.

mod random;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use random::{Random, RandomFrames};

/// A hardware address.
pub type Mac = [u8; 6];

/// Addresses that a container can learn or guess.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The node that the frames are to reach, or the router before it.
    pub far: Mac,
    /// The container's.
    pub own: Mac,
    /// Another container's.
    pub other: Mac,
    /// The node that the frames are to reach.
    pub server: Ipv4Addr,
    /// The same node.
    pub server6: Ipv6Addr,
    /// The container's.
    pub source: Ipv4Addr,
    /// Another container's.
    pub other_ip: Ipv4Addr,
    /// The host's.
    pub host: Ipv4Addr,
    /// The host's link-local one.
    pub host6: Ipv6Addr,
}

impl Addresses {
    /// The container's.
    pub const SOURCE6: Ipv6Addr = Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 1, 1);
}

const BROADCAST: Mac = [0xff; 6];
const PAYLOAD: usize = 1400;
const UDP: u8 = 17;
const ICMP6: u8 = 58;

fn frame(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

fn udp(ports: [u16; 2], payload: usize) -> Vec<u8> {
    let len = (8 + payload) as u16;
    [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes(), &len.to_be_bytes(), &[0; 2], &vec![0x55; payload]]
        .concat()
}

/// The checksum of RFC 1071.
#[must_use]
pub fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A question for the server's hardware address, of this length.
fn arp(a: &Addresses, len: usize) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1];
    body.extend(a.own.iter().chain(&a.source.octets()).chain(&[0; 6]).chain(&a.server.octets()));
    body.resize(len, 0);
    body
}

/// IPv4 with these options, fragment field and type of service.
fn ip4(source: Ipv4Addr, to: Ipv4Addr, tos: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut ip = vec![0x40 | (header / 4) as u8, tos];
    ip.extend(((header + payload.len()) as u16).to_be_bytes());
    ip.extend([0x12, 0x34]);
    ip.extend(fragment.to_be_bytes());
    ip.extend([64, UDP, 0, 0]);
    ip.extend(source.octets().iter().chain(&to.octets()).chain(options));
    let check = checksum(&ip);
    ip[10..12].copy_from_slice(&check);
    [ip, payload.to_vec()].concat()
}

/// IPv6 with this next header and hop limit.
#[must_use]
pub fn ip6(source: Ipv6Addr, to: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u16;
    let head = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[next, hops]].concat();
    [&head[..], &source.octets(), &to.octets(), payload].concat()
}

/// Each frame with the words that tell it from the others.
#[must_use]
pub fn crafted(a: &Addresses) -> Vec<(&'static str, Vec<u8>)> {
    let flood = udp([4000, 5000], PAYLOAD);
    let v4 = |source, to, payload: &[u8]| ip4(source, to, 0, 0, &[], payload);
    let plain = v4(a.source, a.server, &flood);
    let to_host = v4(a.source, a.host, &flood);
    let source6 = Addresses::SOURCE6;
    let by = |kind, payload: &[u8]| frame(a.far, a.own, kind, payload);
    let v4_by = |payload: Vec<u8>| by(0x0800, &payload);
    let v6_by = |payload: Vec<u8>| by(0x86dd, &payload);
    let tagged = |tags: &[u16]| {
        let tags: Vec<u8> = tags.iter().flat_map(|word| word.to_be_bytes()).collect();
        [&a.far[..], &a.own, &tags, &[0x08, 0x00], &plain].concat()
    };
    let discovery = |hops, len| {
        let body = [&[135u8, 0, 0, 0][..], &vec![0; len]].concat();
        v6_by(ip6(source6, a.server6, ICMP6, hops, &body))
    };
    let arp = |len: usize| frame(BROADCAST, a.own, 0x0806, &arp(a, len - 14));
    vec![
        ("udp", v4_by(plain.clone())),
        ("udp over IPv6", v6_by(ip6(source6, a.server6, UDP, 64, &flood))),
        ("another's source MAC", frame(a.far, a.other, 0x0800, &plain)),
        ("another's source IP", v4_by(v4(a.other_ip, a.server, &flood))),
        ("the host's source IP", v4_by(v4(a.host, a.server, &flood))),
        ("the host's IP, far MAC", v4_by(to_host.clone())),
        ("the host's IP, broadcast MAC", frame(BROADCAST, a.own, 0x0800, &to_host)),
        ("the host's IP, unknown MAC", frame([2, 9, 9, 9, 9, 9], a.own, 0x0800, &to_host)),
        ("another's IP, far MAC", v4_by(v4(a.source, a.other_ip, &flood))),
        ("127.0.0.1, far MAC", v4_by(v4(a.source, Ipv4Addr::LOCALHOST, &flood))),
        ("the host's link-local IPv6, far MAC", v6_by(ip6(source6, a.host6, UDP, 64, &flood))),
        ("the host's IP in a VLAN tag, far MAC", {
            [&a.far[..], &a.own, &[0x81, 0, 0, 0, 0x08, 0x00], &to_host].concat()
        }),
        ("DSCP 46", v4_by(ip4(a.source, a.server, 46 << 2, 0, &[], &flood))),
        ("VLAN 0", tagged(&[0x8100, 0])),
        ("VLAN 5", tagged(&[0x8100, 5])),
        ("QinQ", tagged(&[0x88a8, 5, 0x8100, 6])),
        ("three tags", tagged(&[0x88a8, 5, 0x8100, 6, 0x8100, 7])),
        ("MPLS", by(0x8847, &[&[0, 1, 1, 64][..], &plain].concat())),
        ("unknown ethertype", by(0x88b5, &plain)),
        ("802.3 LLC", by(1000, &[&[0xaa, 0xaa, 3][..], &vec![0; 997]].concat())),
        (
            "hop-by-hop",
            v6_by(ip6(source6, a.server6, 0, 64, &[&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &flood].concat())),
        ),
        ("first fragments", v4_by(ip4(a.source, a.server, 0, 0x2000, &[], &flood))),
        ("later fragments", v4_by(ip4(a.source, a.server, 0, 100, &[], &flood))),
        ("IP options", v4_by(ip4(a.source, a.server, 0, 0, &[1; 8], &flood))),
        ("multicast", {
            let to = v4(a.source, Ipv4Addr::new(239, 1, 2, 3), &flood);
            frame([1, 0, 0x5e, 1, 2, 3], a.own, 0x0800, &to)
        }),
        ("UDP to port 67", v4_by(v4(a.source, a.server, &udp([4000, 67], PAYLOAD)))),
        ("UDP from 68 to 67", v4_by(v4(a.source, a.server, &udp([68, 67], PAYLOAD)))),
        ("UDP from 546 to 547", v6_by(ip6(source6, a.server6, UDP, 64, &udp([546, 547], PAYLOAD)))),
        ("ARP of 1400 bytes", arp(1400)),
        ("ARP of 60 bytes", arp(60)),
        ("802.1X", by(0x888e, &vec![0; PAYLOAD])),
        ("discovery of 1400 bytes", discovery(255, PAYLOAD)),
        ("discovery of 290 bytes", discovery(255, 230)),
        ("discovery from afar", discovery(64, 200)),
    ]
}
