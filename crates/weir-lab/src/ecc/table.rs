//! The report as text.

use std::fmt::Write as _;

use super::{
    Algorithm, Estimate, Point, Report, Whose,
    report::{Row, estimate, groups, ratio},
};
use crate::{report::table::new_table, stats::SplitMix};

/// Completion times of each case and algorithm, or who wins where of a sweep; then the findings.
#[must_use]
pub fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {}\n{}; {}, kernel {}; {} seeds from {}\n",
        report.head.scenario,
        settings.title,
        settings.source,
        report.backend,
        report.head.kernel,
        settings.seeds,
        report.seed
    );
    text += &if settings.sweep.is_some() { winners(report) } else { times(report) };
    if !report.findings.is_empty() {
        let mut table = new_table();
        table.set_header(["finding", "ratio", "95 %", "is"]);
        for verdict in &report.findings {
            let Estimate { value, low, high } = verdict.ratio;
            table.add_row([
                verdict.finding.says.clone(),
                format!("{value:.2}"),
                format!("{low:.2} to {high:.2}"),
                format!("{:?}", verdict.outcome).to_lowercase(),
            ]);
        }
        let _ = write!(text, "\n{table}");
    }
    text
}

fn times(report: &Report) -> String {
    let mut rng = SplitMix::new(report.seed);
    let mut table = new_table();
    table.set_header(["case", "by", "of", "mean, s", "median, s", "p90, s", "p99, s"]);
    for (case, algorithm, rows) in groups(&report.settings, &report.rows, None) {
        let has_small = rows.iter().flat_map(|row| &row.jobs).any(|job| job.small);
        let kinds: &[(Whose, &str)] = match has_small {
            true => &[(Whose::Small, "small jobs"), (Whose::Long, "long jobs")],
            false => &[(Whose::Flow, "flows"), (Whose::Job, "jobs")],
        };
        for &(whose, name) in kinds {
            let columns = [None, Some(50.0), Some(90.0), Some(99.0)]
                .map(|percentile| estimate(&rows, whose, percentile, &mut rng).map(shown));
            let [Some(mean), Some(median), Some(p90), Some(p99)] = columns else { continue };
            table.add_row([case.clone(), algorithm.to_string(), name.to_owned(), mean, median, p90, p99]);
        }
    }
    table.to_string()
}

fn shown(Estimate { value, low, high }: Estimate) -> String {
    format!("{value:.2} ({low:.2} to {high:.2})")
}

/// Who wins at a point: the algorithm with the least mean time. If its interval against CUBIC's
/// includes 1, or it is CUBIC, nobody beats CUBIC there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Winner {
    /// Least mean.
    pub algorithm: Algorithm,
    /// Of its mean over CUBIC's.
    pub ratio: Estimate,
}

impl Winner {
    /// Whether it is better than CUBIC beyond doubt.
    pub(super) fn is_clear(&self) -> bool {
        self.ratio.high < 1.0
    }
}

/// The winner among `whose` jobs at a point; none if there are no such jobs, or no CUBIC.
pub(super) fn winner(
    report: &Report,
    point: Option<Point>,
    whose: Whose,
    percentile: Option<f64>,
    rng: &mut SplitMix,
) -> Option<Winner> {
    let groups = groups(&report.settings, &report.rows, point);
    let all: Vec<(Algorithm, &Vec<&Row>)> = groups.iter().map(|(_, a, rows)| (*a, rows)).collect();
    let (_, cubic) = all.iter().find(|(algorithm, _)| *algorithm == Algorithm::Cubic)?;
    let ratios = all.iter().filter_map(|(algorithm, rows)| {
        Some(Winner { algorithm: *algorithm, ratio: ratio(rows, cubic, whose, percentile, rng)? })
    });
    ratios.min_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value))
}

/// What a sweep's table and picture tell apart.
pub(super) const GROUPS: [(Whose, Option<f64>, &str); 3] = [
    (Whose::Small, None, "small jobs, mean"),
    (Whose::Small, Some(99.0), "small jobs, p99"),
    (Whose::Long, None, "long jobs, mean"),
];

fn winners(report: &Report) -> String {
    let mut rng = SplitMix::new(report.seed);
    let mut table = new_table();
    let mut header = ["small share", "rtt, ms", "loss, %", "buffer, BDP"].map(str::to_owned).to_vec();
    header.extend(GROUPS.iter().map(|(_, _, name)| format!("{name}: over CUBIC's")));
    table.set_header(header);
    for point in report.settings.points() {
        let Some(at) = point else { continue };
        let mut row = vec![
            at.small_share.to_string(),
            at.rtt_ms.to_string(),
            format!("{}", (at.loss * 1e4).round() / 100.0),
            at.buffer_bdp.to_string(),
        ];
        for (whose, percentile, _) in GROUPS {
            row.push(winner(report, point, whose, percentile, &mut rng).map_or(String::new(), |winner| {
                let Estimate { value, low, high } = winner.ratio;
                match winner.is_clear() {
                    true => format!("{} {value:.2} ({low:.2} to {high:.2})", winner.algorithm),
                    false => "nobody".to_owned(),
                }
            }));
        }
        table.add_row(row);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::{super::report::tests::sample, *};

    #[test]
    fn the_table_has_every_case_with_flows_and_jobs_and_every_finding() {
        let report = sample("ecc-bbr", |_, case| case.len() as f64);
        let text = table(&report);
        for case in &report.settings.cases {
            assert!(text.contains(&case.name), "{text}");
        }
        assert!(text.contains("flows") && text.contains("jobs") && !text.contains("small jobs"), "{text}");
        assert_eq!(
            text.matches("confirmed").count()
                + text.matches("refuted").count()
                + text.matches("open").count(),
            report.findings.len(),
            "{text}"
        );
    }

    #[test]
    fn at_each_point_the_quickest_wins_and_cubic_is_beaten_by_nobody_if_all_are_alike() {
        let quick = |algorithm, _: &str| if algorithm == Algorithm::Weir { 1.0 } else { 2.0 };
        let report = sample("ecc-sweep", quick);
        let point = *report.settings.points().last().unwrap();
        let found = winner(&report, point, Whose::Long, None, &mut SplitMix::new(1)).unwrap();
        assert!(found.algorithm == Algorithm::Weir && found.is_clear(), "{found:?}");
        assert!((found.ratio.value - 0.5).abs() < 1e-9);
        assert!(table(&report).contains("weir 0.50 (0.50 to 0.50)"));
        let report = sample("ecc-sweep", |_, _| 2.0);
        let text = table(&report);
        assert!(text.contains("nobody") && !text.contains("0.50"), "{text}");
    }
}
