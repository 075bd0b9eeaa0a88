//! The output of `weir cc`.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use weir_api::CongestionView;
use weir_cc::{AdviceView, Explained, FlowRecord, Interval, Origin, StatsView};

use super::super::format::{self, Look, Table, Tone};

pub(super) fn list(out: &mut dyn Write, look: Look, view: &CongestionView) -> io::Result<()> {
    if view.rules.is_empty() {
        writeln!(out, "no rules: connections use what applications and the system say ([[congestion]])")?;
    } else {
        let mut table = Table::new(look, &[">RULE", "CONNECTIONS", "ALGORITHM", "REACHES", "BY"]);
        for rule in &view.rules {
            let reaches = match (&rule.problem, rule.classes.is_empty()) {
                (Some(_), _) => ("none".to_owned(), Tone::Warn),
                (None, true) => ("all".to_owned(), Tone::Plain),
                (None, false) => (rule.classes.join(","), Tone::Plain),
            };
            let plain = |text: &str| (text.to_owned(), Tone::Plain);
            table.row([
                plain(&rule.number.to_string()),
                plain(&rule.connections),
                plain(&rule.action),
                reaches,
                (
                    rule.origin.to_string(),
                    if rule.origin == Origin::Config { Tone::Dim } else { Tone::Plain },
                ),
            ]);
        }
        write!(out, "{table}")?;
    }
    writeln!(out, "\nkernel has  {}", view.available.join(", "))?;
    writeln!(
        out,
        "connections {} began by a rule, {} changed in the flow, {} moved, {} ended",
        view.set, view.switched, view.moved, view.ended
    )?;
    for rule in &view.rules {
        if let Some(why) = &rule.problem {
            writeln!(out, "! rule {}: {why}", rule.number)?;
        }
    }
    if let Some(why) = &view.not_enforced_because {
        writeln!(out, "! not enforced: {why}")?;
    }
    if view.hinted > 0 {
        writeln!(out, "{} times an application said how much it will send", view.hinted)?;
    }
    if view.failed > 0 {
        writeln!(out, "! {} times the kernel refused an algorithm", view.failed)?;
    }
    if view.lost > 0 {
        writeln!(out, "! of {} connections nothing is known: too many ended at once", view.lost)?;
    }
    Ok(())
}

pub(super) fn explain(out: &mut dyn Write, look: Look, to: IpAddr, explained: &Explained) -> io::Result<()> {
    match (&explained.action, explained.number) {
        (Some(action), Some(number)) if explained.not_enforced_because.is_some() => writeln!(
            out,
            "rule {number} is for a connection to {to}, and gives it {action} where rules are enforced"
        )?,
        (Some(action), Some(number)) => {
            writeln!(out, "a connection to {to} uses {action}, by rule {number}")?
        }
        _ => writeln!(
            out,
            "no rule is for a connection to {to}: it uses what its application or the system says"
        )?,
    }
    if let Some(why) = &explained.not_enforced_because {
        writeln!(out, "! not enforced: {why}")?;
    }
    if explained.considered.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(look, &[">RULE", "CONNECTIONS", "ALGORITHM", "BY", "WHY"]);
    for one in &explained.considered {
        let tone = if one.chosen { Tone::Good } else { Tone::Dim };
        let number = if one.number == 0 { "-".to_owned() } else { one.number.to_string() };
        let cells = [&number, &one.rule, &one.action, &one.origin.to_string(), &one.why];
        table.row(cells.map(|text| (text.clone(), tone)));
    }
    write!(out, "\n{table}")
}

pub(super) fn advice(out: &mut dyn Write, look: Look, all: &[AdviceView]) -> io::Result<()> {
    if all.is_empty() {
        return writeln!(out, "no trials: [advice] of the configuration names networks (docs/weir.toml)");
    }
    for (i, one) in all.iter().enumerate() {
        let space = if i > 0 { "\n" } else { "" };
        let applies = if one.apply { ", becomes the rule" } else { "" };
        writeln!(out, "{space}{} ({}{applies}): {}", one.to, one.stage, one.verdict)?;
        let mut table =
            Table::new(look, &["ALGORITHM", ">SHARE", ">ITS FLOWS", ">THE OTHERS", ">IF ALL USED IT", ""]);
        for arm in &one.arms {
            let tone = if arm.dropped.is_some() { Tone::Dim } else { Tone::Plain };
            let share =
                if arm.dropped.is_some() { "-".to_owned() } else { format!("{:.2}%", arm.share * 100.0) };
            let why = arm.dropped.clone().unwrap_or_default();
            let [own, neighbours, all] = [arm.own, arm.neighbours, arm.all].map(percent);
            table.row([arm.action.clone(), share, own, neighbours, all, why].map(|text| (text, tone)));
        }
        write!(out, "{table}")?;
    }
    Ok(())
}

