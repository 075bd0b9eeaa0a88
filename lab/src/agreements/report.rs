//! The output of a run: the paper's Table 2, each consumer's error, figures with verdicts.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use weir_netlab::stats;
use weir_units::BitRate;

use super::{
    consumer::Answer,
    scenario::{Case, FIRST_PORT, PAPER_BYTES, Paper, Scenario, ideal_ms},
};

use crate::{
    control::kind::{ControlKind, Missing},
    report::{
        Figure, Head, Rule,
        table::{align_numbers, control_name, missing_lines, new_table},
    },
};

/// The consumers' results in a case under a control, over all repetitions.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// The answers of each consumer.
    pub(crate) answers: Vec<Vec<Answer>>,
    /// Payload of the UDP task that arrived, Mbit/s, one value a repetition.
    pub(crate) udp: Vec<f64>,
    /// The engine in force, if the control is weir.
    pub(crate) engine: Option<String>,
}

impl Sample {
    pub(super) fn add(&mut self, other: Sample) {
        self.answers.resize(self.answers.len().max(other.answers.len()), Vec::new());
        for (own, more) in self.answers.iter_mut().zip(other.answers) {
            own.extend(more);
        }
        self.udp.extend(other.udp);
        self.engine = other.engine.or(self.engine.take());
    }
}

/// One consumer in one case under one control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConsumerRow {
    /// The consumer's port at the service.
    pub(crate) port: u16,
    /// Its promised rate, bit/s, layer 2.
    pub(crate) agreed: Option<BitRate>,
    /// Number of measured transmissions.
    pub(crate) requests: usize,
    /// Mean transmission time, ms.
    pub(crate) mean: f64,
    /// Mean time between a request and its answer's first byte, ms.
    pub(crate) wait: f64,
    /// The ideal time S / bw, ms, with S as charged on the wire.
    pub(crate) ideal: Option<f64>,
    /// Distance of the mean from the ideal time, as a fraction; negative if faster.
    pub(crate) error: Option<f64>,
}

/// One case under one control: all consumers' transmission times, ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The case's name.
    pub(crate) case: String,
    /// The control.
    pub(crate) control: ControlKind,
    /// The engine in force, if the control is weir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
    /// The shortest time.
    pub(crate) min: f64,
    /// The mean.
    pub(crate) avg: f64,
    /// The longest time.
    pub(crate) max: f64,
    /// Standard deviation.
    pub(crate) std: f64,
    /// The results of each consumer.
    pub(crate) consumers: Vec<ConsumerRow>,
    /// Payload of the UDP task that arrived, Mbit/s.
    pub(crate) udp: Option<f64>,
    /// All times in ascending order: the curve of the plot.
    pub(crate) times: Vec<f64>,
}

impl Row {
    /// The largest distance of a consumer's mean from S / bw, as a fraction.
    fn worst(&self) -> Option<f64> {
        self.consumers.iter().filter_map(|c| c.error).map(f64::abs).reduce(f64::max)
    }
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The common part of all reports.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Requested controls that this kernel cannot run.
    pub(crate) missing: Vec<Missing>,
    /// The settings of the run: the scenario.
    pub(crate) settings: Scenario,
    /// The results, by case and control.
    pub(crate) rows: Vec<Row>,
    /// The tc scripts of control `tc`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) scripts: String,
}

/// The statistics of a sample.
pub(super) fn row(case: &Case, control: ControlKind, sample: Sample) -> Result<Row> {
    let mut times: Vec<f64> = Vec::new();
    let mut consumers = Vec::new();
    for ((port, answers), index) in (FIRST_PORT..).zip(&sample.answers).zip(0..) {
        let own: Vec<f64> = answers.iter().map(Answer::transmission_ms).collect();
        let waits: Vec<f64> = answers.iter().map(|a| a.wait.as_secs_f64() * 1e3).collect();
        let (Some(mean), Some(wait)) = (stats::mean(&own), stats::mean(&waits)) else {
            bail!("the consumer at port {port} got no answer in the time of a case: give more --seconds");
        };
        let agreed = case.agreements.get(index).copied().filter(|_| control != ControlKind::None);
        let ideals = |rate| answers.iter().map(|a| ideal_ms(a.bytes, a.first, rate)).collect::<Vec<_>>();
        let ideal = agreed.and_then(|rate| stats::mean(&ideals(rate)));
        let error = ideal.map(|ideal| mean / ideal - 1.0);
        consumers.push(ConsumerRow { port, agreed, requests: own.len(), mean, wait, ideal, error });
        times.extend(own);
    }
    times.sort_by(f64::total_cmp);
    let avg = stats::mean(&times).context("no answers")?;
    let std = (times.iter().map(|t| (t - avg).powi(2)).sum::<f64>() / times.len() as f64).sqrt();
    Ok(Row {
        case: case.name.clone(),
        control,
        engine: sample.engine,
        min: times[0],
        avg,
        max: times[times.len() - 1],
        std,
        consumers,
        udp: stats::mean(&sample.udp),
        times: times.iter().map(|t| (t * 1e3).round() / 1e3).collect(),
    })
}

