//! The trace through the scheduler, in each form: batches of frames arrive in virtual time, a little
//! faster than the link lets go, so that queues fill up and what is too much is refused; after each
//! batch leaves what may. Nothing waits for a real clock. Most leaves have a packet or two, so that each
//! packet that leaves is a turn of its own, and often its leaf's last.

use std::{
    sync::{Mutex, atomic::Ordering},
    time::{Duration, Instant as Clock},
};

use anyhow::{Result, bail};
use weir_htb::{ClassId, Departure, Htb, Next, Packet};
use weir_units::{BitRate, Instant};

use super::{
    cores::{Line, side_by_side, spin, timed, wait},
    fifo::{Dequeuer, Fifo},
    scenario::{Case, Form, LIMIT, PlayTiming, Scenario, link, rates, tree_in_use},
    trace::{Frame, Trace},
};

/// Frames that arrive together.
const BATCH: usize = 64;
/// The load, as a part of the link's rate.
const OFFERED: f64 = 1.06;
/// The most by which the enqueue stage's virtual time is ahead: less than a link saves up.
const LEAD_NS: u64 = 800_000;
/// Virtual time has ended.
const END: u64 = u64::MAX;

/// Counts what leaves.
#[derive(Debug, Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    late_bytes: u64,
    half: u64,
}

impl Sent {
    #[inline]
    fn count(&mut self, ns: u64, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
        if ns >= self.half {
            self.late_bytes += u64::from(len);
        }
    }
}

/// When each batch arrives.
#[derive(Debug, Clone, Copy)]
struct Arrivals {
    ns_per_byte: f64,
    ns: f64,
}

impl Arrivals {
    fn new(link: BitRate) -> Arrivals {
        Arrivals { ns_per_byte: 8e9 / link.bits_per_sec() as f64 / OFFERED, ns: 0.0 }
    }

    #[inline]
    fn after(&mut self, bytes: u64) -> u64 {
        self.ns += bytes as f64 * self.ns_per_byte;
        self.ns as u64
    }
}

fn instant(ns: u64) -> Instant {
    Instant(Duration::from_nanos(ns))
}

/// Plays the trace in one form.
///
/// # Errors
/// If a thread's time cannot be read.
pub(super) fn play(case: Case, scenario: &Scenario, trace: &Trace) -> Result<PlayTiming> {
    let (form, link) = (case.form, link(scenario));
    let end = Arrivals::new(link).after(trace.bytes());
    let (mut played, sent) = match form {
        Form::Single => single(tree_in_use(scenario, scenario.users * LIMIT)?, trace, link, end, false)?,
        Form::Pipeline => pipeline(tree_in_use(scenario, scenario.users * LIMIT)?, trace, link, end)?,
        Form::Lock => lock(tree_in_use(scenario, scenario.users * LIMIT)?, trace, link, end)?,
        Form::Paper => paper(scenario, trace, link, end)?,
        Form::Apart | Form::Shards | Form::Ring | Form::Kernel => {
            bail!("{}: it has no trace of its own, it runs with backlogged leaves only", form.name())
        }
    };
    if form == Form::Single {
        // Its parts, with a clock read after each, which the time of the whole has not.
        let (parts, _) = single(tree_in_use(scenario, scenario.users * LIMIT)?, trace, link, end, true)?;
        (played.enqueue_ns, played.dequeue_ns) = (parts.enqueue_ns, parts.dequeue_ns);
    }
    Ok(PlayTiming {
        sent: sent.packets,
        bytes: sent.bytes,
        late_bytes: sent.late_bytes,
        late_ns: (end - end / 2) as f64,
        ..played
    })
}

#[inline]
fn classified(trace: &Trace, handle: u32, frame: &Frame) -> Option<(ClassId, Packet)> {
    let (leaf, len) = trace.users.classify(frame)?;
    Some((leaf, Packet { handle, len }))
}

