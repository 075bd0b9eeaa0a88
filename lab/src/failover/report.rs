//! The results: a table of shares before and after the move, the time until shares are exact, JSON.

use std::fmt::Write as _;

use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};

use super::scenario::{Link, Scenario};
use crate::{
    control::kind::{ControlKind, Missing},
    report::{Figure, Head, Rule, table::new_table},
};

/// The length of a window in which shares are exact or not, seconds.
const WINDOW: f64 = 1.0;

/// The traffic that has arrived up to a moment, Mbit of layer 2 by container, in the order of the names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the first sample.
    pub(crate) s: f64,
    /// Of each container.
    pub(crate) arrived: Vec<f64>,
}

/// One control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The control.
    pub(crate) control: ControlKind,
    /// The time of the move, seconds since the first sample.
    pub(crate) moved: f64,
    /// A sample each 100 ms.
    pub(crate) samples: Vec<Sample>,
    /// Bytes that wait for the first link after the run.
    pub(crate) waiting: u64,
}

impl Run {
    /// The mean rates between two times, Mbit/s; `None` without two samples between them.
    fn rates(&self, from: f64, to: f64) -> Option<Vec<f64>> {
        let mut within = self.samples.iter().filter(|sample| (from..=to).contains(&sample.s));
        let first = within.next()?;
        let last = within.next_back()?;
        let rate = |(a, b): (&f64, &f64)| (b - a) / (last.s - first.s);
        Some(first.arrived.iter().zip(&last.arrived).map(rate).collect())
    }

    fn end(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.s)
    }

    /// The rates of the last second before the move, and of the last two of the run.
    pub(super) fn phases(&self) -> [Vec<f64>; 2] {
        let rates = |from, to| self.rates(from, to).unwrap_or_default();
        [rates(self.moved - WINDOW, self.moved), rates(self.end() - 2.0 * WINDOW, self.end())]
    }

    /// Seconds from the move until each share is exact, in the second that begins then and in the rest of the run.
    pub(super) fn exact_after(&self, due: &[f64], tolerance: f64) -> Option<f64> {
        let is_exact = |rates: Option<Vec<f64>>| {
            rates.is_some_and(|rates| {
                rates.iter().zip(due).all(|(rate, due)| (rate - due).abs() <= tolerance * due)
            })
        };
        let starts = self.samples.iter().map(|sample| sample.s).filter(|s| *s >= self.moved);
        let mut starts = starts.take_while(|s| s + WINDOW <= self.end());
        // A sample comes some milliseconds late.
        let late = WINDOW + 0.05;
        starts
            .find(|s| is_exact(self.rates(*s, s + late)) && is_exact(self.rates(*s, self.end())))
            .map(|s| s - self.moved)
    }
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The first fields of each report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The scenario.
    pub(crate) settings: Scenario,
    /// Each control.
    pub(crate) runs: Vec<Run>,
    /// The controls that this kernel lacks.
    pub(crate) missing: Vec<Missing>,
    /// The tc script of the run.
    pub(crate) scripts: String,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, runs: Vec<Run>, missing: Vec<Missing>, scripts: String) -> Report {
        let head = Head::now(&scenario.name, figures(scenario, &runs));
        Report { head, settings: scenario.clone(), runs, missing, scripts }
    }
}

fn figures(scenario: &Scenario, runs: &[Run]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for run in runs {
        let control = run.control.name();
        let is_judged = run.control.is_weir();
        let phases = run.phases();
        let links: [(&str, Link); 2] = [("before the move", scenario.first), ("after it", scenario.second)];
        for ((when, link), rates) in links.into_iter().zip(&phases) {
            for ((label, rate), due) in scenario.containers.keys().zip(rates).zip(scenario.due(link)) {
                let name = format!("{control}: {label} {when}");
                figures.push(if is_judged {
                    Figure::judged(name, *rate, "Mbit/s", due, Rule::Within(scenario.tolerance))
                } else {
                    Figure::shown(name, *rate, "Mbit/s")
                });
            }
        }
        let exact = run.exact_after(&scenario.due(scenario.second), scenario.tolerance);
        // JSON has no infinity: a run that is never exact has its whole length.
        let value = exact.unwrap_or(run.end() - run.moved);
        let name = match exact {
            Some(_) => format!("{control}: exact after the move"),
            None => format!("{control}: not exact in the time after the move"),
        };
        let left = (format!("{control}: waits for the first link at the end"), run.waiting as f64);
        if is_judged {
            figures.push(Figure::judged(name, value, "s", scenario.most_s, Rule::AtMost));
            figures.push(Figure::judged(left.0, left.1, "bytes", 0.0, Rule::AtMost));
        } else {
            figures.push(Figure::shown(name, value, "s"));
            figures.push(Figure::shown(left.0, left.1, "bytes"));
        }
    }
    figures
}

