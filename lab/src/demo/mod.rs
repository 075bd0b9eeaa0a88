//! Half a minute of weir at work. Three containers send real TCP through a 100 Mbit/s uplink while their
//! policies change. A table shows each container's rate once a second.
//!
//! The phases are the cases of the scenario `combined`: weights 1:2:3, then a minimum for the first
//! container, then a maximum for the third. The receiver counts the shown bytes, not the agent.

mod containers;
mod screen;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use weir_netlab::{
    interrupt, stats,
    topology::{Proc, Topology},
    traffic::wait_until_listening,
};

use self::{
    containers::{Containers, DockerContainers, NetnsContainers},
    screen::{Row, Screen},
};

use crate::{
    control::Agent,
    oracle::{self, Share},
    scenario::{self, Case, Scenario},
};

/// The kind of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ContainerKind {
    /// Docker containers, under a dockerd of the demo's own.
    Docker,
    /// Network namespaces.
    Netns,
}

/// The caller's choices.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The weir program to show.
    pub(crate) weir: PathBuf,
    /// The kind of containers; `None` means Docker's if dockerd can run, else namespaces.
    pub(crate) containers: Option<ContainerKind>,
    /// Length of a phase in seconds; its first 2 s are not judged.
    pub(crate) seconds: u64,
}

const SCENARIO: &str = "combined";
/// The largest error of a share, as a fraction.
const TOLERANCE: f64 = 0.05;
/// Seconds at the start of a phase that are not judged.
const WARM_UP: usize = 2;
const FIRST_PORT: u16 = 5301;
/// The largest delay of a second's report before traffic counts as stalled.
const STALL: Duration = Duration::from_secs(8);

/// Runs the demo. It succeeds if each share of each phase is within 5 % of its allocation.
///
/// # Errors
/// If something cannot be started, traffic stalls, or on Ctrl-C. Nothing is left behind.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let scenario = scenario::find(SCENARIO)?;
    if options.containers != Some(ContainerKind::Netns) {
        match DockerContainers::start(&scenario) {
            Ok(docker) => return show(options, &scenario, &docker),
            Err(error) if options.containers.is_some() => {
                return Err(error.context("cannot run the demo with Docker's containers"));
            }
            Err(error) => {
                interrupt::check()?;
                println!("the containers are network namespaces, since Docker cannot run here: {error:#}");
            }
        }
    }
    show(options, &scenario, &NetnsContainers::start(&scenario)?)
}

