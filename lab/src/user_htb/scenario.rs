//! The scenarios about the speed of the scheduler, the tree that they build, and their results.

use std::{fmt, path::PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_htb::{ClassId, ClassSpec, Htb, Limits, Next, Packet, Params};
use weir_units::{BitRate, Bytes, Instant};

use crate::report::Head;

/// Bytes of a turn.
pub(super) const QUANTUM: u32 = 1_514;
/// The most packets that wait in a leaf.
pub(super) const LIMIT: u32 = 64;
/// Frames of a user that are played without `--paper`: of fewer, what is saved up and owed at the end is
/// more than a thousandth.
const FRAMES_PER_USER: u64 = 1_250;
/// Moments of a plot.
pub(super) const WINDOWS: usize = 100;
/// Two stages are judged if each had this much of a processor.
pub(super) const BOTH: f64 = 0.9;

/// In which form the tree runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// One thread.
    Single,
    /// Two threads, each with a tree of half of the users, and half of the link: the most that this
    /// machine gives shards.
    Apart,
    /// Two of `weir_htb::shards`, each with half of the users.
    Shards,
    /// A word a packet there and back by the pipeline's rings, without classes and a tree: the most
    /// that this machine gives the pipeline.
    Ring,
    /// The enqueue stage and the dequeue stage of `weir_htb::Htb::into_pipeline`.
    Pipeline,
    /// The same two stages around one tree with a spin lock, taken for each packet.
    Lock,
    /// The paper's: a lock-free FIFO for each leaf, empty ones are looked into.
    Paper,
    /// The kernel's HTB with real packets, from sockets of two threads over a pair of veths; needs root.
    Kernel,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Single => "one thread",
            Form::Apart => "trees apart",
            Form::Shards => "two shards",
            Form::Ring => "bare rings",
            Form::Pipeline => "pipeline",
            Form::Lock => "lock a packet",
            Form::Paper => "paper's FIFOs",
            Form::Kernel => "kernel's, veth",
        }
    }

    pub(super) fn cores(self) -> usize {
        if self == Form::Single { 1 } else { 2 }
    }
}

/// How packets come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Load {
    /// Users who send always have packets waiting: each that leaves comes again. Virtual time.
    Backlogged,
    /// The trace arrives a little faster than the link lets go; most leaves have a packet or two.
    /// Virtual time.
    Offered,
    /// As backlogged, against the real clock.
    RealTime,
}

impl Load {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::Backlogged => "backlogged",
            Load::Offered => "offered",
            Load::RealTime => "real time",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    /// In which form.
    pub(crate) form: Form,
    /// How packets come.
    pub(crate) load: Load,
    /// How many users send.
    pub(crate) active: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {} active", self.form.name(), self.load.name(), self.active)
    }
}

/// The time of one play.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlayTiming {
    pub(super) seconds: f64,
    pub(super) sent: u64,
    pub(super) bytes: u64,
    /// The packets that left in the later part of the time, and its length.
    pub(super) late_bytes: u64,
    pub(super) late_ns: f64,
    pub(super) enqueue_ns: f64,
    pub(super) dequeue_ns: f64,
    /// Of the processor: the least that a stage had while it ran.
    pub(super) had: f64,
    /// Of real time: how far the worst user was off what it is assured of, as part of that.
    pub(super) worst: f64,
    /// Of real time: what the dequeue stage missed and could not make up for.
    pub(super) lost_ns: f64,
}

/// The figure of the paper's table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paper {
    /// Its column MPPS, which is Mbit/s by bytes: 8 times what its other columns say.
    pub(crate) mpps: f64,
    /// Mbit/s.
    pub(crate) mbps: f64,
    /// Time to enqueue a packet, us.
    pub(crate) enqueue_us: f64,
    /// Time to dequeue one, us.
    pub(crate) dequeue_us: f64,
}

