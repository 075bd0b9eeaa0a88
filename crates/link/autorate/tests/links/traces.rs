//! Links whose rate changes, as made traces: one rate in Mbit/s for each millisecond, and the path's round
//! trip without a queue.

/// A made link.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    /// Mbit/s in each millisecond.
    pub(crate) rate: Vec<f64>,
    /// Milliseconds, in each millisecond.
    pub(crate) base: Vec<u32>,
}

impl Trace {
    fn steady(name: &'static str, rate: Vec<f64>, base: u32) -> Trace {
        let base = vec![base; rate.len()];
        Trace { name, rate, base }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.rate.iter().sum::<f64>() / self.rate.len() as f64
    }

    /// The mean of the lowest tenth of seconds.
    pub(crate) fn low(&self) -> f64 {
        let mut seconds: Vec<f64> =
            self.rate.chunks(1_000).map(|ms| ms.iter().sum::<f64>() / ms.len() as f64).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 10]
    }
}

/// A link that carries `mbit` all the time.
pub(crate) fn constant(mbit: f64, seconds: usize) -> Trace {
    Trace::steady("constant", vec![mbit; seconds * 1_000], 20)
}

/// A line that trains again every 30 s: 20, 12, 20 and 16 Mbit/s.
pub(crate) fn dsl() -> Trace {
    let rate = [20.0, 12.0, 20.0, 16.0].iter().flat_map(|mbit| std::iter::repeat_n(*mbit, 30_000));
    Trace::steady("DSL", rate.collect(), 20)
}

/// A new slot at 12, 27, 42 and 57 s of each minute, with another level, another path and a gap.
pub(crate) fn starlink(seed: u64) -> Trace {
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

/// The logarithm of the rate is a first-order autoregression of 1 s and sigma 0.63, granted in steps of 5 ms,
/// with an outage of 0.1 to 0.8 s each 20 s.
pub(crate) fn lte(seed: u64) -> Trace {
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
