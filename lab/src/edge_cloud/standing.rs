//! The fastest algorithms at a point of a sweep.

use weir_netlab::stats::SplitMix;

use super::{
    report::{Estimate, Report, Row, groups, ratio},
    scenario::{Algorithm, Point, Population},
};

/// The fastest algorithms at a point of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standing {
    /// The algorithm with the smallest time, then those that are not significantly slower.
    pub(crate) leaders: Vec<Algorithm>,
    /// The ratio of the first one's time to CUBIC's.
    pub(crate) ratio: Estimate,
    /// Whether at least one algorithm is significantly slower.
    pub(crate) is_decided: bool,
}

impl Standing {
    /// The winners. Several winners are tied; no winner means that all algorithms are tied.
    pub(super) fn winners(&self) -> &[Algorithm] {
        if self.is_decided { &self.leaders } else { &[] }
    }
}

/// The fastest algorithms for `whose` jobs at a point; `None` without such jobs or without CUBIC.
///
/// An algorithm is slower than the fastest if the interval of their times' ratio, seed by seed, is above 1.
pub(super) fn standing(
    report: &Report,
    point: Option<Point>,
    (whose, percentile): (Population, Option<f64>),
    rng: &mut SplitMix,
) -> Option<Standing> {
    let groups = groups(&report.settings, &report.rows, point);
    let all: Vec<(Algorithm, &Vec<&Row>)> = groups.iter().map(|(_, a, rows)| (*a, rows)).collect();
    let (_, cubic) = all.iter().find(|(algorithm, _)| *algorithm == Algorithm::Cubic)?;
    let over_cubic =
        all.iter().filter_map(|entry| Some((entry, ratio(entry.1, cubic, whose, percentile, rng)?)));
    let ((best, own), found) = over_cubic.min_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let mut leaders = vec![*best];
    for (algorithm, rows) in all.iter().filter(|(algorithm, _)| algorithm != best) {
        if ratio(rows, own, whose, percentile, rng)?.low <= 1.0 {
            leaders.push(*algorithm);
        }
    }
    Some(Standing { is_decided: leaders.len() < all.len(), leaders, ratio: found })
}

/// The groups of jobs in a sweep's table and picture.
pub(super) const GROUPS: [((Population, Option<f64>), &str); 3] = [
    ((Population::Job, Some(50.0)), "all jobs, median"),
    ((Population::Small, Some(99.0)), "small jobs, p99"),
    ((Population::Long, None), "long jobs, mean"),
];
