//! `weir history`.

use std::process::ExitCode;

use clap::Args;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use weir_api::{HistoryChange, HistoryQuery, HistoryRecord};

use super::{Session, Usage, format, say};

const EXAMPLES: &str = "Examples:
  weir history              all changes that are kept, oldest first
  weir history web          those of one class, agreement or key of the
                            configuration
  weir history --since 2h   those of the last two hours
  weir history --since 2026-11-26T08:00:00Z
  weir history --json | jq 'select(.by.kind == \"user\")'

A record has who made it, why, and each value before and after. Kinds of
makers: user, token, container, configuration, calendar, advice, agent. Kinds
of values: policy and policy-down (in force), by-hand and by-hand-down
(`weir set`), capacity, configuration, agreement, congestion, pin, token. The
records are files in the agent's state directory, for root only, in lines of
JSON; [agent] audit_size and audit_files bound them. With --json, one object a
line.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct HistoryArgs {
    /// Only changes of this class, agreement, key of the configuration, rule or pin
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only changes since this moment, or of this last time: 30m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

/// A span such as 30m or 7d, which is not negative. A day has 24 hours.
pub(super) fn span(text: &str) -> Option<SignedDuration> {
    let span = text.parse::<Span>().ok()?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    (!span.is_negative()).then_some(span)
}

/// A moment, or the moment a span ago, in milliseconds since the epoch.
fn since(text: &str, now: Timestamp) -> Result<u64, Usage> {
    let bad = || {
        Usage(format!(
            "cannot read `{text}` as a time: write a span such as 30m, 2h or 7d, or a moment such as \
             2026-11-26T08:00:00Z"
        ))
    };
    let moment = match span(text) {
        // A span from before the epoch asks for everything.
        Some(ago) => now.checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH),
        None => text.parse().map_err(|_| bad())?,
    };
    Ok(u64::try_from(moment.as_millisecond()).unwrap_or(0))
}

fn line(HistoryChange { what, name, old, new }: &HistoryChange) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    format!("{what} {name}: {} -> {}", value(old), value(new))
}

fn write(session: &mut Session<'_>, record: &HistoryRecord) -> anyhow::Result<()> {
    if session.json {
        serde_json::to_writer(&mut *session.out, record)?;
        writeln!(session.out)?;
        return Ok(());
    }
    let HistoryRecord { n, time_ms, by, cause, changes, .. } = record;
    writeln!(session.out, "{}  {n}  {by}: {cause}", format::moment(*time_ms))?;
    for change in changes {
        writeln!(session.out, "  {}", line(change))?;
    }
    Ok(())
}

pub(super) fn run(args: &HistoryArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let since_ms = args.since.as_deref().map(|text| since(text, Timestamp::now())).transpose()?;
    let mut query =
        HistoryQuery { since_ms: since_ms.unwrap_or(0), name: args.name.clone(), ..HistoryQuery::default() };
    let (mut records, mut unreadable, mut missing) = (0_usize, 0, 0);
    loop {
        let page = session.client.history(&query)?;
        for record in &page.records {
            write(session, record)?;
        }
        session.out.flush()?;
        records += page.records.len();
        unreadable += page.unreadable;
        missing += page.missing;
        match page.next {
            Some(next) => query.after = next,
            None => break,
        }
    }
    if records == 0 && !session.json {
        writeln!(session.out, "no change is recorded that matches")?;
    }
    if unreadable + missing > 0 {
        let gaps = format!(
            "{unreadable} lines are torn or damaged and were passed over, and {missing} numbers are missing"
        );
        // Each line of standard output is a record in JSON.
        if session.json {
            say(session.err, &gaps);
        } else {
            writeln!(session.out, "{gaps}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use weir_fake_agent::FakeAgent;

    use super::{
        super::tests::{Outcome, ask},
        *,
    };

    #[test]
    fn history_prints_all_pages_with_makers_and_both_values() {
        let agent = FakeAgent::start();
        let expected = "\
2023-11-14T22:13:20.008Z  8  container docker:web: seen on the node
  policy docker:web: none -> weight=1 (built in)
2023-11-14T22:13:20.009Z  9  user 1000: change of policies
  policy docker:web: weight=1 (built in) -> weight=3 (by hand)
1 lines are torn or damaged and were passed over, and 0 numbers are missing
";
        assert_eq!(ask(&agent, &["history", "web", "--since", "2h"]).good(), expected);
        let Outcome { code, out, err } = ask(&agent, &["history", "--json"]);
        let gaps = "weir: 1 lines are torn or damaged and were passed over, and 0 numbers are missing\n";
        assert_eq!((code, err.as_str()), (ExitCode::SUCCESS, gaps));
        let records: Vec<HistoryRecord> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.iter().map(|record| record.n).collect::<Vec<_>>(), [8, 9]);
        let refused = ask(&agent, &["history", "--since", "soon"]);
        assert_eq!(refused.code, ExitCode::from(super::super::USAGE));
        assert!(refused.err.contains("cannot read `soon` as a time"), "{}", refused.err);
    }

    #[test]
    fn since_takes_spans_and_moments_and_refuses_the_rest() {
        let now: Timestamp = "2026-11-26T08:00:00Z".parse().unwrap();
        let now_ms = 1_795_680_000_000;
        assert_eq!(u64::try_from(now.as_millisecond()).unwrap(), now_ms);
        for (text, ago_s) in [("30m", 1_800), ("2h", 7_200), ("7d", 604_800), ("2026-11-26T07:59:59Z", 1)] {
            assert_eq!(since(text, now).unwrap(), now_ms - ago_s * 1_000, "{text}");
        }
        for text in ["", "soon", "7", "-2h", "2026-11-26"] {
            assert!(since(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn a_change_names_the_value_before_and_after() {
        let change = HistoryChange {
            what: weir_api::ChangeKind::Policy,
            name: "docker:web".to_owned(),
            old: None,
            new: Some("weight=3 (label)".to_owned()),
        };
        assert_eq!(line(&change), "policy docker:web: none -> weight=3 (label)");
    }
}
