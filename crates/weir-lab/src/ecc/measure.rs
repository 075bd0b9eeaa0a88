//! Measures here, in this kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

use super::{
    Algorithm, Case, Place, Point, Scenario, jobs,
    network::Network,
    report::{FlowTime, JobTime, Missing, Row},
    rule::OwnRule,
    transfer::{Server, Transfer, carry},
};
use crate::interrupt;

/// All measurements of a scenario, with seeds from `first_seed` on, and what could not be measured.
/// `watch` is told before each.
///
/// # Errors
/// If the links cannot be built, a flow fails, or on Ctrl-C.
pub(super) fn measure(
    scenario: &Scenario,
    first_seed: u64,
    watch: &mut dyn FnMut(&Case, Algorithm),
) -> Result<(Vec<Row>, Vec<Missing>)> {
    let network = Network::build(scenario.access)?;
    let _servers = [
        Server::start(network.server(Place::Edge), Network::server_address(Place::Edge))?,
        Server::start(network.server(Place::Cloud), Network::server_address(Place::Cloud))?,
    ];
    let (mut rows, mut missing) = (Vec::new(), Vec::<Missing>::new());
    let mut is_warm = false;
    for point in scenario.points() {
        network.set(scenario.link(Place::Edge, point), scenario.link(Place::Cloud, point))?;
        if !std::mem::replace(&mut is_warm, true) {
            warm_up(&network)?;
        }
        for seed in (first_seed..).take(scenario.seeds) {
            for case in &scenario.cases {
                for &algorithm in &scenario.algorithms {
                    interrupt::check()?;
                    watch(case, algorithm);
                    if missing.iter().any(|missing| missing.algorithm == algorithm) {
                        continue;
                    }
                    let rule = match weir_rule(&network, algorithm) {
                        Ok(rule) => rule,
                        Err(error) => {
                            missing.push(Missing { algorithm, why: format!("{error:#}") });
                            continue;
                        }
                    };
                    let row = cell(scenario, &network, case, algorithm, point, seed)
                        .with_context(|| format!("case {} with {algorithm}, seed {seed}", case.name))?;
                    if let Some(rule) = rule {
                        rule.remove(2 * row.flows.len() as u64)?;
                    }
                    rows.push(row);
                }
            }
        }
    }
    Ok((rows, missing))
}

fn weir_rule(network: &Network, algorithm: Algorithm) -> Result<Option<OwnRule>> {
    if algorithm != Algorithm::Weir {
        return Ok(None);
    }
    let all = [network.clients(), network.server(Place::Edge), network.server(Place::Cloud)];
    OwnRule::put(&all).map(Some)
}

/// Neighbours learn each other's addresses.
fn warm_up(network: &Network) -> Result<()> {
    let hello = Transfer { up: 1, down: 1, up_by: None, down_by: None };
    network.clients().within(|| {
        Place::ALL.into_iter().try_for_each(|p| carry(Network::server_address(p), hello).map(drop))
    })?
}

/// A flow of a job.
struct Flow {
    job: usize,
    start: Duration,
    place: Place,
    transfer: Transfer,
}

fn cell(
    scenario: &Scenario,
    network: &Network,
    case: &Case,
    algorithm: Algorithm,
    point: Option<Point>,
    seed: u64,
) -> Result<Row> {
    let jobs = jobs(scenario, point, seed);
    let flows: Vec<Flow> = jobs
        .iter()
        .enumerate()
        .flat_map(|(job, wish)| {
            case.legs().map(move |(place, leg)| {
                let part = |fraction: f64| (wish.volume as f64 * fraction).round() as u64;
                let (up, down) = (part(leg.up).max(1), part(leg.down));
                let by = |bytes| chosen(scenario, algorithm, place, bytes);
                let transfer = Transfer { up, down, up_by: by(up), down_by: by(down) };
                Flow { job, start: wish.start, place, transfer }
            })
        })
        .collect();
    let run = |begin: Instant, flow: &Flow| -> Result<Duration> {
        interrupt::sleep_until(begin + flow.start)?;
        carry(Network::server_address(flow.place), flow.transfer)
    };
    let times: Vec<Result<Duration>> = network.clients().within(|| {
        // Threads are where the one is that begins them.
        thread::scope(|scope| {
            let begin = Instant::now();
            let threads: Vec<_> = flows.iter().map(|flow| scope.spawn(move || run(begin, flow))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("the flow's thread panicked"))))
                .collect()
        })
    })?;
    let mut done: Vec<JobTime> =
        jobs.iter().map(|job| JobTime { small: job.small, volume: job.volume, seconds: 0.0 }).collect();
    let mut rows = Vec::with_capacity(flows.len());
    for (flow, time) in flows.iter().zip(times) {
        let transfer = flow.transfer;
        let seconds = time
            .with_context(|| {
                format!("{} bytes up, {} down, {}", transfer.up, transfer.down, flow.place.name())
            })?
            .as_secs_f64();
        done[flow.job].seconds = done[flow.job].seconds.max(seconds);
        rows.push(FlowTime { place: flow.place, bytes: transfer.up + transfer.down, seconds });
    }
    Ok(Row { case: case.name.clone(), algorithm, seed, point, flows: rows, jobs: done })
}

/// What the application asks for, of so many bytes in one direction; none if it leaves that to the kernel.
fn chosen(scenario: &Scenario, algorithm: Algorithm, place: Place, bytes: u64) -> Option<&'static str> {
    match algorithm {
        Algorithm::Weir => None,
        Algorithm::Bbr => Some("bbr"),
        Algorithm::Mix
            if place == Place::Edge && bytes as f64 <= scenario.mix_most.0 as f64 * scenario.scale =>
        {
            Some("bbr")
        }
        Algorithm::Cubic | Algorithm::Mix => Some("cubic"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::scenario, *};

    #[test]
    fn the_mix_is_bbr_for_small_volumes_on_the_edge_link_only() {
        let scenario = Scenario { scale: 0.5, ..scenario("ecc-mix") };
        let mix = |place, bytes| chosen(&scenario, Algorithm::Mix, place, bytes);
        assert_eq!(mix(Place::Edge, 5_000_000), Some("bbr"), "10 MB at half the scale");
        assert_eq!(mix(Place::Edge, 5_000_001), Some("cubic"));
        assert_eq!(mix(Place::Cloud, 1), Some("cubic"));
        assert_eq!(chosen(&scenario, Algorithm::Weir, Place::Edge, 1), None, "the kernel's business");
    }
}
