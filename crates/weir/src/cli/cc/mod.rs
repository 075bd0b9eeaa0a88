//! `weir cc`: congestion control.

mod show;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use ipnet::IpNet;
use weir_api::{AdviceRequest, AdviceVerb, CongestionQuery};
use weir_cc::{AdviceView, Direction, Rule};

use self::show::{advice, explain, flows, list, stats};
use super::{Session, Usage};

const EXAMPLES: &str = "Examples:
  weir cc ls                                     the rules, and their classes
  weir cc explain 10.1.2.3:443 --container web   which rule a connection
                                                 follows, and why
  weir cc flows                                  what ended last: bytes, time,
                                                 algorithm, round trips
  weir cc stats                                  completion times by
                                                 destination, size and
                                                 algorithm
  weir cc move                                   connections that are there
                                                 already follow too
  weir cc set to=192.0.2.0/24 start=bbr          a rule at once, instead of the
                                                 file's for the same
  weir cc unset to=192.0.2.0/24                  take that back
  weir cc advise                                 what trials have found
                                                 ([advice] of the file)

Rules are [[congestion]] of the configuration, read again whenever it changes
(docs/weir.toml shows them all), and those that were set. The longest prefix
wins; then who names the container, the group, the port, the direction. An
application that knows how much it will send says so, and has the algorithm for
that much at once: setsockopt(socket, 0x5745, 1, &bytes, 8), which needs no
right and changes nothing where weir is not (docs/size-hint.md).";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CcArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the rules: connections, algorithms, and the classes that they reach
    Ls,
    /// Say which rule a connection follows, and why none of the others
    Explain(ExplainArgs),
    /// List the connections that ended last
    Flows(FlowsArgs),
    /// Show completion times by destination, size and algorithm
    Stats,
    /// Have connections that are there already follow the rules too
    Move,
    /// Set a rule, at once
    Set(SetArgs),
    /// Take back a rule that was set
    Unset(UnsetArgs),
    /// Show what trials have found, and have it become the rule
    Advise(AdviseArgs),
}

const SET_EXAMPLES: &str = "Examples:
  weir cc set to=192.0.2.0/24 start=bbr
  weir cc set container=web port=443 start=bbr after=10MiB then=cubic
  weir cc set group=tenant-a start=default   weir's own: BBR for the first MiB,
                                             then CUBIC

Keys are those of [[congestion]]: container, group, to, port, direction say
whose connections; start, after, then, window what they use. A rule about the
same connections, of the file or set before, is replaced. It is in force at
once for new connections, and outlives a restart of the agent.";

#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
struct SetArgs {
    /// The rule: to=NET, start=ALGORITHM, ...
    #[arg(required = true, value_name = "KEY=VALUE")]
    parts: Vec<String>,
}

#[derive(Debug, Args)]
struct UnsetArgs {
    /// The connections: container=, group=, to=, port=, direction=; none for the rule for all
    #[arg(value_name = "KEY=VALUE")]
    parts: Vec<String>,
}

const ADVISE_EXAMPLES: &str = "Examples:
  weir cc advise                           what is known, with 95 % intervals
  weir cc advise --apply                   what is best becomes the rule, step
                                           by step
  weir cc advise --rollback 192.0.2.0/24   take that rule back
  weir cc advise --again 192.0.2.0/24      forget the results, and begin again

Off unless [advice] of the configuration names networks. A part of the
connections to each, drawn by lot, tries another algorithm; completion times
are compared within sizes, with tests that hold whenever one looks. One
that makes a size's 99th percentile a tenth longer is dropped; so is one that
only gains what its neighbours lose. With --apply one that seems good is used
by more and more connections, up to half, before it becomes the rule; if it is
then worse than before, the rule goes back by itself.";

#[derive(Debug, Args)]
#[command(after_help = ADVISE_EXAMPLES)]
struct AdviseArgs {
    /// Of this network only
    #[arg(value_name = "NETWORK")]
    to: Option<IpNet>,
    /// Have what is best become the rule
    #[arg(long, group = "verb")]
    apply: bool,
    /// Only recommend from now on
    #[arg(long, group = "verb")]
    hold: bool,
    /// Take back the rule that it has become
    #[arg(long, group = "verb", requires = "to")]
    rollback: bool,
    /// Forget the results, and begin again
    #[arg(long, group = "verb")]
    again: bool,
}

