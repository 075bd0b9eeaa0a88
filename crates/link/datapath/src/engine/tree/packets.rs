//! The length of the packets that a class sends. Pure.
//!
//! HTB serves at least a packet a turn, whatever the quantum. A super-packet that leaves its queue whole is one.

use std::{collections::BTreeMap, time::Duration};

use weir_units::Instant;

/// The packets that a class's mean is made of, at least.
const ENOUGH: u32 = 16;
/// Packets longer by more than one part in this number count at once.
const LONGER: u64 = 8;
/// Packets shorter by more than one part in this number count after a time.
const SHORTER: u64 = 4;
/// The longest mean counts for this time at least, and twice this at most. TCP cuts its stream into super-packets of
/// changing length.
const KEPT: Duration = Duration::from_secs(15);

/// A turn holds this number of eighths of a class's mean packet, so that the debt of a few long ones is paid.
const ROOM: u64 = 9;

/// The packets of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    /// Bytes and packets when the last mean was made, or at the first look.
    counted: Option<(u64, u32)>,
    /// The longest means: since `longest_since`, and in [`KEPT`] before.
    longest: (u64, u64),
    longest_since: Instant,
    /// The mean that is in force; 0 while none is.
    told: u64,
}

/// The mean packets of the classes of one tree.
#[derive(Debug, Default)]
pub struct Packets(BTreeMap<u16, Sent>);

impl Packets {
    /// Takes a class's counters since it was made. `packets` counts a super-packet once, and wraps. Returns
    /// whether the class sends packets of another length.
    pub fn look(&mut self, minor: u16, bytes: u64, packets: u32, now: Instant) -> bool {
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
        sent.counted = Some((bytes, packets));
        if now.since(sent.longest_since) >= KEPT {
            sent.longest = (mean, sent.longest.0);
            sent.longest_since = now;
        } else {
            sent.longest.0 = sent.longest.0.max(mean);
        }
        let longest = sent.longest.0.max(sent.longest.1);
        let is_other = longest > sent.told + sent.told / LONGER || longest < sent.told - sent.told / SHORTER;
        if is_other {
            sent.told = longest;
        }
        is_other
    }

    /// Forgets classes that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u16) -> bool) {
        self.0.retain(|minor, _| is_there(*minor));
    }

    /// The longest mean packet of a class of late, bytes; none while it is not known.
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

    const TICK: Duration = Duration::from_millis(100);

    /// A class that sends 20 packets between two looks.
    struct Class {
        packets: Packets,
        now: Instant,
        counted: (u64, u32),
    }

    impl Class {
        fn new() -> Class {
            let mut packets = Packets::default();
            let now = Instant(Duration::from_secs(3));
            packets.look(16, 0, 0, now);
            Class { packets, now, counted: (0, 0) }
        }

        fn sends(&mut self, length: u64) -> bool {
            self.now = self.now + TICK;
            self.counted = (self.counted.0 + 20 * length, self.counted.1 + 20);
            self.packets.look(16, self.counted.0, self.counted.1, self.now)
        }
    }

    #[test]
    fn mean_is_known_some_packets_after_the_first_look() {
        let mut packets = Packets::default();
        let now = Instant(Duration::from_secs(3));
        assert!(!packets.look(16, 1 << 30, 77, now));
        assert!(!packets.look(16, (1 << 30) + 15 * 1514, 92, now));
        assert_eq!(packets.of(16), None);
        assert!(packets.look(16, (1 << 30) + 20 * 1514, 97, now));
        assert_eq!((packets.of(16), packets.of(17)), (Some(1514), None));
        assert!(!packets.look(16, (1 << 30) + 60 * 1514, 137, now), "they are as long as before");
    }

    #[test]
    fn longer_packets_count_at_once_and_shorter_ones_after_a_time() {
        let mut class = Class::new();
        class.sends(1514);
        assert!(class.sends(9084));
        assert_eq!(class.packets.of(16), Some(9084));
        let looks = (1..).find(|_| class.sends(1514)).expect("they count");
        assert!((KEPT..=KEPT * 2 + TICK).contains(&(TICK * looks)), "after {looks} looks");
        assert_eq!(class.packets.of(16), Some(1514));
    }

    #[test]
    fn packets_of_changing_length_count_with_the_longest() {
        let mut class = Class::new();
        class.sends(9084);
        let told = (0..1_000).filter(|n| class.sends([1514, 7029, 5572, 9084, 8781][n % 5])).count();
        assert_eq!((told, class.packets.of(16)), (0, Some(9084)));
    }

    #[test]
    fn counters_that_wrap_or_begin_again_are_borne() {
        let mut packets = Packets::default();
        let now = Instant(Duration::from_secs(3));
        packets.look(16, 1 << 40, u32::MAX - 9, now);
        packets.look(16, (1 << 40) + 20 * 100, 10, now);
        assert_eq!(packets.of(16), Some(100));
        assert!(packets.look(16, 500, 5, now), "the class is another");
        assert_eq!(packets.of(16), None);
        assert!(packets.look(16, 500 + 1514 * 16, 21, now));
        assert_eq!(packets.of(16), Some(1514));
        packets.retain(|minor| minor != 16);
        assert_eq!(packets.of(16), None);
    }
}
