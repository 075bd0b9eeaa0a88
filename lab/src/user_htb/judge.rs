//! The verdict of a case's plays together.

use super::scenario::{BOTH, Case, Form, Load, PlayTiming, Row, Scenario, link};
use crate::report::{Figure, Rule};

/// Of an odd number of values the middle one, else the upper of the two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values = values.collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A case's plays, each with the round trips before and after.
pub(super) fn row(case: Case, scenario: &Scenario, plays: &[(PlayTiming, Option<(f64, f64)>)]) -> Row {
    let of = |f: &dyn Fn(&PlayTiming) -> f64| median(plays.iter().map(|(played, _)| f(played)));
    let rate = |played: &PlayTiming| played.sent as f64 / played.seconds / 1e6;
    let least = plays.iter().map(|(played, _)| rate(played)).fold(f64::INFINITY, f64::min);
    let most = plays.iter().map(|(played, _)| rate(played)).fold(0.0, f64::max);
    let bits = link(scenario).bits_per_sec() as f64;
    let trip = |f: fn((f64, f64)) -> f64| median(plays.iter().filter_map(|(_, trips)| trips.map(f)));
    let trips = (trip(|trips| trips.0), trip(|trips| trips.1));
    let real = case.load == Load::RealTime;
    Row {
        case,
        mpps: of(&rate),
        range: (least, most),
        mpps_cpu: (case.form.cores() == 1 && !real).then(|| of(&|played| rate(played) / played.had)),
        mbps: of(&|played| played.bytes as f64 * 8.0 / played.seconds / 1e6),
        enqueue_ns: of(&|played| played.enqueue_ns),
        dequeue_ns: of(&|played| played.dequeue_ns),
        link_use: of(&|played| played.late_bytes as f64 * 8e9 / (played.late_ns * bits)),
        worst: real.then(|| of(&|played| played.worst)),
        lost_ms: real.then(|| of(&|played| played.lost_ns / 1e6)),
        had: of(&|played| played.had),
        round_trip_ns: (!trips.0.is_nan()).then_some(trips),
    }
}

/// Ratios within one run are judged, as figures of one machine say little about another; those of two
/// threads only if both had a processor. Millions a second are said beside what was wanted of two cores
/// of a server of 2025.
pub(super) fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut figure = |name: String, value: f64, unit: &str, want: f64, rule: Rule, judged: bool| {
        let pass = match rule {
            Rule::Within(part) => (value - want).abs() <= part * want,
            Rule::AtLeast => value >= want,
            Rule::AtMost => value <= want,
        };
        figures.push(Figure {
            name,
            value,
            unit: unit.to_owned(),
            want: Some(want),
            paper: None,
            rule: Some(rule),
            pass: judged.then_some(pass),
        });
    };
    let both = |a: &Row, b: &Row| a.had.min(b.had) >= BOTH;
    for load in &scenario.loads {
        let row = |form| {
            let wanted = Case { form, load: *load, active: scenario.active };
            rows.iter().find(|row: &&Row| row.case == wanted)
        };
        let name = |what: &str| format!("{what}, {}", load.name());
        let small = scenario.max_len == 64 && *load == Load::Backlogged && !scenario.unlimited;
        if let (Some(single), false) = (row(Form::Single), *load == Load::RealTime) {
            // The load of a capture is its own.
            let made_up = scenario.pcap.is_none();
            let link_use = single.link_use;
            figure(
                name("output of the link, one thread"),
                link_use,
                "of it",
                1.0,
                Rule::Within(0.001),
                made_up,
            );
        }
        let wanted = [(Form::Single, 36.0), (Form::Pipeline, 50.0), (Form::Shards, 75.0)];
        for (form, want) in wanted.into_iter().filter(|_| small) {
            if let Some(row) = row(form) {
                figure(name(form.name()), row.mpps, "Mpps", want, Rule::AtLeast, false);
            }
        }
        if let (Some(shards), Some(apart)) = (row(Form::Shards), row(Form::Apart)) {
            // They look at all of their leaves each millisecond, which here is 20 us of real time.
            let (ratio, judged) = (shards.mpps / apart.mpps, small && both(shards, apart));
            figure(name("two shards over two trees apart"), ratio, "times", 0.9, Rule::AtLeast, judged);
        }
        // Two cores are worth it if they do clearly more than one, and no less than the paper's lock-free form.
        for (peer, least) in [(Form::Single, 1.3), (Form::Paper, 1.0)] {
            if let (Some(pipeline), Some(peer)) = (row(Form::Pipeline), row(peer)) {
                let judged = small && both(pipeline, peer);
                let ratio = pipeline.mpps / peer.mpps;
                let what = format!("pipeline over {}", peer.case.form.name());
                figure(name(&what), ratio, "times", least, Rule::AtLeast, judged);
            }
        }
        for row in rows.iter().filter(|row| row.case.load == *load) {
            let form = row.case.form.name();
            if *load == Load::RealTime {
                let judged = both(row, row);
                figure(
                    name(&format!("the line, {form}")),
                    row.link_use,
                    "of it",
                    0.995,
                    Rule::AtLeast,
                    judged,
                );
                let worst = row.worst.unwrap_or(f64::NAN);
                figure(name(&format!("worst user, {form}")), worst, "off", 0.005, Rule::AtMost, judged);
            }
            let beside = |other: &&Row| other.case == Case { active: scenario.active, ..row.case };
            if let (true, Some(few)) = (scenario.beside == Some(row.case.active), rows.iter().find(beside)) {
                let what = name(&format!("{} active over {}, {form}", scenario.active, row.case.active));
                // The paper's form is slower, which is what it shows.
                let judged = row.case.form == Form::Pipeline && both(few, row);
                figure(what, few.mpps / row.mpps, "times", 1.0, Rule::AtLeast, judged);
            }
        }
    }
    figures
}
