//! HTB's bytes beside the uplink's.
//!
//! HTB charges a packet as it is on the ifb. A container's frame has an Ethernet header there, which an
//! uplink of tunnel, PPP or raw-IP packets does not carry. HTB can add bytes to a packet (`overhead`), but
//! it cannot take any away. A packet on its way into a tunnel lacks the tunnel's headers on the ifb. So the
//! classifier counts, and here rates are scaled: a class whose packets are 1 % too long gets a rate that is 1 %
//! higher in HTB's bytes.

use std::collections::BTreeMap;

use weir_bpf::Weights;
use weir_netlink::tc::Counters;
use weir_units::{BitRate, Bytes, TcHandle};

use super::{EngineError, MAJOR, ROOT, tree};

/// Parts are kept in units of this.
const ONE: i64 = 1 << 16;
/// A part that changes by less is not written: one in 1,000.
const GRAIN: u64 = ONE.unsigned_abs() / 1_000;
/// Sixteenths of the earlier counts that each look keeps.
const MEMORY: u64 = 13;

/// The bytes of late that one class, group or the link was charged for, and those of them that the uplink
/// does not carry. The uplink carries more than was charged where the excess is negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Recent {
    weighed: u64,
    excess: i64,
}

impl Recent {
    fn add(&mut self, weighed: u64, excess: i64) {
        if weighed > 0 {
            self.weighed = self.weighed * MEMORY / 16 + weighed;
            self.excess = self.excess * MEMORY.cast_signed() / 16 + excess;
        }
    }

    /// The excess as a part of all, in units of 1 / [`ONE`]. It is at most half, and at least -2: a packet of
    /// an IP header alone grows that much in a tunnel.
    fn part(self) -> i64 {
        let part = i128::from(self.excess) * i128::from(ONE) / i128::from(self.weighed.max(1));
        i64::try_from(part).unwrap_or(0).clamp(-2 * ONE, ONE / 2)
    }
}

/// The state of a class, a group or the link.
#[derive(Debug, Clone, Copy, Default)]
struct Scale {
    recent: Recent,
    /// The classifier's counters at the last look.
    seen: Option<(u64, i64)>,
    /// The part that is in force.
    part: i64,
    /// HTB's bytes at the last look, and the uplink's bytes that were told for them.
    bytes: (u64, u64),
}

impl Scale {
    /// HTB's bytes are the uplink's from now on. Bytes that were told before stay told.
    fn forget(&mut self) {
        (self.recent, self.part) = (Recent::default(), 0);
    }

    /// HTB's counters, in the uplink's bytes.
    fn count(&mut self, counters: Counters) -> Counters {
        let carried =
            |bytes: u64, part: i64| (bytes.cast_signed() - bytes.cast_signed() * part / ONE).unsigned_abs();
        let part = self.recent.part();
        let (before, told) = self.bytes;
        let told = match counters.bytes.checked_sub(before) {
            // Of what an earlier agent counted the excess is not known.
            Some(sent) if before > 0 => told + carried(sent, part),
            _ => counters.bytes,
        };
        self.bytes = (counters.bytes, told);
        Counters { bytes: told, backlog: carried(counters.backlog, part), ..counters }
    }
}

/// The scales of all classes, by minor.
pub(super) struct Scales {
    weights: Weights,
    scales: BTreeMap<u16, Scale>,
    /// HTB's bytes may differ from the uplink's.
    is_wanted: bool,
}

impl Scales {
    pub(super) fn new(weights: Weights) -> Scales {
        Scales { weights, scales: BTreeMap::new(), is_wanted: true }
    }

    /// Begins to count, or ends it. Classes' rates are as configured then.
    pub(super) fn follow(&mut self, is_wanted: bool) {
        if self.is_wanted && !is_wanted {
            self.scales.values_mut().for_each(Scale::forget);
        }
        self.is_wanted = is_wanted;
    }

