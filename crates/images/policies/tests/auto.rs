//! The cost of `auto` beside LRU and beside the policy it begins with.

mod common;

use std::collections::VecDeque;

use common::{SplitMix, blob, second};
use weir_cache::{
    Access, Cache, PolicyKind,
    generate::{ZONES, Zone, generate},
    simulate::{Setup, Sharing, TimeModel, simulate},
};
use weir_units::Bytes;

/// Fetch time, s, that a policy leaves of requests, each an id and a size.
fn fetch_s(kind: PolicyKind, budget: u64, requests: &[(u64, u64)]) -> f64 {
    let mut cache = Cache::new(kind, Bytes(budget));
    // A day between two requests of a small node: time alone decides nothing.
    let missed = (0..).zip(requests).filter_map(|(at, (id, size))| {
        let blob = blob(*id, *size);
        (cache.request(blob, second(at * 86_400)) != Access::Hit).then_some(blob.fetch.as_secs_f64())
    });
    missed.sum()
}

/// Requests of new tags of `layers` blobs each, pulled three times within the next few and never again.
fn builds(rng: &mut SplitMix, from: u64, count: usize) -> Vec<(u64, u64)> {
    let (mut requests, mut due, mut next) = (Vec::new(), VecDeque::new(), from);
    while requests.len() < count {
        let size = 100_000.0 * 500f64.powf(rng.unit());
        next += 1;
        due.push_back((next, size as u64));
        requests.push((next, size as u64));
        if due.len() > 20 {
            let old = due.pop_front().unwrap();
            requests.extend([old, *due.front().unwrap()]);
        }
    }
    requests.truncate(count);
    requests
}

/// Requests of old favourites: the popularity of the blob of rank r falls as 1 / r.
fn favourites(rng: &mut SplitMix, count: usize) -> Vec<(u64, u64)> {
    let one = |_| {
        let rank = 2000f64.powf(rng.unit()) as u64;
        (rank, (100_000.0 * 500f64.powf(SplitMix(rank).unit())) as u64)
    };
    (0..count).map(one).collect()
}

/// A registry of builds, favourites before builds, and both in turn.
fn adversaries(seed: u64) -> [(&'static str, Vec<(u64, u64)>); 4] {
    let mut rng = SplitMix(seed);
    let short = builds(&mut rng, 1 << 30, 3_000);
    let long = builds(&mut rng, 1 << 20, 30_000);
    let then = [favourites(&mut rng, 10_000), builds(&mut rng, 1 << 20, 20_000)].concat();
    let turns = (0..6).flat_map(|turn| {
        if turn % 2 == 0 { favourites(&mut rng, 5_000) } else { builds(&mut rng, turn << 20, 5_000) }
    });
    let turns: Vec<_> = turns.collect();
    [
        ("builds, 3,000", short),
        ("builds, 30,000", long),
        ("favourites, then builds", then),
        ("in turn", turns),
    ]
}

/// The policy that `auto` begins with takes 1.8 times as long of builds, and `auto` leaves it in time.
#[test]
fn auto_stays_within_two_per_cent_of_lru_of_adversaries() {
    let mut worst_ghost = 0.0_f64;
    for seed in 1..=if cfg!(debug_assertions) { 1 } else { 3 } {
        for (name, requests) in adversaries(seed) {
            for budget in [100_000_000, 300_000_000, 600_000_000] {
                let lru = fetch_s(PolicyKind::Lru, budget, &requests);
                let [auto, ghost] = [PolicyKind::Auto, PolicyKind::GdsfGhost]
                    .map(|kind| fetch_s(kind, budget, &requests) / lru);
                let case = format!("{name}, seed {seed}, {} MB", budget / 1_000_000);
                println!("{case}: auto {auto:.3}, gdsf-ghost {ghost:.3} of LRU's {lru:.0} s");
                assert!(auto <= 1.02, "{case}: {auto:.3} of LRU's {lru:.0} s");
                worst_ghost = worst_ghost.max(ghost);
            }
        }
    }
    assert!(worst_ghost > 1.5, "these are no adversaries: {worst_ghost:.3}");
}

/// Parts of LRU's fetch time that `auto` and the policy it begins with leave of a zone's beginning.
fn of_lru(zone: &Zone, seed: u64, deployments: usize, part: f64) -> [f64; 2] {
    let trace = generate(zone, deployments.min(zone.deployments as usize), seed);
    let budget = Bytes((trace.working_set().0 as f64 * part) as u64);
    let fetch_s = |policy| {
        let setup = Setup { nodes: 1, sharing: Sharing::Shared, budget, policy, time: TimeModel::PAPER };
        simulate(&trace, setup, 0).fetch_s
    };
    let lru = fetch_s(PolicyKind::Lru);
    let of = [PolicyKind::Auto, PolicyKind::GdsfGhost].map(|policy| fetch_s(policy) / lru);
    println!("ZONE {} {seed} {deployments} {part}: auto {:.3} ghost {:.3}", zone.name, of[0], of[1]);
    of
}

/// About 3,000 requests are what a small node has in its first months, and a slice of a published trace.
#[test]
fn auto_saves_what_its_first_policy_saves_from_the_start() {
    let (mut saved, mut could) = (0.0, 0.0);
    for (zone, seed) in ZONES.iter().flat_map(|zone| [401, 402, 403].map(|seed| (zone, seed))) {
        let [auto, ghost] = of_lru(zone, seed, 300, 0.05);
        assert!(auto < 0.95, "{} {seed}: {auto:.3} of LRU's time", zone.name);
        saved += (1.0 - auto) / 21.0;
        could += (1.0 - ghost) / 21.0;
    }
    println!("auto saves {:.1} % of LRU's time, gdsf-ghost {:.1} %", saved * 100.0, could * 100.0);
    assert!(saved > 0.85 * could, "{saved:.3} of LRU's time are saved, {could:.3} could be");
}

/// `WEIR_DEPLOYMENTS=25000 cargo test --release -p weir-cache --test auto -- --nocapture zones`
#[test]
fn auto_stays_within_two_per_cent_of_lru_in_all_zones() {
    let deployments = std::env::var("WEIR_DEPLOYMENTS").map_or(1_000, |text| text.parse().unwrap());
    for (nth, zone) in (0..).zip(&ZONES) {
        for part in [0.02, 0.05, 0.2, 0.5] {
            let [auto, _] = of_lru(zone, 501 + nth, deployments, part);
            assert!(auto <= 1.02, "{} at {part}: {auto:.3} of LRU's time", zone.name);
        }
    }
}
