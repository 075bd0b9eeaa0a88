//! `weir cc`: congestion control.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use weir_api::{CongestionQuery, CongestionView};
use weir_cc::{Direction, Explained, FlowRecord, StatsView};

use super::{
    Session,
    format::{self, Look, Table, Tone},
};

const EXAMPLES: &str = "Examples:
  weir cc ls                                     the rules, and whom they reach
  weir cc explain 10.1.2.3:443 --container web   which rule a connection follows, and why
  weir cc flows                                  what ended last: bytes, time, algorithm, round trips
  weir cc stats                                  completion times by destination, size and algorithm
  weir cc move                                   connections that are there already follow too

Rules are [[congestion]] of the configuration, read again whenever it changes; docs/weir.toml shows
them all. The longest prefix wins; then who names the container, the group, the port, the direction.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CcArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the rules: which connections, which algorithm, whom they reach
    Ls,
    /// Say which rule a connection follows, and why none of the others
    Explain(ExplainArgs),
    /// List the connections that ended last
    Flows(FlowsArgs),
    /// Show completion times by destination, size and algorithm
    Stats,
    /// Have connections that are there already follow the rules too
    Move,
}

const EXPLAIN_EXAMPLES: &str = "Examples:
  weir cc explain 10.1.2.3
  weir cc explain 10.1.2.3:443 --container web
  weir cc explain [fd00::5]:8080 --direction in

The port is the service's: the far end's where the connection is opened here, which is assumed unless
--direction says otherwise, else the own one.";

#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
struct ExplainArgs {
    /// The far end: an address, or one with a port, as 10.1.2.3:443 or `[fd00::5]:443`
    #[arg(value_parser = far_end, value_name = "DEST")]
    to: (IpAddr, Option<u16>),
    /// Whose connection: a class as `weir ps` shows it
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// Who opens it: out (this side) or in
    #[arg(long, default_value = "out", value_parser = direction)]
    direction: Direction,
}

#[derive(Debug, Args)]
struct FlowsArgs {
    /// So many of them at the most
    #[arg(long, short = 'n', default_value_t = 50)]
    most: usize,
}

fn far_end(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let with_port = text.parse::<SocketAddr>().map(|address| (address.ip(), Some(address.port())));
    with_port
        .map_err(|_| "write an address, 10.1.2.3 or fd00::5, or one with a port, [fd00::5]:443".to_owned())
}

fn direction(text: &str) -> Result<Direction, String> {
    match text {
        "out" => Ok(Direction::Out),
        "in" => Ok(Direction::In),
        _ => Err("write out or in".to_owned()),
    }
}

