//! `weir undo`.

use std::process::ExitCode;

use clap::Args;

use super::{Session, format, plan};

const EXAMPLES: &str = "Examples:
  weir undo                take back the last `weir set`, `weir unset` or `weir link set`, also one
                           by the API
  weir undo --dry-run      what that would change
  weir undo --json | jq '.names'

A second `weir undo` takes back the change before. The last 10 changes are kept, also over a
restart of the agent; a change of many classes counts once. It is refused where what the change
replaced does not fit any more, as a minimum that was promised to others meanwhile. Changes of the
configuration file, of labels and of agreements are not of this kind.";

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
    session.print(&undone, |out, look| {
        let made = format::moment(undone.made_ms);
        if undone.settings.is_empty() {
            writeln!(out, "took back the change of {made} to {}", undone.names.join(", "))?;
        } else {
            writeln!(out, "took back the change of {made} to the link's capacity")?;
            plan::write_settings(out, look, &undone.settings, ["BEFORE", "NOW"])?;
        }
        match (undone.settings.is_empty(), undone.changes.is_empty()) {
            (true, true) => writeln!(out, "no policy in force differs by it"),
            (false, true) => Ok(()),
            _ => plan::write_changes(out, look, &undone.changes),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
