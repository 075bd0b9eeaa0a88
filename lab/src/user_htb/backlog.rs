//! Users who always have packets waiting: each packet that leaves is classified and comes again. So it
//! was measured in the literature (DPDK's `rte_sched`, the paper's saturated link): a leaf sends a
//! turn of several packets, and what is measured is the scheduler, not how often leaves begin and end.
//!
//! Time is that of the wire, which takes a batch and then the next: virtual, or the real clock.

mod bare;
mod sharded;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant as Clock},
};

use anyhow::{Context, Result, bail};
use weir_htb::{ClassId, Departure, Htb, Next, Outlet, Packet};
use weir_units::{BitRate, Instant};

use super::{
    cores::{side_by_side, spin, timed, wait},
    fifo::{self, Dequeuer, Fifo},
    scenario::{Case, Form, Load, Played, Scenario, link, rates, tree},
    trace::{Frame, Trace, Users},
};

/// Packets of a batch, as `rte_sched` is asked for.
const BATCH: usize = 64;
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
const PAUSE: Duration = Duration::from_millis(100);

/// The packets of all users.
struct Backlog {
    frames: Vec<Frame>,
    users: Users,
    /// Packets that are to leave; in real time it is a time instead.
    packets: u64,
    link: BitRate,
    ns_per_byte: f64,
    batch_ns: f64,
    real: bool,
}

impl Backlog {
    fn new(case: Case, scenario: &Scenario, packets: u64, seed: u64) -> Backlog {
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
    fn classified(&self, handle: u32) -> Option<(ClassId, Packet)> {
        let (leaf, len) = self.users.classify(self.frames.get(handle as usize)?)?;
        Some((leaf, Packet { handle, len }))
    }

    /// Reads the headers of all that left, which come again, before any is enqueued: so a processor fetches
    /// several of them from memory at once.
    #[inline]
    fn again<'a>(&self, left: &[Departure], arrived: &'a mut Arrived) -> &'a [(ClassId, Packet)] {
        let mut packets = 0;
        for departure in left {
            if let Some(arrival) = self.classified(departure.packet.handle) {
                arrived[packets] = arrival;
                packets += 1;
            }
        }
        &arrived[..packets]
    }

    fn handles(&self) -> std::ops::Range<u32> {
        0..self.frames.len() as u32
    }

    /// The wire of the whole link, or one of `parts` of it.
    fn wire(&self, parts: usize) -> Wire {
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
const NOBODY: (ClassId, Packet) = (ClassId(0), Packet { handle: 0, len: 0 });

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    packets: u64,
    bytes: u64,
    ns: f64,
    lost_ns: f64,
}

/// The packets that leave, and their times: the dequeue stage's.
struct Wire {
    ns: f64,
    ns_per_byte: f64,
    /// How long a batch takes on an average.
    batch_ns: f64,
    /// Of real time.
    start: Option<Clock>,
    /// The clock was ahead by this much more than can be made up for.
    lost_ns: f64,
    /// Of real time: more may leave at this moment.
    more: bool,
    half: u64,
    packets: u64,
    sent: Counted,
    late_from: Option<Counted>,
}

