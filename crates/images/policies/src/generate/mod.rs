//! Traces made from a seed, like those of the IBM registry.

mod sizes;
mod zones;

use std::time::Duration;

use weir_units::Bytes;

pub use zones::{FORGETFUL, ZONES, Zone};

use crate::{
    rng::{SplitMix, Zipf},
    trace::{Deployment, Trace},
};
use sizes::{Role, size};

/// A repository and what its newest image is made of.
#[derive(Debug, Clone)]
struct Repository {
    base: usize,
    middle: Vec<u32>,
    top: Vec<u32>,
    image: u32,
}

/// The seed of a trace.
struct Growth {
    rng: SplitMix,
    trace: Trace,
    bases: Vec<Option<Box<[u32]>>>,
    base_rank: Zipf,
}

impl Growth {
    fn layers(&mut self, role: Role, low: u64, high: u64) -> Vec<u32> {
        let count = self.rng.between(low, high);
        (0..count)
            .map(|_| {
                self.trace.blobs.push(Bytes(size(role, &mut self.rng)));
                self.trace.blobs.len() as u32 - 1
            })
            .collect()
    }

    fn image(&mut self, base: usize, middle: &[u32], top: &[u32]) -> u32 {
        let below = self.bases[base].as_ref().expect("made before its images");
        let all: Vec<u32> = below.iter().chain(middle).chain(top).copied().collect();
        self.trace.images.push(all.into());
        self.trace.images.len() as u32 - 1
    }

    fn repository(&mut self) -> Repository {
        let base = self.base_rank.draw(&mut self.rng);
        if self.bases[base].is_none() {
            self.bases[base] = Some(self.layers(Role::Base, 2, 5).into());
        }
        let (middle, top) = (self.layers(Role::Middle, 1, 3), self.layers(Role::Top, 2, 6));
        let image = self.image(base, &middle, &top);
        Repository { base, middle, top, image }
    }

    /// A new version: new tops, and seldom new middles.
    fn renew(&mut self, repository: &mut Repository) {
        if self.rng.chance(0.15) {
            repository.middle = self.layers(Role::Middle, 1, 3);
        }
        repository.top = self.layers(Role::Top, 2, 6);
        repository.image = self.image(repository.base, &repository.middle, &repository.top);
    }
}

/// Makes the first `deployments` of a zone. The same seed makes the same trace.
#[must_use]
pub fn generate(zone: &Zone, deployments: usize, seed: u64) -> Trace {
    let mut growth = Growth {
        rng: SplitMix::new(seed),
        trace: Trace::default(),
        bases: vec![None; zone.bases],
        base_rank: Zipf::new(zone.bases, 1.0),
    };
    let mut repositories: Vec<Option<Repository>> = vec![None; zone.repositories];
    let popularity = Zipf::new(zone.repositories, zone.popularity);
    let activity = Zipf::new(zone.clients, 0.7);
    let mean = Duration::from_secs(u64::from(zone.days) * 86_400).div_f64(zone.deployments as f64);
    let mut at = Duration::ZERO;
    while growth.trace.deployments.len() < deployments {
        at += growth.rng.gap(mean).div_f64(busyness(at));
        let repository = popularity.draw(&mut growth.rng);
        let mut updated = false;
        let image = match &mut repositories[repository] {
            Some(known) => {
                updated = growth.rng.chance(zone.update);
                if updated {
                    growth.renew(known);
                }
                known.image
            }
            unknown => unknown.insert(growth.repository()).image,
        };
        // A new version is rolled out: many clients, seconds apart.
        let clients = if updated && growth.rng.chance(zone.rollout) { growth.rng.between(5, 50) } else { 1 };
        for _ in 0..clients {
            let client = activity.draw(&mut growth.rng) as u32;
            growth.trace.deployments.push(Deployment { at, image, client });
            at += if clients > 1 { growth.rng.gap(Duration::from_secs(2)) } else { Duration::ZERO };
        }
    }
    growth.trace.first(deployments)
}

/// How much busier than on average it is: by day more than by night, and less at weekends. The trace
/// begins on a Tuesday at midnight.
fn busyness(at: Duration) -> f64 {
    let hours = at.as_secs_f64() / 3600.0;
    let weekend = matches!((hours / 24.0) as u64 % 7, 4 | 5);
    let day = 1.0 + 0.4 * ((hours / 24.0 - 0.375) * std::f64::consts::TAU).sin();
    day * if weekend { 0.6 } else { 1.16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Set;

    #[test]
    fn the_same_seed_makes_the_same_trace_and_another_one_another() {
        let trace = generate(&ZONES[0], 500, 7);
        assert_eq!(trace, generate(&ZONES[0], 500, 7));
        assert_ne!(trace, generate(&ZONES[0], 500, 8));
        assert_eq!(trace.deployments.len(), 500);
        assert!(trace.deployments.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert_eq!(generate(&ZONES[0], 0, 7).deployments, []);
    }

    #[test]
    fn a_zone_is_as_large_as_published_and_asks_as_often() {
        let zone = ZONES.iter().find(|zone| zone.name == "syd").unwrap();
        let trace = generate(zone, zone.deployments as usize, 1);
        let working_set = trace.working_set().0 as f64 / 1e9 / zone.working_set_gb as f64;
        assert!((0.85..1.15).contains(&working_set), "{working_set}");
        // Fetches of clients that keep all layers, and of the others.
        let (mut kept, mut gets, mut bytes, mut large, mut small) = (Set::default(), 0.0, 0.0, 0.0, 0.0);
        for deployment in &trace.deployments {
            for blob in &*trace.images[deployment.image as usize] {
                let again = crate::trace::forgets(deployment.client, FORGETFUL);
                if again || kept.insert((deployment.client, *blob)) {
                    let size = trace.blobs[*blob as usize].0 as f64;
                    gets += 1.0;
                    bytes += size;
                    large += if size > 64.0 * 1024.0 * 1024.0 { 1.0 } else { 0.0 };
                    small += if size < 1e6 { 1.0 } else { 0.0 };
                }
            }
        }
        // Published: 14.4 MB on average, 6 % above 64 MiB, about 68 % below 1 MB.
        let published = gets / zone.blob_gets as f64;
        assert!((0.85..1.15).contains(&published), "{published}");
        assert!((10.5e6..16e6).contains(&(bytes / gets)), "{}", bytes / gets);
        assert!((0.035..0.075).contains(&(large / gets)), "{}", large / gets);
        assert!((0.64..0.74).contains(&(small / gets)), "{}", small / gets);
    }

    #[test]
    fn a_rollout_is_many_clients_within_seconds() {
        let zone = Zone { update: 1.0, rollout: 1.0, ..ZONES[0] };
        let trace = generate(&zone, 5000, 1);
        let close = trace.deployments.windows(2).filter(|pair| {
            pair[0].image == pair[1].image && pair[1].at - pair[0].at < Duration::from_secs(30)
        });
        assert!(close.count() > 4000);
    }
}