/// An experiment about the speed of the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name for `weir lab run`.
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// Where the experiment comes from.
    pub(crate) source: String,
    /// The result that it shows.
    pub(crate) about: String,
    /// Says which kind of scenario it is.
    pub(crate) measures: Measures,
    /// Half of them are assured of 0.5 Mbit/s and have at most 1, half 2 and 12; the link is the sum of
    /// what they are assured of.
    pub(crate) users: u32,
    /// Those that send: the first.
    pub(crate) active: u32,
    /// It is measured with this number too, to compare.
    #[serde(default)]
    pub(crate) beside: Option<u32>,
    /// Users' rates and the link are this multiple of the paper's.
    #[serde(default = "once")]
    pub(crate) times: u64,
    /// Each user may have all of the link, so that rates hold no user back.
    #[serde(default)]
    pub(crate) unlimited: bool,
    /// Packets of the trace; fewer are played without `--paper`.
    pub(crate) packets: u64,
    /// Packets that each user who is backlogged has, those on their way included.
    #[serde(default = "sixteen")]
    pub(crate) waiting: u32,
    /// Bytes of the shortest packet.
    pub(crate) min_len: u32,
    /// Bytes of the longest one; lengths between them are equally frequent.
    pub(crate) max_len: u32,
    /// A pcap or pcapng file to be played instead of a made-up trace. The first destinations are the
    /// users.
    #[serde(default)]
    pub(crate) pcap: Option<PathBuf>,
    /// The compared forms.
    #[serde(default = "forms")]
    pub(crate) forms: Vec<Form>,
    /// How packets come; a capture is offered only, and shards have backlogs only.
    #[serde(default = "loads")]
    pub(crate) loads: Vec<Load>,
    /// The number of plays of each, alternately.
    #[serde(default = "seven")]
    pub(crate) repetitions: usize,
    /// The paper's line.
    #[serde(default)]
    pub(crate) paper: Option<Paper>,
}

/// The cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measures {
    /// Packets a second.
    Packets,
}

fn forms() -> Vec<Form> {
    vec![
        Form::Single,
        Form::Apart,
        Form::Shards,
        Form::Ring,
        Form::Pipeline,
        Form::Lock,
        Form::Paper,
        Form::Kernel,
    ]
}
fn loads() -> Vec<Load> {
    vec![Load::Backlogged, Load::Offered]
}
fn once() -> u64 {
    1
}
fn sixteen() -> u32 {
    16
}
fn seven() -> usize {
    7
}

impl Scenario {
    /// The fault, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
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
        if self.beside.is_some_and(|beside| !(2..=users).contains(&beside)) {
            return Some(format!(
                "beside = {:?}: from 2 to users = {users}",
                self.beside.unwrap_or_default()
            ));
        }
        if !(1..=LIMIT).contains(&self.waiting) {
            return Some(format!("waiting = {}: from 1 to {LIMIT}", self.waiting));
        }
        if !(1..=100).contains(&self.times) {
            return Some(format!("times = {}: from 1 to 100", self.times));
        }
        let cases = self.cases();
        if self.packets < 1_000 || cases.is_empty() || self.repetitions == 0 {
            return Some(
                "packets (at least 1000), forms, loads and repetitions say what is measured".to_owned(),
            );
        }
        let real = |case: &&Case| case.load == Load::RealTime;
        if let Some(case) =
            cases.iter().filter(real).find(|case| case.form.cores() == 2 && case.form != Form::Pipeline)
        {
            return Some(format!(
                "\"{}\" is not measured in real time: single and pipeline are",
                case.form.name()
            ));
        }
        None
    }

    /// The cases: each form with each load that it can have.
    #[must_use]
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for load in &self.loads {
            for active in [Some(self.active), self.beside].into_iter().flatten() {
                cases.extend(self.forms.iter().map(|form| Case { form: *form, load: *load, active }));
            }
        }
        let can = |case: &Case| match case.load {
            // A trace is the scenario's; it is not played for other numbers of users.
            Load::Offered => {
                !matches!(case.form, Form::Apart | Form::Shards | Form::Ring | Form::Kernel)
                    && case.active == self.active
            }
            Load::Backlogged | Load::RealTime => self.pcap.is_none(),
        };
        cases.retain(can);
        cases
    }

    /// How many times `run`'s `watch` is called.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.cases().len() * self.repetitions
    }
}

/// The paper's rate and ceiling of a user: the common service and the special one alternate.
pub(super) fn paper_rates(user: u32) -> (BitRate, BitRate) {
    if user.is_multiple_of(2) {
        (BitRate::kbit(500), BitRate::mbit(1))
    } else {
        (BitRate::mbit(2), BitRate::mbit(12))
    }
}

/// A user's rate and ceiling.
pub(super) fn rates(scenario: &Scenario, user: u32) -> (BitRate, BitRate) {
    if scenario.unlimited {
        return (link(scenario), link(scenario));
    }
    let (rate, ceil) = paper_rates(user);
    (BitRate(rate.0 * scenario.times), BitRate(ceil.0 * scenario.times))
}

pub(super) fn link(scenario: &Scenario) -> BitRate {
    BitRate((0..scenario.users).map(|user| paper_rates(user).0.0 * scenario.times).sum())
}

/// Enough for a stage that is late, and for batches on a slow link.
pub(super) fn link_burst(rate: BitRate) -> Bytes {
    Bytes(rate.bytes_per_sec() / 500 + 200_000)
}

