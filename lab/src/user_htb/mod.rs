//! How many packets a second the token bucket tree of `weir-htb` schedules: the experiments of "A Novel
//! Parallel Traffic Control Mechanism for Cloud Computing", in memory and in virtual time.
//!
//! Scenario files of this kind say `measures = "packets"`; the other fields are those of
//! [`Scenario`]. Classification is included (a header is read, its destination looked up); reading
//! from and writing to a network is not.

mod backlog;
mod cores;
mod fifo;
mod judge;
mod kernel;
mod offered;
mod plot;
mod scenario;
mod show;
mod trace;

use anyhow::Result;
use weir_netlab::interrupt;

use self::{
    scenario::{Form, Load, Output, Report, Row, WINDOWS, some},
    trace::Trace,
};
use crate::report::Head;

pub(crate) use scenario::{Case, Scenario};

/// Plays all cases alternately; all of the trace with `whole`. `watch` hears of each play.
///
/// # Errors
/// If a capture cannot be used; on Ctrl-C.
pub(crate) fn run(
    scenario: &Scenario,
    whole: bool,
    seed: u64,
    watch: &mut dyn FnMut(Case),
) -> Result<Report> {
    let most = if whole || scenario.pcap.is_some() { scenario.packets } else { some(scenario) };
    let mut trace = Trace::of(scenario, most, seed)?;
    let mut cases = scenario.cases();
    if let (true, Some(why)) = (cases.iter().any(|case| case.form == Form::Kernel), kernel::lacking(scenario))
    {
        cases.retain(|case| case.form != Form::Kernel);
        trace.notes.push(format!("SKIPPED: the kernel's HTB: {why}"));
    }
    let mut plays = vec![Vec::new(); cases.len()];
    for _ in 0..scenario.repetitions {
        for (case, plays) in cases.iter().zip(&mut plays) {
            interrupt::check()?;
            watch(*case);
            let two = case.form.cores() == 2;
            let before = two.then(cores::round_trip).flatten();
            let played = match case.load {
                Load::Offered => offered::play(*case, scenario, &trace)?,
                Load::Backlogged if case.form == Form::Kernel => kernel::play(scenario, case.active, seed)?,
                Load::Backlogged | Load::RealTime => backlog::play(*case, scenario, most, seed)?,
            };
            let after = two.then(cores::round_trip).flatten();
            plays.push((played, before.zip(after)));
        }
    }
    let rows: Vec<Row> =
        cases.iter().zip(&plays).map(|(case, plays)| judge::row(*case, scenario, plays)).collect();
    let user = 1;
    let (seconds, all, one) = offered::output(scenario, &trace, WINDOWS, user)?;
    let figures = judge::figures(scenario, &rows);
    Ok(Report {
        head: Head::now(&scenario.name, figures),
        settings: scenario.clone(),
        played: trace.frames.len() as u64,
        mean_len: trace.bytes() as f64 / trace.frames.len() as f64,
        notes: trace.notes,
        rows,
        output: Output { seconds, all, user, one },
    })
}

#[cfg(test)]
mod tests {
    use super::{scenario::tests::scenario, show::table, *};

    /// A short run of all forms: the tree's figures in virtual time are exact on any machine.
    #[test]
    fn every_form_fills_the_link_and_the_report_is_whole() {
        let whole = scenario("phtb-2");
        let forms = whole.forms.iter().copied().filter(|form| *form != Form::Kernel).collect();
        let scenario = Scenario { users: 40, active: 28, packets: 40_000, repetitions: 1, forms, ..whole };
        let mut watched = 0;
        let report = run(&scenario, true, 1, &mut |_| watched += 1).unwrap();
        assert_eq!(watched, scenario.steps());
        assert_eq!((report.played, report.rows.len()), (40_000, 11));
        for row in &report.rows {
            // To a batch of the few here; two threads follow each other within what a link saves up,
            // and of few packets most are on their way between them.
            let least = match (row.case.form, row.case.load) {
                (Form::Single, _) => 0.997,
                (_, Load::Offered) => 0.9,
                _ => 0.0,
            };
            assert!(row.link_use > least && row.link_use < 1.01, "{row:?}");
            assert!(row.mpps > 0.0, "{row:?}");
            let whole = matches!(row.case.form, Form::Apart | Form::Shards);
            let parts = whole || row.enqueue_ns > 0.0 && row.dequeue_ns > 0.0;
            assert!(parts, "{row:?}");
        }
        let text = table(&report);
        assert!(text.contains("pipeline") && text.contains("as the paper's column"), "{text}");
        let mean = report.output.all.iter().sum::<f64>() / report.output.all.len() as f64;
        assert!((mean / 50.0 - 1.0).abs() < 0.1, "50 Mbit/s: {mean}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap().rows, report.rows);
    }

    #[test]
    fn packets_a_second_are_shown_beside_what_was_wanted_and_not_judged() {
        let whole = scenario("phtb-3");
        let scenario = Scenario {
            users: 40,
            active: 40,
            packets: 4_000,
            repetitions: 1,
            forms: vec![Form::Single],
            loads: vec![Load::Backlogged],
            ..whole
        };
        let report = run(&scenario, true, 1, &mut |_| ()).unwrap();
        let text = table(&report);
        let said = text.lines().find(|line| line.starts_with("Mpps, not judged, as machines differ: "));
        assert!(said.is_some_and(|said| said.ends_with("(36 wanted)")), "{text}");
        let figure = report.head.figures.iter().find(|figure| figure.unit == "Mpps").unwrap();
        assert_eq!(figure.pass, None);
    }
}
