//! The results of completion times: estimates with intervals, findings, JSON.

use serde::{Deserialize, Serialize};
use weir_netlab::stats::{self, SplitMix};

use super::scenario::{Algorithm, Claim, Finding, Outcome, Place, Point, Population, Scenario, Side};

use crate::report::{Figure, Head, Rule};

/// Level of the confidence intervals.
const LEVEL: f64 = 0.95;
const RESAMPLES: usize = 1000;

/// The completion time of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowTime {
    /// The flow's destination.
    pub(crate) place: Place,
    /// Bytes that it moved in both directions.
    pub(crate) bytes: u64,
    /// Seconds from the start of its connection to its last byte.
    pub seconds: f64,
}

/// The completion time of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobTime {
    /// Whether it is a small job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) small: bool,
    /// Bytes that it moved in total.
    pub(crate) volume: u64,
    /// The time of its last flow, seconds.
    pub seconds: f64,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case's name.
    pub case: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The seed of the volumes.
    pub seed: u64,
    /// The point of the sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) point: Option<Point>,
    /// Flows, in the order of their jobs.
    pub flows: Vec<FlowTime>,
    /// Jobs.
    pub jobs: Vec<JobTime>,
}

impl Row {
    fn times(&self, whose: Population) -> Vec<f64> {
        let jobs = |wanted: &dyn Fn(&JobTime) -> bool| {
            self.jobs.iter().filter(|job| wanted(job)).map(|job| job.seconds).collect()
        };
        match whose {
            Population::Flow => self.flows.iter().map(|flow| flow.seconds).collect(),
            Population::Job => jobs(&|_| true),
            Population::Small => jobs(&|job| job.small),
            Population::Long => jobs(&|job| !job.small),
        }
    }
}

/// An algorithm that could not be measured here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The algorithm.
    pub(crate) algorithm: Algorithm,
    /// The reason.
    pub(crate) why: String,
}

/// A number with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    /// The value of the sample.
    pub(crate) value: f64,
    /// The 2.5th percentile of the resamples.
    pub(crate) low: f64,
    /// The 97.5th percentile of the resamples.
    pub(crate) high: f64,
}

/// A finding and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The finding.
    #[serde(flatten)]
    pub(crate) finding: Finding,
    /// Ratio of the two sides' times.
    pub(crate) ratio: Estimate,
    /// Whether the claim holds on the whole interval.
    pub(crate) outcome: Outcome,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The common part of all reports. It passes if all findings are as expected. Without a failure, it has
    /// no verdict if an expected outcome is open.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The back end, in words.
    pub backend: String,
    /// The first seed.
    pub(crate) seed: u64,
    /// The settings of the run: the scenario.
    pub(crate) settings: Scenario,
    /// Algorithms that could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
    /// The findings and their outcomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<Verdict>,
    /// The results of all measurements.
    pub rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        backend: String,
        seed: u64,
        rows: Vec<Row>,
        missing: Vec<Missing>,
    ) -> Report {
        let mut rng = SplitMix::new(seed);
        let findings: Vec<Verdict> =
            scenario.findings.iter().filter_map(|finding| judge(finding, &rows, &mut rng)).collect();
        let mut figures: Vec<Figure> = findings.iter().map(Verdict::figure).collect();
        for (case, algorithm, own) in groups(scenario, &rows, None) {
            for (whose, name) in [(Population::Flow, "flow"), (Population::Job, "job")] {
                let Some(mean) = estimate(&own, whose, None, &mut rng) else { continue };
                figures.push(Figure::shown(format!("{case}, {algorithm}: {name}, mean"), mean.value, "s"));
            }
        }
        let mut head = Head::now(&scenario.name, figures);
        // A report with open findings has not passed, even if all other findings are as expected.
        head.pass = head.pass.filter(|pass| !pass || !findings.iter().any(Verdict::is_left_open));
        Report { head, backend, seed, settings: scenario.clone(), missing, findings, rows }
    }

    /// Whether there is no verdict, because intervals do not decide an expected outcome.
    #[must_use]
    pub(crate) fn is_left_open(&self) -> bool {
        self.head.pass.is_none() && self.findings.iter().any(Verdict::is_left_open)
    }

    /// The report of a run in this kernel.
    pub(super) fn here(scenario: &Scenario, seed: u64, rows: Vec<Row>, missing: Vec<Missing>) -> Report {
        Report::new(scenario, "namespaces and netem".to_owned(), seed, rows, missing)
    }
}