/// `packets`: how many may wait in all.
pub(super) fn limits(scenario: &Scenario, packets: u32) -> Limits {
    Limits { classes: scenario.users + 1, packets, depth: 2 }
}

/// The link, then all users below it.
pub(super) fn classes(scenario: &Scenario) -> Vec<ClassSpec> {
    let id = ClassId(scenario.users);
    let rate = link(scenario);
    let burst = link_burst(rate);
    let root = ClassSpec { id, parent: None, params: Params::new(rate).burst(burst).cburst(burst) };
    let user = |user| {
        let (rate, ceil) = rates(scenario, user);
        let params = Params::new(rate).ceil(ceil).quantum(QUANTUM).limit(LIMIT);
        ClassSpec { id: ClassId(user), parent: Some(id), params }
    };
    std::iter::once(root).chain((0..scenario.users).map(user)).collect()
}

pub(super) fn tree(scenario: &Scenario, packets: u32) -> Result<Htb> {
    let built = Htb::build(limits(scenario, packets), Instant::default(), &classes(scenario));
    Ok(built.with_context(|| format!("scenario {}", scenario.name))?.0)
}

/// The same with nothing saved up: of a short trace much would leave on top of the link's rate. Made with
/// the smallest buckets, which a packet each empties, and changed then.
pub(super) fn tree_in_use(scenario: &Scenario, packets: u32) -> Result<Htb> {
    let refused = || format!("scenario {}", scenario.name);
    let specs = classes(scenario);
    let small =
        |spec: &ClassSpec| ClassSpec { params: spec.params.burst(Bytes(1)).cburst(Bytes(1)), ..*spec };
    let small: Vec<ClassSpec> = specs.iter().map(small).collect();
    let mut htb = Htb::build(limits(scenario, packets), Instant::default(), &small).with_context(refused)?.0;
    for user in 0..scenario.users {
        htb.enqueue(ClassId(user), Packet { handle: 0, len: scenario.min_len }).with_context(refused)?;
    }
    while let Next::Packet(_) = htb.dequeue(Instant::default()) {}
    for spec in &specs {
        htb.change(spec.id, spec.params).with_context(refused)?;
    }
    Ok(htb)
}

/// One case: medians over the repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Which.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// Packets that left, millions a second of real time.
    pub(crate) mpps: f64,
    /// Least and most of that.
    pub(crate) range: (f64, f64),
    /// The same a second of processor time, if it is one thread's.
    pub(crate) mpps_cpu: Option<f64>,
    /// The traffic that left, Mbit a second of real time.
    pub(crate) mbps: f64,
    /// Time to classify and enqueue a packet that arrives, ns.
    pub(crate) enqueue_ns: f64,
    /// Time to dequeue one that leaves, ns.
    pub(crate) dequeue_ns: f64,
    /// The part of the link's rate that left.
    pub(crate) link_use: f64,
    /// Of real time: how far the worst user was off what it is assured of, as part of that.
    pub(crate) worst: Option<f64>,
    /// Of real time: how much of it the dequeue stage missed, by more than it makes up for, ms. In
    /// `link_use` nothing left then.
    pub(crate) lost_ms: Option<f64>,
    /// Of its processor: what the thread with less of it had.
    pub(crate) had: f64,
    /// A line of the cache from one processor to the other and back, before and after, ns.
    pub(crate) round_trip_ns: Option<(f64, f64)>,
}

/// Output over virtual time, Mbit/s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Output {
    /// Between two figures.
    pub(crate) seconds: f64,
    /// Of all users.
    pub(crate) all: Vec<f64>,
    /// The selected user: of the special service.
    pub(crate) user: u32,
    /// Of that user.
    pub(crate) one: Vec<f64>,
}

/// One run of one scenario; as JSON `{"scenario", "pass", "figures": [..], ..}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The beginning of every report.
    #[serde(flatten)]
    pub(crate) head: Head,
    /// How it was run: the scenario.
    pub(crate) settings: Scenario,
    /// Frames that were played.
    pub(crate) played: u64,
    /// Their mean length, bytes.
    pub(crate) mean_len: f64,
    /// The remarks about the trace.
    pub(crate) notes: Vec<String>,
    /// By form.
    pub(crate) rows: Vec<Row>,
    /// For the plot.
    pub(crate) output: Output,
}

/// Frames that are played without `--paper`.
pub(super) fn some(scenario: &Scenario) -> u64 {
    scenario.packets.min(FRAMES_PER_USER * u64::from(scenario.users))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn scenario(name: &str) -> Scenario {
        crate::experiment::tests::settings(name)
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
