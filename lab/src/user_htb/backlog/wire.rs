//! The packets of users with backlogs, and the wire that takes them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant as Clock},
};

use weir_htb::{ClassId, Departure, Packet};
use weir_units::{BitRate, Instant};

use super::super::{
    cores::wait,
    scenario::{Case, Load, PlayTiming, Scenario, link, rates},
    trace::{Frame, Trace, Users},
};

/// Packets of a batch, as `rte_sched` is asked for.
pub(super) const BATCH: usize = 64;

/// The beginning in real time, which is not counted: bursts are spent.
const WARM_UP: Duration = Duration::from_millis(200);
/// The unit of real time that is counted: long enough for a turn of 24 packets to be a thousandth
/// of a user's share.
const COUNTED: Duration = Duration::from_millis(1_500);
/// How far the wire's time may be behind the clock's: what others took of the processor is made up
/// for, as engine `user` does it, up to that much. Time beyond it is lost, and counted.
const CATCH_UP_NS: f64 = 20e6;
/// In real time the tree's moments are at most so far apart: little enough that no user's bucket, which has
/// a millisecond, runs over, and a thousand packets or two.
const STEP_NS: f64 = 100e3;

/// Before it begins: a thread with real-time priority has to leave others a part of each second.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The packets of all users.
pub(super) struct Backlog {
    pub(super) frames: Vec<Frame>,
    pub(super) users: Users,
    /// Packets that are to leave; in real time it is a time instead.
    pub(super) packets: u64,
    pub(super) link: BitRate,
    ns_per_byte: f64,
    batch_ns: f64,
    pub(super) real: bool,
}

impl Backlog {
    pub(super) fn new(case: Case, scenario: &Scenario, packets: u64, seed: u64) -> Backlog {
        let real = case.load == Load::RealTime;
        let Trace { frames, users, .. } = Trace::waiting(scenario, case.active, seed);
        let link = link(scenario);
        let bytes = frames.iter().map(|frame| u64::from(frame.on_wire())).sum::<u64>();
        let mean = bytes as f64 / frames.len() as f64;
        let ns_per_byte = 8e9 / link.bits_per_sec() as f64;
        let batch_ns = BATCH as f64 * mean * ns_per_byte;
        Backlog { frames, users, packets, link, ns_per_byte, batch_ns, real }
    }

    /// Reads a packet's header: whose it is, and how long.
    #[inline]
    pub(super) fn classified(&self, handle: u32) -> Option<(ClassId, Packet)> {
        let (leaf, len) = self.users.classify(self.frames.get(handle as usize)?)?;
        Some((leaf, Packet { handle, len }))
    }

    /// Reads the headers of all that left, which come again, before any is enqueued: so a processor fetches
    /// several of them from memory at once.
    #[inline]
    pub(super) fn again<'a>(&self, left: &[Departure], arrived: &'a mut Arrived) -> &'a [(ClassId, Packet)] {
        let mut packets = 0;
        for departure in left {
            if let Some(arrival) = self.classified(departure.packet.handle) {
                arrived[packets] = arrival;
                packets += 1;
            }
        }
        &arrived[..packets]
    }

    pub(super) fn handles(&self) -> std::ops::Range<u32> {
        0..self.frames.len() as u32
    }

    /// The wire of the whole link, or one of `parts` of it.
    pub(super) fn wire(&self, parts: usize) -> Wire {
        let packets = self.packets / parts as u64;
        Wire {
            ns: 0.0,
            ns_per_byte: self.ns_per_byte * parts as f64,
            batch_ns: self.batch_ns * parts as f64,
            start: self.real.then(Clock::now),
            lost_ns: 0.0,
            more: false,
            half: packets / 2,
            packets,
            sent: Counted::default(),
            late_from: None,
        }
    }
}

/// Packets that arrive together.
type Arrived = [(ClassId, Packet); BATCH];

pub(super) const NO_PACKET: (ClassId, Packet) = (ClassId(0), Packet { handle: 0, len: 0 });

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    ns: f64,
    lost_ns: f64,
}

/// The packets that leave, and their times: the dequeue stage's.
pub(super) struct Wire {
    ns: f64,
    ns_per_byte: f64,
    /// How long a batch takes on an average.
    batch_ns: f64,
    /// Of real time.
    pub(super) start: Option<Clock>,
    /// The clock was ahead by this much more than can be made up for.
    lost_ns: f64,
    /// Of real time: more may leave at this moment.
    more: bool,
    pub(super) half: u64,
    pub(super) packets: u64,
    sent: Counted,
    late_from: Option<Counted>,
}

impl Wire {
    /// When the next batch leaves. In real time that is now, or, for who is late, a while after the last
    /// one; and the same moment again while there is more that may leave then.
    #[inline]
    pub(super) fn now(&mut self) -> Instant {
        if let Some(start) = self.start
            && !self.more
        {
            let clock = start.elapsed().as_nanos() as f64 - self.lost_ns;
            let lost = (clock - self.ns - CATCH_UP_NS).max(0.0);
            self.lost_ns += lost;
            self.ns = (clock - lost).min(self.ns + STEP_NS);
        }
        Instant(Duration::from_nanos(self.ns as u64))
    }

