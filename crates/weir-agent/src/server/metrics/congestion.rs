//! Metrics of congestion control: ended flows, and trials.

use prometheus_client::encoding::EncodeLabelSet;
use weir_api::CongestionView;
use weir_cc::{AdviceView, Interval, StatsRow, StatsView, TOOK_BITS};

use super::page::{BYTES, Histogram, NONE, Page, SECONDS};

/// The most rows with metrics of their own, by network, size and algorithm.
const MAX_ROWS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFlows {
    to: String,
    below: String,
    algorithm: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPath {
    to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrial {
    to: String,
    algorithm: String,
    of: &'static str,
}

/// The completion times of a row's flows.
fn completion(row: &StatsRow) -> Histogram {
    let mut before = 0;
    let below = TOOK_BITS.iter().zip(&row.took_below).map(|(bits, below)| {
        let bucket = ((1_u64 << bits) as f64 / 1e6, below.saturating_sub(before));
        before = *below;
        bucket
    });
    let mut buckets: Vec<_> = below.collect();
    buckets.push((f64::INFINITY, row.flows.saturating_sub(before)));
    Histogram { sum: row.took_us as f64 / 1e6, buckets }
}

/// Writes the flows that have ended, by destination, size and algorithm. Without rules it writes nothing.
/// Returns the number of rows that are left out: those of the fewest flows.
pub(super) fn write(page: &mut Page, (view, stats): &(CongestionView, StatsView)) -> usize {
    if view.rules.is_empty() {
        return 0;
    }
    let mut rows: Vec<&StatsRow> = stats.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.flows));
    rows.truncate(MAX_ROWS);
    let mut paths: Vec<_> = stats.paths.iter().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.flows));
    paths.truncate(MAX_ROWS);
    let labels = |row: &StatsRow| OfFlows {
        to: row.to.to_string(),
        below: row.below.map_or("+Inf".to_owned(), |bytes| bytes.0.to_string()),
        algorithm: row.algorithm.clone(),
    };
    let mut counters = |name, unit, help, count: fn(&StatsRow) -> u64| {
        page.counters(name, unit, help, rows.iter().map(|row| (labels(row), count(row))));
    };
    counters("cc_flows", NONE, "Flows that have ended, by network, size and algorithm", |row| row.flows);
    counters("cc_sent", BYTES, "Payload of flows that have ended", |row| row.bytes.0);
    counters("cc_retransmits", NONE, "Segments sent again by flows that have ended", |row| row.retransmits);
    let took = rows.iter().map(|row| (labels(row), completion(row)));
    page.histograms("cc_completion", SECONDS, "Completion times of flows that have ended", took);
    let buffers = paths.iter().map(|path| (OfPath { to: path.to.to_string() }, path.buffer_bdp));
    let help = "The least size of the bottleneck's buffer, as a multiple of bandwidth times delay";
    page.gauges("cc_buffer_bdp", "ratio", help, buffers);
    for (name, help, count) in [
        ("cc_set", "Connections that were given the algorithm of a rule", view.set),
        ("cc_switched", "Changes of the algorithm in the flow", view.switched),
        ("cc_refused", "Algorithms that the kernel refused", view.failed),
        ("cc_tried", "Connections that have ended and tried another algorithm", view.tried),
        ("cc_hinted", "Times that applications said how much they will send", view.hinted),
        ("cc_lost_records", "Connections that ended and of which nothing is known", view.lost),
        ("cc_uncounted_flows", "Flows for which the statistics had no room", stats.uncounted),
    ] {
        page.counter(name, help, count);
    }
    stats.rows.len() - rows.len() + stats.paths.len() - paths.len()
}

/// Writes the measured effects of algorithms in trials. Their number is bounded by the configuration.
pub(super) fn advice(page: &mut Page, advice: &[AdviceView]) {
    if advice.is_empty() {
        return;
    }
    let (mut shares, mut effects) = (Vec::new(), Vec::new());
    for (trial, arm) in advice.iter().flat_map(|trial| trial.arms.iter().map(move |arm| (trial, arm))) {
        let labels = |of| OfTrial { to: trial.to.to_string(), algorithm: arm.action.clone(), of };
        shares.push((labels("own"), if arm.dropped.is_none() { arm.share } else { 0.0 }));
        let known = |of: &Interval| of.least.is_some() && of.most.is_some();
        for (of, interval) in [("own", arm.own), ("neighbours", arm.neighbours), ("all", arm.all)] {
            if known(&interval) {
                effects.push((labels(of), interval.estimate));
            }
        }
    }
    let help = "The part of connections that try an algorithm in its turns";
    page.gauges("cc_trial_share", "ratio", help, shares);
    page.gauges("cc_trial_effect", "ratio", "Growth of completion times, 0.1 for 10 % longer", effects);
}
