//! `weir doctor`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use weir_api::{Check, Client, ClientError, Doctor, Verdict};

use super::{
    Session,
    format::{Look, Table, Tone},
    progress::Waiting,
};

const EXAMPLES: &str = "Examples:
  weir doctor   before the first start, or when in doubt
  weir doctor --json | jq '.checks[] | select(.verdict == \"fail\")'

Asks the agent if one runs, else looks for itself. Exits with 1 if a check
fails. An agent answers users with the right `operate` ([access] of the
configuration).";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DoctorArgs {}

pub(super) fn run(session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let waiting = Waiting::new(session.json, "the agent checks this node");
    let doctor = look(&session.client, &waiting)?;
    drop(waiting);
    session.print(&doctor, |out, look| write(out, look, &doctor))?;
    let failed = doctor.checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Asks the agent, or looks without one.
///
/// # Errors
/// The agent refuses to answer this user, or is another node's and does not answer.
pub(super) fn look(client: &Client, waiting: &Waiting) -> Result<Doctor, ClientError> {
    match client.doctor() {
        Err(refused @ ClientError::Refused(_)) => Err(refused),
        Err(silent) if client.socket().is_none() => Err(silent),
        Err(silent) => Ok(without_agent(&silent, waiting)),
        answer => answer,
    }
}

/// The checks that this process makes itself if no agent answers.
fn without_agent(silent: &ClientError, waiting: &Waiting) -> Doctor {
    let agent =
        Check { name: "agent".to_owned(), verdict: Verdict::Warn, found: silent.to_string(), advice: None };
    let mut checks = vec![agent];
    waiting.step("trying the kernel's parts");
    checks.extend(weir_agent::doctor::kernel());
    waiting.step("trying each engine");
    checks.extend(weir_agent::doctor::engines(None));
    Doctor { checks }
}

pub(super) fn write(out: &mut dyn Write, look: Look, doctor: &Doctor) -> io::Result<()> {
    let mut table = Table::new(look, &["CHECK", "", "FOUND"]);
    for check in &doctor.checks {
        let verdict = match check.verdict {
            Verdict::Ok => ("ok", Tone::Good),
            Verdict::Warn => ("warn", Tone::Warn),
            Verdict::Fail => ("FAIL", Tone::Bad),
        };
        table.row([
            (check.name.clone(), Tone::Plain),
            (verdict.0.to_owned(), verdict.1),
            (check.found.clone(), Tone::Plain),
        ]);
        if let Some(advice) = &check.advice {
            table.row([
                (String::new(), Tone::Plain),
                (String::new(), Tone::Plain),
                (format!("-> {advice}"), Tone::Dim),
            ]);
        }
    }
    write!(out, "{table}")
}