    /// These have left. Whether there are more to come.
    #[inline]
    pub(super) fn send(&mut self, left: &[Departure]) -> bool {
        let bytes = left.iter().map(|departure| u64::from(departure.packet.len)).sum();
        self.count(left.len() as u64, bytes)
    }

    #[inline]
    pub(super) fn count(&mut self, packets: u64, bytes: u64) -> bool {
        let Counted { packets: before, bytes: bytes_before, .. } = self.sent;
        let (ns, lost_ns) = (self.ns, self.lost_ns);
        self.sent = Counted { packets: before + packets, bytes: bytes_before + bytes, ns, lost_ns };
        self.more = packets == BATCH as u64;
        let (late, more) = if self.start.is_some() {
            let warm = WARM_UP.as_nanos() as f64;
            (self.ns >= warm, self.ns < warm + COUNTED.as_nanos() as f64)
        } else {
            let busy = bytes as f64 * self.ns_per_byte;
            // If fewer may leave, it is asked again when others might.
            self.ns += if packets == BATCH as u64 { busy } else { busy.max(self.batch_ns) };
            (self.sent.packets >= self.half, self.sent.packets < self.packets)
        };
        if late && self.late_from.is_none() {
            self.late_from = Some(self.sent);
        }
        more
    }

    /// Whether the counted part has begun with the last batch: bytes of users are to be noted.
    #[inline]
    pub(super) fn began(&self) -> bool {
        self.late_from.is_some_and(|from| from.packets == self.sent.packets)
    }

    /// Nothing waits for this moment, as all is on its way here: it has not passed.
    #[inline]
    pub(super) fn wait(&mut self, turns: &mut u32) {
        if self.start.is_none() {
            self.ns -= self.batch_ns;
        }
        wait(turns);
    }

    pub(super) fn played(&self, seconds: f64, had: f64) -> PlayTiming {
        let from = self.late_from.unwrap_or_default();
        let late_bytes = self.sent.bytes - from.bytes;
        // Lost real time is time in which nothing left.
        let late_ns = self.sent.ns - from.ns + self.sent.lost_ns - from.lost_ns;
        // In real time, what was counted; else all.
        let real = self.start.is_some();
        PlayTiming {
            seconds: if real { late_ns / 1e9 } else { seconds },
            sent: if real { self.sent.packets - from.packets } else { self.sent.packets },
            bytes: if real { late_bytes } else { self.sent.bytes },
            late_bytes,
            late_ns,
            had,
            lost_ns: self.lost_ns,
            ..PlayTiming::default()
        }
    }
}

/// Bytes that left by user, at the beginning of the counted part and at its end.
#[derive(Default)]
pub(super) struct Fairness(pub(super) Vec<u64>);

impl Fairness {
    pub(super) fn note(&mut self, users: u32, bytes: impl Fn(ClassId) -> u64) {
        self.0 = (0..users).map(|user| bytes(ClassId(user))).collect();
    }

    /// By how much of it the user is off that is farthest from what it is assured of.
    pub(super) fn worst(&self, scenario: &Scenario, seconds: f64, bytes: impl Fn(ClassId) -> u64) -> f64 {
        let error = |(user, from): (u32, &u64)| {
            let sent = (bytes(ClassId(user)) - from) as f64 * 8.0 / seconds;
            (sent / rates(scenario, user).0.bits_per_sec() as f64 - 1.0).abs()
        };
        (0..).zip(&self.0).map(error).fold(0.0, f64::max)
    }
}

/// The enqueue stage of two: `next` is called until the other has ended; whether it had anything to do.
/// How long that took without waiting, and how many it did.
pub(super) fn enqueue_stage(done: &AtomicBool, mut next: impl FnMut() -> u64) -> (Duration, u64) {
    let (mut busy, mut did, mut turns) = (Duration::ZERO, 0, 0);
    while !done.load(Ordering::Relaxed) {
        let start = Clock::now();
        match next() {
            0 => wait(&mut turns),
            packets => {
                busy += start.elapsed();
                (did, turns) = (did + packets, 0);
            }
        }
    }
    (busy, did)
}

/// Ends the enqueue stage also if the dequeue stage panics.
pub(super) struct Done<'a>(pub(super) &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The play of two stages: the dequeue stage's time, without its waiting.
pub(super) fn of_two(
    wire: &Wire,
    (busy, did): (Duration, u64),
    idle: Duration,
    (seconds, had): (f64, f64),
) -> PlayTiming {
    let played = wire.played(seconds, had);
    PlayTiming {
        enqueue_ns: busy.as_secs_f64() * 1e9 / did.max(1) as f64,
        dequeue_ns: (seconds - idle.as_secs_f64()) * 1e9 / wire.sent.packets.max(1) as f64,
        ..played
    }
}
