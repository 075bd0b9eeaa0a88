//! `weir undo`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use weir_api::Undone;

use super::{
    Session,
    format::{self, Look},
    plan,
};

const EXAMPLES: &str = "Examples:
  weir undo             take back the last `weir set`, `weir unset` or `weir
                        link set`, also one by the API
  weir undo --dry-run   what that would change
  weir undo --json | jq '.names'

A second `weir undo` takes back the change before. The last 10 changes are
kept, also over a restart of the agent; a change of many classes counts once.
It is refused where what the change replaced does not fit any more, as a
minimum that was promised to others meanwhile. Changes of the configuration
file, of labels and of agreements are not of this kind.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct UndoArgs {
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &UndoArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        let plan = session.client.plan_undo()?;
        session.print(&plan, |out, look| plan::write(out, look, &plan))?;
        return Ok(ExitCode::SUCCESS);
    }
    let undone = session.client.undo()?;
    session.print(&undone, |out, look| write(out, look, &undone))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what was taken back. A change without names is one of a capacity.
pub(super) fn write(out: &mut dyn Write, look: Look, undone: &Undone) -> io::Result<()> {
    let Undone { names, settings, changes, links, .. } = undone;
    let is_capacity = names.is_empty();
    let of = if is_capacity { "the link's capacity".to_owned() } else { names.join(", ") };
    writeln!(out, "took back the change of {} to {of}", format::moment(undone.made_ms))?;
    if settings.is_empty() && changes.is_empty() && links.is_empty() {
        let what = if is_capacity { "capacity" } else { "policy" };
        return writeln!(out, "no {what} in force differs by it");
    }
    if !settings.is_empty() {
        plan::write_settings(out, look, settings, ["BEFORE", "NOW"])?;
    }
    if !changes.is_empty() {
        plan::write_changes(out, look, changes)?;
    }
    plan::write_links(out, look, links)
}
