//! `weir events`.

use std::process::ExitCode;

use clap::Args;

use super::{Session, format};

const EXAMPLES: &str = "Examples:
  weir events           what the agent remembers
  weir events -f        and what happens from now on, until Ctrl-C
  weir events -f --json | jq 'select(.what == \"not-enforced\")'

Kinds: acknowledged, advice, agreement-accepted, agreement-activated,
agreement-expired, agreement-pending, agreement-quota-back,
agreement-quota-used-up, agreement-rejected, agreement-renewed,
agreement-terminated, capacity-changed, class-added, class-removed, clock-back,
clock-believed, clock-doubted, config-refused, engine, foreign-program,
guarantee-restored, guarantee-violated, image-corrupt, image-down,
image-frozen, image-over-budget, image-removed, image-up, image-would-go,
label-cut, link, not-enforced, policy-changed, promised, reloaded, repaired,
rule-set, rule-unset, started, state-damaged, stopping; lost if this reader was
too slow for some. With --json, one object a line.";

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
                "{}  {:<24}  {class:<16}  {}",
                format::moment(event.time_ms),
                event.what,
                event.detail
            )?;
        }
        // Each line is written immediately, also into a pipe.
        session.out.flush()?;
    }
    if args.follow {
        anyhow::bail!("the agent at {} has stopped", session.client.address());
    }
    Ok(ExitCode::SUCCESS)
}
