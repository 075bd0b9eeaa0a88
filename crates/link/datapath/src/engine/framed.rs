//! HTB's counters beside the bytes on the line.

use std::collections::BTreeMap;

use weir_netlink::tc::Counters;
use weir_units::{Bytes, Framing};

/// The counters of a class at the last look, and the bytes on the line that were told for them.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    bytes: u64,
    packets: u64,
    told: u64,
}

/// The bytes that the line carries of each class, by minor.
#[derive(Debug)]
pub(super) struct LineCounts {
    framing: Framing,
    seen: BTreeMap<u16, Seen>,
}

impl LineCounts {
    /// Follows the framing of a plan. Another framing counts from the next look on.
    pub(super) fn follow(counts: &mut Option<LineCounts>, framing: Option<Framing>) {
        match (counts.as_mut(), framing) {
            (Some(counts), Some(framing)) => counts.framing = framing,
            _ => *counts = framing.map(|framing| LineCounts { framing, seen: BTreeMap::new() }),
        }
    }

    /// The bytes on the line of a class with these counters. They start again where the counters do.
    pub(super) fn count(&mut self, minor: u16, counters: &Counters) -> u64 {
        let seen = self.seen.entry(minor).or_default();
        let is_new = counters.bytes < seen.bytes || counters.packets < seen.packets;
        let before = if is_new { Seen::default() } else { *seen };
        let (bytes, packets) = (Bytes(counters.bytes - before.bytes), counters.packets - before.packets);
        let told = before.told + self.framing.line_bytes_of(bytes, packets).0;
        *seen = Seen { bytes: counters.bytes, packets: counters.packets, told };
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_line_grow_with_the_counters_and_start_again_with_them() {
        let mut counts = None;
        LineCounts::follow(&mut counts, Some("pppoe-vcmux".parse().unwrap()));
        let counts = counts.as_mut().unwrap();
        let counters = |bytes, packets| Counters { bytes, packets, ..Counters::default() };
        // 64 bytes as tc counts are 50 of IP, which two cells carry.
        assert_eq!(counts.count(16, &counters(640, 10)), 10 * 106);
        assert_eq!(counts.count(16, &counters(640, 10)), 10 * 106);
        assert_eq!(counts.count(16, &counters(640 + 1514, 11)), 10 * 106 + 32 * 53);
        assert_eq!(counts.count(16, &counters(64, 1)), 106, "the class is a new one");
        assert_eq!(counts.count(17, &counters(64, 1)), 106);
    }
}