impl Verdict {
    /// Whether the interval does not decide an expected outcome.
    fn is_left_open(&self) -> bool {
        self.outcome == Outcome::Open && self.finding.expect.is_some_and(|expected| expected != Outcome::Open)
    }

    fn figure(&self) -> Figure {
        let (want, rule) = match self.finding.claim {
            Claim::Below(most) => (most, Rule::AtMost),
            Claim::Within(part) => (1.0, Rule::Within(part)),
        };
        Figure {
            pass: self
                .finding
                .expect
                .filter(|_| !self.is_left_open())
                .map(|expected| expected == self.outcome),
            ..Figure::judged(self.finding.says.clone(), self.ratio.value, "ratio", want, rule)
        }
    }
}

/// The rows of each case and algorithm at a point, in the scenario's order. Empty groups are left out.
pub(super) fn groups<'a>(
    scenario: &Scenario,
    rows: &'a [Row],
    point: Option<Point>,
) -> Vec<(String, Algorithm, Vec<&'a Row>)> {
    let mut groups = Vec::new();
    for case in &scenario.cases {
        for &algorithm in &scenario.algorithms {
            let side = Side { case: case.name.clone(), algorithm };
            let own = rows_of(rows, &side, point);
            if !own.is_empty() {
                groups.push((case.name.clone(), algorithm, own));
            }
        }
    }
    groups
}

pub(super) fn rows_of<'a>(rows: &'a [Row], side: &Side, point: Option<Point>) -> Vec<&'a Row> {
    let is_its = |row: &&Row| row.case == side.case && row.algorithm == side.algorithm && row.point == point;
    rows.iter().filter(is_its).collect()
}

fn statistic(times: &[f64], percentile: Option<f64>) -> Option<f64> {
    percentile.map_or_else(|| stats::mean(times), |p| stats::percentile(times, p))
}

/// The mean or a percentile of the times of all seeds, and its confidence interval.
///
/// The bootstrap draws seeds with replacement, each with all of its times, because the times of one seed
/// depend on each other (Davison and Hinkley 1997, section 3.8). With few seeds the interval is too narrow.
pub(super) fn estimate(
    rows: &[&Row],
    whose: Population,
    percentile: Option<f64>,
    rng: &mut SplitMix,
) -> Option<Estimate> {
    let times: Vec<Vec<f64>> = rows.iter().map(|row| row.times(whose)).collect();
    interval(times.len(), rng, |drawn| {
        let pooled: Vec<f64> = drawn.iter().flat_map(|&seed| times[seed].iter().copied()).collect();
        statistic(&pooled, percentile)
    })
}

/// The ratio of two sides' statistics, and its interval; the same seeds are drawn for both.
pub(super) fn ratio(
    of: &[&Row],
    by: &[&Row],
    whose: Population,
    percentile: Option<f64>,
    rng: &mut SplitMix,
) -> Option<Estimate> {
    let pairs: Vec<(Vec<f64>, Vec<f64>)> = of
        .iter()
        .filter_map(|row| {
            let same = by.iter().find(|other| other.seed == row.seed)?;
            Some((row.times(whose), same.times(whose)))
        })
        .collect();
    interval(pairs.len(), rng, |drawn| {
        let of: Vec<f64> = drawn.iter().flat_map(|&seed| pairs[seed].0.iter().copied()).collect();
        let by: Vec<f64> = drawn.iter().flat_map(|&seed| pairs[seed].1.iter().copied()).collect();
        Some(statistic(&of, percentile)? / statistic(&by, percentile)?)
    })
}