fn show(options: &Options, scenario: &Scenario, containers: &dyn Containers) -> Result<ExitCode> {
    let labels: Vec<&str> = scenario.cases[0].containers.keys().map(String::as_str).collect();
    let agent = Agent::start(&containers.agent_setup(&options.weir, scenario.capacity))?;
    println!(
        "three {} behind {} of {} uplink; the receiver counts payload, Mbit/s\n",
        containers.what(),
        scenario.capacity,
        scenario.wire
    );
    let phases = scenario.cases.len();
    let per_phase = usize::try_from(options.seconds)?;
    let mut meters = start_traffic(containers, &labels, phases * per_phase)?;

    let mut screen = Screen::new(phases * per_phase);
    let mut verdicts = Vec::new();
    for (index, case) in scenario.cases.iter().enumerate() {
        set_policies(&agent, containers, case)?;
        let shares = oracle::shares(case, scenario.capacity, scenario.family);
        let begin = index * per_phase;
        for second in begin..begin + per_phase {
            let rates = wait_for_second(&mut meters, second)?;
            screen.show(
                second + 1,
                &case.name,
                &rows(case, &shares, &rates),
                second + 1 == begin + per_phase,
            );
        }
        verdicts.extend(judge(case, &shares, &meters, begin + WARM_UP..begin + per_phase));
    }
    drop(meters);

    println!();
    for verdict in &verdicts {
        println!("{}", verdict.line());
    }
    let good = verdicts.iter().all(Verdict::passes);
    println!(
        "{}",
        if good { "every share is within 5 % of its allocation" } else { "a share is off by more than 5 %" }
    );
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sets all policies in one change. Only the first change happens without load.
fn set_policies(agent: &Agent, containers: &dyn Containers, case: &Case) -> Result<()> {
    let mut policies = Vec::new();
    for (label, setting) in case.settings() {
        policies.push((containers.agent_name(label), setting.policy()?));
    }
    agent.set(&policies)
}

/// The receiver's end of a container's flow: an iperf3 server that reports each second.
struct Meter {
    server: Proc,
    rates: Vec<f64>,
}

fn start_traffic(containers: &dyn Containers, labels: &[&str], seconds: usize) -> Result<Vec<Meter>> {
    let topology: &Topology = containers.topology();
    let address = topology.server_address(weir_netlab::topology::Family::V4).to_string();
    let mut meters = Vec::new();
    for port in (FIRST_PORT..).take(labels.len()) {
        let name = port.to_string();
        let arguments = ["iperf3", "-s", "-1", "-i", "1", "-f", "k", "--forceflush", "-p", &name];
        let mut server = topology.srv().spawn(&arguments)?;
        wait_until_listening(&mut server, port)?;
        meters.push(Meter { server, rates: Vec::new() });
    }
    // The flows last 2 s longer, so that all still send in the last counted second.
    let seconds = (seconds + 2).to_string();
    for (label, port) in labels.iter().zip(FIRST_PORT..) {
        let port = port.to_string();
        let client = ["iperf3", "-c", &address, "-p", &port, "-t", &seconds, "-C", "cubic", "-l", "16K"];
        containers.send(label, &client).with_context(|| format!("{label} cannot send"))?;
    }
    Ok(meters)
}

/// Waits until each flow has reported second number `second`. Returns their rates, Mbit/s.
fn wait_for_second(meters: &mut [Meter], second: usize) -> Result<Vec<f64>> {
    let deadline = Instant::now() + STALL;
    loop {
        for meter in meters.iter_mut() {
            meter.rates = rates(&meter.server.output()?.stdout);
        }
        if let Some(now) = meters.iter().map(|m| m.rates.get(second).copied()).collect() {
            return Ok(now);
        }
        if Instant::now() >= deadline {
            let words = meters[0].server.output()?;
            bail!("no traffic for {} s: {}", STALL.as_secs(), weir_netlab::topology::last_words(&words));
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
}

/// The payload rates in the output of an iperf3 server, one a second, Mbit/s.
///
/// `[  5]   3.00-4.00   sec  1.80 MBytes  15117 Kbits/sec`
fn rates(text: &str) -> Vec<f64> {
    let rate = |line: &str| -> Option<(usize, f64)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unit = words.iter().position(|word| *word == "Kbits/sec")?;
        let interval = words.iter().position(|word| *word == "sec")?;
        let (start, end) = words.get(interval.checked_sub(1)?)?.split_once('-')?;
        let (start, end): (f64, f64) = (start.parse().ok()?, end.parse().ok()?);
        // The summary line at the end covers more than one second.
        let whole = (end - start - 1.0).abs() < 0.1;
        let kbit: f64 = words.get(unit.checked_sub(1)?)?.parse().ok()?;
        whole.then(|| (start.round() as usize, kbit / 1000.0))
    };
    let mut rates = Vec::new();
    for (second, mbit) in text.lines().filter_map(rate) {
        if second == rates.len() {
            rates.push(mbit);
        }
    }
    rates
}

fn rows(case: &Case, shares: &[Share], rates: &[f64]) -> Vec<Row> {
    case.settings()
        .zip(shares)
        .zip(rates)
        .map(|(((label, setting), share), rate)| Row {
            name: label.to_owned(),
            weight: setting.weight.get(),
            min: setting.min,
            max: setting.max,
            expected: share.goodput,
            measured: *rate,
        })
        .collect()
}

/// The result of a container in a phase.
#[derive(Debug, Clone, PartialEq)]
struct Verdict {
    phase: String,
    label: String,
    expected: f64,
    measured: f64,
}

impl Verdict {
    fn error(&self) -> f64 {
        stats::relative_error(self.measured, self.expected)
    }

    fn passes(&self) -> bool {
        self.error() <= TOLERANCE
    }

    fn line(&self) -> String {
        let word = if self.passes() { "ok" } else { "OFF" };
        format!(
            "{word:>3}  {:14} {}: expected {:5.2}, got {:5.2} ({:.1} % off)",
            self.phase,
            self.label,
            self.expected,
            self.measured,
            self.error() * 100.0
        )
    }
}

fn judge(case: &Case, shares: &[Share], meters: &[Meter], seconds: std::ops::Range<usize>) -> Vec<Verdict> {
    shares
        .iter()
        .zip(meters)
        .map(|(share, meter)| Verdict {
            phase: case.name.clone(),
            label: share.label.clone(),
            expected: share.goodput,
            measured: stats::mean(&meter.rates[seconds.clone()]).unwrap_or(0.0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iperf3_servers_lines_are_read_second_by_second() {
        let text = "\
Accepted connection from 10.97.1.1, port 36262
[  5] local 10.97.0.2 port 5301 connected to 10.97.1.1 port 36264
[ ID] Interval           Transfer     Bitrate
[  5]   0.00-1.00   sec  3.61 MBytes  30243 Kbits/sec                  
[  5]   1.00-2.00   sec  1.80 MBytes  15117 Kbits/sec                  
[  5]   2.00-2.04   sec   127 KBytes  24954 Kbits/sec                  
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate
[  5]   0.00-2.04   sec  5.53 MBytes  22680 Kbits/sec                  receiver
";
        assert_eq!(rates(text), [30.243, 15.117]);
        assert!(rates("iperf3: error - unable to start listener").is_empty());
    }

    #[test]
    fn the_demo_shows_weights_then_a_minimum_then_a_maximum() {
        let scenario = scenario::find(SCENARIO).unwrap();
        let floors: Vec<bool> = scenario.cases.iter().map(|c| c.containers["C1"].min.is_some()).collect();
        let ceilings: Vec<bool> = scenario.cases.iter().map(|c| c.containers["C3"].max.is_some()).collect();
        assert_eq!((floors, ceilings), (vec![false, true, true], vec![false, false, true]));
    }

    #[test]
    fn five_percent_is_the_limit() {
        let verdict = |measured| Verdict { phase: "p".into(), label: "C1".into(), expected: 100.0, measured };
        assert!(verdict(95.0).passes() && verdict(105.0).passes());
        assert!(!verdict(94.9).passes());
        assert!(verdict(94.0).line().contains("OFF") && verdict(94.0).line().contains("6.0 % off"));
    }
}
