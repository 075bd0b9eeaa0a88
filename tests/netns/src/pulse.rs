//! When this machine stood still.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::stream::hurry;

/// Between two beats.
const BEAT: Duration = Duration::from_millis(2);
/// A beat this much late is a stop.
const LATE: Duration = Duration::from_millis(30);

/// Sleeps for a moment, again and again, on every processor and before all other threads, from now
/// until it is dropped: what keeps it from waking keeps packets from moving.
#[derive(Debug)]
pub(crate) struct Pulse {
    stops: Arc<Mutex<Vec<(Instant, Instant)>>>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pulse {
    pub(crate) fn feel() -> Pulse {
        let (stops, end) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let beat = |processor: usize| {
            let (stops, end) = (stops.clone(), end.clone());
            thread::spawn(move || {
                let mut only = CpuSet::new();
                // Where it may not be, it beats on another.
                let _ = only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
                hurry();
                let mut last = Instant::now();
                while !end.load(Ordering::Relaxed) {
                    thread::sleep(BEAT);
                    let now = Instant::now();
                    if now - last > BEAT + LATE {
                        stops.lock().expect("nobody panics with it").push((last, now));
                    }
                    last = now;
                }
            })
        };
        let threads = (0..processors).map(beat).collect();
        Pulse { stops, end, threads }
    }

    /// The longest stop of a processor that has some of it between two moments.
    pub(crate) fn stopped(&self, from: Instant, to: Instant) -> Option<Duration> {
        let stops = self.stops.lock().expect("nobody panics with it");
        stops.iter().filter(|s| s.0 < to && s.1 > from).map(|s| s.1 - s.0).max()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Need, can_run};

    #[test]
    fn a_processor_that_serves_nobody_else_is_a_stop_and_sleep_is_none() {
        if !can_run(&[Need::Rights]) {
            return;
        }
        let pulse = Pulse::feel();
        thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        thread::spawn(|| {
            let mut first = CpuSet::new();
            first.set(0).and_then(|()| sched_setaffinity(Pid::from_raw(0), &first)).expect("there is one");
            let priority = libc::sched_param { sched_priority: 2 };
            // SAFETY: a plain system call on a valid structure; 0 is the calling thread.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
            assert_eq!(set, 0, "above the pulse");
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(120) {}
        })
        .join()
        .expect("it spins");
        let end = Instant::now();
        thread::sleep(Duration::from_millis(20));
        let stopped = pulse.stopped(begin, end).expect("it was felt");
        assert!(stopped >= Duration::from_millis(100), "{stopped:?} of 120 ms");
        let before = begin.checked_sub(Duration::from_secs(1)).expect("the machine is older");
        assert_eq!(pulse.stopped(before, before), None);
    }
}
