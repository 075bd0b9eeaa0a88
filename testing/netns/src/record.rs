//! The arrivals of several flows, recorded while they run.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_testkit::{Stalls, set_realtime};

use crate::Stream;

/// Between two looks, unless said otherwise.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long traffic may need to come back after the machine has stood still.
const RECOVERY: Duration = Duration::from_millis(200);

/// When it was looked, and how many bytes of each flow had arrived until then.
pub type Sample = (Instant, Vec<u64>);

/// Looks at flows, ten times a second unless said otherwise, from now until it is dropped.
#[derive(Debug)]
pub struct Record {
    samples: Arc<Mutex<Vec<Sample>>>,
    stalls: Stalls,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Record {
    /// Begins to look; flows are known by their place in the list.
    #[must_use]
    pub fn of(streams: &[&Stream]) -> Record {
        Record::every(INTERVAL, streams)
    }

    /// The same with another interval between two looks.
    #[must_use]
    pub fn every(interval: Duration, streams: &[&Stream]) -> Record {
        let counters: Vec<Arc<AtomicU64>> = streams.iter().map(|s| s.received.clone()).collect();
        let (samples, stop) = (Arc::<Mutex<Vec<Sample>>>::default(), Arc::<AtomicBool>::default());
        let (written, ended) = (samples.clone(), stop.clone());
        let thread = thread::spawn(move || {
            set_realtime();
            while !ended.load(Ordering::Relaxed) {
                let sample = (Instant::now(), counters.iter().map(|c| c.load(Ordering::Relaxed)).collect());
                written.lock().expect("nobody panics with it").push(sample);
                thread::sleep(interval);
            }
        });
        Record { samples, stalls: Stalls::watch(), stop, thread: Some(thread) }
    }

    /// The looks between two moments.
    ///
    /// # Panics
    /// If the thread that looks has.
    #[must_use]
    pub fn between(&self, from: Instant, to: Instant) -> Vec<Sample> {
        let samples = self.samples.lock().expect("nobody panics with it");
        samples.iter().filter(|s| s.0 >= from && s.0 <= to).cloned().collect()
    }

    /// The first look at which more than `bytes` of a flow had arrived since `from`.
    #[must_use]
    pub fn arrived(&self, flow: usize, from: Instant, bytes: u64) -> Option<Instant> {
        let samples = self.samples.lock().expect("nobody panics with it");
        let before = samples.iter().rev().find(|s| s.0 <= from).map_or(0, |s| s.1[flow]);
        samples.iter().find(|s| s.0 > from && s.1[flow] > before + bytes).map(|s| s.0)
    }

    /// The last look before which something of a flow arrived.
    #[must_use]
    pub fn ended(&self, flow: usize) -> Option<Instant> {
        let samples = self.samples.lock().expect("nobody panics with it");
        samples.windows(2).rev().find(|w| w[1].1[flow] > w[0].1[flow]).map(|w| w[1].0)
    }

    /// Mean payload rate of a flow between two moments, Mbit/s; zero if they are too close.
    #[must_use]
    pub fn goodput(&self, flow: usize, from: Instant, to: Instant) -> f64 {
        let samples = self.between(from, to);
        match samples.as_slice() {
            [first, .., last] => rate(first, last, flow),
            _ => 0.0,
        }
    }

    /// The lowest payload rate of a flow from one look to the next between two moments, Mbit/s: of those
    /// in which the machine itself did not stand still, if that are three of four.
    #[must_use]
    pub fn lowest(&self, flow: usize, from: Instant, to: Instant) -> f64 {
        let samples = self.between(from, to);
        let stopped = |w: &[Sample]| self.stalls.longest(w[0].0 - RECOVERY, w[1].0);
        let all: Vec<&[Sample]> = samples.windows(2).collect();
        let mut judged: Vec<&[Sample]> = all.iter().copied().filter(|w| stopped(w).is_none()).collect();
        if judged.len() < all.len() {
            let longest = all.iter().filter_map(|w| stopped(w)).max().unwrap_or_default();
            println!(
                "(the machine stood still for {longest:?}: {} of {} looks count)",
                judged.len(),
                all.len()
            );
        }
        if judged.len() * 4 < all.len() * 3 {
            judged = all;
        }
        judged.iter().map(|w| rate(&w[0], &w[1], flow)).fold(f64::INFINITY, f64::min)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn rate(a: &Sample, b: &Sample, flow: usize) -> f64 {
    (b.1[flow] - a.1[flow]) as f64 * 8e-6 / (b.0 - a.0).as_secs_f64()
}
