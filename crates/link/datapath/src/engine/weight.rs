//! HTB's bytes beside the uplink's.
//!
//! HTB charges a packet as it is on the ifb. A container's frame has an Ethernet header there, which an
//! uplink of tunnel, PPP or raw-IP packets does not carry. HTB can add bytes to a packet (`overhead`), but
//! it cannot take any away. So the classifier counts, and here rates are scaled: a class whose packets are
//! 1 % too long gets a rate that is 1 % higher in HTB's bytes.

use std::collections::BTreeMap;

use weir_bpf::Weights;
use weir_netlink::tc::{Counters, HtbClass};
use weir_units::{BitRate, Bytes, TcHandle};

use super::{EngineError, MAJOR, ROOT, tree};

/// Parts are kept in units of this.
const ONE: u64 = 1 << 16;
/// A part that changes by less is not written: one in 1,000.
const GRAIN: u64 = ONE / 1_000;
/// Sixteenths of the earlier counts that each look keeps.
const MEMORY: u64 = 13;

/// The bytes of late that one class, group or the link was charged for, and those of them that the uplink
/// does not carry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Recent {
    weighed: u64,
    excess: u64,
}

impl Recent {
    fn add(&mut self, weighed: u64, excess: u64) {
        if weighed > 0 {
            self.weighed = self.weighed * MEMORY / 16 + weighed;
            self.excess = self.excess * MEMORY / 16 + excess;
        }
    }

    /// The excess as a part of all, in units of 1 / [`ONE`]; never more than half.
    fn part(self) -> u64 {
        let part = u128::from(self.excess) * u128::from(ONE) / u128::from(self.weighed.max(1));
        u64::try_from(part).unwrap_or(ONE).min(ONE / 2)
    }
}

/// The state of a class, a group or the link.
#[derive(Debug, Clone, Copy, Default)]
struct Scale {
    recent: Recent,
    /// The classifier's counters at the last look.
    seen: Option<(u64, u64)>,
    /// The part that is in force.
    part: u64,
    /// HTB's bytes at the last look, and the uplink's bytes that were told for them.
    bytes: (u64, u64),
}

/// The scales of all classes, by minor.
pub(super) struct Scales {
    weights: Weights,
    scales: BTreeMap<u16, Scale>,
}

impl Scales {
    pub(super) fn new(weights: Weights) -> Scales {
        Scales { weights, scales: BTreeMap::new() }
    }

    /// Reads the classifier's counters of these classes. True if a rate of one of them is another now.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn look(&mut self, nodes: &[tree::Node]) -> Result<bool, EngineError> {
        let mut sums: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for node in nodes {
            let minor = node.class.handle.minor();
            self.scales.entry(minor).or_default();
            if node.leaf.is_none() {
                continue;
            }
            let now = self.weights.read(TcHandle::new(MAJOR, minor).0)?;
            let scale = self.scales.entry(minor).or_default();
            // The counters of a class that the agent tracks again begin at zero.
            let before = scale.seen.filter(|before| before.0 <= now.0).unwrap_or_default();
            let (weighed, excess) = (now.0 - before.0, now.1.saturating_sub(before.1));
            scale.seen = Some(now);
            scale.recent.add(weighed, excess);
            let group = Some(node.class.parent.minor()).filter(|minor| *minor != ROOT);
            for above in group.into_iter().chain([ROOT]) {
                let sum = sums.entry(above).or_default();
                *sum = (sum.0 + weighed, sum.1 + excess);
            }
        }
        for (minor, (weighed, excess)) in sums {
            self.scales.entry(minor).or_default().recent.add(weighed, excess);
        }
        self.scales.retain(|minor, _| nodes.iter().any(|n| n.class.handle.minor() == *minor));
        let mut is_other = false;
        for scale in self.scales.values_mut() {
            let part = scale.recent.part();
            if part.abs_diff(scale.part) > GRAIN {
                (scale.part, is_other) = (part, true);
            }
        }
        Ok(is_other)
    }

    /// A class with rates of the uplink, in HTB's bytes.
    pub(super) fn scale_to_htb(&self, class: &mut HtbClass) {
        let part = self.scales.get(&class.handle.minor()).map_or(0, |scale| scale.part);
        let scaled = |rate: BitRate| rate.scale(ONE, ONE - part);
        class.rate = scaled(class.rate);
        class.ceil = scaled(class.ceil);
        class.quantum = Bytes(class.quantum.0 * ONE / (ONE - part));
    }

    /// HTB's counters of a class, in the uplink's bytes.
    pub(super) fn count_on_link(&mut self, minor: u16, counters: Counters) -> Counters {
        let scale = self.scales.entry(minor).or_default();
        let carried = |bytes: u64, part: u64| bytes - bytes * part / ONE;
        let part = scale.recent.part();
        let (before, told) = scale.bytes;
        let told = match counters.bytes.checked_sub(before) {
            // Of what an earlier agent counted the excess is not known.
            Some(sent) if before > 0 => told + carried(sent, part),
            _ => counters.bytes,
        };
        scale.bytes = (counters.bytes, told);
        Counters { bytes: told, backlog: carried(counters.backlog, part), ..counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_full_segments_is_their_header() {
        let mut recent = Recent::default();
        assert_eq!(recent.part(), 0, "nothing is known");
        for _ in 0..20 {
            recent.add(100 * 1514, 100 * 14);
        }
        // Each look rounds.
        assert!(recent.part().abs_diff(14 * ONE / 1514) < 3, "{}", recent.part());
        for _ in 0..40 {
            recent.add(100 * 114, 100 * 14);
        }
        assert!(recent.part().abs_diff(14 * ONE / 114) < GRAIN, "{}", recent.part());
        recent.add(0, 0);
        assert!(recent.part() > 0, "a silent class keeps what is known");
    }
}
