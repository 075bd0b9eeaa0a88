//! `weir explain`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use weir_api::{Class, ClassKind, Explanation, Origin, PolicyView};

use super::{
    Session,
    format::{self, Look, Table, Tone},
};

const EXAMPLES: &str = "Examples:
  weir explain web            its share, step by step, and who else shares
  weir explain docker:web     where two sources know a `web`

BOUND says what decides a sharer's allocation: its weight, its floor (minimum),
its ceiling (maximum), or its demand: it asks for no more.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExplainArgs {
    /// The class to explain
    #[arg(value_parser = super::name)]
    name: String,
}

pub(super) fn run(args: &ExplainArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let explanation = session.client.explain(&args.name)?;
    session.print(&explanation, |out, look| write(out, look, &explanation))?;
    Ok(ExitCode::SUCCESS)
}

/// The text of `weir explain`, for other verbs.
pub(super) fn text(explanation: &Explanation, look: Look) -> String {
    let mut text = Vec::new();
    // Writing to a vector cannot fail.
    let _ = write(&mut text, look, explanation);
    String::from_utf8_lossy(&text).into_owned()
}

fn write(out: &mut dyn Write, look: Look, explanation: &Explanation) -> io::Result<()> {
    let Explanation { class, reasons, sharers, origins } = explanation;
    writeln!(out, "{}", headline(class))?;
    writeln!(out, "policy: {}", policy(&class.policy))?;
    if let Some(down) = &class.down {
        writeln!(out, "download: {}", policy(&down.policy))?;
    }
    if !class.enforced {
        let why = class.not_enforced_because.as_deref().unwrap_or("the agent does not say why");
        writeln!(out, "! not enforced: {why}")?;
    }
    writeln!(out, "\nWhy")?;
    for (reason, number) in reasons.iter().zip(1..) {
        writeln!(out, "{number:>3}. {reason}")?;
    }
    if !origins.is_empty() {
        writeln!(out, "\nSet, strongest first")?;
        for origin in origins {
            writeln!(out, "  {origin}")?;
        }
    }
    if !sharers.is_empty() {
        let mut table = Table::new(look, &["SHARER", ">WEIGHT", ">ALLOCATED", "BOUND"]);
        for sharer in sharers {
            let this = sharer.name == class.name || Some(&sharer.name) == class.group.as_ref();
            let tone = if this { Tone::Good } else { Tone::Plain };
            table.row([
                (sharer.name.clone(), tone),
                (sharer.weight.to_string(), Tone::Plain),
                (format::rate(sharer.allocation), Tone::Plain),
                (sharer.bound.clone(), Tone::Plain),
            ]);
        }
        write!(out, "\n{table}")?;
    }
    Ok(())
}

/// Describes the class and its present traffic.
pub(super) fn headline(class: &Class) -> String {
    let group = class.group.as_ref().map(|group| format!(" of group {group}")).unwrap_or_default();
    let demand = match class.demand {
        None => "asks for all it can get".to_owned(),
        Some(demand) => format!("asks for {}", format::rate(demand)),
    };
    format!(
        "{} ({} from {}{group}) is {}: sends {} of {} allowed, {demand}",
        class.name,
        kind(class.kind),
        class.source,
        format::state(class).trim_end_matches('!'),
        format::rate(class.rate),
        format::rate(class.allocation),
    )
}

/// Describes the policy in force, with the origin of each value.
pub(super) fn policy(policy: &PolicyView) -> String {
    let bound = |name, value: Option<_>, origin| match value {
        None => format!("no {name}"),
        Some(value) => format!("{name} {value} ({})", by(origin)),
    };
    format!(
        "weight {} ({}), {}, {}",
        policy.weight,
        by(policy.weight_origin),
        bound("min", policy.min, policy.min_origin),
        bound("max", policy.max, policy.max_origin)
    )
}

fn kind(kind: ClassKind) -> &'static str {
    match kind {
        ClassKind::Container => "container",
        ClassKind::Netns => "network namespace",
        ClassKind::Interface => "interface",
        ClassKind::Cgroup => "cgroup",
        ClassKind::Selector => "selected packets",
        ClassKind::Host => "the host's traffic",
        ClassKind::Default => "unclaimed traffic",
        ClassKind::Control => "control traffic",
        ClassKind::Group => "group",
    }
}

fn by(origin: Origin) -> &'static str {
    match origin {
        Origin::Default => "built in",
        Origin::Defaults => "[defaults]",
        Origin::Label => "label",
        Origin::Config => "configuration",
        Origin::Set => "set by hand",
        Origin::Agreement => "agreement",
    }
}
