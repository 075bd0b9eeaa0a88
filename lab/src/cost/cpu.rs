//! Processor time of the whole machine a gigabyte of payload.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use weir_netlab::{
    interrupt, stats,
    topology::{Family, Netns},
    traffic::Bulk,
};

use super::{
    clock::Moment,
    scenario::{Results, Row, Scenario, Shaper},
};

use crate::{
    control::kind::ControlKind,
    options::{Options, Step},
    report::{Figure, Rule},
};

/// Time for connections to open and windows to grow before a measurement.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time during which the machine's other load is measured, before the senders start.
const QUIET: Duration = Duration::from_millis(300);
/// The largest part of the time that other load may take; above it the measurement is void.
const MAX_OTHER_LOAD: f64 = 0.5;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    /// Processor seconds a gigabyte.
    cost: f64,
    /// Packets a gigabyte, counted where they leave the containers.
    packets: f64,
    /// Payload, Mbit/s.
    mbit: f64,
}

pub(super) fn run(
    scenario: &Scenario,
    options: &Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Results> {
    let most = scenario.busy.iter().copied().max().unwrap_or(1);
    let topologies = scenario.controls.iter().map(|_| scenario.topology(most)).collect::<Result<Vec<_>>>()?;
    let mut found = Results::default();
    let mut shapers = Vec::new();
    for (&kind, topology) in scenario.controls.iter().zip(&topologies) {
        match Shaper::start(kind, scenario, topology, options)? {
            Ok(shaper) => shapers.push(shaper),
            Err(missing) => found.missing.push(missing),
        }
    }
    // New interfaces send packets of their own for some seconds.
    interrupt::sleep(Duration::from_secs(2))?;
    let mut samples: BTreeMap<(usize, ControlKind), Vec<Sample>> = BTreeMap::new();
    for _ in 0..scenario.repetitions {
        for &busy in &scenario.busy {
            for shaper in &mut shapers {
                watch(Step { control: shaper.kind, case: &case(busy) });
                let sample = measure(shaper, busy, Duration::from_secs(scenario.seconds))?;
                samples.entry((busy, shaper.kind)).or_default().extend(sample);
            }
        }
    }
    for shaper in &shapers {
        for ((busy, _), samples) in samples.iter().filter(|((_, kind), _)| *kind == shaper.kind) {
            if samples.is_empty() {
                let what = format!("{}, {}", case(*busy), shaper.kind.name());
                found.missing_cases.push((what, "the machine was busy with something else".to_owned()));
                continue;
            }
            found.rows.push(row(*busy, shaper.kind, shaper.engine()?, samples));
        }
    }
    let counts: Vec<usize> = samples.keys().map(|(busy, _)| *busy).collect();
    found.rows.sort_by_key(|row| counts.iter().position(|busy| case(*busy) == row.case));
    found.figures = figures(scenario, &found.rows);
    found.noise = noise(scenario, &found.rows);
    Ok(found)
}

fn case(busy: usize) -> String {
    format!("{busy} busy")
}

/// Measures one sample; `None` if the machine was busy with something else.
fn measure(shaper: &mut Shaper<'_>, busy: usize, time: Duration) -> Result<Option<Sample>> {
    shaper.divide(busy)?;
    let quiet = Moment::now()?;
    interrupt::sleep(QUIET)?;
    let (seconds, idling) = quiet.elapsed()?;
    if idling > seconds * quiet.processors() as f64 * MAX_OTHER_LOAD {
        return Ok(None);
    }
    let containers = &shaper.topology.containers()[..busy];
    let from: Vec<&Netns> = containers.iter().map(|c| c.netns()).collect();
    let interfaces: Vec<String> = containers.iter().map(|c| c.host_interface()).collect();
    let packets = || shaper.topology.node().within(|| received(&interfaces))?;
    let bulk = Bulk::start(shaper.topology, &from, Family::V4)?;
    interrupt::sleep(WARM_UP)?;
    let (sent, before, start) = (packets()?, bulk.received(), Moment::now()?);
    interrupt::sleep_until(Instant::now() + time)?;
    let bytes = (bulk.received() - before) as f64;
    let (elapsed, working) = start.elapsed()?;
    let sent = (packets()? - sent) as f64;
    let work = working - idling / seconds * elapsed;
    let gigabytes = bytes.max(1.0) / 1e9;
    let sample = Sample { cost: work / gigabytes, packets: sent / gigabytes, mbit: bytes * 8e-6 / elapsed };
    // A negative result means that other load ended during the measurement.
    Ok((sample.cost > 0.0).then_some(sample))
}

/// Packets received by these interfaces; a super-packet counts once.
fn received(interfaces: &[String]) -> Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").context("cannot read /proc/net/dev")?;
    Ok(packets_in(&table, interfaces))
}

