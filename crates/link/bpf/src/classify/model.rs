//! A model of the classifier in plain Rust: a frame's headers, the rules, and the ways out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

use super::rules;
use crate::{ClassifierConfig, LocalPrefix, Locality, SelectorRule};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SCTP: u8 = 132;
const FRAGMENT: u8 = 44;
const AH: u8 = 51;
/// IPv6 extension headers that have a length of their own: hop-by-hop, routing, destination options.
const OPTIONS: [u8; 3] = [0, 43, 60];
/// Extension headers that are looked at.
const MAX_EXTENSIONS: usize = 6;

/// A datagram that came in fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Datagram {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    id: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Whole,
    /// It has ports, and others follow.
    First,
    Later,
}

/// The fields of a packet that rules ask for. IPv4 addresses are mapped into IPv6.
#[derive(Debug, Clone, Copy)]
struct Ip {
    is_v4: bool,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: u8,
    dscp: u8,
    ports: Option<(u16, u16)>,
    piece: Piece,
    id: u32,
}

/// The headers of a frame.
#[derive(Debug, Clone, Copy, Default)]
struct Headers {
    ip: Option<Ip>,
    /// It has the shape of control traffic.
    is_control: bool,
    /// The datagram that it is a fragment of, for the scheduler, and whether it is the first fragment.
    fragment: Option<(Datagram, bool)>,
}

fn part<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at + N)?.try_into().ok()
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    part(frame, at).map(u16::from_be_bytes)
}

fn ports(frame: &[u8], at: usize) -> Option<(u16, u16)> {
    Some((word(frame, at)?, word(frame, at + 2)?))
}

fn are_dhcp(ports: Option<(u16, u16)>, client: u16, server: u16) -> bool {
    ports.is_some_and(|ports| ports == (client, server) || ports == (server, client))
}

fn has_ports(protocol: u8) -> bool {
    [TCP, UDP, SCTP].contains(&protocol)
}

impl Headers {
    fn read(frame: &[u8]) -> Headers {
        let kind = word(frame, 12);
        let (kind, at) = match kind {
            Some(0x8100 | 0x88a8) => (word(frame, 16), 18),
            kind => (kind, 14),
        };
        match kind {
            Some(0x0800) => Headers::read_v4(frame, at).unwrap_or_default(),
            Some(0x86dd) => Headers::read_v6(frame, at).unwrap_or_default(),
            Some(0x0806) => Headers { is_control: frame.len() < 100, ..Headers::default() },
            Some(0x888e) => Headers { is_control: true, ..Headers::default() },
            _ => Headers::default(),
        }
    }

    fn read_v4(frame: &[u8], at: usize) -> Option<Headers> {
        let head: [u8; 20] = part(frame, at)?;
        let address = |at| part::<4>(&head, at).map(|bytes| std::net::Ipv4Addr::from(bytes).to_ipv6_mapped());
        let (source, destination) = (address(12)?, address(16)?);
        let (flags, id, protocol) = (word(&head, 6)?, word(&head, 4)?, head[9]);
        let piece = match (flags & 0x1fff, flags & 0x2000) {
            (0, 0) => Piece::Whole,
            (0, _) => Piece::First,
            _ => Piece::Later,
        };
        let transport = ports(frame, at + usize::from(head[0] & 15) * 4).filter(|_| piece != Piece::Later);
        let ports = transport.filter(|_| has_ports(protocol));
        let id = u32::from(id);
        let ip = Ip { is_v4: true, source, destination, protocol, dscp: head[1] >> 2, ports, piece, id };
        Some(Headers {
            ip: Some(ip),
            is_control: protocol == UDP && are_dhcp(ports, 68, 67),
            fragment: (piece != Piece::Whole)
                .then_some((Datagram { source, destination, id }, piece == Piece::First)),
        })
    }

    fn read_v6(frame: &[u8], at: usize) -> Option<Headers> {
        let head: [u8; 40] = part(frame, at)?;
        let address = |at| part::<16>(&head, at).map(Ipv6Addr::from);
        let (source, destination) = (address(8)?, address(24)?);
        let (next, hops, behind) = (head[6], head[7], at + 40);
        let is_control = match next {
            UDP => are_dhcp(ports(frame, behind), 546, 547),
            ICMP6 => {
                let is_discovery = frame.get(behind).is_some_and(|kind| (133..=137).contains(kind));
                is_discovery && hops == 255 && frame.len() <= 300
            }
            _ => false,
        };
        let fragment = part::<8>(frame, behind).filter(|_| next == FRAGMENT).and_then(|head| {
            let id = u32::from_be_bytes(part(&head, 4)?);
            Some((Datagram { source, destination, id }, word(&head, 2)? & 0xfff8 == 0))
        });
        let dscp = (head[0] & 15) << 2 | head[1] >> 6;
        let mut ip = Ip {
            is_v4: false,
            source,
            destination,
            protocol: 0,
            dscp,
            ports: None,
            piece: Piece::Whole,
            id: 0,
        };
        ip.walk(frame, behind, next);
        Some(Headers { ip: Some(ip), is_control, fragment })
    }
}

