//! Decides which tap queue's packet leaves next, and when: weir-htb's tree by the minors of classes.
//! Pure: time is an argument.

use std::{collections::BTreeMap, time::Duration};

use weir_htb::{ClassError, ClassId, Htb, Limits, Next, Packet, Params, Stats};
use weir_netlink::tc::HtbClass;
use weir_units::{Framing, Instant};

/// The most classes: a tap queue each, and groups.
const CLASSES: u32 = 1024;

/// How far behind the scheduler may be and lose nothing of the link's time.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The packet that leaves, or the time to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The packet that this tap queue has offered.
    TapQueue(usize),
    /// None before this moment, unless one is offered.
    At(Instant),
    /// None is offered.
    Nothing,
}

/// How often the scheduler came too late, and what that cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lateness {
    /// Times that it was later than it makes up for.
    pub times: u64,
    /// The link's time that was lost so.
    pub lost: Duration,
}

/// A tree of classes in which each tap queue has one packet on offer, or none.
///
/// A process is not run at the moment it asked for. So the tree's time is not the clock's but that of
/// the packets: who is late goes through the moments that it missed, one after the other, and packets
/// leave in the order and the shares in which they should have left; the tree's bursts, which say what
/// an idle class may save up, need not be long enough for that.
pub(super) struct Schedule {
    htb: Htb,
    ids: BTreeMap<u16, ClassId>,
    /// The tree's time; behind the clock's while there is something to make up for.
    at: Instant,
    /// A packet was to leave, or waited for its moment, when last asked.
    busy: bool,
    late: Lateness,
    framing: Option<Framing>,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Schedule {
        let limits = Limits { classes: CLASSES, packets: CLASSES, depth: 4 };
        Schedule {
            htb: Htb::new(limits, now),
            ids: BTreeMap::new(),
            at: now,
            busy: false,
            late: Lateness::default(),
            framing: None,
        }
    }

    /// Makes a class, or changes it. A parent comes before its children.
    pub(super) fn set(&mut self, class: &HtbClass) -> Result<(), ClassError> {
        let minor = class.handle.minor();
        let params = params(class);
        if let Some(id) = self.ids.get(&minor) {
            return self.htb.change(*id, params).map(drop);
        }
        let free = (0..CLASSES).map(ClassId).find(|id| !self.htb.exists(*id));
        let id = free.unwrap_or(ClassId(CLASSES));
        // A class with an unknown parent belongs to the link itself.
        let parent = self.ids.get(&class.parent.minor()).copied();
        self.htb.add(id, parent, params)?;
        self.ids.insert(minor, id);
        Ok(())
    }

    /// Removes a class without children. The offered packet is handed back: its tap queue.
    pub(super) fn remove(&mut self, minor: u16) -> Result<Option<usize>, ClassError> {
        let Some(id) = self.ids.get(&minor).copied() else { return Ok(None) };
        let mut queue = None;
        self.htb.drain(id, |packet| queue = Some(packet.handle as usize))?;
        self.htb.remove(id)?;
        self.ids.remove(&minor);
        Ok(queue)
    }

    /// Charges packets as this line frames them, from the next one that is offered on.
    pub(super) fn frame(&mut self, framing: Option<Framing>) {
        self.framing = framing;
    }

    /// Offers a tap queue's next packet; `wire`: its bytes there, as tc counts. False if there is no such class (yet).
    pub(super) fn offer(&mut self, minor: u16, queue: usize, wire: u32) -> bool {
        let handle = u32::try_from(queue).unwrap_or(u32::MAX);
        let line = |framing: Framing| u32::try_from(framing.line_bytes(wire.into())).unwrap_or(u32::MAX);
        let len = self.framing.map_or(wire, line);
        let packet = Packet { handle, len: len.clamp(1, Packet::MAX_LEN) };
        self.ids.get(&minor).is_some_and(|id| self.htb.enqueue(*id, packet).is_ok())
    }

