//! `weir events`.

use std::process::ExitCode;

use clap::Args;

use super::{Session, format};

const EXAMPLES: &str = "Examples:
  weir events           what the agent remembers
  weir events -f        and what happens from now on, until Ctrl-C
  weir events -f --json | jq 'select(.what == \"not-enforced\")'

Kinds: started, class-added, class-removed, policy-changed, reloaded, config-refused,
not-enforced, promised, label-cut, repaired, guarantee-violated, guarantee-restored, image-corrupt, image-frozen,
image-removed, image-would-go, image-over-budget, state-damaged, acknowledged,
clock-doubted, clock-back, clock-believed, stopping; lost if this reader was too slow for some.
With --json, one object a line.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct EventsArgs {
    /// Go on with what happens next
    #[arg(long, short)]
    follow: bool,
}

pub(super) fn run(args: &EventsArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    for event in session.client.events(args.follow)? {
        let event = event?;
        if session.json {
            serde_json::to_writer(&mut *session.out, &event)?;
            writeln!(session.out)?;
        } else {
            let class = event.class.as_deref().unwrap_or("-");
            writeln!(
                session.out,
                "{}  {:<14}  {class:<16}  {}",
                format::moment(event.time_ms),
                event.what,
                event.detail
            )?;
        }
        // Each line is written immediately, also into a pipe.
        session.out.flush()?;
    }
    if args.follow {
        anyhow::bail!("the agent at {} has stopped", session.client.socket().display());
    }
    Ok(ExitCode::SUCCESS)
}