impl Report {
    pub(super) fn new(scenario: &Scenario, rows: Vec<Row>, missing: Vec<Missing>, scripts: String) -> Report {
        let figures = figures(scenario, &rows);
        Report {
            head: Head::now(&scenario.name, figures),
            missing,
            settings: scenario.clone(),
            rows,
            scripts,
        }
    }
}

/// Whether the verdict concerns this control. It concerns weir; without weir, tc; without both, all controls.
fn is_judged(kind: ControlKind, rows: &[Row]) -> bool {
    let has = |wanted: fn(ControlKind) -> bool| rows.iter().any(|row| wanted(row.control));
    if has(ControlKind::is_weir) {
        kind.is_weir()
    } else if has(|kind| kind == ControlKind::Tc) {
        kind == ControlKind::Tc
    } else {
        true
    }
}

fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let want = &scenario.want;
    let mut figures = Vec::new();
    for row in rows {
        let Some(case) = scenario.cases.iter().find(|case| case.name == row.case) else { continue };
        let name = |what: &str| format!("{}: {what}, {}", row.case, row.control.name());
        // In an experiment where tc is to break the promise, tc cannot replace weir.
        let breaks = want.tc_longer.filter(|_| row.control == ControlKind::Tc);
        let judged = is_judged(row.control, rows) && breaks.is_none();
        let mut push = |name: String, value: f64, unit: &str, rule: Rule, want: Option<f64>, paper| {
            let figure = match want.filter(|_| judged) {
                Some(want) => Figure::judged(name, value, unit, want, rule),
                None => Figure::shown(name, value, unit),
            };
            figures.push(Figure { paper, ..figure });
        };
        // Table 2 has figures for tc, and for no control in A and B.
        let promises = !case.agreements.is_empty();
        let table = case.paper.filter(|_| promises == (row.control != ControlKind::None));
        let of = |which: fn(Paper) -> Option<f64>| table.and_then(which);
        push(name("min"), row.min, "ms", Rule::AtMost, None, of(|p| p.min));
        push(name("avg"), row.avg, "ms", Rule::AtMost, None, of(|p| Some(p.avg)));
        push(name("max"), row.max, "ms", Rule::AtMost, None, of(|p| p.max));
        push(name("std.dev"), row.std, "ms", Rule::AtMost, None, of(|p| Some(p.std)));
        if let Some(udp) = row.udp {
            push(name("UDP that arrived"), udp, "Mbit/s", Rule::AtMost, None, None);
        }
        // The same without the UDP task.
        let quiet = scenario
            .cases
            .iter()
            .find(|other| case.overloaded && !other.overloaded && other.agreements == case.agreements);
        let quiet = quiet.and_then(|quiet| {
            rows.iter().find(|other| other.case == quiet.name && other.control == row.control)
        });
        if !promises || row.control == ControlKind::None {
            let least = want.variable.filter(|_| !promises);
            let paper = table.map(|p| p.std / p.avg * 100.0);
            let spread = row.std / row.avg * 100.0;
            push(name("std.dev over mean"), spread, "%", Rule::AtLeast, least.map(|f| f * 100.0), paper);
            if let Some(quiet) = quiet.filter(|_| !promises) {
                let longer = (row.avg / quiet.avg - 1.0) * 100.0;
                let least = want.longer.map(|f| f * 100.0);
                // The paper says 65 %.
                let paper = (195.3 / 117.95 - 1.0) * 100.0;
                push(name("mean made longer by UDP"), longer, "%", Rule::AtLeast, least, Some(paper));
            }
            continue;
        }
        let most = want.error.map(|f| f * 100.0);
        let paper_error = want.paper_error.map(|f| f * 100.0);
        for consumer in &row.consumers {
            let (Some(error), Some(agreed)) = (consumer.error, consumer.agreed) else { continue };
            let what = format!("port {} with {agreed}: mean from S/bw", consumer.port);
            push(name(&what), error.abs() * 100.0, "%", Rule::AtMost, most, None);
        }
        if let Some(worst) = row.worst() {
            push(name("largest error"), worst * 100.0, "%", Rule::AtMost, most, paper_error);
        }
        let alone = row
            .consumers
            .iter()
            .filter_map(|c| Some(c.mean / (PAPER_BYTES * 8e3 / c.agreed?.bits_per_sec() as f64) - 1.0));
        if let Some(most) = alone.reduce(|a, b| if a.abs() > b.abs() { a } else { b }) {
            let paper = table.map(|p| (p.avg / (PAPER_BYTES * 8e3 / 19e6) - 1.0) * 100.0);
            push(name("error against the picture alone"), most * 100.0, "%", Rule::AtMost, None, paper);
        }
        let free = rows.iter().find(|other| other.case == row.case && other.control == ControlKind::None);
        if let Some(free) = free.filter(|_| case.overloaded) {
            let flatter = (1.0 - row.std / free.std) * 100.0;
            let least = want.flatter.map(|f| f * 100.0);
            push(name("std.dev below that without control"), flatter, "%", Rule::AtLeast, least, Some(95.0));
        }
        if let Some(quiet) = quiet {
            let moved = (row.avg / quiet.avg - 1.0).abs() * 100.0;
            let paper = (191.3 / 182.0 - 1.0) * 100.0;
            let most = want.moved.map(|f| f * 100.0);
            push(name("mean moved by UDP"), moved, "%", Rule::AtMost, most, Some(paper));
        }
    }
    figures
}