    /// The packet that leaves at `now`. Its tap queue may offer the next one before it is asked again:
    /// then it keeps its turn.
    pub(super) fn next(&mut self, now: Instant) -> Turn {
        if !self.busy {
            self.at = self.at.max(now);
        }
        self.busy = true;
        loop {
            match self.htb.dequeue(self.at) {
                Next::Packet(departure) => return Turn::TapQueue(departure.packet.handle as usize),
                Next::At(then) if then <= now => {
                    let lost = now.since(then).saturating_sub(CATCH_UP);
                    if lost > Duration::ZERO {
                        self.late.times += 1;
                        self.late.lost += lost;
                    }
                    self.at = then + lost;
                }
                Next::At(then) => {
                    self.at = self.at.max(now);
                    return Turn::At(then);
                }
                Next::Empty => {
                    self.busy = false;
                    return Turn::Nothing;
                }
            }
        }
    }

    pub(super) fn late(&self) -> Lateness {
        self.late
    }

    /// All classes and what has become of their packets.
    pub(super) fn stats(&self) -> impl Iterator<Item = (u16, Stats)> + '_ {
        self.ids.iter().filter_map(|(&minor, &id)| Some((minor, self.htb.stats(id)?)))
    }
}

fn params(class: &HtbClass) -> Params {
    let quantum = u32::try_from(class.quantum.0).unwrap_or(u32::MAX).clamp(1, Params::MAX_QUANTUM);
    Params::new(class.rate)
        .ceil(class.ceil)
        .burst(class.burst)
        .cburst(class.cburst)
        .quantum(quantum)
        .prio(u8::try_from(class.prio).unwrap_or(u8::MAX).min(Params::PRIOS - 1))
        .limit(1)
}

#[cfg(test)]
mod tests {
    use weir_units::{BitRate, Bytes, TcHandle};

    use super::*;
    use crate::engine::{MAJOR, ROOT};

    const FRAME: u32 = 1250;

    fn class(minor: u16, rate: u64, quantum: u64) -> HtbClass {
        let parent = if minor == ROOT { 0 } else { ROOT };
        HtbClass {
            handle: TcHandle::new(MAJOR, minor),
            parent: TcHandle::new(MAJOR, parent),
            rate: BitRate::mbit(rate),
            ceil: BitRate::mbit(100),
            burst: Bytes(10 * 1250),
            cburst: Bytes(10 * 1250),
            quantum: Bytes(quantum),
            prio: 1,
            framing: weir_units::RateFraming::default(),
        }
    }

    fn micros(us: u64) -> Instant {
        Instant(Duration::from_micros(us))
    }

    /// A link of 100 Mbit/s, where a frame takes 100 us, with two classes that always offer another.
    fn link() -> Schedule {
        let mut schedule = Schedule::new(Instant::default());
        schedule.set(&class(ROOT, 100, 1250)).unwrap();
        schedule.set(&class(16, 10, 1250)).unwrap();
        schedule.set(&class(17, 10, 3 * 1250)).unwrap();
        assert!(schedule.offer(16, 0, FRAME) && schedule.offer(17, 1, FRAME));
        schedule
    }

    /// How many packets of each tap queue leave at this moment.
    fn leave(schedule: &mut Schedule, now: Instant) -> ([u64; 2], Turn) {
        let mut left = [0, 0];
        loop {
            match schedule.next(now) {
                Turn::TapQueue(queue) => {
                    left[queue] += 1;
                    assert!(schedule.offer([16, 17][queue], queue, FRAME));
                }
                wait => return (left, wait),
            }
        }
    }

    #[test]
    fn a_lane_with_one_packet_at_a_time_keeps_its_turn_for_all_of_its_quantum() {
        let mut schedule = link();
        leave(&mut schedule, Instant::default());
        let (mut left, mut now) = ([0, 0], Instant::default());
        while now < micros(1_000_000) {
            let (more, wait) = leave(&mut schedule, now);
            left = [left[0] + more[0], left[1] + more[1]];
            let Turn::At(then) = wait else { panic!("{wait:?}") };
            now = then;
        }
        // 10 each, and of the remaining 80 a quarter and three quarters: 30 and 70 of 10,000 frames.
        assert!(left[0].abs_diff(3000) <= 15 && left[1].abs_diff(7000) <= 35, "{left:?}");
    }