fn interval(
    seeds: usize,
    rng: &mut SplitMix,
    statistic: impl Fn(&[usize]) -> Option<f64>,
) -> Option<Estimate> {
    let all: Vec<usize> = (0..seeds).collect();
    let value = statistic(&all)?;
    if seeds == 1 {
        // One seed, as in a guest, leaves nothing to draw from.
        return Some(Estimate { value, low: value, high: value });
    }
    let draws: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| statistic(&all.iter().map(|_| rng.below(seeds)).collect::<Vec<_>>()))
        .collect();
    let tail = (1.0 - LEVEL) / 2.0 * 100.0;
    Some(Estimate {
        value,
        low: stats::percentile(&draws, tail)?,
        high: stats::percentile(&draws, 100.0 - tail)?,
    })
}

fn judge(finding: &Finding, rows: &[Row], rng: &mut SplitMix) -> Option<Verdict> {
    let (of, by) = (rows_of(rows, &finding.of, None), rows_of(rows, &finding.by, None));
    let ratio = ratio(&of, &by, finding.whose, finding.percentile, rng)?;
    Some(Verdict { finding: finding.clone(), ratio, outcome: finding.claim.outcome(ratio) })
}

impl Claim {
    /// The outcome of the claim for an interval.
    #[must_use]
    pub(crate) fn outcome(self, Estimate { low, high, .. }: Estimate) -> Outcome {
        let (least, most) = match self {
            Claim::Below(most) => (f64::NEG_INFINITY, most),
            Claim::Within(part) => (1.0 - part, 1.0 + part),
        };
        if least < low && high < most {
            Outcome::Confirmed
        } else if high < least || most < low {
            Outcome::Refuted
        } else {
            Outcome::Open
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::scenario::tests::scenario, *};
    use crate::report::Shown as _;

    /// A report in which each flow takes `time` seconds for its algorithm and case.
    pub(crate) fn sample(name: &str, time: fn(Algorithm, &str) -> f64) -> Report {
        let scenario = scenario(name);
        let mut rows = Vec::new();
        for point in scenario.points() {
            for case in &scenario.cases {
                for &algorithm in &scenario.algorithms {
                    for seed in 1..=3 {
                        let seconds = time(algorithm, &case.name) * (1.0 + seed as f64 / 100.0);
                        let jobs: Vec<JobTime> = super::super::workload::jobs(&scenario, point, seed)
                            .iter()
                            .map(|job| JobTime { small: job.small, volume: job.volume, seconds })
                            .collect();
                        let flow = |place| FlowTime { place, bytes: 1, seconds };
                        let flows = jobs.iter().flat_map(|_| case.legs().map(|leg| flow(leg.0))).collect();
                        rows.push(Row { case: case.name.clone(), algorithm, seed, point, flows, jobs });
                    }
                }
            }
        }
        Report::here(&scenario, 1, rows, Vec::new())
    }

    /// The same report for two points of the sweep, which suffice for its winners.
    pub(crate) fn sample_of_sweep(time: fn(Algorithm, &str) -> f64) -> Report {
        let mut report = sample("ecc-sweep", time);
        let sweep = report.settings.sweep.as_mut().unwrap();
        sweep.buffer_bdp = vec![0.2, 10.0];
        (sweep.rtt_ms, sweep.loss, sweep.small_share) = (vec![10.0], vec![0.01], vec![0.9]);
        report
    }

    #[test]
    fn a_claim_is_confirmed_refuted_or_open_by_where_the_interval_is() {
        let between = |low, high| Estimate { value: (low + high) / 2.0, low, high };
        let below = Claim::Below(1.0);
        assert_eq!(below.outcome(between(0.8, 0.9)), Outcome::Confirmed);
        assert_eq!(below.outcome(between(0.9, 1.1)), Outcome::Open);
        assert_eq!(below.outcome(between(1.1, 1.2)), Outcome::Refuted);
        let alike = Claim::Within(0.1);
        assert_eq!(alike.outcome(between(0.95, 1.05)), Outcome::Confirmed);
        assert_eq!(alike.outcome(between(0.5, 0.8)), Outcome::Refuted);
        assert_eq!(alike.outcome(between(0.85, 1.0)), Outcome::Open);
    }

    #[test]
    fn a_ratio_compares_seed_by_seed_so_that_what_seeds_do_to_both_cancels() {
        let report = sample("ecc-bbr", |algorithm, _| if algorithm == Algorithm::Bbr { 3.0 } else { 2.0 });
        let case = &report.settings.cases[0].name;
        let of = |algorithm| rows_of(&report.rows, &Side { case: case.clone(), algorithm }, None);
        let (bbr, cubic) = (of(Algorithm::Bbr), of(Algorithm::Cubic));
        let mut rng = SplitMix::new(1);
        let found = ratio(&bbr, &cubic, Population::Job, None, &mut rng).unwrap();
        for number in [found.value, found.low, found.high] {
            assert!((number - 1.5).abs() < 1e-9, "{found:?}");
        }
        let alone = estimate(&bbr, Population::Job, Some(50.0), &mut rng).unwrap();
        assert!(alone.low < alone.value && alone.value < alone.high, "{alone:?}");
        assert!((alone.value - 3.06).abs() < 1e-9, "{alone:?}");
    }

    #[test]
    fn the_verdict_names_what_is_not_as_expected_with_its_interval() {
        let as_the_study_says: fn(Algorithm, &str) -> f64 = |_, case| match case {
            "client-edge-cloud w" => 1.0,
            "client-edge-cloud w/o" => 2.0,
            _ => 4.0,
        };
        let report = sample("ecc-cubic", as_the_study_says);
        assert_eq!(report.head.pass, Some(true), "{}", report.verdict());
        let report = sample("ecc-cubic", |_, case| case.len() as f64);
        assert_eq!(report.head.pass, Some(false), "{}", report.verdict());
        let text = report.verdict();
        assert!(text.contains("falls short") && text.contains("Refuted by a ratio of"), "{text}");
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again, report);
    }

