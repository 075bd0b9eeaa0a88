//! Measurements in this kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use weir_netlab::interrupt;

use super::{
    iperf::{Ends, Generator, Prepared},
    network::{Medium, Network},
    report::{FlowTime, JobTime, Missing, Row},
    rule::ForcedRule,
    scenario::{Algorithm, Case, Place, Point, Scenario},
    transfer::{RULED, Server, Transfer, carry},
    workload::jobs,
};

/// All measurements of a scenario, with seeds from `first_seed` on, and the algorithms that could not be
/// measured.
///
/// `watch` is called before each measurement.
///
/// # Errors
/// If the links cannot be built, a flow fails, or on Ctrl-C.
pub(super) fn measure(
    scenario: &Scenario,
    medium: Medium,
    generator: Generator,
    first_seed: u64,
    watch: &mut dyn FnMut(&Case, Algorithm),
) -> Result<(Vec<Row>, Vec<Missing>)> {
    let link = |place| scenario.link(place, None);
    let network = Network::build(medium, scenario.access, link(Place::Edge), link(Place::Cloud))?;
    let _servers = [
        Server::start(network.server(Place::Edge), Network::server_address(Place::Edge))?,
        Server::start(network.server(Place::Cloud), Network::server_address(Place::Cloud))?,
    ];
    let all = [network.clients(), network.server(Place::Edge), network.server(Place::Cloud)];
    let (mut rows, mut missing) = (Vec::new(), Vec::<Missing>::new());
    let mut rule: Option<ForcedRule> = None;
    warm_up(&network)?;
    for point in scenario.points() {
        for place in Place::ALL {
            network.set(place, scenario.link(place, point))?;
        }
        for seed in (first_seed..).take(scenario.seeds) {
            for case in &scenario.cases {
                for &algorithm in &scenario.algorithms {
                    interrupt::check()?;
                    watch(case, algorithm);
                    if missing.iter().any(|missing| missing.algorithm == algorithm) {
                        continue;
                    }
                    if algorithm == Algorithm::Weir && rule.is_none() {
                        match ForcedRule::load(&scenario.rule.action(), ruled_port(generator), &all) {
                            Ok(loaded) => rule = Some(loaded),
                            Err(error) => {
                                missing.push(Missing { algorithm, why: format!("{error:#}") });
                                continue;
                            }
                        }
                    }
                    if let Some(rule) = &mut rule {
                        rule.set(algorithm == Algorithm::Weir)?;
                    }
                    let row = cell(scenario, &network, generator, case, algorithm, point, seed)
                        .with_context(|| format!("case {} with {algorithm}, seed {seed}", case.name))?;
                    if let (Some(rule), Algorithm::Weir) = (&mut rule, algorithm) {
                        rule.check(2 * row.flows.len() as u64)?;
                    }
                    rows.push(row);
                }
            }
        }
    }
    rule.map_or(Ok(()), ForcedRule::remove)?;
    Ok((rows, missing))
}

/// Moves one byte each way, so that neighbours learn each other's addresses.
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

/// The servers' port for flows under a rule; 0 for any port.
fn ruled_port(generator: Generator) -> u16 {
    match generator {
        Generator::Own => RULED,
        Generator::Iperf3 => 0,
    }
}

fn cell(
    scenario: &Scenario,
    network: &Network,
    generator: Generator,
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
    let times = match generator {
        Generator::Own => {
            let carry = |flow: &Flow, ()| carry(Network::server_address(flow.place), flow.transfer);
            network.clients().within(|| all_times(&flows, vec![(); flows.len()], &carry))??
        }
        Generator::Iperf3 => {
            let clients = network.clients();
            let prepare = |(nth, flow): (u16, &Flow)| {
                let (place, server) = (flow.place, network.server(flow.place));
                let up = Ends { from: clients, address: network.client_address(place), to: server };
                let down = Ends { from: server, address: Network::server_address(place), to: clients };
                Prepared::start([up, down], nth, flow.transfer)
            };
            let prepared = (0..).zip(&flows).map(prepare).collect::<Result<_>>()?;
            all_times(&flows, prepared, &|_, prepared: Prepared<'_>| prepared.carry())?
        }
    };
    let mut done: Vec<JobTime> =
        jobs.iter().map(|job| JobTime { small: job.small, volume: job.volume, seconds: 0.0 }).collect();
    let mut rows = Vec::with_capacity(flows.len());
    for (flow, time) in flows.iter().zip(times) {
        let transfer = flow.transfer;
        let seconds = time.as_secs_f64();
        done[flow.job].seconds = done[flow.job].seconds.max(seconds);
        rows.push(FlowTime { place: flow.place, bytes: transfer.up + transfer.down, seconds });
    }
    Ok(Row { case: case.name.clone(), algorithm, seed, point, flows: rows, jobs: done })
}

/// The duration of each flow, from its own start, carried with the value prepared for it. The threads are in
/// the namespace of the caller's thread.
fn all_times<P: Send>(
    flows: &[Flow],
    prepared: Vec<P>,
    carry: &(dyn Fn(&Flow, P) -> Result<Duration> + Sync),
) -> Result<Vec<Duration>> {
    let mut order: Vec<(usize, P)> = prepared.into_iter().enumerate().collect();
    order.sort_by_key(|(nth, _)| flows[*nth].start);
    let mut times = vec![Duration::ZERO; flows.len()];
    thread::scope(|scope| {
        let begin = Instant::now();
        let mut threads = Vec::with_capacity(flows.len());
        for (nth, prepared) in order {
            // One thread waits for all starts, because waiting threads cost more than flows in a guest.
            interrupt::sleep_until(begin + flows[nth].start)?;
            let flow = &flows[nth];
            threads.push((nth, scope.spawn(move || carry(flow, prepared))));
        }
        for (nth, thread) in threads {
            let Flow { place, transfer: Transfer { up, down, .. }, .. } = &flows[nth];
            times[nth] = thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the flow's thread panicked")))
                .with_context(|| format!("{up} bytes up, {down} down, {}", place.name()))?;
        }
        Ok(times)
    })
}

/// The algorithm that the application requests for `bytes` in one direction; `None` leaves it to the kernel.
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
    use super::{super::scenario::tests::scenario, *};

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
