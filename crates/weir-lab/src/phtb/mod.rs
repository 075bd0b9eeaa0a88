//! How many packets a second the token bucket tree of `weir-htb` schedules: the experiments of "A Novel
//! Parallel Traffic Control Mechanism for Cloud Computing", in memory and in virtual time.
//!
//! Scenario files of this kind say `measures = "packets"`; the other fields are those of
//! [`Scenario`]. Classification is included (a header is read, its destination looked up); reading
//! from and writing to a network is not.

mod fifo;
mod plot;
mod show;
mod stages;
mod trace;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_htb::{ClassId, Htb, Limits, Params};
use weir_units::{BitRate, Bytes, Instant};

pub use plot::svg;
pub use show::table;
pub use trace::{Frame, Trace, Users};

use crate::{
    interrupt,
    report::{Figure, Machine, Rule},
};

/// Bytes of a turn.
const QUANTUM: u32 = 1_514;
/// Packets that wait in a leaf at the most.
const LIMIT: u32 = 64;
/// Frames that are played without `--paper`.
const SOME: u64 = 1_000_000;
/// Moments of a plot.
const WINDOWS: usize = 100;
/// Two stages are judged if each had this much of a processor.
const BOTH: f64 = 0.9;

/// In which form the tree runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// One thread.
    Single,
    /// The enqueue stage and the dequeue stage of `weir_htb::Htb::into_pipeline`.
    Pipeline,
    /// The same two stages around one tree with a spin lock, taken for each packet.
    Lock,
    /// The paper's: a lock-free FIFO for each leaf, empty ones are looked into.
    Paper,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Single => "one thread",
            Form::Pipeline => "pipeline",
            Form::Lock => "lock a packet",
            Form::Paper => "paper's FIFOs",
        }
    }

    fn cores(self) -> usize {
        if self == Form::Single { 1 } else { 2 }
    }
}

/// What the paper's table says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its column MPPS, which is Mbit/s by bytes: 8 times what its other columns say.
    pub mpps: f64,
    /// Mbit/s.
    pub mbps: f64,
    /// Time to enqueue a packet, us.
    pub enqueue_us: f64,
    /// Time to dequeue one, us.
    pub dequeue_us: f64,
}

/// An experiment about the speed of the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What `weir lab run` calls it.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// What it shows.
    pub about: String,
    /// Says which kind of scenario it is.
    pub measures: Measures,
    /// Half of them are assured of 0.5 Mbit/s and have at most 1, half 2 and 12; the link is the sum of
    /// what they are assured of.
    pub users: u32,
    /// Those that send: the first.
    pub active: u32,
    /// Packets of the trace; fewer are played without `--paper`.
    pub packets: u64,
    /// Bytes of the shortest packet.
    pub min_len: u32,
    /// Bytes of the longest one; lengths between them are equally frequent.
    pub max_len: u32,
    /// A pcap or pcapng file to be played instead of a made-up trace. The first destinations are the
    /// users.
    #[serde(default)]
    pub pcap: Option<PathBuf>,
    /// What is compared.
    #[serde(default = "forms")]
    pub forms: Vec<Form>,
    /// How often each form plays the trace, by turns.
    #[serde(default = "seven")]
    pub repetitions: usize,
    /// The paper's line.
    #[serde(default)]
    pub paper: Option<Paper>,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measures {
    /// Packets a second.
    Packets,
}

fn forms() -> Vec<Form> {
    vec![Form::Single, Form::Pipeline, Form::Lock, Form::Paper]
}
fn seven() -> usize {
    7
}

impl Scenario {
    /// What is wrong with it, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let (users, active) = (self.users, self.active);
        if !(2..=65_536).contains(&users) || !(2..=users).contains(&active) {
            return Some(format!(
                "users = {users} and active = {active}: from 2 to 65536, and not more active"
            ));
        }
        if self.min_len < 64 || self.max_len > 65_549 || self.min_len > self.max_len {
            let (min, max) = (self.min_len, self.max_len);
            return Some(format!("lengths from {min} to {max} bytes: from 64 to 65549, the shorter first"));
        }
        if self.packets < 1_000 || self.forms.is_empty() || self.repetitions == 0 {
            return Some("packets (at least 1000), forms and repetitions say what is measured".to_owned());
        }
        None
    }

    /// How many times [`run`]'s `watch` is called.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.forms.len() * self.repetitions
    }
}

/// A user's rate and ceiling: the common service by turns with the special one.
fn rates(user: u32) -> (BitRate, BitRate) {
    if user.is_multiple_of(2) {
        (BitRate::kbit(500), BitRate::mbit(1))
    } else {
        (BitRate::mbit(2), BitRate::mbit(12))
    }
}

fn link(scenario: &Scenario) -> BitRate {
    BitRate((0..scenario.users).map(|user| rates(user).0.bits_per_sec()).sum())
}

/// Enough for a stage that is late, and for batches on a slow link.
fn link_burst(rate: BitRate) -> Bytes {
    Bytes(rate.bytes_per_sec() / 500 + 200_000)
}

