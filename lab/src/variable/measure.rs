//! Runs the simulations of a scenario.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use weir_autorate::Settings;
use weir_linksim::{Arrivals, Moment, Outcome, Scene, Scheme, Trace};
use weir_netlab::interrupt;

use super::{
    report::{Arrival, Report, Row},
    scenario::Scenario,
};

/// Decisions in one point of the plot over time: 200 ms.
const MERGED: usize = 4;

/// Simulates each seed under each scheme. `watch` receives each step before it begins.
///
/// # Errors
/// On Ctrl-C.
pub(crate) fn run(scenario: &Scenario, seed: u64, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let settings = scenario.settings().map_err(|why| anyhow!("{why}"))?;
    let mut rows = Vec::new();
    let mut first = BTreeMap::new();
    for seed in (0..scenario.seeds).map(|nth| seed.wrapping_add(nth)) {
        let trace = scenario.trace(seed);
        for scheme in Scheme::ALL {
            interrupt::check()?;
            watch(&format!("seed {seed}, {}", scheme.name()));
            let outcome = simulate(scenario, &trace, scheme, settings);
            rows.push(row(scenario, seed, scheme, &outcome));
            first.entry(scheme).or_insert_with(|| merged(&outcome.moments));
        }
    }
    Ok(Report::new(scenario, seed, rows, first))
}

fn simulate(scenario: &Scenario, trace: &Trace, scheme: Scheme, settings: Settings) -> Outcome {
    let flows = scenario.flows;
    let Some(download) = &scenario.download else {
        return scheme.run(&Scene { flows, ..Scene::of(trace) }, settings);
    };
    let scene = Arrivals {
        flows,
        weights: &download.weights,
        lasts_ms: download.lasts_ms,
        judged_from_ms: download.settles * 1_000,
        ..Arrivals::of(trace)
    };
    scheme.arrive(&scene, settings)
}

fn row(scenario: &Scenario, seed: u64, scheme: Scheme, outcome: &Outcome) -> Row {
    let [p50_ms, p95_ms, p99_ms] = [0.50, 0.95, 0.99].map(|part| f64::from(outcome.wait(part)));
    let row = Row { seed, scheme, used: outcome.used, p50_ms, p95_ms, p99_ms, arrival: None };
    let Some(download) = &scenario.download else { return row };
    let share_error = outcome.share_error(&download.weights);
    let arrival = Some(Arrival { dropped: outcome.dropped, share_error });
    Row { used: outcome.received.iter().sum(), arrival, ..row }
}

/// The means of rates, and the longest waits, over [`MERGED`] decisions each.
fn merged(moments: &[Moment]) -> Vec<Moment> {
    let merge = |chunk: &[Moment]| {
        let mean = |part: fn(&Moment) -> f64| chunk.iter().map(part).sum::<f64>() / chunk.len() as f64;
        Moment {
            ms: chunk.last().map_or(0, |moment| moment.ms),
            capacity: mean(|moment| moment.capacity),
            link: mean(|moment| moment.link),
            carried: mean(|moment| moment.carried),
            wait_ms: chunk.iter().map(|moment| moment.wait_ms).max().unwrap_or(0),
        }
    };
    moments.chunks(MERGED).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn row_of_a_download_counts_what_reached_its_classes() {
        let mut outcome = Outcome::default();
        (outcome.used, outcome.dropped, outcome.received) = (0.9, 0.2, vec![0.35, 0.35]);
        let down = row(&settings("variable-download-lte"), 1, Scheme::Weir, &outcome);
        assert_eq!(down.used, 0.7);
        let arrival = down.arrival.unwrap();
        assert!((arrival.share_error - 0.5).abs() < 1e-9, "half of the bytes, and a third is due");
        assert_eq!(arrival.dropped, 0.2);
        let up = row(&settings("variable-lte"), 1, Scheme::Weir, &outcome);
        assert_eq!((up.used, up.arrival), (0.9, None));
    }

    #[test]
    fn merged_moments_have_mean_rates_and_the_longest_wait() {
        let moment = |ms, link, wait_ms| Moment { ms, link, wait_ms, capacity: 2.0, carried: 1.0 };
        let five = [(50, 1.0, 3), (100, 2.0, 9), (150, 3.0, 4), (200, 4.0, 0), (250, 8.0, 1)];
        let merged = merged(&five.map(|(ms, link, wait)| moment(ms, link, wait)));
        assert_eq!(merged, [moment(200, 2.5, 9), moment(250, 8.0, 1)]);
    }
}
