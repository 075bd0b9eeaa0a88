use proptest::prelude::*;

use super::*;

/// The conditions of rules about a packet.
#[derive(Debug, Clone)]
struct Packet {
    from: u32,
    protocol: u8,
    /// None in a later fragment, and above protocols without.
    ports: Option<(u16, u16)>,
    source: IpAddr,
    destination: IpAddr,
    dscp: u8,
}

impl Packet {
    fn key(&self) -> Key {
        let mut key = [0; KEY];
        let wide = |address| match address {
            IpAddr::V4(a) => Ipv6Addr::octets(&a.to_ipv6_mapped()),
            IpAddr::V6(a) => a.octets(),
        };
        key[..16].copy_from_slice(&wide(self.source));
        key[16..32].copy_from_slice(&wide(self.destination));
        key[FROM..FROM + 4].copy_from_slice(&self.from.to_ne_bytes());
        let (source, destination) = self.ports.unwrap_or_default();
        key[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&source.to_be_bytes());
        key[DESTINATION_PORT..DESTINATION_PORT + 2].copy_from_slice(&destination.to_be_bytes());
        (key[PROTOCOL], key[DSCP]) = (self.protocol, self.dscp);
        key[VERSION] = if self.source.is_ipv4() { 4 } else { 6 };
        key
    }
}

/// As `best_rule` of select.h does.
fn look_up(set: &RuleSet, packet: &Packet) -> Option<u32> {
    let (packet, mut best) = (packet.key(), (u32::MAX, None));
    for (i, (mask, first)) in set.masks.iter().enumerate() {
        if *first >= best.0 {
            break;
        }
        let mut key = packet;
        key.iter_mut().zip(mask).for_each(|(byte, bits)| *byte &= bits);
        if let Some((rank, handle)) = set.entries.get(&(i, key)).filter(|found| found.0 < best.0) {
            best = (*rank, Some(*handle));
        }
    }
    best.1
}

fn holds(prefix: LocalPrefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.len)).unwrap_or(0);
    prefix.network.is_ipv4() == address.is_ipv4() && (bits(prefix.network) ^ bits(address)) & mask == 0
}

/// As the documentation of [`SelectorRule`] says.
fn matches(rule: &SelectorRule, packet: &Packet) -> bool {
    let port = |range: &Option<RangeInclusive<u16>>, port: fn((u16, u16)) -> u16| {
        range.as_ref().is_none_or(|range| {
            let tcp_or_udp = rule.protocol.is_some() || [TCP, UDP].contains(&packet.protocol);
            tcp_or_udp && packet.ports.is_some_and(|ports| range.contains(&port(ports)))
        })
    };
    rule.from.is_none_or(|from| from == packet.from)
        && rule.protocol.is_none_or(|protocol| protocol == packet.protocol)
        && port(&rule.source_ports, |p| p.0)
        && port(&rule.destination_ports, |p| p.1)
        && rule.source.is_none_or(|prefix| holds(prefix, packet.source))
        && rule.destination.is_none_or(|prefix| holds(prefix, packet.destination))
        && rule.dscp.is_none_or(|dscp| dscp == packet.dscp)
}

/// Few values, so that rules and packets meet.
fn address() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(vec!["10.0.0.1", "10.0.1.2", "10.9.0.1", "192.0.2.1", "::1", "fd00::1", "fd00:1::1"])
        .prop_map(|text| text.parse().unwrap())
}

fn prefix() -> impl Strategy<Value = LocalPrefix> {
    let len = prop::sample::select(vec![0u8, 8, 16, 24, 32, 64, 128]);
    (address(), len).prop_map(|(network, len)| LocalPrefix {
        network,
        len: if network.is_ipv4() { len.min(32) } else { len },
    })
}

fn range() -> impl Strategy<Value = RangeInclusive<u16>> {
    prop_oneof![
        (1u16..12).prop_map(|port| port..=port),
        (1u16..12, 0u16..12).prop_map(|(from, more)| from..=from + more),
        Just(1..=u16::MAX),
    ]
}