/// Reads /proc/net/dev: `eth0: bytes packets ...`, with the received packets first.
fn packets_in(table: &str, interfaces: &[String]) -> u64 {
    let one = |line: &str| -> Option<u64> {
        let (name, numbers) = line.trim().split_once(':')?;
        interfaces.iter().any(|i| i == name).then(|| numbers.split_whitespace().nth(1)?.parse().ok())?
    };
    table.lines().filter_map(one).sum()
}

fn row(busy: usize, control: ControlKind, engine: Option<String>, samples: &[Sample]) -> Row {
    let costs: Vec<f64> = samples.iter().map(|s| s.cost).collect();
    let median =
        |of: fn(&Sample) -> f64| stats::median(&samples.iter().map(of).collect::<Vec<f64>>()).unwrap_or(0.0);
    let of = |p: f64| stats::percentile(&costs, p).unwrap_or(f64::NAN);
    Row {
        case: case(busy),
        control,
        engine,
        value: of(50.0),
        range: (of(0.0), of(100.0)),
        beside: median(|s| s.mbit),
        packets: median(|s| s.packets),
    }
}

fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let name = |what: &str| format!("{}: {what}, {}", row.case, row.control.name());
        figures.push(Figure::shown(name("processor time"), row.value, "s/GB"));
        figures.push(Figure::shown(name("payload"), row.beside, "Mbit/s"));
        figures.push(Figure::shown(name("packets"), row.packets, "1/GB"));
        let native = rows.iter().find(|other| other.case == row.case && other.control == ControlKind::None);
        let Some(native) = native.filter(|_| row.control != ControlKind::None) else { continue };
        let (name, ratio) = (name("processor time over none"), row.value / native.value);
        let judged = scenario.judged.is_some_and(|busy| row.case == case(busy)) && row.control.is_weir();
        figures.push(match scenario.most_over_native.filter(|_| judged) {
            Some(most) => Figure::judged(name, ratio, "ratio", most, Rule::AtMost),
            None => Figure::shown(name, ratio, "ratio"),
        });
    }
    figures
}

/// The spread of repeated measurements, in words.
fn noise(scenario: &Scenario, rows: &[Row]) -> String {
    let judged = scenario.judged.map(case);
    let spreads: Vec<f64> = rows
        .iter()
        .filter(|row| judged.as_ref().is_none_or(|case| row.case == *case))
        .map(|row| (row.range.1 - row.range.0) / row.value * 100.0)
        .collect();
    let worst = spreads.iter().copied().fold(0.0, f64::max);
    if spreads.is_empty() {
        return String::new();
    }
    format!(
        "noise: least and most of one measurement were up to {worst:.0} % of its median apart{}",
        judged.map_or(String::new(), |case| format!(" ({case})"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(weir: f64) -> Vec<Row> {
        let sample = |cost| [Sample { cost, packets: 20_000.0, mbit: 90.0 }; 3];
        vec![
            row(5, ControlKind::Weir, Some("htb".into()), &sample(weir)),
            row(5, ControlKind::None, None, &sample(2.0)),
        ]
    }

    #[test]
    fn weir_is_judged_against_no_control_with_five_containers() {
        let scenario = toml::from_str(include_str!("../../scenarios/cpu.toml")).unwrap();
        let verdict = |weir| {
            let figures = figures(&scenario, &rows(weir));
            let judged: Vec<_> = figures.iter().filter(|f| f.pass.is_some()).collect();
            assert_eq!(judged.len(), 1, "{figures:?}");
            judged[0].pass.unwrap()
        };
        assert!(verdict(2.09));
        assert!(!verdict(2.11));
    }

    #[test]
    fn packets_are_counted_where_containers_send_them() {
        let table = "Inter-|   Receive                            |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n   \
                     vC1: 65000 7 0 0 0 0 0 0 1200 90 0 0\n  vC2:   130 2 0 0 0 0 0 0 0 0\n vC10: 5 5 0 0\n";
        let of = |names: &[&str]| {
            packets_in(table, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!((of(&["vC1", "vC2"]), of(&["vC1"]), of(&["eth0"])), (9, 7, 0));
    }
}