    #[test]
    fn what_intervals_do_not_decide_is_neither_passed_nor_failed() {
        // The ratios are 0.63, 0.70 and 0.77; the claim is below 0.7.
        let report = sample("ecc-mice", |algorithm, _| if algorithm == Algorithm::Weir { 0.7 } else { 1.0 });
        let judged = |rows: Vec<Row>| Report::here(&report.settings, 1, rows, Vec::new());
        let on_both_sides = |row: &Row| match (row.algorithm, row.seed) {
            (Algorithm::Weir, 1) => 0.9,
            (Algorithm::Weir, 3) => 1.1,
            _ => 1.0,
        };
        let mut rows = report.rows.clone();
        for row in &mut rows {
            let times = on_both_sides(row);
            row.jobs.iter_mut().for_each(|job| job.seconds *= times);
        }
        let open = judged(rows.clone());
        assert_eq!((open.head.pass, open.is_left_open()), (None, true), "{}", open.verdict());
        let text = open.verdict();
        assert!(text.contains("no verdict") && text.contains("Open by a ratio of"), "{text}");
        // A failed finding outweighs an open one.
        let is_long = |row: &Row| row.algorithm == Algorithm::Weir && row.case == "cloud";
        for row in rows.iter_mut().filter(|row| is_long(row)) {
            row.jobs.iter_mut().filter(|job| !job.small).for_each(|job| job.seconds *= 2.0);
        }
        assert_eq!(judged(rows).head.pass, Some(false));
        let good = sample("ecc-mice", |algorithm, _| if algorithm == Algorithm::Weir { 0.5 } else { 1.0 });
        assert_eq!((good.head.pass, good.is_left_open()), (Some(true), false));
    }
}