fn single(mut htb: Htb, trace: &Trace, link: BitRate, end: u64, parts: bool) -> Result<(PlayTiming, Sent)> {
    let (mut enqueue, mut dequeue) = (Duration::ZERO, Duration::ZERO);
    let mut sent = Sent { half: end / 2, ..Sent::default() };
    let ((), seconds, had) = timed(|| {
        let (mut arrivals, mut left) = (Arrivals::new(link), [Departure::default(); 2 * BATCH]);
        for (batch, frames) in (0u32..).zip(trace.frames.chunks(BATCH)) {
            let start = parts.then(Clock::now);
            let handles = batch * BATCH as u32..;
            let arrived = handles.zip(frames).filter_map(|(i, frame)| classified(trace, i, frame));
            // Refused is dropped.
            htb.enqueue_batch(arrived, |_, _, _| ());
            let bytes = frames.iter().map(|frame| u64::from(frame.on_wire())).sum();
            let ns = arrivals.after(bytes);
            let now = instant(ns);
            let middle = parts.then(Clock::now);
            loop {
                let n = htb.dequeue_batch(now, &mut left);
                left[..n].iter().for_each(|departure| sent.count(ns, departure.packet.len));
                if n < left.len() {
                    break;
                }
            }
            if let (Some(start), Some(middle)) = (start, middle) {
                enqueue += middle - start;
                dequeue += middle.elapsed();
            }
        }
    })?;
    let each = |time: Duration, packets: u64| time.as_secs_f64() * 1e9 / packets.max(1) as f64;
    let played = PlayTiming {
        seconds,
        enqueue_ns: each(enqueue, trace.frames.len() as u64),
        dequeue_ns: each(dequeue, sent.packets),
        had,
        ..PlayTiming::default()
    };
    Ok((played, sent))
}

/// Until when has arrived, and has left, in virtual time.
#[derive(Debug, Default)]
struct Progress {
    arrived: Line,
    left: Line,
}

impl Progress {
    /// The enqueue stage's: tells that all before `ns` has arrived, and waits if it is too far ahead.
    fn arrive(&self, ns: u64) {
        self.arrived.0.store(ns, Ordering::Release);
        let mut turns = 0;
        while ns != END && ns > self.left.0.load(Ordering::Acquire) + LEAD_NS {
            wait(&mut turns);
        }
    }

    /// The dequeue stage's: calls `leave` with each moment until which has arrived. How long that took
    /// without waiting.
    fn follow(&self, mut leave: impl FnMut(u64)) -> Duration {
        let (mut busy, mut last, mut turns) = (Duration::ZERO, 0, 0);
        loop {
            let ns = self.arrived.0.load(Ordering::Acquire);
            if ns == last {
                wait(&mut turns);
                continue;
            }
            if ns == END {
                return busy;
            }
            let start = Clock::now();
            leave(ns);
            busy += start.elapsed();
            (last, turns) = (ns, 0);
            self.left.0.store(ns, Ordering::Release);
        }
    }
}

/// Runs an enqueue stage, which is called with each batch, and a dequeue stage, on a thread and a
/// processor each.
fn stages(
    trace: &Trace,
    link: BitRate,
    mut enqueue: impl FnMut(u32, &[Frame]) + Send,
    dequeue: impl FnMut(u64) + Send,
) -> Result<PlayTiming> {
    let progress = &Progress::default();
    let arriving = || {
        let (mut arrivals, mut busy) = (Arrivals::new(link), Duration::ZERO);
        for (batch, frames) in (0u32..).zip(trace.frames.chunks(BATCH)) {
            let start = Clock::now();
            enqueue(batch * BATCH as u32, frames);
            busy += start.elapsed();
            let bytes = frames.iter().map(|frame| u64::from(frame.on_wire())).sum();
            progress.arrive(arrivals.after(bytes));
        }
        progress.arrive(END);
        busy
    };
    let ((busy, _, enqueue_had), (leaving, seconds, dequeue_had)) =
        side_by_side(arriving, || progress.follow(dequeue))?;
    Ok(PlayTiming {
        seconds,
        enqueue_ns: busy.as_secs_f64() * 1e9 / trace.frames.len().max(1) as f64,
        // Of all, until the number that left is known.
        dequeue_ns: leaving.as_secs_f64() * 1e9,
        had: enqueue_had.min(dequeue_had),
        ..PlayTiming::default()
    })
}

fn per_packet(played: PlayTiming, sent: Sent) -> (PlayTiming, Sent) {
    (PlayTiming { dequeue_ns: played.dequeue_ns / sent.packets.max(1) as f64, ..played }, sent)
}

fn pipeline(htb: Htb, trace: &Trace, link: BitRate, end: u64) -> Result<(PlayTiming, Sent)> {
    let (mut intake, mut outlet) = htb.into_pipeline();
    let mut sent = Sent { half: end / 2, ..Sent::default() };
    let mut left = [Departure::default(); 2 * BATCH];
    let played = stages(
        trace,
        link,
        |first, frames| {
            intake.collect(|_, _| ());
            let arrived = (first..).zip(frames).filter_map(|(i, frame)| classified(trace, i, frame));
            // Refused is dropped.
            intake.enqueue_batch(arrived, |_, _, _| ());
        },
        |ns| loop {
            let n = outlet.dequeue_batch(instant(ns), &mut left);
            left[..n].iter().for_each(|departure| sent.count(ns, departure.packet.len));
            outlet.give_back(&left[..n]);
            if n < left.len() {
                break;
            }
        },
    )?;
    Ok(per_packet(played, sent))
}

