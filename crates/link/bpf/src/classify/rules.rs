//! Rules give packets of a container, or of the host, to another class than the rest.
//!
//! Rules are compiled to what `select.h` looks up: masks, each with a table of the rules that ask
//! for just these fields. The cost of a packet grows with the masks, not with the rules.

use std::{
    collections::{BTreeMap, btree_map},
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use crate::LocalPrefix;

/// Kinds of rules that fit (`WEIR_MASKS`).
pub const MASKS: usize = 64;
/// Entries that one set of rules may have: two sets are in the kernel's table.
pub const ENTRIES: usize = 32_768;

/// `union weir_key` of select.h.
pub(crate) const KEY: usize = 48;
const DESTINATION: usize = 16;
const FROM: usize = 32;
const SOURCE_PORT: usize = 36;
const DESTINATION_PORT: usize = 38;
const PROTOCOL: usize = 40;
const DSCP: usize = 41;
const TABLE: usize = 42;
const VERSION: usize = 44;
/// `struct weir_mask`.
const MASK: usize = 56;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// IP packets that match every part that is given belong to a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SelectorRule {
    /// Handle of that class.
    pub handle: u32,
    /// Handle of the class that the packet would be in without rules: a container's, the host's.
    pub from: Option<u32>,
    /// Number of the protocol above IP. Ports without it are those of TCP and of UDP.
    pub protocol: Option<u8>,
    /// The sender's ports, as the packet has them where it is caught: before NAT at a container's.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The receiver's ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// The sender's network; with length 0 every address of its IP version.
    pub source: Option<LocalPrefix>,
    /// The receiver's network.
    pub destination: Option<LocalPrefix>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: Option<u8>,
}

/// The rules are more than the kernel's tables hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Too many combinations of fields.
    #[error(
        "cannot tell {found} kinds of rules apart, at most {MASKS}: a kind is a combination of fields, \
         prefix lengths and sizes of port ranges (ranges such as 8000-8063, aligned to their size, are one kind)"
    )]
    Kinds {
        /// How many there are.
        found: usize,
    },
    /// Too many in all.
    #[error("cannot hold {found} rules, at most {ENTRIES} (a port range counts for each part of it)")]
    Entries {
        /// How many there are.
        found: usize,
    },
}

type Key = [u8; KEY];

/// Rules as the kernel looks them up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSet {
    /// With the least rank of their rules, in that order.
    masks: Vec<(Key, u32)>,
    /// By mask and masked fields: rank and handle.
    entries: BTreeMap<(usize, Key), (u32, u32)>,
}

impl RuleSet {
    /// Compiles rules; the first one that matches a packet decides.
    ///
    /// # Errors
    /// [`RulesError`]: they do not fit.
    pub fn new(rules: &[SelectorRule]) -> Result<RuleSet, RulesError> {
        let mut by_mask: BTreeMap<Key, BTreeMap<Key, (u32, u32)>> = BTreeMap::new();
        for (rank, rule) in rules.iter().enumerate() {
            let rank = u32::try_from(rank).unwrap_or(u32::MAX - 1);
            for (mask, key) in parts(rule) {
                let table = by_mask.entry(mask).or_default();
                // An earlier rule has taken it.
                if let btree_map::Entry::Vacant(free) = table.entry(key) {
                    free.insert((rank, rule.handle));
                }
            }
        }
        by_mask.retain(|_, table| !table.is_empty());
        let entries: usize = by_mask.values().map(BTreeMap::len).sum();
        if by_mask.len() > MASKS {
            return Err(RulesError::Kinds { found: by_mask.len() });
        }
        if entries > ENTRIES {
            return Err(RulesError::Entries { found: entries });
        }
        let first = |table: &BTreeMap<Key, (u32, u32)>| table.values().map(|v| v.0).min().unwrap_or(u32::MAX);
        let mut tables: Vec<_> =
            by_mask.into_iter().map(|(mask, table)| (first(&table), mask, table)).collect();
        tables.sort_by_key(|(first, ..)| *first);
        let mut set = RuleSet::default();
        for (i, (first, mask, table)) in tables.into_iter().enumerate() {
            set.masks.push((mask, first));
            set.entries.extend(table.into_iter().map(|(key, choice)| ((i, key), choice)));
        }
        Ok(set)
    }