fn rule() -> impl Strategy<Value = SelectorRule> {
    (
        prop::option::weighted(0.3, 1u32..4),
        prop::option::weighted(0.5, prop::sample::select(vec![TCP, UDP, 132])),
        prop::option::weighted(0.5, range()),
        prop::option::weighted(0.2, range()),
        prop::option::weighted(0.2, prefix()),
        prop::option::weighted(0.3, prefix()),
        prop::option::weighted(0.2, prop::sample::select(vec![0u8, 46])),
    )
        .prop_map(|(from, protocol, source_ports, destination_ports, source, destination, dscp)| {
            SelectorRule {
                handle: 0,
                from,
                protocol,
                source_ports,
                destination_ports,
                source,
                destination,
                dscp,
            }
        })
}

fn packet() -> impl Strategy<Value = Packet> {
    (
        1u32..4,
        prop::sample::select(vec![TCP, UDP, 132, 1]),
        prop::option::weighted(0.8, (1u16..14, 1u16..14)),
        (address(), address()).prop_filter("one IP version", |(a, b)| a.is_ipv4() == b.is_ipv4()),
        prop::sample::select(vec![0u8, 10, 46]),
    )
        .prop_map(|(from, protocol, ports, (source, destination), dscp)| Packet {
            from,
            protocol,
            ports: ports.filter(|_| protocol != 1),
            source,
            destination,
            dscp,
        })
}

proptest! {
    #[test]
    fn a_packet_is_given_to_the_first_rule_that_matches(
        rules in prop::collection::vec(rule(), 0..8),
        packets in prop::collection::vec(packet(), 1..40),
    ) {
        let rules: Vec<SelectorRule> = rules.into_iter().zip(16..).map(|(r, handle)| SelectorRule { handle, ..r }).collect();
        let set = match RuleSet::new(&rules) {
            Ok(set) => set,
            Err(RulesError::Kinds { found }) => {
                prop_assert!(found > MASKS);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        for packet in packets {
            let first = rules.iter().find(|rule| matches(rule, &packet)).map(|rule| rule.handle);
            prop_assert_eq!(look_up(&set, &packet), first, "{:?}", packet);
        }
    }

    #[test]
    fn a_range_is_made_of_few_blocks_that_hold_its_ports_and_no_others(start in 0u16.., end in 0u16..) {
        let blocks = port_blocks(&(start..=end));
        prop_assert!(blocks.len() <= 30);
        for port in 0..=u16::MAX {
            let held = blocks.iter().filter(|(value, mask)| port & mask == *value).count();
            prop_assert_eq!(held, usize::from(port > 0 && (start..=end).contains(&port)), "port {}", port);
        }
    }
}

fn port(handle: u32, port: u16) -> SelectorRule {
    SelectorRule { handle, protocol: Some(TCP), source_ports: Some(port..=port), ..SelectorRule::default() }
}

#[test]
fn many_rules_of_one_kind_cost_one_look() {
    let rules: Vec<SelectorRule> = (1..=1000).map(|n| port(u32::from(n), n)).collect();
    assert_eq!(RuleSet::new(&rules).unwrap().masks(), 1);
}

#[test]
fn rules_that_do_not_fit_are_refused_with_how_many_there_are() {
    let lengths = |network: &str, lengths: std::ops::RangeInclusive<u8>| -> Vec<SelectorRule> {
        let network: IpAddr = network.parse().unwrap();
        let rule =
            |len| SelectorRule { source: Some(LocalPrefix { network, len }), ..SelectorRule::default() };
        lengths.map(rule).collect()
    };
    assert_eq!(RuleSet::new(&lengths("fd00::", 0..=63)).unwrap().masks(), MASKS);
    assert_eq!(RuleSet::new(&lengths("fd00::", 0..=64)), Err(RulesError::Kinds { found: 65 }));
    let many: Vec<SelectorRule> = (0..2)
        .flat_map(|from| (1..=16_385).map(move |n| SelectorRule { from: Some(from), ..port(1, n) }))
        .collect();
    assert_eq!(RuleSet::new(&many), Err(RulesError::Entries { found: 32_770 }));
}

#[test]
fn networks_of_two_ip_versions_match_no_packet() {
    let any = |text: &str| Some(LocalPrefix { network: text.parse().unwrap(), len: 0 });
    let rule = SelectorRule {
        handle: 16,
        source: any("::"),
        destination: any("0.0.0.0"),
        ..SelectorRule::default()
    };
    assert!(RuleSet::new(&[rule]).unwrap().is_empty());
}
