//! Links whose rate changes, as made traces: one rate in Mbit/s for each millisecond, and the path's round
//! trip without a queue.

use serde::{Deserialize, Serialize};

/// A kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// A line that trains again every 30 s, at 10 to 20 Mbit/s.
    Dsl,
    /// A new slot at 12, 27, 42 and 57 s of each minute, with another level, another path and a gap.
    Starlink,
    /// The logarithm of the rate is a first-order autoregression of 1 s and sigma 0.63, in steps of 5 ms. An
    /// outage of 0.1 to 0.8 s comes each 20 s.
    Lte,
}

impl Link {
    /// A made trace of 120 s.
    #[must_use]
    pub fn trace(self, seed: u64) -> Trace {
        match self {
            Link::Dsl => dsl(seed),
            Link::Starlink => starlink(seed),
            Link::Lte => lte(seed),
        }
    }
}

/// A made link.
pub struct Trace {
    /// The kind's name.
    pub name: &'static str,
    /// Mbit/s in each millisecond.
    pub rate: Vec<f64>,
    /// Milliseconds, in each millisecond.
    pub base: Vec<u32>,
}

impl Trace {
    fn steady(name: &'static str, rate: Vec<f64>, base: u32) -> Trace {
        let base = vec![base; rate.len()];
        Trace { name, rate, base }
    }

    /// The same link with each rate this often.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Trace {
        self.rate.iter_mut().for_each(|mbit| *mbit *= factor);
        self
    }

    /// The mean rate, Mbit/s.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.rate.iter().sum::<f64>() / self.rate.len() as f64
    }

    /// The mean of the lowest second, Mbit/s.
    #[must_use]
    pub fn minimum(&self) -> f64 {
        let seconds = self.rate.chunks(1_000).map(|ms| ms.iter().sum::<f64>() / ms.len() as f64);
        seconds.fold(f64::MAX, f64::min)
    }
}

/// A link that carries `mbit` all the time.
#[must_use]
pub fn constant(mbit: f64, seconds: usize) -> Trace {
    Trace::steady("constant", vec![mbit; seconds * 1_000], 20)
}

fn dsl(seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let rate = (0..4).flat_map(|_| std::iter::repeat_n(10.0 + 10.0 * random.f64(), 30_000));
    Trace::steady("DSL", rate.collect(), 20)
}

fn starlink(seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rate, mut base) = (Vec::new(), Vec::new());
    let (mut level, mut path, mut gap_until) = (17.0, 34, 0);
    for ms in 0..120_000 {
        if (ms + 3_000) % 15_000 == 0 {
            level = 17.0 * (0.45 + 1.1 * random.f64());
            path = random.u32(24..=44);
            gap_until = ms + random.usize(30..120);
        }
        rate.push(if ms < gap_until { 0.0 } else { level * (0.9 + 0.2 * random.f64()) });
        base.push(path);
    }
    Trace { name: "Starlink-like", rate, base }
}

fn lte(seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let keeps = (-5.0_f64 / 1_000.0).exp();
    let (mut x, mut rate, mut out_until) = (0.0_f64, Vec::new(), 0);
    for step in 0..24_000 {
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        x = x * keeps + 0.63 * (1.0 - keeps * keeps).sqrt() * normal;
        if step % 4_000 == 2_000 {
            out_until = step + random.usize(20..160);
        }
        let mbit = if step < out_until { 0.0 } else { 9.6 * (x - 0.2).exp() };
        rate.extend(std::iter::repeat_n(mbit, 5));
    }
    Trace::steady("LTE-like", rate, 40)
}
