//! The report as text.

use std::{collections::BTreeMap, fmt::Write as _};

use weir_netlab::stats::SplitMix;

use super::{
    report::{Estimate, Report, estimate, groups},
    scenario::{Algorithm, Population},
    standing::{GROUPS, Standing, standing},
};

use crate::report::table::new_table;

/// Completion times of each case and algorithm, or the winners of a sweep; then the findings.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
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
        let kinds: &[(Population, &str)] = match has_small {
            true => &[(Population::Small, "small jobs"), (Population::Long, "long jobs")],
            false => &[(Population::Flow, "flows"), (Population::Job, "jobs")],
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

fn winners(report: &Report) -> String {
    let mut rng = SplitMix::new(report.seed);
    let mut table = new_table();
    let mut header = ["small share", "rtt, ms", "loss, %", "buffer, BDP"].map(str::to_owned).to_vec();
    header.extend(GROUPS.iter().map(|(_, name)| format!("{name}: over CUBIC's")));
    table.set_header(header);
    let mut alone = vec![BTreeMap::<Option<Algorithm>, usize>::new(); GROUPS.len()];
    for point in report.settings.points() {
        let Some(at) = point else { continue };
        let mut row = vec![
            at.small_share.to_string(),
            at.rtt_ms.to_string(),
            format!("{}", (at.loss * 1e4).round() / 100.0),
            at.buffer_bdp.to_string(),
        ];
        for ((what, _), alone) in GROUPS.iter().zip(&mut alone) {
            let found = standing(report, point, *what, &mut rng);
            if let Some(found) = &found {
                let winner = match found.winners() {
                    [winner] => Some(*winner),
                    _ => None,
                };
                *alone.entry(winner).or_default() += 1;
            }
            row.push(found.map_or(String::new(), |found| words(&found)));
        }
        table.add_row(row);
    }
    let mut text = table.to_string();
    for ((_, name), alone) in GROUPS.iter().zip(alone) {
        let parts: Vec<String> = alone
            .iter()
            .map(|(winner, points)| match winner {
                Some(winner) => format!("{winner} {points}"),
                None => format!("a tie {points}"),
            })
            .collect();
        let _ = write!(text, "\n{name}, number of points: {}", parts.join(", "));
    }
    text
}

/// The winner and the ratio of its time to CUBIC's, the tied winners, or a tie of all.
fn words(found: &Standing) -> String {
    let Estimate { value, low, high } = found.ratio;
    match found.winners() {
        [] => "tie".to_owned(),
        [winner] => format!("{winner} {value:.2} ({low:.2} to {high:.2})"),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("tie of {}: {value:.2}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::tests::{sample, sample_of_sweep},
        *,
    };

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
    fn quickest_wins_each_point_and_equals_share_the_place() {
        let of = |time: fn(Algorithm, &str) -> f64| {
            let report = sample_of_sweep(time);
            let point = *report.settings.points().last().unwrap();
            let found = standing(&report, point, GROUPS[0].0, &mut SplitMix::new(1)).unwrap();
            (found, table(&report))
        };
        let (found, text) = of(|algorithm, _| if algorithm == Algorithm::Weir { 1.0 } else { 2.0 });
        assert_eq!(found.winners(), [Algorithm::Weir], "{found:?}");
        assert!((found.ratio.value - 0.5).abs() < 1e-9);
        assert!(text.contains("weir 0.50 (0.50 to 0.50)") && !text.contains("tie of"), "{text}");
        assert!(text.contains("small jobs, p99, number of points: weir"), "{text}");
        let (found, text) = of(|algorithm, _| match algorithm {
            Algorithm::Weir | Algorithm::Bbr => 1.0,
            _ => 2.0,
        });
        assert_eq!(found.winners(), [Algorithm::Bbr, Algorithm::Weir], "{found:?}");
        assert!(text.contains("tie of bbr, weir: 0.50"), "{text}");
        let (found, text) = of(|_, _| 2.0);
        assert!(found.winners().is_empty() && text.contains("a tie"), "{text}");
        assert!(!text.contains("weir") && !text.contains("0.50"), "{text}");
    }

    #[test]
    fn one_of_which_the_seeds_do_not_say_that_it_is_slower_is_not() {
        let mut report = sample_of_sweep(|algorithm, _| if algorithm == Algorithm::Bbr { 1.9 } else { 2.0 });
        // The second seed has the opposite order.
        for row in report.rows.iter_mut().filter(|row| row.seed == 2 && row.algorithm == Algorithm::Bbr) {
            row.jobs.iter_mut().for_each(|job| job.seconds = 2.2);
        }
        let point = report.settings.points()[0];
        let found = standing(&report, point, (Population::Long, None), &mut SplitMix::new(1)).unwrap();
        assert!(found.winners().is_empty() && found.leaders.len() == 4, "{found:?}");
    }
}