/// All users below one link.
fn tree(scenario: &Scenario) -> Result<Htb> {
    let (users, link) = (scenario.users, ClassId(scenario.users));
    let limits = Limits { classes: users + 1, packets: users * LIMIT, depth: 2 };
    let mut htb = Htb::new(limits, Instant::default());
    let refused = || format!("scenario {}", scenario.name);
    let rate = self::link(scenario);
    let burst = link_burst(rate);
    htb.add(link, None, Params::new(rate).burst(burst).cburst(burst)).with_context(refused)?;
    for user in 0..users {
        let (rate, ceil) = rates(user);
        let params = Params::new(rate).ceil(ceil).quantum(QUANTUM).limit(LIMIT);
        htb.add(ClassId(user), Some(link), params).with_context(refused)?;
    }
    Ok(htb)
}

/// One form: medians over the repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub form: Form,
    /// Packets that left, millions a second of real time.
    pub mpps: f64,
    /// Least and most of that.
    pub range: (f64, f64),
    /// The same a second of processor time, if it is one thread's.
    pub mpps_cpu: Option<f64>,
    /// What left, Mbit a second of real time.
    pub mbps: f64,
    /// Time to classify and enqueue a packet that arrives, ns.
    pub enqueue_ns: f64,
    /// Time to dequeue one that leaves, ns.
    pub dequeue_ns: f64,
    /// What left of what the link lets go, in virtual time.
    pub link_use: f64,
    /// Of its processor: what the thread with less of it had.
    pub had: f64,
    /// A line of the cache from one processor to the other and back, before and after, ns.
    pub round_trip_ns: Option<(f64, f64)>,
}

/// Output over virtual time, Mbit/s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Between two figures.
    pub seconds: f64,
    /// Of all users.
    pub all: Vec<f64>,
    /// Which user was selected: of the special service.
    pub user: u32,
    /// Of that user.
    pub one: Vec<f64>,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub scenario: String,
    /// Whether every figure that is judged holds; none if none is.
    pub pass: Option<bool>,
    /// What was measured, beside what was wanted and what the paper reports.
    pub figures: Vec<Figure>,
    /// Kernel release.
    pub kernel: String,
    /// What it ran on.
    pub machine: Machine,
    /// weir's version.
    pub weir: String,
    /// Seconds since the epoch.
    pub time: u64,
    /// How it was run: the scenario.
    pub settings: Scenario,
    /// Frames that were played.
    pub played: u64,
    /// Their mean length, bytes.
    pub mean_len: f64,
    /// What is to be said about the trace.
    pub notes: Vec<String>,
    /// By form.
    pub rows: Vec<Row>,
    /// For the plot.
    pub output: Output,
}

/// Plays the trace in all forms, by turns; all of it with `whole`. `watch` hears of each play.
///
/// # Errors
/// If a capture cannot be used; on Ctrl-C.
pub fn run(scenario: &Scenario, whole: bool, seed: u64, watch: &mut dyn FnMut(Form)) -> Result<Report> {
    let most = if whole || scenario.pcap.is_some() { scenario.packets } else { scenario.packets.min(SOME) };
    let trace = Trace::of(scenario, most, seed)?;
    let mut plays = vec![Vec::new(); scenario.forms.len()];
    for _ in 0..scenario.repetitions {
        for (form, plays) in scenario.forms.iter().zip(&mut plays) {
            interrupt::check()?;
            watch(*form);
            let two = form.cores() == 2;
            let before = two.then(stages::round_trip).flatten();
            let played = stages::play(*form, scenario, &trace)?;
            let after = two.then(stages::round_trip).flatten();
            plays.push((played, before.zip(after)));
        }
    }
    let rows: Vec<Row> =
        scenario.forms.iter().zip(&plays).map(|(form, plays)| row(*form, scenario, plays)).collect();
    let user = 1;
    let (seconds, all, one) = stages::output(scenario, &trace, WINDOWS, user)?;
    let figures = figures(scenario, &rows);
    let verdicts: Vec<bool> = figures.iter().filter_map(|figure| figure.pass).collect();
    Ok(Report {
        scenario: scenario.name.clone(),
        pass: (!verdicts.is_empty()).then(|| verdicts.iter().all(|pass| *pass)),
        figures,
        kernel: crate::report::kernel(),
        machine: Machine::here(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        time: std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
        settings: scenario.clone(),
        played: trace.frames.len() as u64,
        mean_len: trace.bytes() as f64 / trace.frames.len() as f64,
        notes: trace.notes,
        rows,
        output: Output { seconds, all, user, one },
    })
}

/// Of an odd number of values the middle one, else the upper of the two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values = values.collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(form: Form, scenario: &Scenario, plays: &[(stages::Played, Option<(f64, f64)>)]) -> Row {
    let of = |f: &dyn Fn(&stages::Played) -> f64| median(plays.iter().map(|(played, _)| f(played)));
    let rate = |played: &stages::Played| played.sent as f64 / played.seconds / 1e6;
    let least = plays.iter().map(|(played, _)| rate(played)).fold(f64::INFINITY, f64::min);
    let most = plays.iter().map(|(played, _)| rate(played)).fold(0.0, f64::max);
    let bits = link(scenario).bits_per_sec() as f64;
    let trip = |f: fn((f64, f64)) -> f64| median(plays.iter().filter_map(|(_, trips)| trips.map(f)));
    let trips = (trip(|trips| trips.0), trip(|trips| trips.1));
    Row {
        form,
        mpps: of(&rate),
        range: (least, most),
        mpps_cpu: (form.cores() == 1).then(|| of(&|played| rate(played) / played.had)),
        mbps: of(&|played| played.bytes as f64 * 8.0 / played.seconds / 1e6),
        enqueue_ns: of(&|played| played.enqueue_ns),
        dequeue_ns: of(&|played| played.dequeue_ns),
        link_use: of(&|played| played.late_bytes as f64 * 16e9 / (played.virtual_ns as f64 * bits)),
        had: of(&|played| played.had),
        round_trip_ns: (!trips.0.is_nan()).then_some(trips),
    }
}

