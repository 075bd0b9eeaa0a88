//! The jobs of a scenario, drawn from a seed.

use std::time::Duration;

use weir_netlab::stats::SplitMix;

use super::scenario::{Point, Scenario};

/// A client's job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Job {
    /// Its start, counted from the start of the measurement.
    pub(crate) start: Duration,
    /// Its volume, bytes.
    pub(crate) volume: u64,
    /// Whether it is one of [`Scenario::small`].
    pub(crate) small: bool,
}

/// The jobs of a seed: the clients' jobs, which begin at once, then the small ones.
///
/// The number of small jobs gives the requested share of all jobs. They begin while the slowest link would
/// still be busy with the others. Volumes and starts are the same for all algorithms and for all links of
/// equal rate.
#[must_use]
pub(crate) fn jobs(scenario: &Scenario, point: Option<Point>, seed: u64) -> Vec<Job> {
    // Without a first step, neighbouring seeds give nearby positions in SplitMix's sequence.
    let mut rng = SplitMix::new(SplitMix::new(seed).next_u64());
    let mut unit = move || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let [low, high] = scenario.volume.map(|bytes| bytes.0 as f64 * scenario.scale);
    let mut jobs: Vec<Job> = (0..scenario.clients)
        .map(|_| {
            let volume = (low + (high - low) * unit()).round() as u64;
            Job { start: Duration::ZERO, volume: volume.max(1), small: false }
        })
        .collect();
    let share = scenario.small_share(point);
    let Some(small) = scenario.small.filter(|_| share > 0.0) else { return jobs };
    let total: u64 = jobs.iter().map(|job| job.volume).sum();
    let rate = scenario.edge.rate.min(scenario.cloud.rate).bits_per_sec();
    let busy = total as f64 * 8.0 / rate as f64;
    let [low, high] = small.volume.map(|bytes| (bytes.0 as f64).ln());
    let count = (scenario.clients as f64 * share / (1.0 - share)).round() as usize;
    jobs.extend((0..count).map(|_| {
        let volume = (low + (high - low) * unit()).exp().round() as u64;
        Job { start: Duration::from_secs_f64(unit() * busy), volume, small: true }
    }));
    jobs
}

#[cfg(test)]
mod tests {
    use super::{super::scenario::tests::scenario, *};

    #[test]
    fn a_seed_gives_the_same_jobs_again_and_another_seed_others() {
        let scenario = scenario("ecc-sweep");
        let point = *scenario.points().last().unwrap();
        assert_eq!(jobs(&scenario, point, 3), jobs(&scenario, point, 3));
        assert_ne!(jobs(&scenario, point, 3), jobs(&scenario, point, 4));
    }

    #[test]
    fn the_clients_volumes_are_the_papers_and_are_spread_evenly() {
        let scenario = Scenario { scale: 1.0, ..scenario("ecc-cubic") };
        let all: Vec<Job> = (0..100).flat_map(|seed| jobs(&scenario, None, seed)).collect();
        assert_eq!(all.len(), 1600);
        assert!(all.iter().all(|job| (1_000_000..=100_000_000).contains(&job.volume)));
        let mean = all.iter().map(|job| job.volume as f64).sum::<f64>() / 1600.0;
        // The mean's standard error is 28.6 MB / 40.
        assert!((mean - 50.5e6).abs() < 3.0e6, "{mean}");
    }

    #[test]
    fn small_jobs_are_the_asked_share_and_begin_while_the_others_go_on() {
        let scenario = scenario("ecc-sweep");
        let all = scenario.points();
        let point = all.iter().copied().find(|p| p.unwrap().small_share == 0.9).unwrap();
        let jobs = jobs(&scenario, point, 1);
        let (small, long): (Vec<Job>, Vec<Job>) = jobs.iter().partition(|job| job.small);
        assert_eq!((long.len(), small.len()), (scenario.clients, scenario.clients * 9));
        let bits: f64 = long.iter().map(|job| job.volume as f64 * 8.0).sum();
        let busy = bits / scenario.cloud.rate.bits_per_sec() as f64;
        let [low, high] = scenario.small.unwrap().volume;
        for job in small {
            assert!(job.start.as_secs_f64() <= busy && (low.0..=high.0).contains(&job.volume), "{job:?}");
        }
    }
}