impl Ip {
    /// Reads what is behind IPv6's own header. A header that is cut leaves the protocol 0.
    fn walk(&mut self, frame: &[u8], mut at: usize, mut next: u8) {
        for _ in 0..MAX_EXTENSIONS {
            if !OPTIONS.contains(&next) && next != AH && next != FRAGMENT {
                break;
            }
            let Some(head) = part::<8>(frame, at) else { return };
            let units = usize::from(head[1]);
            at += match next {
                FRAGMENT => {
                    let offset = u16::from_be_bytes([head[2], head[3]]);
                    self.piece = match (offset & 0xfff8, offset & 1) {
                        (0, 0) => Piece::Whole,
                        (0, _) => Piece::First,
                        _ => Piece::Later,
                    };
                    self.id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                    8
                }
                AH => (units + 2) * 4,
                _ => (units + 1) * 8,
            };
            next = head[0];
            if self.piece == Piece::Later {
                break;
            }
        }
        self.protocol = next;
        if self.piece != Piece::Later && has_ports(next) {
            self.ports = ports(frame, at);
        }
    }

    /// Whether a rule gives the packet, of a class, to another class.
    fn is_of(&self, rule: &SelectorRule, from: u32) -> bool {
        let has = |range: &Option<std::ops::RangeInclusive<u16>>, port: fn((u16, u16)) -> u16| {
            range.as_ref().is_none_or(|range| {
                let is_known = rule.protocol.is_some() || [TCP, UDP].contains(&self.protocol);
                is_known && self.ports.is_some_and(|ports| port(ports) > 0 && range.contains(&port(ports)))
            })
        };
        rule.from.is_none_or(|class| class == from)
            && rule.protocol.is_none_or(|protocol| protocol == self.protocol)
            && has(&rule.source_ports, |ports| ports.0)
            && has(&rule.destination_ports, |ports| ports.1)
            && rule.source.is_none_or(|network| self.is_in(network, self.source))
            && rule.destination.is_none_or(|network| self.is_in(network, self.destination))
            && rule.dscp.is_none_or(|dscp| dscp == self.dscp)
    }

    fn is_in(&self, prefix: LocalPrefix, address: Ipv6Addr) -> bool {
        self.is_v4 == prefix.network.is_ipv4() && holds(prefix, address)
    }
}

fn holds(prefix: LocalPrefix, address: Ipv6Addr) -> bool {
    let (network, len) = rules::widened(prefix);
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    (network.to_bits() ^ address.to_bits()) & mask == 0
}

/// The programs, and for the one at the uplink the interface that the packet came by; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Port,
    PortMatch,
    Uplink(u32),
}

/// The work of a program on one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: i32,
    /// `skb->priority`.
    pub(super) priority: u32,
    pub(super) tc_index: u16,
    /// The class and the place for a scheduler in user space.
    pub(super) handed: (u32, u32),
    /// The control bucket gave its bytes.
    pub(super) took_control: bool,
    /// Bytes of the port's class that stay on the node.
    pub(super) local_bytes: u64,
    /// The datagram that it is a fragment of, and whether it is the first fragment.
    pub(super) fragment: Option<(Datagram, bool)>,
}

/// The node as the classifier knows it.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) config: ClassifierConfig,
    /// The class of the port, if it has one.
    pub(super) port: Option<u32>,
    pub(super) local: Vec<(LocalPrefix, Locality)>,
    pub(super) rules: Vec<SelectorRule>,
    /// Classes that the agent counts.
    pub(super) tracked: Vec<u32>,
    /// The control buckets have room.
    pub(super) has_room: bool,
    /// The classes of first fragments.
    pub(super) datagrams: HashMap<(Datagram, u32, u8), u32>,
}

const NEXT: i32 = -1;
const NO_MATCH: i32 = 0;
const MATCH: i32 = -1;
const REDIRECT: i32 = 7;

