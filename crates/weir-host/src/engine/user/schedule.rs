//! Which lane's packet leaves next, and when: weir-htb's tree by the minors of classes. Pure: time is
//! an argument.

use std::{collections::BTreeMap, time::Duration};

use weir_htb::{ClassError, ClassId, Htb, Limits, Next, Packet, Params, Stats};
use weir_units::{Bytes, Instant};

use crate::{engine::ROOT, netlink::tc::HtbClass};

/// Classes at the most: a lane each, and groups.
const CLASSES: u32 = 1024;

/// What the link may save up, so that a scheduler that is not let run for so long loses nothing.
pub(super) const CATCH_UP: Duration = Duration::from_millis(5);

/// What leaves, or when to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The packet that this lane has offered.
    Lane(usize),
    /// None before this moment, unless one is offered.
    At(Instant),
    /// None is offered.
    Nothing,
}

/// How often, and how much, the scheduler came too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lateness {
    /// Times that it could not catch up, as it was late by more than the link saves up.
    pub times: u64,
    /// The link's time that was lost so.
    pub lost: Duration,
}

/// A tree of classes in which each lane has one packet on offer, or none.
pub(super) struct Schedule {
    htb: Htb,
    ids: BTreeMap<u16, ClassId>,
    /// When the next packet was to leave, as last told.
    due: Option<Instant>,
    late: Lateness,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Schedule {
        let limits = Limits { classes: CLASSES, packets: CLASSES, depth: 4 };
        Schedule { htb: Htb::new(limits, now), ids: BTreeMap::new(), due: None, late: Lateness::default() }
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
        // Whose parent is not known has none: the link itself.
        let parent = self.ids.get(&class.parent.minor()).copied();
        self.htb.add(id, parent, params)?;
        self.ids.insert(minor, id);
        Ok(())
    }

    /// Removes a class without children. What it was offered is handed back: its lane.
    pub(super) fn remove(&mut self, minor: u16) -> Result<Option<usize>, ClassError> {
        let Some(id) = self.ids.get(&minor).copied() else { return Ok(None) };
        let mut lane = None;
        self.htb.drain(id, |packet| lane = Some(packet.handle as usize))?;
        self.htb.remove(id)?;
        self.ids.remove(&minor);
        Ok(lane)
    }

    /// Offers a lane's next packet; `wire`: its bytes there. False if there is no such class (yet).
    pub(super) fn offer(&mut self, minor: u16, lane: usize, wire: u32) -> bool {
        let handle = u32::try_from(lane).unwrap_or(u32::MAX);
        let packet = Packet { handle, len: wire.clamp(1, Packet::MAX_LEN) };
        self.ids.get(&minor).is_some_and(|id| self.htb.enqueue(*id, packet).is_ok())
    }

    /// What leaves at `now`. Its lane may offer the next one before it is asked again: then it keeps
    /// its turn.
    pub(super) fn next(&mut self, now: Instant) -> Turn {
        match self.htb.dequeue(now) {
            Next::Packet(departure) => {
                if let Some(due) = self.due.take() {
                    self.note(now.since(due));
                }
                Turn::Lane(departure.packet.handle as usize)
            }
            Next::At(then) => {
                self.due = Some(then);
                Turn::At(then)
            }
            Next::Empty => {
                self.due = None;
                Turn::Nothing
            }
        }
    }

    fn note(&mut self, late: Duration) {
        if let Some(lost) = late.checked_sub(CATCH_UP)
            && lost > Duration::ZERO
        {
            self.late.times += 1;
            self.late.lost += lost;
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
    let saved = |burst: Bytes, rate: weir_units::BitRate| {
        if class.handle.minor() == ROOT { burst.max(rate.bytes_in(CATCH_UP)) } else { burst }
    };
    let quantum = u32::try_from(class.quantum.0).unwrap_or(u32::MAX).clamp(1, Params::MAX_QUANTUM);
    Params::new(class.rate)
        .ceil(class.ceil)
        .burst(saved(class.burst, class.rate))
        .cburst(saved(class.cburst, class.ceil))
        .quantum(quantum)
        .prio(u8::try_from(class.prio).unwrap_or(u8::MAX).min(Params::PRIOS - 1))
        .limit(1)
}

#[cfg(test)]
mod tests {
    use weir_units::{BitRate, TcHandle};

    use super::*;
    use crate::engine::MAJOR;

    const FRAME: u32 = 1250;

    fn class(minor: u16, rate: u64, quantum: u64) -> HtbClass {
        let parent = if minor == ROOT { 0 } else { ROOT };
        HtbClass {
            handle: TcHandle::new(MAJOR, minor),
            parent: TcHandle::new(MAJOR, parent),
            rate: BitRate::mbit(rate),
            ceil: BitRate::mbit(100),
            burst: Bytes(10 * 1250),
            cburst: Bytes(100 * 1250),
            quantum: Bytes(quantum),
            prio: 1,
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

    /// How many packets of each lane leave at this moment.
    fn leave(schedule: &mut Schedule, now: Instant) -> ([u64; 2], Turn) {
        let mut left = [0, 0];
        loop {
            match schedule.next(now) {
                Turn::Lane(lane) => {
                    left[lane] += 1;
                    assert!(schedule.offer([16, 17][lane], lane, FRAME));
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
        assert!(left[0].abs_diff(3000) <= 30 && left[1].abs_diff(7000) <= 70, "{left:?}");
    }

    #[test]
    fn who_was_kept_from_running_makes_up_for_what_the_link_saves_and_counts_what_is_beyond() {
        let mut schedule = link();
        let (_, wait) = leave(&mut schedule, Instant::default());
        assert!(matches!(wait, Turn::At(then) if then <= micros(200)), "{wait:?}");
        let (left, _) = leave(&mut schedule, micros(4_000));
        assert!(left[0] + left[1] >= 38, "4 ms are 40 frames: {left:?}");
        assert_eq!(schedule.late(), Lateness::default());
        let (left, _) = leave(&mut schedule, micros(24_000));
        assert!(left[0] + left[1] <= 52, "of 20 ms 5 are made up for: {left:?}");
        let Lateness { times, lost } = schedule.late();
        assert_eq!(times, 1);
        assert!(lost > Duration::from_millis(14) && lost < Duration::from_millis(16), "{lost:?}");
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
