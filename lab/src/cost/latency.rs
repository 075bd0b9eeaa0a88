//! Round trips of a container alone, beside busy containers, and inside a busy one.

use std::time::Duration;

use anyhow::{Context, Result};
use weir_netlab::{
    interrupt, stats,
    topology::{Family, Netns},
    traffic::{self, Bulk, Rtts},
};

use super::scenario::{Results, Row, Scenario, Shaper};

use crate::{
    control::kind::ControlKind,
    options::{Options, Step},
    report::{Figure, Rule},
};

const WARM_UP: Duration = Duration::from_millis(1500);
/// Probes while no one sends.
const ALONE: u32 = 50;
/// Probes a second.
const A_SECOND: u64 = 50;

pub(super) fn run(
    scenario: &Scenario,
    options: &Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Results> {
    let mut found = Results::default();
    let busy = scenario.busy.iter().copied().max().unwrap_or(1);
    for &kind in &scenario.controls {
        // The first container is idle.
        let topology = scenario.topology(1 + busy)?;
        let mut shaper = match Shaper::start(kind, scenario, &topology, options)? {
            Ok(shaper) => shaper,
            Err(missing) => {
                found.missing.push(missing);
                continue;
            }
        };
        shaper.divide(1 + busy)?;
        let engine = shaper.engine()?;
        for &rtt in &scenario.rtt_ms {
            if let Err(error) = delay(topology.srv(), rtt) {
                let error = error.root_cause().to_string();
                let words = error.rsplit("`: ").next().unwrap_or(&error).to_owned();
                let why = (
                    format!("RTT {rtt} ms"),
                    format!("no netem in this kernel (CONFIG_NET_SCH_NETEM): {words}"),
                );
                if !found.missing_cases.contains(&why) {
                    found.missing_cases.push(why);
                }
                continue;
            }
            watch(Step { control: kind, case: &format!("RTT {rtt} ms") });
            let containers: Vec<&Netns> = topology.containers().iter().map(|c| c.netns()).collect();
            let (idle, busy) = (containers[0], &containers[1..]);
            let alone = traffic::ping(&topology, idle, Family::V4, ALONE)?;
            let bulk = Bulk::start(&topology, busy, Family::V4)?;
            interrupt::sleep(WARM_UP)?;
            let count = u32::try_from(scenario.seconds * A_SECOND)?;
            let [beside, inside] = traffic::pings(&topology, [idle, busy[0]], Family::V4, count)?;
            drop(bulk);
            for (what, rtts) in
                [("alone", &alone), ("beside busy ones", &beside), ("inside a busy one", &inside)]
            {
                found.rows.push(row(format!("RTT {rtt} ms, {what}"), kind, engine.clone(), rtts)?);
            }
        }
    }
    let order: Vec<String> = found.rows.iter().map(|row| row.case.clone()).collect();
    found.rows.sort_by_key(|row| order.iter().position(|case| *case == row.case));
    found.figures = figures(scenario, &found.rows);
    Ok(found)
}

/// Delays the server's packets.
fn delay(server: &Netns, rtt_ms: u32) -> Result<()> {
    match rtt_ms {
        0 => Ok(()),
        ms => server.tc(&format!("qdisc replace dev eth0 root netem delay {ms}ms limit 100000\n")),
    }
}

fn row(case: String, control: ControlKind, engine: Option<String>, rtts: &Rtts) -> Result<Row> {
    let of = |p: f64| stats::percentile(&rtts.ms, p).with_context(|| format!("{case}: no ping was answered"));
    let (value, range) = (of(99.0)?, (of(50.0)?, of(100.0)?));
    let beside = 1.0 - rtts.received as f64 / rtts.sent.max(1) as f64;
    Ok(Row { case, control, engine, value, range, beside, packets: 0.0 })
}

/// The largest rise of a percentile, ms; `None` if the engine promises nothing.
fn promised(scenario: &Scenario, row: &Row) -> Option<f64> {
    let engine = row.engine.as_deref()?;
    if row.case.ends_with("beside busy ones") {
        scenario.most_rise_beside_ms.filter(|_| ["bpf", "edt"].contains(&engine))
    } else {
        scenario.most_rise_inside_ms.filter(|_| row.case.ends_with("inside a busy one") && engine == "bpf")
    }
}

fn figures(scenario: &Scenario, rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let name = |what: &str| format!("{}: {what}, {}", row.case, row.control.name());
        // Table 1 gives figures for a container alone, without a delay.
        let table = row.case == "RTT 0 ms, alone";
        let paper = scenario.paper.get(&row.control).copied().filter(|_| table);
        figures.push(Figure { paper, ..Figure::shown(name("p50"), row.range.0, "ms") });
        let rtt = row.case.split(", ").next().unwrap_or_default();
        let is_alone = |other: &&Row| other.control == row.control && other.case == format!("{rtt}, alone");
        let alone = rows.iter().find(is_alone).map_or(0.0, |row| row.range.0);
        figures.push(match promised(scenario, row) {
            Some(rise) => Figure::judged(name("p99"), row.value, "ms", alone + rise, Rule::AtMost),
            None => Figure::shown(name("p99"), row.value, "ms"),
        });
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_that_promise_a_bound_are_judged_by_it() {
        let scenario: Scenario = toml::from_str(include_str!("../../scenarios/latency.toml")).unwrap();
        let rtts = |ms: f64| Rtts { ms: vec![ms; 9], sent: 9, received: 9 };
        let judged = |engine: &str, inside: f64| -> Vec<bool> {
            let one = |what: &str, ms| {
                row(format!("RTT 5 ms, {what}"), ControlKind::Weir, Some(engine.into()), &rtts(ms)).unwrap()
            };
            let rows = [one("alone", 5.1), one("beside busy ones", 11.0), one("inside a busy one", inside)];
            figures(&scenario, &rows).iter().filter_map(|figure| figure.pass).collect()
        };
        assert!(judged("htb", 40.0).is_empty());
        assert_eq!(judged("edt", 40.0), [true]);
        assert_eq!(judged("bpf", 15.0), [true, true]);
        assert_eq!(judged("bpf", 16.0), [true, false]);
    }
}
