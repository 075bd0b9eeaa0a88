//! `weir ps`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use weir_api::{Activity, Class, ClassKind};

use super::{
    Session,
    format::{self, Look, Table, Tone},
};

const EXAMPLES: &str = "Examples:
  weir ps                 the classes of this node
  weir ps -o wide         with handle, interfaces, source, agreement and totals
  weir ps --json | jq '.[] | select(.activity == \"active\") | .name'

Columns:
  WEIGHT MIN MAX    the policy in force; `weir explain NAME` says who set what
  ALLOCATED         what the class may send now
  SENDING           what it sent over the last second
  DROPS             packets lost because its queue was full
  BACKLOG           bytes waiting in its queue now
  STATE             active, idle or absent; `!` if the policy is not enforced, with the
                    reason below the table";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PsArgs {
    /// How much to show
    #[arg(long, short, value_name = "FORM")]
    output: Option<Output>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// All columns
    Wide,
}

pub(super) fn run(args: &PsArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let classes = session.client.classes()?;
    let wide = args.output == Some(Output::Wide);
    session.print(&classes, |out, look| write(out, look, &classes, wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the table of classes. The reasons why some are not enforced follow.
pub(super) fn write(out: &mut dyn Write, look: Look, classes: &[Class], wide: bool) -> io::Result<()> {
    const SHORT: [&str; 10] =
        ["NAME", "GROUP", ">WEIGHT", ">MIN", ">MAX", ">ALLOCATED", ">SENDING", ">DROPS", ">BACKLOG", "STATE"];
    const WIDE: [&str; 7] =
        ["HANDLE", "SOURCE", "AGREEMENT", ">BYTES", ">LOCAL", ">BACKPRESSURED", "INTERFACES"];
    let headings: Vec<&str> = SHORT.into_iter().chain(WIDE.into_iter().filter(|_| wide)).collect();
    let mut table = Table::new(look, &headings);
    let mut sorted: Vec<&Class> = classes.iter().collect();
    sorted.sort_by(|a, b| rank(a).cmp(&rank(b)));
    for class in &sorted {
        let cells = short_cells(class);
        table.row(cells.into_iter().chain(wide_cells(class).into_iter().filter(|_| wide)));
    }
    write!(out, "{table}")?;
    let mut not_enforced = sorted.iter().filter(|class| !class.enforced).peekable();
    if not_enforced.peek().is_some() {
        writeln!(out)?;
    }
    for class in not_enforced {
        let why = class.not_enforced_because.as_deref().unwrap_or("the agent does not say why");
        writeln!(out, "! {} is not enforced: {why}", class.name)?;
    }
    Ok(())
}

/// The order of the table: a group before its members, and weir's own classes last.
fn rank(class: &Class) -> (bool, &str, bool, &str) {
    let own = matches!(class.kind, ClassKind::Host | ClassKind::Default | ClassKind::Control);
    let is_group = class.kind == ClassKind::Group;
    let group = if is_group { &class.name } else { class.group.as_deref().unwrap_or(&class.name) };
    (own, group, !is_group, &class.name)
}

fn short_cells(class: &Class) -> [(String, Tone); 10] {
    let plain = |text: String| (text, Tone::Plain);
    let tone = match (class.enforced, class.activity) {
        (false, _) => Tone::Bad,
        (true, Activity::Active) => Tone::Good,
        (true, _) => Tone::Dim,
    };
    let here = class.activity != Activity::Absent;
    let measured = |text: String| if here { text } else { "-".to_owned() };
    let group = if class.kind == ClassKind::Group { Some("(group)") } else { class.group.as_deref() };
    [
        plain(class.name.clone()),
        plain(group.unwrap_or("-").to_owned()),
        plain(class.policy.weight.to_string()),
        plain(format::bound(class.policy.min)),
        plain(format::bound(class.policy.max)),
        plain(measured(format::rate(class.allocation))),
        plain(measured(format::rate(class.rate))),
        (measured(class.drops.to_string()), if class.drops > 0 { Tone::Warn } else { Tone::Plain }),
        plain(measured(class.backlog.to_string())),
        (format::state(class), tone),
    ]
}

fn wide_cells(class: &Class) -> [(String, Tone); 7] {
    let or_none = |text: String| (if text.is_empty() { "-".to_owned() } else { text }, Tone::Plain);
    [
        or_none(class.handle.clone().unwrap_or_default()),
        or_none(class.source.clone()),
        or_none(class.agreement.clone().unwrap_or_default()),
        or_none(class.bytes.to_string()),
        or_none(class.local_bytes.to_string()),
        or_none(format::millis(class.backpressured_ms)),
        or_none(class.interfaces.iter().chain(&class.selects).cloned().collect::<Vec<_>>().join(", ")),
    ]
}
