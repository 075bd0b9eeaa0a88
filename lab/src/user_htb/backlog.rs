//! Users who always have packets waiting: each packet that leaves is classified and comes again.
//!
//! The literature measures it so (DPDK's `rte_sched`, the paper's saturated link). A leaf sends a turn of
//! several packets. The figure is the scheduler's speed, not how often leaves begin and end.
//!
//! Time is that of the wire, which takes a batch and then the next: virtual, or the real clock.

mod bare;
mod sharded;
mod wire;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64},
    },
    time::{Duration, Instant as Clock},
};

use anyhow::{Context, Result, bail};
use weir_htb::{ClassId, Departure, Htb, Next, Outlet, Packet};
use weir_units::Instant;

use self::wire::{BATCH, Backlog, Done, Fairness, NO_PACKET, PAUSE, enqueue_stage, of_two};
use super::{
    cores::{side_by_side, spin, timed},
    fifo::{self, Dequeuer, Fifo},
    scenario::{Case, Form, Load, PlayTiming, Scenario, rates, tree},
};

/// Plays `packets` packets, or for a while in real time, in one form.
///
/// # Errors
/// If a thread's time cannot be read, or the tree is refused.
pub(super) fn play(case: Case, scenario: &Scenario, packets: u64, seed: u64) -> Result<PlayTiming> {
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
            Ok(PlayTiming { enqueue_ns: each(parts.0), dequeue_ns: each(parts.1), ..played })
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
) -> Result<PlayTiming> {
    let mut htb = tree(scenario, backlog.handles().end)?;
    for (leaf, packet) in backlog.handles().filter_map(|handle| backlog.classified(handle)) {
        htb.enqueue(leaf, packet).with_context(|| format!("scenario {}", scenario.name))?;
    }
    let (mut wire, mut left) = (backlog.wire(1), [Departure::default(); BATCH]);
    let (mut arrived, mut fairness) = ([NO_PACKET; BATCH], Fairness::default());
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
    Ok(PlayTiming { worst: fairness.worst(scenario, played.late_ns / 1e9, bytes_of(&htb)), ..played })
}

fn pipeline(scenario: &Scenario, case: Case, backlog: &Backlog) -> Result<PlayTiming> {
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
    Ok(PlayTiming { worst: fairness.worst(scenario, played.late_ns / 1e9, bytes), ..played })
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

fn lock(scenario: &Scenario, backlog: &Backlog) -> Result<PlayTiming> {
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

fn paper(scenario: &Scenario, backlog: &Backlog) -> Result<PlayTiming> {
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