impl Model {
    pub(super) fn run(&mut self, place: Place, frame: &[u8], tc_index: u16) -> Outcome {
        let (config, headers) = (self.config, Headers::read(frame));
        let passes = if place == Place::Port { NEXT } else { NO_MATCH };
        let untouched = Outcome {
            verdict: passes,
            priority: 0,
            tc_index,
            handed: (0, 0),
            took_control: false,
            local_bytes: 0,
            fragment: None,
        };
        let is_user = config.flags & ClassifierConfig::USER != 0;
        let is_in_place = config.flags & ClassifierConfig::IN_PLACE != 0;
        let names = config.flags & ClassifierConfig::NAMED != 0;
        let named = u32::from(tc_index & 0x7fff) ^ config.cookie & 0x7fff;
        let is_named = names && tc_index & 0x8000 != 0 && (1..0x1000).contains(&named) && self.knows(named);
        let is_back = u32::from(tc_index) == config.cookie || is_named;
        if config.ifb_index == 0 && !is_in_place {
            return untouched;
        }
        let mut outcome = Outcome { fragment: headers.fragment, ..untouched.clone() };
        let class = if let Place::Uplink(from) = place {
            if is_back {
                return Outcome {
                    verdict: if is_user || is_in_place { NEXT } else { NO_MATCH },
                    ..untouched
                };
            }
            if self.known(&headers).is_exempt(0) {
                let verdict = if is_user || is_in_place { NEXT } else { NO_MATCH };
                return Outcome { verdict, ..outcome };
            }
            let (class, took) = self.at_uplink(from, &headers, tc_index);
            outcome.took_control = took;
            class
        } else {
            let Some(own) = self.port.filter(|_| !(is_user && is_back && place == Place::Port)) else {
                return untouched;
            };
            let known = self.known(&headers);
            let is_on_node = known == Locality::ON_NODE && config.charge_local == 0;
            if is_on_node || known.is_exempt(0) || known.is_exempt(1) {
                let class = self.by_rules(&headers, own);
                return Outcome { tc_index: class as u16, local_bytes: frame.len() as u64, ..outcome };
            }
            if headers.is_control && self.has_room {
                outcome.took_control = true;
                config.control_handle
            } else {
                self.by_rules(&headers, own)
            }
        };
        let mark = if names { (config.cookie ^ class) & 0x7fff | 0x8000 } else { config.cookie };
        let scheduled = Outcome { priority: class, tc_index: mark as u16, ..outcome.clone() };
        let at_uplink = matches!(place, Place::Uplink(_));
        match place {
            Place::PortMatch => Outcome { verdict: MATCH, ..scheduled },
            _ if is_in_place => Outcome { verdict: NEXT, priority: 0, ..scheduled },
            _ if is_user => Outcome { verdict: NEXT, handed: (class, u32::from(at_uplink)), ..outcome },
            Place::Port => Outcome { verdict: REDIRECT, ..scheduled },
            Place::Uplink(_) => Outcome { verdict: MATCH, ..scheduled },
        }
    }

    /// The locality of the destination, by the longest network that holds it.
    fn known(&self, headers: &Headers) -> Locality {
        let Some(ip) = headers.ip else { return Locality::default() };
        let holding = self.local.iter().filter(|(network, _)| holds(*network, ip.destination));
        holding.max_by_key(|(network, _)| network.key()[0]).map_or(Locality::default(), |(_, known)| *known)
    }

    /// Whether a frame goes to a network beside the device of link 0.
    pub(super) fn is_exempt(&self, frame: &[u8]) -> bool {
        self.known(&Headers::read(frame)).is_exempt(0)
    }

    /// Whether a mark may name the class of this minor.
    fn knows(&self, minor: u32) -> bool {
        let handle = self.config.default_handle & 0xffff_0000 | minor;
        handle == self.config.control_handle || self.tracked.contains(&handle)
    }

    /// The class, and whether it comes from a control bucket.
    fn at_uplink(&mut self, from: u32, headers: &Headers, tc_index: u16) -> (u32, bool) {
        let config = self.config;
        let named = config.default_handle & 0xffff_0000 | u32::from(tc_index);
        if tc_index != 0 && self.tracked.contains(&named) {
            return (named, false);
        }
        if headers.is_control && (from == 0 || self.has_room) {
            return (config.control_handle, from != 0);
        }
        let class = if from == 0 { config.host_handle } else { config.default_handle };
        (self.by_rules(headers, class), false)
    }

    fn by_rules(&mut self, headers: &Headers, from: u32) -> u32 {
        let Some(ip) = headers.ip.filter(|_| self.config.rules != 0) else { return from };
        let Ip { source, destination, id, protocol, piece, .. } = ip;
        let datagram = (Datagram { source, destination, id }, from, protocol);
        if piece == Piece::Later
            && let Some(class) = self.datagrams.get(&datagram)
        {
            return *class;
        }
        let class = self.rules.iter().find(|rule| ip.is_of(rule, from)).map_or(from, |rule| rule.handle);
        if piece == Piece::First {
            self.datagrams.insert(datagram, class);
        }
        class
    }
}

/// The address of a local destination, for tests.
pub(super) fn prefix(network: IpAddr, len: u8) -> LocalPrefix {
    LocalPrefix { network, len }
}