pub(super) fn run(args: CcArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Ls => {
            let view = session.client.congestion()?;
            session.print(&view, |out, look| list(out, look, &view))?;
        }
        Verb::Explain(args) => {
            let (to, port) = args.to;
            let query =
                CongestionQuery { to, port, container: args.container, direction: Some(args.direction) };
            let explained = session.client.congestion_explain(&query)?;
            session.print(&explained, |out, look| explain(out, look, to, &explained))?;
        }
        Verb::Flows(args) => {
            let mut all = session.client.congestion_flows()?;
            all.drain(..all.len().saturating_sub(args.most));
            session.print(&all, |out, look| flows(out, look, &all))?;
        }
        Verb::Stats => {
            let view = session.client.congestion_stats()?;
            session.print(&view, |out, look| stats(out, look, &view))?;
        }
        Verb::Move => {
            let moved = session.client.congestion_move()?;
            session.print(&moved, |out, _| {
                let connections = if moved.moved == 1 { "connection has" } else { "connections have" };
                writeln!(out, "{} {connections} another algorithm now", moved.moved)?;
                moved.failures.iter().try_for_each(|why| writeln!(out, "! {why}"))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(out: &mut dyn Write, look: Look, view: &CongestionView) -> io::Result<()> {
    if view.rules.is_empty() {
        writeln!(out, "no rules: connections use what applications and the system say ([[congestion]])")?;
    } else {
        let mut table = Table::new(look, &[">RULE", "CONNECTIONS", "ALGORITHM", "REACHES"]);
        for rule in &view.rules {
            let reaches = match (&rule.problem, rule.classes.is_empty()) {
                (Some(_), _) => ("nobody!".to_owned(), Tone::Warn),
                (None, true) => ("all".to_owned(), Tone::Plain),
                (None, false) => (rule.classes.join(","), Tone::Plain),
            };
            let plain = |text: &str| (text.to_owned(), Tone::Plain);
            table.row([
                plain(&rule.number.to_string()),
                plain(&rule.connections),
                plain(&rule.action),
                reaches,
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
    if view.failed > 0 {
        writeln!(out, "! {} times the kernel refused an algorithm", view.failed)?;
    }
    if view.lost > 0 {
        writeln!(out, "! of {} connections nothing is known: too many ended at once", view.lost)?;
    }
    Ok(())
}

fn explain(out: &mut dyn Write, look: Look, to: IpAddr, explained: &Explained) -> io::Result<()> {
    match (&explained.action, explained.number) {
        (Some(action), Some(number)) => {
            writeln!(out, "a connection to {to} uses {action}, by rule {number}")?
        }
        _ => writeln!(
            out,
            "no rule is for a connection to {to}: it uses what its application or the system says"
        )?,
    }
    if explained.considered.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(look, &[">RULE", "CONNECTIONS", "ALGORITHM", "WHY"]);
    for one in &explained.considered {
        let tone = if one.chosen { Tone::Good } else { Tone::Dim };
        let cells = [&one.number.to_string(), &one.rule, &one.action, &one.why];
        table.row(cells.map(|text| (text.clone(), tone)));
    }
    write!(out, "\n{table}")
}

fn flows(out: &mut dyn Write, look: Look, all: &[FlowRecord]) -> io::Result<()> {
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

fn stats(out: &mut dyn Write, look: Look, view: &StatsView) -> io::Result<()> {
    let headings =
        ["TO", ">BELOW", "ALGORITHM", ">FLOWS", ">SENT", ">P50", ">P90", ">P99", ">MAX", ">RESENT"];
    let mut table = Table::new(look, &headings);
    for row in &view.rows {
        let done = &row.completion;
        table.row(
            [
                row.to.to_string(),
                // Decimal, as the bounds are.
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

/// Microseconds in three digits or so: `84us`, `1.25ms`, `12.3s`.
#[allow(clippy::cast_precision_loss)]
fn micros(us: u64) -> String {
    match us {
        // The kernel's word for no sample.
        us if us == u64::from(u32::MAX) => "-".to_owned(),
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.2}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::tests::ask,
        server::fake::{FakeAgent, congestion_view, flow},
    };

    #[test]
    fn rules_flows_and_times_are_tables_that_line_up() {
        let agent = FakeAgent::start();
        let expected = "\
RULE  CONNECTIONS                   ALGORITHM              REACHES
   1  all                           bbr, cubic after 1MiB  all
   2  container gone to 10.0.0.0/8  reno                   nobody!

kernel has  reno, bbr, cubic
connections 12 began by a rule, 3 changed in the flow, 0 moved, 9 ended
! rule 2: there is no gone
";
        assert_eq!(ask(&agent, &["cc", "ls"]).good(), expected);
        let expected = "\
ENDED                     CLASS  DIR  FAR END        SENT     TIME  ALGORITHM  RTT MIN  RTT MAX  RESENT  DELIVERY  RULE
2023-11-14T22:13:20.000Z  web    out  10.1.2.3:443   2MiB  250.00ms  bbr>cubic  10.00ms  30.00ms       4    90mbit     1
";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&ask(&agent, &["cc", "flows"]).good()), words(expected));
        let stats = ask(&agent, &["cc", "stats"]).good();
        assert!(words(&stats).starts_with(&words(
            "TO BELOW ALGORITHM FLOWS SENT P50 P90 P99 MAX RESENT \
             10.1.2.0/24 10MB bbr>cubic 1 2MiB 250.00ms 250.00ms 250.00ms 250.00ms 4"
        )));
        assert!(stats.ends_with(">=2.0\n"), "{stats}");
    }

    #[test]
    fn an_explanation_names_the_rule_and_json_is_what_the_agent_said() {
        let agent = FakeAgent::start();
        let said = ask(&agent, &["cc", "explain", "[fd00::5]:443"]).good();
        assert!(
            said.starts_with("a connection to fd00::5 uses bbr, cubic after 1MiB, by rule 1\n"),
            "{said}"
        );
        let refused = ask(&agent, &["cc", "explain", "10.1.2.3", "--container", "gone"]);
        assert!(refused.err.contains("there is no class `gone`"), "{}", refused.err);
        assert_eq!(ask(&agent, &["cc", "move"]).good(), "2 connections have another algorithm now\n");
        let view: CongestionView = ask(&agent, &["cc", "ls", "--json"]).json();
        let flows: Vec<FlowRecord> = ask(&agent, &["cc", "flows", "--json"]).json();
        assert_eq!((view, flows), (congestion_view(), vec![flow()]));
    }

    #[test]
    fn a_far_end_is_an_address_with_or_without_a_port() {
        assert_eq!(far_end("10.1.2.3"), Ok(("10.1.2.3".parse().unwrap(), None)));
        assert_eq!(far_end("10.1.2.3:443"), Ok(("10.1.2.3".parse().unwrap(), Some(443))));
        assert_eq!(far_end("fd00::5"), Ok(("fd00::5".parse().unwrap(), None)));
        assert_eq!(far_end("[fd00::5]:443"), Ok(("fd00::5".parse().unwrap(), Some(443))));
        assert!(far_end("example.org").is_err() && far_end("10.1.2.3:99999").is_err());
    }

    #[test]
    fn times_are_short() {
        let text = [0, 84, 1_250, 12_300_000, u64::from(u32::MAX)].map(micros);
        assert_eq!(text, ["0us", "84us", "1.25ms", "12.30s", "-"]);
    }
}