/// The relative change with its bounds: `-34% (-39 to -28)`.
fn percent(of: Interval) -> String {
    match (of.least, of.most) {
        (Some(least), Some(most)) => {
            format!("{:+.1}% ({:+.1} to {:+.1})", of.estimate * 100.0, least * 100.0, most * 100.0)
        }
        _ => "unknown".to_owned(),
    }
}

pub(super) fn flows(out: &mut dyn Write, look: Look, all: &[FlowRecord]) -> io::Result<()> {
    let headings = [
        "ENDED",
        "CLASS",
        "DIR",
        "FAR END",
        ">SENT",
        ">TIME",
        "ALGORITHM",
        ">RTT MIN",
        ">RTT MAX",
        ">RESENT",
        ">DELIVERY",
        ">RULE",
    ];
    let mut table = Table::new(look, &headings);
    for flow in all {
        table.row(
            [
                format::moment(flow.ended_ms),
                flow.class.clone().unwrap_or_else(|| "-".to_owned()),
                flow.direction.map_or("-".to_owned(), |d| d.to_string()),
                SocketAddr::new(flow.to, flow.remote_port).to_string(),
                flow.sent.to_string(),
                micros(flow.took_us),
                flow.algorithms(),
                micros(u64::from(flow.least_rtt_us)),
                micros(u64::from(flow.most_rtt_us)),
                flow.retransmits.to_string(),
                format::rate(flow.delivery_rate),
                flow.rule.map_or("-".to_owned(), |number| number.to_string()),
            ]
            .map(|text| (text, Tone::Plain)),
        );
    }
    write!(out, "{table}")
}

pub(super) fn stats(out: &mut dyn Write, look: Look, view: &StatsView) -> io::Result<()> {
    let headings =
        ["TO", ">BELOW", "ALGORITHM", ">FLOWS", ">SENT", ">P50", ">P90", ">P99", ">MAX", ">RESENT"];
    let mut table = Table::new(look, &headings);
    for row in &view.rows {
        let done = &row.completion;
        table.row(
            [
                row.to.to_string(),
                // The size is decimal, as the bounds are.
                row.below.map_or("-".to_owned(), |bytes| match bytes.0 {
                    ..1_000_000 => format!("{}kB", bytes.0 / 1_000),
                    _ => format!("{}MB", bytes.0 / 1_000_000),
                }),
                row.algorithm.clone(),
                row.flows.to_string(),
                row.bytes.to_string(),
                micros(done.p50_us),
                micros(done.p90_us),
                micros(done.p99_us),
                micros(done.most_us),
                row.retransmits.to_string(),
            ]
            .map(|text| (text, Tone::Plain)),
        );
    }
    write!(out, "{table}")?;
    if !view.paths.is_empty() {
        let mut table = Table::new(look, &["TO", ">FLOWS", ">RTT MIN", ">RTT MAX", ">BUFFER, BDP"]);
        for path in &view.paths {
            table.row(
                [
                    path.to.to_string(),
                    path.flows.to_string(),
                    micros(u64::from(path.least_rtt_us)),
                    micros(u64::from(path.most_rtt_us)),
                    format!(">={:.1}", path.buffer_bdp),
                ]
                .map(|text| (text, Tone::Plain)),
            );
        }
        write!(out, "\n{table}")?;
    }
    if view.uncounted > 0 {
        writeln!(out, "\n! {} flows are not counted: too many combinations", view.uncounted)?;
    }
    Ok(())
}

/// Microseconds with about three digits: `84us`, `1.25ms`, `12.3s`.
#[allow(clippy::cast_precision_loss)]
fn micros(us: u64) -> String {
    match us {
        // The kernel's value for a missing sample.
        us if us == u64::from(u32::MAX) => "-".to_owned(),
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.2}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_of_rules_that_are_not_enforced_promises_nothing() {
        let rules = weir_cc::Rules::new(vec![weir_cc::Rule::default()]).unwrap();
        let to = "10.99.0.2".parse().unwrap();
        let told = |explained: &Explained| {
            let mut out = Vec::new();
            explain(&mut out, Look::PLAIN, to, explained).unwrap();
            String::from_utf8(out).unwrap()
        };
        let explained = rules.explain(&weir_cc::Connection::to(to));
        assert!(told(&explained).starts_with("a connection to 10.99.0.2 uses bbr"), "{}", told(&explained));
        let told = told(&Explained { not_enforced_because: Some("no cgroup v2".to_owned()), ..explained });
        assert!(told.starts_with("rule 1 is for a connection to 10.99.0.2, and gives it bbr"), "{told}");
        assert!(told.contains(" where rules are enforced\n! not enforced: no cgroup v2\n"), "{told}");
    }

    #[test]
    fn times_are_short() {
        let text = [0, 84, 1_250, 12_300_000, u64::from(u32::MAX)].map(micros);
        assert_eq!(text, ["0us", "84us", "1.25ms", "12.30s", "-"]);
    }
}