impl Wire {
    /// When the next batch leaves. In real time that is now, or, for who is late, a while after the last
    /// one; and the same moment again while there is more that may leave then.
    #[inline]
    fn now(&mut self) -> Instant {
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
    fn send(&mut self, left: &[Departure]) -> bool {
        let bytes = left.iter().map(|departure| u64::from(departure.packet.len)).sum();
        self.count(left.len() as u64, bytes)
    }

    #[inline]
    fn count(&mut self, packets: u64, bytes: u64) -> bool {
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
    fn began(&self) -> bool {
        self.late_from.is_some_and(|from| from.packets == self.sent.packets)
    }

    /// Nothing waits for this moment, as all is on its way here: it has not passed.
    #[inline]
    fn wait(&mut self, turns: &mut u32) {
        if self.start.is_none() {
            self.ns -= self.batch_ns;
        }
        wait(turns);
    }

    fn played(&self, seconds: f64, had: f64) -> Played {
        let from = self.late_from.unwrap_or_default();
        let late_bytes = self.sent.bytes - from.bytes;
        // Lost real time is time in which nothing left.
        let late_ns = self.sent.ns - from.ns + self.sent.lost_ns - from.lost_ns;
        // In real time, what was counted; else all.
        let real = self.start.is_some();
        Played {
            seconds: if real { late_ns / 1e9 } else { seconds },
            sent: if real { self.sent.packets - from.packets } else { self.sent.packets },
            bytes: if real { late_bytes } else { self.sent.bytes },
            late_bytes,
            late_ns,
            had,
            lost_ns: self.lost_ns,
            ..Played::default()
        }
    }
}

/// Bytes that left by user, at the beginning of the counted part and at its end.
#[derive(Default)]
struct Fairness(Vec<u64>);

impl Fairness {
    fn note(&mut self, users: u32, bytes: impl Fn(ClassId) -> u64) {
        self.0 = (0..users).map(|user| bytes(ClassId(user))).collect();
    }

    /// By how much of it the user is off that is farthest from what it is assured of.
    fn worst(&self, scenario: &Scenario, seconds: f64, bytes: impl Fn(ClassId) -> u64) -> f64 {
        let error = |(user, from): (u32, &u64)| {
            let sent = (bytes(ClassId(user)) - from) as f64 * 8.0 / seconds;
            (sent / rates(scenario, user).0.bits_per_sec() as f64 - 1.0).abs()
        };
        (0..).zip(&self.0).map(error).fold(0.0, f64::max)
    }
}

/// Plays `packets` packets, or for a while in real time, in one form.
///
/// # Errors
/// If a thread's time cannot be read, or the tree is refused.
pub(super) fn play(case: Case, scenario: &Scenario, packets: u64, seed: u64) -> Result<Played> {
    let backlog = Backlog::new(case, scenario, packets, seed);
    if backlog.real {
        std::thread::sleep(PAUSE);
    }
    match case.form {
        Form::Single => {
            let played = single(scenario, case, &backlog, None)?;
            // Its parts, with a clock read after each, which the time of the whole has not.
            let mut parts = (Duration::ZERO, Duration::ZERO);
            let again = single(scenario, case, &backlog, Some(&mut parts))?;
            let each = |time: Duration| time.as_secs_f64() * 1e9 / again.sent.max(1) as f64;
            Ok(Played { enqueue_ns: each(parts.0), dequeue_ns: each(parts.1), ..played })
        }
        Form::Pipeline => pipeline(scenario, case, &backlog),
        Form::Apart => sharded::apart(scenario, &backlog),
        Form::Shards => sharded::shards(scenario, &backlog),
        Form::Ring => bare::ring(&backlog),
        Form::Lock => lock(scenario, &backlog),
        Form::Paper => paper(scenario, &backlog),
        Form::Kernel => bail!("the kernel has its own packets"),
    }
}

fn bytes_of(htb: &Htb) -> impl Fn(ClassId) -> u64 {
    |class| htb.stats(class).map_or(0, |stats| stats.bytes.0)
}

fn single(
    scenario: &Scenario,
    case: Case,
    backlog: &Backlog,
    mut parts: Option<&mut (Duration, Duration)>,
) -> Result<Played> {
    let mut htb = tree(scenario, backlog.handles().end)?;
    for (leaf, packet) in backlog.handles().filter_map(|handle| backlog.classified(handle)) {
        htb.enqueue(leaf, packet).with_context(|| format!("scenario {}", scenario.name))?;
    }
    let (mut wire, mut left) = (backlog.wire(1), [Departure::default(); BATCH]);
    let (mut arrived, mut fairness) = ([NOBODY; BATCH], Fairness::default());
    let ((), seconds, had) = timed(|| {
        loop {
            let start = parts.is_some().then(Clock::now);
            let n = htb.dequeue_batch(wire.now(), &mut left);
            let middle = parts.is_some().then(Clock::now);
            let arrived = backlog.again(&left[..n], &mut arrived);
            // As many have just left there: none is refused.
            htb.enqueue_batch(arrived.iter().copied(), |_, _, _| ());
            if let (Some(parts), Some(start), Some(middle)) = (&mut parts, start, middle) {
                parts.0 += middle.elapsed();
                parts.1 += middle - start;
            }
            if !wire.send(&left[..n]) {
                break;
            }
            if case.load == Load::RealTime && wire.began() && fairness.0.is_empty() {
                fairness.note(case.active, bytes_of(&htb));
            }
        }
    })?;
    let played = wire.played(seconds, had);
    Ok(Played { worst: fairness.worst(scenario, played.late_ns / 1e9, bytes_of(&htb)), ..played })
}

/// The enqueue stage of two: `next` is called until the other has ended; whether it had anything to do.
/// How long that took without waiting, and how many it did.
fn enqueue_stage(done: &AtomicBool, mut next: impl FnMut() -> u64) -> (Duration, u64) {
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
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The play of two stages: the dequeue stage's time, without its waiting.
fn of_two(wire: &Wire, (busy, did): (Duration, u64), idle: Duration, (seconds, had): (f64, f64)) -> Played {
    let played = wire.played(seconds, had);
    Played {
        enqueue_ns: busy.as_secs_f64() * 1e9 / did.max(1) as f64,
        dequeue_ns: (seconds - idle.as_secs_f64()) * 1e9 / wire.sent.packets.max(1) as f64,
        ..played
    }
}

fn pipeline(scenario: &Scenario, case: Case, backlog: &Backlog) -> Result<Played> {
    let (mut intake, mut outlet) = tree(scenario, backlog.handles().end)?.into_pipeline();
    for (leaf, packet) in backlog.handles().filter_map(|handle| backlog.classified(handle)) {
        intake.enqueue(leaf, packet).with_context(|| format!("scenario {}", scenario.name))?;
    }
    let (done, mut back) = (AtomicBool::new(false), Vec::with_capacity(backlog.frames.len()));
    let enqueuing = || {
        enqueue_stage(&done, || {
            back.clear();
            intake.collect(|_, handle| back.push(handle));
            // As many have just left their leaves.
            intake.enqueue_batch(back.iter().filter_map(|handle| backlog.classified(*handle)), |_, _, _| ());
            back.len() as u64
        })
    };
    let mut fairness = Fairness::default();
    let dequeuing = || {
        let _done = Done(&done);
        let (mut wire, mut left) = (backlog.wire(1), [Departure::default(); BATCH]);
        let (mut idle, mut turns) = (Duration::ZERO, 0);
        loop {
            let now = wire.now();
            let mut n = outlet.dequeue_batch(now, &mut left);
            let mut empty = false;
            if n == 0 {
                (n, empty) = one(&mut outlet, now, &mut left);
            }
            outlet.give_back(&left[..n]);
            if !wire.send(&left[..n]) {
                return (wire, idle, outlet);
            }
            if empty {
                let start = Clock::now();
                wire.wait(&mut turns);
                idle += start.elapsed();
            }
            if case.load == Load::RealTime && wire.began() && fairness.0.is_empty() {
                fairness.note(case.active, |class| outlet.stats(class).map_or(0, |stats| stats.bytes.0));
            }
        }
    };
    let ((did, _, enqueue_had), ((wire, idle, outlet), seconds, had)) = side_by_side(enqueuing, dequeuing)?;
    let played = of_two(&wire, did, idle, (seconds, had.min(enqueue_had)));
    let bytes = |class| outlet.stats(class).map_or(0, |stats| stats.bytes.0);
    Ok(Played { worst: fairness.worst(scenario, played.late_ns / 1e9, bytes), ..played })
}

/// Asks whether nothing waits, or only nothing may leave: what has come meanwhile leaves.
#[cold]
fn one(outlet: &mut Outlet, now: Instant, left: &mut [Departure]) -> (usize, bool) {
    match outlet.dequeue(now) {
        Next::Packet(departure) => {
            left[0] = departure;
            (1, false)
        }
        Next::At(_) => (0, false),
        Next::Empty => (0, true),
    }
}

/// A ring for what has left, back to the enqueue stage of the forms that have none of their own.
fn way_back(packets: usize) -> Box<[AtomicU64]> {
    (0..packets.next_power_of_two()).map(|_| AtomicU64::new(0)).collect()
}

/// Enqueues what comes back, until `done`.
fn comes_again(
    ring: &[AtomicU64],
    done: &AtomicBool,
    backlog: &Backlog,
    mut enqueue: impl FnMut(ClassId, Packet),
) -> (Duration, u64) {
    let mut at = 0;
    enqueue_stage(done, || {
        let mut packets = 0;
        while packets < BATCH as u64
            && let Some(word) = fifo::take(ring, &mut at)
        {
            if let Some((leaf, packet)) = backlog.classified(word as u32) {
                enqueue(leaf, packet);
            }
            packets += 1;
        }
        packets
    })
}

/// A handle as a word that is not zero.
fn word(handle: u32) -> u64 {
    1 << 32 | u64::from(handle)
}

fn lock(scenario: &Scenario, backlog: &Backlog) -> Result<Played> {
    let htb = Mutex::new(tree(scenario, backlog.handles().end)?);
    for (leaf, packet) in backlog.handles().filter_map(|handle| backlog.classified(handle)) {
        spin(&htb).enqueue(leaf, packet).with_context(|| format!("scenario {}", scenario.name))?;
    }
    let (ring, done) = (way_back(backlog.frames.len()), AtomicBool::new(false));
    let enqueuing = || {
        comes_again(&ring, &done, backlog, |leaf, packet| {
            let _ = spin(&htb).enqueue(leaf, packet);
        })
    };
    let dequeuing = || {
        let _done = Done(&done);
        let (mut wire, mut at, mut turns) = (backlog.wire(1), 0, 0);
        let mut idle = Duration::ZERO;
        loop {
            let (now, mut packets, mut bytes, mut empty) = (wire.now(), 0, 0, false);
            while packets < BATCH as u64 {
                match spin(&htb).dequeue(now) {
                    Next::Packet(Departure { packet, .. }) => {
                        fifo::put(&ring, &mut at, word(packet.handle));
                        (packets, bytes) = (packets + 1, bytes + u64::from(packet.len));
                    }
                    Next::At(_) => break,
                    Next::Empty => {
                        empty = packets == 0;
                        break;
                    }
                }
            }
            if !wire.count(packets, bytes) {
                return (wire, idle);
            }
            if empty {
                let start = Clock::now();
                wire.wait(&mut turns);
                idle += start.elapsed();
            }
        }
    };
    let ((did, _, enqueue_had), ((wire, idle), seconds, had)) = side_by_side(enqueuing, dequeuing)?;
    Ok(of_two(&wire, did, idle, (seconds, had.min(enqueue_had))))
}

fn paper(scenario: &Scenario, backlog: &Backlog) -> Result<Played> {
    let fifos = (0..scenario.users).map(|_| Fifo::new()).collect::<Vec<_>>();
    let mut ends = vec![0; fifos.len()];
    let mut push = |leaf: ClassId, packet: Packet| {
        let i = leaf.0 as usize;
        fifos[i].push(&mut ends[i], packet.len, packet.handle);
    };
    backlog
        .handles()
        .filter_map(|handle| backlog.classified(handle))
        .for_each(|(leaf, packet)| push(leaf, packet));
    let (ring, done) = (way_back(backlog.frames.len()), AtomicBool::new(false));
    let mut dequeuer = Dequeuer::new(&fifos, |user| rates(scenario, user), backlog.link);
    let enqueuing = || comes_again(&ring, &done, backlog, push);
    let dequeuing = || {
        let _done = Done(&done);
        let (mut wire, mut at) = (backlog.wire(1), 0);
        loop {
            let (now, mut bytes) = (wire.now(), 0);
            let packets = dequeuer.dequeue(now, BATCH as u32, |len, handle| {
                fifo::put(&ring, &mut at, word(handle));
                bytes += u64::from(len);
            });
            if !wire.count(packets.into(), bytes) {
                return wire;
            }
        }
    };
    let ((did, _, enqueue_had), (wire, seconds, had)) = side_by_side(enqueuing, dequeuing)?;
    Ok(of_two(&wire, did, Duration::ZERO, (seconds, had.min(enqueue_had))))
}