    /// Whether there is nothing to look up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.masks.is_empty()
    }

    /// The most lookups that a packet may cost.
    #[cfg(test)]
    pub(crate) fn masks(&self) -> usize {
        self.masks.len()
    }

    /// `struct weir_masks`.
    pub(crate) fn masks_value(&self) -> Vec<u8> {
        let mut value = vec![0; MASK * MASKS];
        for (i, chunk) in value.chunks_exact_mut(MASK).enumerate() {
            let (mask, first) = self.masks.get(i).copied().unwrap_or(([0; KEY], u32::MAX));
            chunk[..KEY].copy_from_slice(&mask);
            chunk[KEY..KEY + 4].copy_from_slice(&first.to_ne_bytes());
        }
        value
    }

    /// Keys and `struct weir_choice` of the set with this number, 0 or 1.
    pub(crate) fn entries(&self, set: usize) -> impl Iterator<Item = (Key, [u8; 8])> {
        self.entries.iter().map(move |((mask, key), (rank, handle))| {
            let (mut key, mut choice) = (*key, [0; 8]);
            let table = u16::try_from(set * MASKS + mask).expect("two sets of 64");
            key[TABLE..TABLE + 2].copy_from_slice(&table.to_ne_bytes());
            choice[..4].copy_from_slice(&rank.to_ne_bytes());
            choice[4..].copy_from_slice(&handle.to_ne_bytes());
            (key, choice)
        })
    }
}

/// The set that a key of the kernel's table belongs to, 0 or 1.
pub(crate) fn set_of(key: &[u8]) -> Option<u32> {
    let table = key.get(TABLE..TABLE + 2)?.try_into().ok().map(u16::from_ne_bytes)?;
    Some(u32::from(table) / MASKS as u32)
}

/// The masks and keys of one rule: one of each, unless it has ranges, or ports of no protocol. None
/// if its networks are of two IP versions, as no packet is.
fn parts(rule: &SelectorRule) -> Vec<(Key, Key)> {
    if let (Some(source), Some(destination)) = (rule.source, rule.destination)
        && source.network.is_ipv4() != destination.network.is_ipv4()
    {
        return Vec::new();
    }
    let (mut mask, mut key) = ([0; KEY], [0; KEY]);
    let mut ask = |at: usize, value: &[u8], bits: &[u8]| {
        for (i, (value, bits)) in value.iter().zip(bits).enumerate() {
            mask[at + i] = *bits;
            key[at + i] = value & bits;
        }
    };
    if let Some(from) = rule.from {
        ask(FROM, &from.to_ne_bytes(), &[0xff; 4]);
    }
    for (at, prefix) in [(0, rule.source), (DESTINATION, rule.destination)] {
        if let Some(prefix) = prefix {
            let (address, len) = widened(prefix);
            let bits = u128::MAX.checked_shl(128 - len).unwrap_or(0);
            ask(at, &address.octets(), &bits.to_be_bytes());
            let version = if prefix.network.is_ipv4() { 4 } else { 6 };
            ask(VERSION, &[version], &[0xff]);
        }
    }
    if let Some(dscp) = rule.dscp {
        ask(DSCP, &[dscp], &[0xff]);
    }
    let with_ports = rule.source_ports.is_some() || rule.destination_ports.is_some();
    let protocols = match rule.protocol {
        Some(one) => vec![Some(one)],
        None if with_ports => vec![Some(TCP), Some(UDP)],
        None => vec![None],
    };
    let blocks = |range: &Option<RangeInclusive<u16>>| range.as_ref().map_or(vec![(0, 0)], port_blocks);
    let (sources, destinations) = (blocks(&rule.source_ports), blocks(&rule.destination_ports));
    let mut parts = Vec::new();
    for protocol in protocols {
        for source in &sources {
            for destination in &destinations {
                let (mut mask, mut key) = (mask, key);
                if let Some(protocol) = protocol {
                    (mask[PROTOCOL], key[PROTOCOL]) = (0xff, protocol);
                }
                for (at, (port, bits)) in [(SOURCE_PORT, source), (DESTINATION_PORT, destination)] {
                    mask[at..at + 2].copy_from_slice(&bits.to_be_bytes());
                    key[at..at + 2].copy_from_slice(&port.to_be_bytes());
                }
                parts.push((mask, key));
            }
        }
    }
    parts
}

/// A prefix as one of IPv6: IPv4 is ::ffff:a.b.c.d.
pub(crate) fn widened(prefix: LocalPrefix) -> (Ipv6Addr, u32) {
    match prefix.network {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), u32::from(prefix.len) + 96),
        IpAddr::V6(address) => (address, u32::from(prefix.len)),
    }
}

/// The aligned blocks of a range of ports, as value and mask; at most 30. Port 0 is in none: it is
/// what packets without ports have.
#[must_use]
pub fn port_blocks(range: &RangeInclusive<u16>) -> Vec<(u16, u16)> {
    let (mut next, end) = (u32::from(*range.start()).max(1), u32::from(*range.end()));
    let mut blocks = Vec::new();
    while next <= end {
        let fits = (end - next + 1).ilog2();
        let bits = next.trailing_zeros().min(fits);
        let port = u16::try_from(next).expect("at most its end");
        blocks.push((port, u16::MAX.checked_shl(bits).unwrap_or(0)));
        next += 1 << bits;
    }
    blocks
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