fn lock(htb: Htb, trace: &Trace, link: BitRate, end: u64) -> Result<(PlayTiming, Sent)> {
    let htb = Mutex::new(htb);
    let mut sent = Sent { half: end / 2, ..Sent::default() };
    let played = stages(
        trace,
        link,
        |first, frames| {
            for (i, frame) in (first..).zip(frames) {
                if let Some((leaf, packet)) = classified(trace, i, frame) {
                    let _ = spin(&htb).enqueue(leaf, packet);
                }
            }
        },
        |ns| {
            while let Next::Packet(departure) = spin(&htb).dequeue(instant(ns)) {
                sent.count(ns, departure.packet.len);
            }
        },
    )?;
    Ok(per_packet(played, sent))
}

fn paper(scenario: &Scenario, trace: &Trace, link: BitRate, end: u64) -> Result<(PlayTiming, Sent)> {
    let fifos = (0..scenario.users).map(|_| Fifo::new()).collect::<Vec<_>>();
    let mut ends = vec![0; fifos.len()];
    let mut dequeuer = Dequeuer::new(&fifos, |user| rates(scenario, user), link);
    let mut sent = Sent { half: end / 2, ..Sent::default() };
    let played = stages(
        trace,
        link,
        |_, frames| {
            for frame in frames {
                if let Some((leaf, len)) = trace.users.classify(frame) {
                    let i = leaf.0 as usize;
                    fifos[i].push(&mut ends[i], len, 0);
                }
            }
        },
        |ns| {
            dequeuer.dequeue(instant(ns), u32::MAX, |len, _| sent.count(ns, len));
        },
    )?;
    Ok(per_packet(played, sent))
}

/// Output over virtual time, of all users and of one: Mbit/s in each of `windows`, of the first form.
///
/// # Errors
/// If the tree is refused.
pub(super) fn output(
    scenario: &Scenario,
    trace: &Trace,
    windows: usize,
    user: u32,
) -> Result<(f64, Vec<f64>, Vec<f64>)> {
    let (mut htb, link) = (tree_in_use(scenario, scenario.users * LIMIT)?, link(scenario));
    let width = Arrivals::new(link).after(trace.bytes()) as f64 / windows as f64;
    let (mut all, mut one) = (vec![0.0; windows + 1], vec![0.0; windows + 1]);
    let (mut arrivals, mut left) = (Arrivals::new(link), [Departure::default(); BATCH]);
    for frames in trace.frames.chunks(BATCH) {
        for frame in frames {
            if let Some((leaf, packet)) = classified(trace, 0, frame) {
                let _ = htb.enqueue(leaf, packet);
            }
        }
        let ns = arrivals.after(frames.iter().map(|frame| u64::from(frame.on_wire())).sum());
        let window = ((ns as f64 / width) as usize).min(windows);
        loop {
            let n = htb.dequeue_batch(instant(ns), &mut left);
            for departure in &left[..n] {
                let mbit = f64::from(departure.packet.len) * 8e3 / width;
                all[window] += mbit;
                one[window] += mbit * f64::from(u8::from(departure.leaf == ClassId(user)));
            }
            if n < left.len() {
                break;
            }
        }
    }
    // The last is a moment, not a window.
    all.pop();
    one.pop();
    Ok((width / 1e9, all, one))
}

#[cfg(test)]
mod tests {
    use super::super::scenario::tests::scenario;
    use super::*;

    #[test]
    fn of_a_short_trace_the_link_s_rate_leaves_to_a_thousandth() {
        for name in ["phtb-3", "phtb-1600", "phtb-1"] {
            let scenario = scenario(name);
            let trace = Trace::of(&scenario, crate::user_htb::scenario::some(&scenario), 1).unwrap();
            let case =
                Case { form: Form::Single, load: crate::user_htb::Load::Offered, active: scenario.active };
            let played = play(case, &scenario, &trace).unwrap();
            let part =
                played.late_bytes as f64 * 8e9 / (played.late_ns * link(&scenario).bits_per_sec() as f64);
            println!("{name}: {part:.5} of the link");
            assert!((part - 1.0).abs() < 0.001, "{name}: {part:.5}");
        }
    }
}