    /// Asks when told to, or `late` after that, for half a second.
    fn half_a_second(late: Duration) -> ([u64; 2], Lateness) {
        let mut schedule = link();
        let (mut left, mut now) = ([0, 0], Instant::default());
        while now < micros(500_000) {
            let (more, wait) = leave(&mut schedule, now);
            left = [left[0] + more[0], left[1] + more[1]];
            let Turn::At(then) = wait else { panic!("{wait:?}") };
            now = then + late;
        }
        (left, schedule.late())
    }

    #[test]
    fn late_scheduler_catches_up_in_the_same_shares_and_counts_the_rest() {
        let near = |(a, b): ([u64; 2], [u64; 2])| {
            a[0].abs_diff(b[0]) <= a[0] / 25 && a[1].abs_diff(b[1]) <= a[1] / 25
        };
        let (in_time, late) = half_a_second(Duration::ZERO);
        assert_eq!(late, Lateness::default());
        // More than any burst of this tree, which are 1 ms.
        let (made_up, late) = half_a_second(Duration::from_millis(19));
        assert!(near((in_time, made_up)), "{made_up:?} instead of {in_time:?}");
        assert_eq!(late, Lateness::default());
        let (half, Lateness { times, lost }) = half_a_second(Duration::from_millis(40));
        // A loss is a loss of all classes; the credit that each saved meanwhile moves the shares a
        // little.
        let total = |left: [u64; 2]| left[0] + left[1];
        assert!((2 * total(half)).abs_diff(total(in_time)) <= total(in_time) / 25, "{half:?} of {in_time:?}");
        assert!(
            times.abs_diff(12) <= 1
                && lost.abs_diff(times as u32 * Duration::from_millis(20)) < Duration::from_millis(1),
            "{times} {lost:?}"
        );
    }

    #[test]
    fn who_had_nothing_to_do_has_nothing_to_make_up_for() {
        let mut schedule = Schedule::new(Instant::default());
        schedule.set(&class(ROOT, 100, 1250)).unwrap();
        schedule.set(&class(16, 10, 1250)).unwrap();
        assert_eq!(schedule.next(Instant::default()), Turn::Nothing);
        schedule.offer(16, 0, FRAME);
        let mut left = 0;
        while schedule.next(micros(1_000_000)) == Turn::TapQueue(0) {
            left += 1;
            schedule.offer(16, 0, FRAME);
        }
        assert!((10..=13).contains(&left), "what its buckets hold, not a second's: {left}");
        assert_eq!(schedule.late(), Lateness::default());
    }

    /// Datagrams of 64 bytes of IP at 99 % of a line of ATM, 106 bytes each.
    #[test]
    fn framed_packets_leave_at_the_rate_of_the_line() {
        let mut schedule = Schedule::new(Instant::default());
        schedule.frame(Some("pppoe-llcsnap".parse().unwrap()));
        schedule.set(&class(ROOT, 99, 1250)).unwrap();
        schedule.set(&HtbClass { ceil: BitRate::mbit(99), ..class(16, 99, 1250) }).unwrap();
        schedule.offer(16, 0, 64 + 14);
        let (mut left, mut now) = (0u32, Instant::default());
        while now < micros(500_000) {
            match schedule.next(now) {
                Turn::TapQueue(queue) => (left, _) = (left + 1, schedule.offer(16, queue, 64 + 14)),
                Turn::At(then) => now = then,
                Turn::Nothing => panic!("a packet is offered"),
            }
        }
        let line = f64::from(left) * 3.0 * 53.0 * 8.0 / 0.5e6;
        assert!((98.9..=99.5).contains(&line), "{line} Mbit/s of 99, {left} packets");
    }

    #[test]
    fn a_class_that_goes_hands_back_what_it_was_offered() {
        let mut schedule = link();
        assert_eq!(schedule.remove(16), Ok(Some(0)));
        assert_eq!(schedule.remove(16), Ok(None));
        assert!(!schedule.offer(16, 0, FRAME), "there is no such class any more");
        assert_eq!(leave(&mut schedule, Instant::default()).0[0], 0);
    }
}