/// Ratios within one run, as figures of one machine say little about another; those of two threads are
/// judged only if both had a processor.
fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let row = |form| rows.iter().find(|row: &&Row| row.form == form);
    let mut figures = Vec::new();
    let mut figure = |name: &str, value: f64, unit: &str, want: f64, rule: Rule, judged: bool| {
        let pass = match rule {
            Rule::Within(part) => (value - want).abs() <= part * want,
            Rule::AtLeast => value >= want,
            Rule::AtMost => value <= want,
        };
        figures.push(Figure {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            want: Some(want),
            paper: None,
            rule: Some(rule),
            pass: judged.then_some(pass),
        });
    };
    if let Some(single) = row(Form::Single) {
        // What a capture offers is its own. In a short trace users spend what they had saved up.
        let made_up = scenario.pcap.is_none();
        figure("output of the link, one thread", single.link_use, "of it", 0.999, Rule::AtLeast, made_up);
    }
    let both = |a: &Row, b: &Row| a.had.min(b.had) >= BOTH;
    if let (Some(pipeline), Some(lock)) = (row(Form::Pipeline), row(Form::Lock)) {
        let ratio = pipeline.mpps / lock.mpps;
        let small = scenario.max_len == 64;
        figure(
            "pipeline over a lock a packet",
            ratio,
            "times",
            5.0,
            Rule::AtLeast,
            small && both(pipeline, lock),
        );
    }
    if let (Some(pipeline), Some(paper)) = (row(Form::Pipeline), scenario.paper) {
        let ratio = pipeline.mbps / paper.mbps;
        let small = scenario.max_len == 64;
        figure(
            "pipeline over the paper's Mbit/s",
            ratio,
            "times",
            25.0,
            Rule::AtLeast,
            small && both(pipeline, pipeline),
        );
    }
    figures
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::{self, Experiment};

    pub(super) fn scenario(name: &str) -> Scenario {
        let Experiment::Packets(scenario) = experiment::find(name).unwrap() else { panic!("{name}") };
        *scenario
    }

    /// A short run of all forms: the tree's figures in virtual time are exact on any machine.
    #[test]
    fn every_form_fills_the_link_and_the_report_is_whole() {
        let scenario =
            Scenario { users: 40, active: 28, packets: 40_000, repetitions: 1, ..scenario("phtb-2") };
        let mut watched = Vec::new();
        let report = run(&scenario, true, 1, &mut |form| watched.push(form)).unwrap();
        assert_eq!(watched, scenario.forms);
        assert_eq!((report.played, report.rows.len()), (40_000, 4));
        for row in &report.rows {
            // To a batch of the few here; two threads follow each other within what a link saves up.
            let least = if row.form == Form::Single { 0.997 } else { 0.9 };
            assert!(row.link_use > least && row.link_use < 1.01, "{row:?}");
            assert!(row.mpps > 0.0 && row.enqueue_ns > 0.0 && row.dequeue_ns > 0.0, "{row:?}");
        }
        let text = table(&report);
        assert!(text.contains("pipeline") && text.contains("as the paper's column"), "{text}");
        let mean = report.output.all.iter().sum::<f64>() / report.output.all.len() as f64;
        assert!((mean / 50.0 - 1.0).abs() < 0.1, "50 Mbit/s: {mean}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap().rows, report.rows);
    }

    #[test]
    fn a_scenario_about_nothing_says_what_is_wrong() {
        let good = scenario("phtb-1");
        assert_eq!(good.fault(), None);
        for (bad, why) in [
            (Scenario { users: 1, active: 1, ..good.clone() }, "users = 1"),
            (Scenario { active: 801, ..good.clone() }, "active = 801"),
            (Scenario { min_len: 20, ..good.clone() }, "from 20 to 1500"),
            (Scenario { forms: Vec::new(), ..good.clone() }, "forms"),
        ] {
            assert!(bad.fault().is_some_and(|fault| fault.contains(why)), "{why}");
        }
    }
}