impl AdviseArgs {
    fn verb(&self) -> Option<AdviceVerb> {
        let all = [
            (self.apply, AdviceVerb::Apply),
            (self.hold, AdviceVerb::Hold),
            (self.rollback, AdviceVerb::Rollback),
            (self.again, AdviceVerb::Again),
        ];
        all.into_iter().find(|(asked, _)| *asked).map(|(_, verb)| verb)
    }
}

/// Parses a rule from these parts, which use the configuration's syntax.
fn rule(parts: &[String]) -> Result<Rule, Usage> {
    let mut table = toml::Table::new();
    for part in parts {
        let wrong =
            || Usage(format!("cannot read `{part}`: write KEY=VALUE, as to=192.0.2.0/24 or start=bbr"));
        let (key, value) = part.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(wrong)?;
        if key == "start" && value == "default" {
            continue;
        }
        let value = match (key, value.parse::<i64>()) {
            ("port" | "window", Ok(number)) => toml::Value::Integer(number),
            _ => toml::Value::String(value.to_owned()),
        };
        if table.insert(key.to_owned(), value).is_some() {
            return Err(Usage(format!("{key} is there twice")));
        }
    }
    let rule: Rule = table.try_into().map_err(|e: toml::de::Error| {
        Usage(e.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
    })?;
    rule.check().map_err(|e| Usage(e.to_string()))?;
    Ok(rule)
}

const EXPLAIN_EXAMPLES: &str = "Examples:
  weir cc explain 10.1.2.3
  weir cc explain 10.1.2.3:443 --container web
  weir cc explain [fd00::5]:8080 --direction in

The port is the service's: the far end's where the connection is opened here,
which is assumed unless --direction says otherwise, else the own one.";

#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
struct ExplainArgs {
    /// The far end: an address, or one with a port, as 10.1.2.3:443 or `[fd00::5]:443`
    #[arg(value_parser = far_end, value_name = "DEST")]
    to: (IpAddr, Option<u16>),
    /// The class of the connection, as `weir ps` shows it
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// The side that opens it: out (this side) or in
    #[arg(long, default_value = "out", value_parser = direction)]
    direction: Direction,
}

#[derive(Debug, Args)]
struct FlowsArgs {
    /// Show at most this number
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

/// Prints as `weir cc ls` and `weir cc stats` do.
pub(super) fn overview(session: &mut Session<'_>) -> anyhow::Result<()> {
    run(CcArgs { verb: Verb::Ls }, session)?;
    writeln!(session.out)?;
    run(CcArgs { verb: Verb::Stats }, session)?;
    Ok(())
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
            if !moved.failures.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Set(args) => {
            let wanted = rule(&args.parts)?;
            if !args.parts.iter().any(|part| part.starts_with("start=")) {
                return Err(Usage("say what they use: start=ALGORITHM, or start=default".to_owned()).into());
            }
            let set = session.client.congestion_set(&wanted)?;
            session.print(&set, |out, _| {
                writeln!(out, "rule {}, {}: {}", set.number, set.connections, set.action)?;
                set.problem.iter().try_for_each(|why| writeln!(out, "! {why}"))
            })?;
        }
        Verb::Unset(args) => {
            let about = rule(&args.parts)?;
            let view = session.client.congestion_unset(&about)?;
            session.print(&view, |out, look| list(out, look, &view))?;
        }
        Verb::Advise(args) => {
            let all = match args.verb() {
                Some(verb) => session.client.congestion_advise(&AdviceRequest { to: args.to, verb })?,
                None => session.client.congestion_advice()?,
            };
            let all: Vec<AdviceView> =
                all.into_iter().filter(|one| args.to.is_none_or(|to| to == one.to)).collect();
            session.print(&all, |out, look| advice(out, look, &all))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use weir_api::CongestionView;
    use weir_cc::FlowRecord;

    use super::*;
    use weir_fake_agent::{FakeAgent, congestion_view, flow};

    use crate::cli::tests::ask;

    #[test]
    fn rules_flows_and_times_are_tables_that_line_up() {
        let agent = FakeAgent::start();
        let expected = "\
RULE  CONNECTIONS                   ALGORITHM              REACHES  BY
   1  all                           bbr, cubic after 1MiB  all      config
   2  container gone to 10.0.0.0/8  reno                   none     config

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
            said.starts_with(
                "a connection to fd00::5 uses bbr within 128 segments, cubic after 1MiB, by rule 1\n"
            ),
            "{said}"
        );
        let refused = ask(&agent, &["cc", "explain", "10.1.2.3", "--container", "gone"]);
        assert!(refused.err.contains("there is no class `gone`"), "{}", refused.err);
        assert_eq!(ask(&agent, &["cc", "move"]).good(), "2 connections have another algorithm now\n");
        let failed = ask(&agent, &["cc", "move"]);
        let expected = "0 connections have another algorithm now\n\
                        ! web: cannot list its connections: Operation not permitted\n";
        assert_eq!((failed.code, failed.out.as_str()), (ExitCode::FAILURE, expected));
        assert_eq!(ask(&agent, &["cc", "move", "--json"]).code, ExitCode::FAILURE);
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

    /// A wrong rule is refused before it is sent to the agent.
    #[test]
    fn rule_is_set_in_words_of_the_configuration_wrong_ones_stay() {
        let agent = FakeAgent::start();
        let said = ask(
            &agent,
            &["cc", "set", "to=192.0.2.0/24", "port=443", "start=bbr", "after=1MiB", "then=reno"],
        );
        assert_eq!(said.good(), "rule 3, to 192.0.2.0/24 port 443: bbr, reno after 1MiB\n");
        assert_eq!(
            ask(&agent, &["cc", "set", "start=default"]).good(),
            "rule 3, all: bbr within 128 segments, cubic after 1MiB\n"
        );
        for (bad, why) in [
            (vec!["port=443"], "say what they use"),
            (vec!["start"], "write KEY=VALUE"),
            (vec!["start=bbr", "start=reno"], "start is there twice"),
            (vec!["strat=bbr", "start=bbr"], "unknown field `strat`"),
            (vec!["to=10.0.0.1/8", "start=bbr"], "write 10.0.0.0/8"),
            (vec!["to=127.0.0.0/8", "start=bbr"], "what stays on this node"),
            (vec!["port=70000", "start=bbr"], "70000"),
            (vec!["start=bbr", "after=1MiB"], "after needs then"),
            (vec!["start=bbr", "window=128"], "window needs after and then"),
            (vec!["start=a name", "port=1"], "is not the name of a congestion control"),
        ] {
            let said = ask(&agent, &[&["cc", "set"][..], &bad].concat());
            assert_eq!(said.code, ExitCode::from(2), "{bad:?}: {}", said.err);
            assert!(said.err.contains(why), "{bad:?}: {}", said.err);
        }
        assert!(ask(&agent, &["cc", "unset", "port=443"]).good().starts_with("RULE"));
        assert!(ask(&agent, &["cc", "unset"]).err.contains("there is no class `all`"));
    }

    #[test]
    fn advice_says_when_it_cannot_tell_and_takes_one_verb() {
        let agent = FakeAgent::start();
        let said = ask(&agent, &["cc", "advise"]).good();
        assert!(said.starts_with("10.1.2.0/24 (baseline): cannot tell: 0 flows were seen"), "{said}");
        assert!(said.contains("bbr") && said.contains("unknown"), "{said}");
        let shown: Vec<AdviceView> = ask(&agent, &["cc", "advise", "--apply", "--json"]).json();
        assert_eq!(shown, weir_fake_agent::advice());
        assert_eq!(ask(&agent, &["cc", "advise", "--apply", "--again"]).code, ExitCode::from(2));
        assert_eq!(ask(&agent, &["cc", "advise", "--rollback"]).code, ExitCode::from(2));
    }
}
