//! Processors: a thread on each, how much of it it had, and how far they are from each other.

use std::{
    hint,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant as Clock},
};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use weir_htb::Htb;

/// Time on a processor of the calling thread.
fn on_cpu() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("cannot read a thread's time")?;
    Ok(Duration::from(time))
}

/// Moves the calling thread to the `nth` processor that it may use, if there are as many.
fn pin(nth: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let mut usable = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    if usable.nth(nth).is_some_and(|cpu| one.set(cpu).is_ok()) {
        // Not being allowed to choose costs accuracy only.
        let _ = sched_setaffinity(this, &one);
    }
}

/// The result of a play, its seconds, and the part of them that the thread had.
pub(super) type Timed<T> = (T, f64, f64);

/// Runs `f`.
pub(super) fn timed<T>(f: impl FnOnce() -> T) -> Result<Timed<T>> {
    let (start, cpu) = (Clock::now(), on_cpu()?);
    let result = f();
    let (took, had) = (start.elapsed().as_secs_f64(), (on_cpu()? - cpu).as_secs_f64());
    Ok((result, took, had / took))
}

/// A value of its own line of the cache.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Line(pub(super) AtomicU64);

/// Spins; lets others have the processor after a while, as there may be one only.
pub(super) fn wait(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(4_096) {
        thread::yield_now();
    }
    hint::spin_loop();
}

/// Runs two stages side by side, on a thread and a processor each.
pub(super) fn side_by_side<A: Send, B: Send>(
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> Result<(Timed<A>, Timed<B>)> {
    let (a, b) = thread::scope(|scope| {
        let b = scope.spawn(move || {
            pin(1);
            timed(second)
        });
        let a = scope.spawn(move || {
            pin(0);
            timed(first)
        });
        (a.join(), b.join())
    });
    let gone = |_| anyhow::anyhow!("a stage's thread panicked");
    Ok((a.map_err(gone)??, b.map_err(gone)??))
}

/// As a spin lock, which the kernel's HTB has.
pub(super) fn spin(htb: &Mutex<Htb>) -> MutexGuard<'_, Htb> {
    let mut turns = 0;
    loop {
        if let Ok(guard) = htb.try_lock() {
            return guard;
        }
        if htb.is_poisoned() {
            return htb.lock().unwrap_or_else(PoisonError::into_inner);
        }
        wait(&mut turns);
    }
}

/// A line of the cache from one processor to another and back, ns; none if there is one only, or they
/// had no time for it together.
pub(super) fn round_trip() -> Option<f64> {
    const TRIPS: u64 = 20_000;
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let (line, until) = (Line::default(), Clock::now() + Duration::from_millis(300));
    thread::scope(|scope| {
        let line = &line.0;
        // Waits for `value`, but not beyond `until`.
        let met = move |value: u64| {
            let mut turns = 0u32;
            while line.load(Ordering::Acquire) != value {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(65_536) && Clock::now() > until {
                    return false;
                }
                hint::spin_loop();
            }
            true
        };
        let trips = move |first: bool| {
            pin(usize::from(!first));
            let start = Clock::now();
            for i in 0..TRIPS {
                if first {
                    line.store(2 * i + 1, Ordering::Release);
                }
                if !met(2 * i + 1 + u64::from(first)) {
                    return None;
                }
                if !first {
                    line.store(2 * i + 2, Ordering::Release);
                }
            }
            Some(start.elapsed().as_secs_f64() * 1e9 / TRIPS as f64)
        };
        let other = scope.spawn(move || trips(false));
        let this = scope.spawn(move || trips(true));
        let (this, other) = (this.join().ok()?, other.join().ok()?);
        other.and(this)
    })
}
