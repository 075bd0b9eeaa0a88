//! The length of the packets that a class sends. Pure.
//!
//! HTB serves at least a packet a turn, whatever the quantum. A super-packet that leaves its queue whole is one.

use std::collections::BTreeMap;

/// The packets that a class's mean is made of, at least.
const ENOUGH: u32 = 16;
/// A mean that moves by more than one part in this number is told.
const GRAIN: u64 = 8;

/// A turn holds this number of eighths of a class's mean packet, so that the debt of a few long ones is paid.
const ROOM: u64 = 9;

/// The packets of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    /// Bytes and packets when the mean was made, or at the first look.
    counted: Option<(u64, u32)>,
    mean: u64,
    /// The mean that is in force; 0 while none is.
    told: u64,
}

/// The mean packets of the classes of one tree.
#[derive(Debug, Default)]
pub struct Packets(BTreeMap<u16, Sent>);

impl Packets {
    /// Takes a class's counters since it was made. `packets` counts a super-packet once, and wraps. Returns
    /// whether the class sends packets of another length.
    pub fn look(&mut self, minor: u16, bytes: u64, packets: u32) -> bool {
        let sent = self.0.entry(minor).or_default();
        let before = *sent.counted.get_or_insert((bytes, packets));
        let Some(more) = bytes.checked_sub(before.0) else {
            // The class was made again.
            *sent = Sent { counted: Some((bytes, packets)), ..Sent::default() };
            return true;
        };
        let packets_more = packets.wrapping_sub(before.1);
        if packets_more < ENOUGH {
            return false;
        }
        let mean = more / u64::from(packets_more);
        // Longer ones count at once. Shorter ones may come between them.
        sent.mean = if mean > sent.mean { mean } else { sent.mean - (sent.mean - mean) / 4 };
        sent.counted = Some((bytes, packets));
        let is_other = sent.mean.abs_diff(sent.told) > sent.told / GRAIN;
        if is_other {
            sent.told = sent.mean;
        }
        is_other
    }

    /// Forgets classes that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u16) -> bool) {
        self.0.retain(|minor, _| is_there(*minor));
    }

    /// The mean packet of a class, bytes; none while it is not known.
    pub(super) fn of(&self, minor: u16) -> Option<u64> {
        self.0.get(&minor).map(|sent| sent.told).filter(|bytes| *bytes > 0)
    }

    /// The bytes that a turn has to hold for a class's super-packets, of which segments have at most `unit`; 0 if it
    /// is not known to send any.
    pub(super) fn turn_of(&self, minor: u16, unit: u64) -> u64 {
        self.of(minor).filter(|mean| *mean > unit).map_or(0, |mean| mean * ROOM / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_is_known_some_packets_after_the_first_look() {
        let mut packets = Packets::default();
        assert!(!packets.look(16, 1 << 30, 77));
        assert!(!packets.look(16, (1 << 30) + 15 * 1514, 92));
        assert_eq!(packets.of(16), None);
        assert!(packets.look(16, (1 << 30) + 20 * 1514, 97));
        assert_eq!((packets.of(16), packets.of(17)), (Some(1514), None));
        assert!(!packets.look(16, (1 << 30) + 60 * 1514, 137), "they are as long as before");
    }

    #[test]
    fn longer_packets_count_at_once_and_shorter_ones_step_by_step() {
        let mut packets = Packets::default();
        packets.look(16, 0, 0);
        packets.look(16, 20 * 1514, 20);
        assert!(packets.look(16, 20 * 1514 + 20 * 9084, 40));
        assert_eq!(packets.of(16), Some(9084));
        let mut bytes = 20 * 1514 + 20 * 9084;
        let mut looks = 0;
        for count in (60..).step_by(20) {
            bytes += 20 * 1514;
            looks += 1;
            packets.look(16, bytes, count);
            if packets.of(16).is_some_and(|mean| mean < 2_000) {
                break;
            }
        }
        assert!((4..12).contains(&looks), "{looks}");
    }

    #[test]
    fn counters_that_wrap_or_begin_again_are_borne() {
        let mut packets = Packets::default();
        packets.look(16, 1 << 40, u32::MAX - 9);
        packets.look(16, (1 << 40) + 20 * 100, 10);
        assert_eq!(packets.of(16), Some(100));
        assert!(packets.look(16, 500, 5), "the class is another");
        assert_eq!(packets.of(16), None);
        assert!(packets.look(16, 500 + 1514 * 16, 21));
        assert_eq!(packets.of(16), Some(1514));
        packets.retain(|minor| minor != 16);
        assert_eq!(packets.of(16), None);
    }
}