/// A line for each control and container.
pub(super) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\n{} of a line of {}, then {} of {}; rates in Mbit/s of layer 2\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.first.capacity,
        settings.first.line,
        settings.second.capacity,
        settings.second.line
    );
    let mut table = new_table();
    table.set_header(["", "", "due", "before", "due", "after", "exact after", "bytes left"]);
    let due = [settings.first, settings.second].map(|link| settings.due(link));
    for run in &report.runs {
        let [before, after] = run.phases();
        let exact = run.exact_after(&due[1], settings.tolerance);
        for (nth, label) in settings.containers.keys().enumerate() {
            let rate = |rates: &[f64]| rates.get(nth).map_or("-".to_owned(), |rate| format!("{rate:.2}"));
            let (exact, left) = match nth {
                0 => (exact.map_or("never".to_owned(), |s| format!("{s:.1} s")), run.waiting.to_string()),
                _ => Default::default(),
            };
            let control = if nth == 0 { run.control.name() } else { "" };
            table.add_row([
                control.to_owned(),
                label.clone(),
                rate(&due[0]),
                rate(&before),
                rate(&due[1]),
                rate(&after),
                exact,
                left,
            ]);
        }
    }
    for index in 2..8 {
        table.column_mut(index).expect("eight columns").set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(
        text,
        "{table}\nbefore: the last second on the first link; after: the last two seconds of the run; \
         left: what waits for the first link at the end"
    );
    for lacks in &report.missing {
        let _ = write!(text, "\nnot run: {}: {}", lacks.control.name(), lacks.why);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{experiment::tests::settings, report::Shown as _};

    /// A run that has these rates before the move at 2 s, for `wrong_s` after it, and to its end.
    pub(in crate::failover) fn made(control: ControlKind, wrong_s: f64, end: [f64; 2]) -> Run {
        let mut arrived = vec![0.0, 0.0];
        let mut samples = Vec::new();
        for nth in 0..=70 {
            let s = f64::from(nth) * 0.1;
            samples.push(Sample { s, arrived: arrived.clone() });
            let rates = match s {
                s if s < 1.95 => [30.0, 10.0],
                s if s < 1.95 + wrong_s => [5.0, 5.0],
                _ => end,
            };
            arrived.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate * 0.1);
        }
        Run { control, moved: 1.99, samples, waiting: 0 }
    }

    pub(in crate::failover) fn report(runs: Vec<Run>) -> Report {
        Report::new(&settings("failover"), runs, Vec::new(), String::new())
    }

    #[test]
    fn time_until_exact_is_counted_from_the_move() {
        let exact = |run: &Run| run.exact_after(&[2.0, 8.0], 0.03);
        let found = exact(&made(ControlKind::Weir, 0.7, [2.0, 8.0])).unwrap();
        assert!((found - 0.7).abs() < 0.06, "{found}");
        assert_eq!(exact(&made(ControlKind::Weir, 0.7, [2.2, 7.8])), None);
        // A last second alone is no proof: the run must hold to its end.
        let mut run = made(ControlKind::Weir, 0.7, [2.0, 8.0]);
        run.samples.iter_mut().filter(|sample| sample.s > 5.0).for_each(|sample| sample.arrived[0] += 4.0);
        let found = exact(&run).unwrap();
        assert!(found > 2.9, "{found}");
    }

    #[test]
    fn weir_is_judged_by_shares_time_and_what_is_left() {
        let good = made(ControlKind::Weir, 0.7, [2.0, 8.0]);
        assert_eq!(report(vec![good.clone()]).head.pass, Some(true));
        let slow = made(ControlKind::Weir, 2.4, [2.0, 8.0]);
        assert!(report(vec![slow]).verdict().contains("exact after the move"));
        let never = report(vec![made(ControlKind::Weir, 0.7, [5.0, 5.0])]);
        assert!(never.verdict().contains("not exact in the time"), "{}", never.verdict());
        let left = Run { waiting: 1514, ..good };
        assert!(report(vec![left]).verdict().contains("waits for the first link"));
        assert_eq!(report(vec![made(ControlKind::Tc, 0.7, [5.0, 5.0])]).head.pass, None);
    }

    #[test]
    fn the_table_has_a_line_for_each_control_and_container() {
        let runs = vec![made(ControlKind::Weir, 0.7, [2.0, 8.0]), made(ControlKind::None, 9.0, [5.0, 5.0])];
        let text = report(runs).table();
        let line = text.lines().find(|line| line.contains("none")).unwrap();
        assert!(line.contains("never") && line.contains("5.00"), "{text}");
        assert!(text.lines().any(|line| line.contains("weir") && line.contains("0.7 s")), "{text}");
    }
}
