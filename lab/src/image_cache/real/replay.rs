//! The deployments of a made trace as real pulls, beside what the simulator says of the same ones.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use anyhow::{Context, Result};
use weir_cache::{
    generate::{ZONES, generate},
    simulate::{Setup, Sharing, TimeModel, simulate},
    trace::Trace,
};
use weir_netlab::interrupt;
use weir_units::Bytes;

use super::{
    report::Report,
    scenario::{BIN, ReplayRow, Replays},
    site::{self, CacheSetup, FAR, LISTEN, Site},
    upstream::{Content, Puller},
};

use crate::options::Options;

/// No layer is smaller, so that each has its digest.
const MIN_LAYER_BYTES: u64 = 16;

/// Runs all of it; `watch` is told of every fifty pulls before they begin, in words.
///
/// # Errors
/// A pull fails, or on Ctrl-C.
pub(crate) fn run(scenario: &Replays, options: &Options, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut rows = Vec::new();
    for name in &scenario.zones {
        let zone = ZONES.iter().find(|zone| zone.name == *name).context("checked when it was read")?;
        let mut trace = generate(zone, scenario.deployments, options.seed);
        for bytes in &mut trace.blobs {
            *bytes = Bytes(MIN_LAYER_BYTES.max(bytes.0 / scenario.scale));
        }
        let content = Arc::new(Content::of(&trace));
        for &policy in &scenario.policies {
            for (sharing, budget) in [Sharing::PerNode, Sharing::Shared].into_iter().zip(scenario.budgets) {
                let budget = Bytes(budget.0 / scenario.scale);
                let setup = Setup { nodes: scenario.nodes, sharing, budget, policy, time: TimeModel::PAPER };
                let mut told = |nth| {
                    let of = trace.deployments.len();
                    watch(&format!("{name}, {policy}, {}: {nth} of {of} pulls", sharing.name()));
                };
                rows.push(replay(name, &trace, &content, setup, options, &mut told)?);
            }
        }
    }
    Ok(Report::replay(scenario, options.seed, rows))
}

fn replay(
    zone: &str,
    trace: &Trace,
    content: &Arc<Content>,
    setup: Setup,
    options: &Options,
    watch: &mut dyn FnMut(usize),
) -> Result<ReplayRow> {
    let mut site = Site::build(setup.nodes, None)?;
    content.serve(&site.far, (FAR, 5000).into())?;
    let paths: Vec<PathBuf> = site.nodes.iter().map(|_| site.dir.path().to_owned()).collect();
    let sharing = match setup.sharing {
        Sharing::PerNode => site::Sharing::Alone,
        Sharing::Shared => site::Sharing::Dir(&paths),
    };
    let caches = CacheSetup {
        weir: &options.weir,
        sharing,
        budget: setup.budget,
        policy: setup.policy,
        // Two months in minutes: no client still reads a blob that is a minute old.
        keep_new_s: 0,
    };
    let registry = format!("{}:5000", std::net::Ipv4Addr::from(FAR));
    let caches = site.caches(caches, &registry, "replay")?;
    let mut pullers: Vec<Puller> =
        site.nodes.iter().map(|node| Puller::connect(node, LISTEN)).collect::<Result<_>>()?;
    let begun = Instant::now();
    let before = content.bytes.load(Ordering::SeqCst);
    let (mut hits, mut asked) = (Vec::new(), 0);
    for (nth, deployment) in trace.deployments.iter().enumerate() {
        interrupt::check()?;
        if nth % BIN == 0 {
            watch(nth);
        }
        let puller = &mut pullers[nth % setup.nodes];
        let image = deployment.image as usize;
        let gets = content.gets.load(Ordering::SeqCst);
        let repository = format!("/v2/lab/image{image}");
        puller.get(&format!("{repository}/manifests/{}", content.images[image].0))?;
        for blob in &*trace.images[image] {
            asked += puller.get(&format!("{repository}/blobs/{}", content.blobs[*blob as usize]))?;
        }
        hits.push(f64::from(u8::from(content.gets.load(Ordering::SeqCst) == gets)));
    }
    let pull_ms = begun.elapsed().as_secs_f64() * 1e3 / trace.deployments.len().max(1) as f64;
    let fetched = content.bytes.load(Ordering::SeqCst) - before;
    caches.into_iter().for_each(site::Cache::stop);
    let outcome = simulate(trace, setup, BIN);
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    Ok(ReplayRow {
        zone: zone.to_owned(),
        policy: setup.policy,
        sharing: setup.sharing,
        deployments: trace.deployments.len(),
        working_set: trace.working_set(),
        hits: mean(&hits),
        simulated: outcome.image_hit_ratio(),
        byte_hits: 1.0 - fetched as f64 / asked.max(1) as f64,
        simulated_bytes: outcome.byte_hit_ratio(),
        pull_ms,
        bins: hits.chunks(BIN).map(mean).zip(outcome.bins.iter().map(|bin| bin.hit_ratio)).collect(),
    })
}