/// The paper's Table 2 with a line a case and control, and the judged figures.
#[must_use]
pub(crate) fn table(report: &Report) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "{}: {} ({})\ntransmission times of answers, ms; {} line, TSO {}, {} x {} s a measurement\n",
        report.head.scenario,
        settings.title,
        settings.source,
        settings.line,
        if settings.tso { "on" } else { "off" },
        settings.repetitions,
        settings.seconds,
    );
    let mut table = new_table();
    table.set_header(["case", "control", "answers", "min", "avg", "max", "std.dev", "S/bw", "error", "UDP"]);
    let mut last = "";
    let paper_line = |table: &mut comfy_table::Table, paper: &Paper| {
        let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}"));
        let numbers =
            [number(paper.min), number(Some(paper.avg)), number(paper.max), number(Some(paper.std))];
        let words = [vec![String::new(), "the paper".to_owned(), String::new()], numbers.to_vec()].concat();
        table.add_row([words, vec![String::new(); 3]].concat());
    };
    for (index, row) in report.rows.iter().enumerate() {
        let case = if row.case == last { "" } else { &row.case };
        last = &row.case;
        let control = control_name(row.control, row.engine.as_deref());
        let number = |value: f64| format!("{value:.2}");
        let ideals: Vec<f64> = row.consumers.iter().filter_map(|c| c.ideal).collect();
        let ideal = stats::mean(&ideals).map_or(String::new(), number);
        let error = row.worst().map_or(String::new(), |worst| format!("{:.2} %", worst * 100.0));
        let numbers = [row.min, row.avg, row.max, row.std].map(number);
        let rest = [ideal, error, row.udp.map_or(String::new(), |udp| format!("{udp:.1}"))];
        let first = vec![case.to_owned(), control, row.times.len().to_string()];
        table.add_row([first, numbers.to_vec(), rest.to_vec()].concat());
        let ends = report.rows.get(index + 1).is_none_or(|next| next.case != row.case);
        let paper = settings.cases.iter().find(|case| case.name == row.case).and_then(|case| case.paper);
        if let Some(paper) = paper.filter(|_| ends) {
            paper_line(&mut table, &paper);
        }
    }
    align_numbers(&mut table, 2);
    let _ = write!(
        text,
        "{table}\nerror: of the consumer whose mean is furthest from S/bw, S as charged on the wire; UDP: Mbit/s that arrived; load {}",
        report.head.machine.load
    );
    text += &missing_lines(&report.missing);
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        fs,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::report::Shown as _;

    /// A report of experiment C, with the consumers' times under `weir` at `factor` times S / bw.
    pub(in crate::agreements) fn sample(factor: f64, spread_ms: f64) -> Report {
        let text = include_str!("../../scenarios/sla-C.toml");
        let scenario: Scenario = toml::from_str(text).unwrap();
        let begun = Instant::now();
        let answers = |mean: f64, spread: f64| -> Sample {
            let one = |ms: f64| Answer {
                begun,
                wait: Duration::from_millis(10),
                dtime: Duration::from_secs_f64((10.0 + ms) / 1e3),
                bytes: 655 * 655 + 140,
                first: 1448,
            };
            let of = vec![one(mean - spread), one(mean + spread)];
            Sample { answers: vec![of; 5], udp: vec![4.5], engine: None }
        };
        let ideal = ideal_ms(655 * 655 + 140, 1448, BitRate::mbit(19));
        let mut rows = Vec::new();
        for case in &scenario.cases {
            rows.push(row(case, ControlKind::Weir, answers(ideal * factor, spread_ms)).unwrap());
            rows.push(row(case, ControlKind::None, answers(195.0, 40.0)).unwrap());
        }
        Report::new(&scenario, rows, Vec::new(), "# C\n".to_owned())
    }

    fn failed(report: &Report) -> Vec<&str> {
        report.head.figures.iter().filter(|f| f.pass == Some(false)).map(|f| f.name.as_str()).collect()
    }

    #[test]
    fn a_mean_too_far_from_the_promise_and_a_curve_too_wide_fall_short() {
        assert_eq!(sample(1.0, 1.0).head.pass, Some(true));
        assert_eq!(sample(1.029, 1.0).head.pass, Some(true));
        let late = sample(1.031, 1.0);
        assert!(failed(&late).iter().any(|name| name.contains("largest error")), "{:?}", failed(&late));
        let early = sample(0.969, 1.0);
        assert_eq!(early.head.pass, Some(false));
        let wide = sample(1.0, 2.1);
        assert_eq!(
            failed(&wide),
            ["C: 19 Mbit/s each, overloaded: std.dev below that without control, weir"]
        );
    }

    #[test]
    fn figures_stand_beside_the_papers() {
        let report = sample(1.01, 1.0);
        let of = |name: &str| report.head.figures.iter().find(|f| f.name.ends_with(name)).unwrap();
        assert_eq!(of("overloaded: avg, weir").paper, Some(191.3));
        assert_eq!(of("overloaded: avg, none").paper, None, "Table 2's line is about tc");
        assert!((of("error against the picture alone, weir").value - 5.3).abs() < 0.2);
        assert!((of("mean moved by UDP, weir").paper.unwrap() - 5.1).abs() < 0.1);
        assert!(of("largest error, weir").value < 1.01);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = sample(1.0, 1.0);
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let json = fs::read_to_string(dir.path().join("result.json")).unwrap();
        assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
        let text = fs::read_to_string(dir.path().join("table.txt")).unwrap();
        assert!(text.contains("the paper") && text.contains("191.30") && text.contains("pass"), "{text}");
    }

    #[test]
    fn a_consumer_without_an_answer_is_an_error_that_says_what_to_do() {
        let case = &sample(1.0, 1.0).settings.cases[0];
        let nothing = Sample { answers: vec![Vec::new()], ..Sample::default() };
        let error = row(case, ControlKind::None, nothing).unwrap_err().to_string();
        assert!(error.contains("8001") && error.contains("--seconds"), "{error}");
    }

    /// The answers of one repetition: each consumer's transmission times, ms.
    fn answers(times: &[f64]) -> Sample {
        let begun = Instant::now();
        let one = |ms: &f64| {
            let (wait, dtime) = (Duration::from_millis(10), Duration::from_secs_f64((10.0 + ms) / 1e3));
            Answer { begun, wait, dtime, bytes: 655 * 655 + 140, first: 1448 }
        };
        let of: Vec<Answer> = times.iter().map(one).collect();
        Sample { answers: vec![of; 5], udp: vec![times[0] / 100.0], engine: None }
    }

    #[test]
    fn repetitions_add_up() {
        let case = &sample(1.0, 1.0).settings.cases[0];
        let mut both = answers(&[100.0, 200.0]);
        both.add(answers(&[300.0, 600.0, 900.0]));
        let row = row(case, ControlKind::Weir, both).unwrap();
        assert_eq!((row.min, row.max, row.times.len()), (100.0, 900.0, 25));
        assert!((row.avg - 420.0).abs() < 1e-9 && row.consumers[4].requests == 5, "{row:?}");
        assert!((row.udp.unwrap() - 2.0).abs() < 1e-9, "{:?}", row.udp);
    }

    #[test]
    fn error_is_signed_and_of_consumers_with_a_promise() {
        let case = &sample(1.0, 1.0).settings.cases[0];
        let ideal = ideal_ms(655 * 655 + 140, 1448, BitRate::mbit(19));
        let late = row(case, ControlKind::Weir, answers(&[ideal * 1.1])).unwrap();
        let early = row(case, ControlKind::Weir, answers(&[ideal * 0.9])).unwrap();
        assert!((late.consumers[0].error.unwrap() - 0.1).abs() < 1e-6);
        assert!((early.consumers[0].error.unwrap() + 0.1).abs() < 1e-6);
        assert!((early.worst().unwrap() - 0.1).abs() < 1e-6, "the worst is the furthest");
        let none = row(case, ControlKind::None, answers(&[ideal])).unwrap();
        assert_eq!((none.consumers[0].agreed, none.worst()), (None, None));
    }

    #[test]
    fn what_the_udp_task_moves_is_judged_both_ways_beside_the_same_agreements() {
        let scenario = sample(1.0, 1.0).settings;
        let report = |scenario: &Scenario, loud: f64, quiet: f64| {
            let of =
                |index: usize, ms| row(&scenario.cases[index], ControlKind::Weir, answers(&[ms])).unwrap();
            Report::new(scenario, vec![of(0, loud), of(1, quiet)], Vec::new(), String::new())
        };
        let ideal = ideal_ms(655 * 655 + 140, 1448, BitRate::mbit(19));
        let moved = "C: 19 Mbit/s each, overloaded: mean moved by UDP, weir";
        assert_eq!(failed(&report(&scenario, ideal, ideal * 1.005)), Vec::<&str>::new());
        assert_eq!(failed(&report(&scenario, ideal, ideal * 1.02)), [moved]);
        assert_eq!(failed(&report(&scenario, ideal * 1.02, ideal)), [moved]);
        // Cases with other agreements cannot be compared.
        let mut others = scenario.clone();
        others.cases[1].agreements[0] = BitRate::mbit(18);
        assert!(
            !report(&others, ideal, ideal).head.figures.iter().any(|figure| figure.name.contains("moved"))
        );
    }

    #[test]
    fn step_from_experiment_a_to_b_is_judged_without_control() {
        let scenario: Scenario = toml::from_str(include_str!("../../scenarios/sla-B.toml")).unwrap();
        let least = 1.0 + scenario.want.longer.unwrap();
        let report = |factor: f64| {
            let of = |index: usize, factor: f64| {
                let times = [90.0, 110.0].map(|ms| ms * factor);
                row(&scenario.cases[index], ControlKind::None, answers(&times)).unwrap()
            };
            Report::new(&scenario, vec![of(0, 1.0), of(1, factor)], Vec::new(), String::new())
        };
        assert_eq!(failed(&report(least * 1.01)), Vec::<&str>::new());
        let short = report(least * 0.99);
        assert_eq!(failed(&short), ["B: overloaded network: mean made longer by UDP, none"]);
        let paper = short.head.figures.last().unwrap().paper.unwrap();
        assert!((paper - 65.6).abs() < 0.1, "{paper}");
    }

    #[test]
    fn plain_tc_is_judged_only_where_weir_is_absent() {
        let mut scenario = sample(1.0, 1.0).settings;
        let report = |scenario: &Scenario, kinds: &[ControlKind]| {
            let of = |kind: &ControlKind| row(&scenario.cases[0], *kind, answers(&[100.0])).unwrap();
            Report::new(scenario, kinds.iter().map(of).collect(), Vec::new(), String::new())
        };
        let names = |report: &Report| failed(report).join("; ");
        let both = names(&report(&scenario, &[ControlKind::Weir, ControlKind::Tc]));
        assert!(both.contains("weir") && !both.contains("tc"), "{both}");
        assert!(names(&report(&scenario, &[ControlKind::Tc])).contains("largest error, tc"));
        scenario.want.tc_longer = Some(0.1);
        assert_eq!(report(&scenario, &[ControlKind::Tc]).head.pass, None);
    }

    #[test]
    fn times_that_should_vary_without_agreements_and_do_not_fall_short() {
        let text = include_str!("../../scenarios/sla-A.toml");
        let scenario: Scenario = toml::from_str(text).unwrap();
        let report = |times: &[f64]| {
            let row = row(&scenario.cases[0], ControlKind::None, answers(times)).unwrap();
            Report::new(&scenario, vec![row], Vec::new(), String::new())
        };
        assert_eq!(report(&[100.0, 300.0]).head.pass, Some(true));
        assert_eq!(report(&[200.0, 201.0]).head.pass, Some(false));
    }
}