    /// Reads the classifier's counters of these classes. True if a rate of one of them is another now.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn look(&mut self, nodes: &[tree::Node]) -> Result<bool, EngineError> {
        if self.scales.len() > nodes.len() {
            self.scales.retain(|minor, _| nodes.iter().any(|n| n.class.handle.minor() == *minor));
        }
        if !self.is_wanted {
            return Ok(false);
        }
        let mut sums: BTreeMap<u16, (u64, i64)> = BTreeMap::new();
        for node in nodes {
            let minor = node.class.handle.minor();
            self.scales.entry(minor).or_default();
            if node.leaf.is_none() {
                continue;
            }
            let (weighed, excess) = self.weights.read(TcHandle::new(MAJOR, minor).0)?;
            let now = (weighed, excess.cast_signed());
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
    pub(super) fn scale_to_htb(&self, node: &mut tree::Node) {
        let part = self.scales.get(&node.class.handle.minor()).map_or(0, |scale| scale.part);
        scale(node, part);
    }

    /// HTB's counters of a class, in the uplink's bytes.
    pub(super) fn count_on_link(&mut self, minor: u16, counters: Counters) -> Counters {
        self.scales.entry(minor).or_default().count(counters)
    }
}

/// A class whose packets are longer by this part in HTB's bytes.
fn scale(node: &mut tree::Node, part: i64) {
    let (one, carried) = (ONE.unsigned_abs(), (ONE - part).unsigned_abs());
    let scaled = |rate: BitRate| rate.scale(one, carried);
    node.class.rate = scaled(node.class.rate);
    node.class.ceil = scaled(node.class.ceil);
    // An inner class uses none, and some kernels (6.1) keep its first one.
    if node.leaf.is_some() {
        node.class.quantum = Bytes(node.class.quantum.0 * one / carried);
    }
}

#[cfg(test)]
mod tests {
    use weir_netlink::tc::{HtbClass, Leaf};
    use weir_units::RateFraming;

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

    #[test]
    fn packets_of_a_tunnel_lack_their_headers() {
        let mut recent = Recent::default();
        for _ in 0..40 {
            recent.add(100 * 1434, -100 * 60);
        }
        assert!(recent.part().abs_diff(-60 * ONE / 1434) < 3, "{}", recent.part());
        for _ in 0..80 {
            recent.add(100 * 34, -100 * 60);
        }
        assert!(recent.part().abs_diff(-60 * ONE / 34) < GRAIN, "{}", recent.part());
    }

    #[test]
    fn counters_go_on_when_the_last_tunnel_goes() {
        let mut scale = Scale::default();
        let told = |scale: &mut Scale, bytes| scale.count(Counters { bytes, ..Counters::default() }).bytes;
        assert_eq!(told(&mut scale, 1_000), 1_000);
        scale.recent.add(1_000, -100);
        assert!(told(&mut scale, 101_000).abs_diff(111_000) < 10);
        let before = told(&mut scale, 101_000);
        scale.forget();
        assert_eq!(told(&mut scale, 101_000), before);
        assert_eq!(told(&mut scale, 102_000), before + 1_000);
    }

    #[test]
    fn inner_classes_keep_their_quantum() {
        let class = HtbClass {
            handle: TcHandle::new(MAJOR, 16),
            parent: TcHandle::new(MAJOR, ROOT),
            rate: BitRate::mbit(20),
            ceil: BitRate::mbit(20),
            burst: Bytes(16_384),
            cburst: Bytes(16_384),
            quantum: Bytes(1514),
            prio: 1,
            framing: RateFraming::default(),
        };
        let leaf = Some(Leaf::Fifo { limit: Bytes(100_000) });
        for (leaf, quantum) in [(None, 1514), (leaf, 1009)] {
            let mut node = tree::Node { class, leaf };
            scale(&mut node, -ONE / 2);
            assert_eq!((node.class.rate, node.class.quantum), (BitRate(13_333_333), Bytes(quantum)));
        }
    }
}
