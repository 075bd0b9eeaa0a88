//! `weir agree report`: the promises of a month, and how far they were kept.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;
use weir_agree::{Name, Report};

use crate::cli::Session;

const EXAMPLES: &str = "Examples:
  weir agree report a-17
  weir agree report a-17 --month 2026-11 --html report.html
  weir agree report a-17 --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ReportArgs {
    /// The agreement's id
    id: Name,
    /// The month, in UTC; this one unless given
    #[arg(long, value_name = "YYYY-MM", value_parser = month)]
    month: Option<String>,
    /// Write a page with a plot into this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Checks a month. The agent would refuse the first moment of another text.
fn month(text: &str) -> Result<String, String> {
    let is_number = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    let is_month = text.split_once('-').is_some_and(|(year, month)| {
        is_number(year, 4) && is_number(month, 2) && ("01"..="12").contains(&month)
    });
    is_month
        .then(|| text.to_owned())
        .ok_or_else(|| "write a year and a month from 01 to 12: 2026-11".to_owned())
}

pub(super) fn run(args: &ReportArgs, session: &mut Session<'_>) -> anyhow::Result<()> {
    let report = session.client.report(args.id.as_str(), args.month.as_deref())?;
    if let Some(file) = &args.html {
        std::fs::write(file, report.html()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    session.print(&report, |out, _| write(out, &report))
}

fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let Report { agreement, party, service, month, min, max, availability, seen, .. } = report;
    let seconds = |ms: u64| crate::cli::format::seconds(ms / 1000);
    writeln!(out, "agreement {agreement} of {party} for {service}, {min} to {max}, in {month}")?;
    // The percentage is rounded down.
    writeln!(
        out,
        "  kept      {:.3} % of the {} it was watched",
        (availability * 1e5).floor() / 1e3,
        seconds(seen.observed_ms)
    )?;
    writeln!(out, "  asked     for more than it got for {}", seconds(seen.waiting_ms))?;
    writeln!(
        out,
        "  promised  {} in that time, {} delivered; {} sent in all",
        seen.promised, seen.delivered, seen.sent
    )?;
    for violation in &seen.violations {
        writeln!(out, "! {violation}")?;
    }
    if seen.more_violations > 0 {
        writeln!(out, "! and {} more", seen.more_violations)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_that_no_year_has_is_a_mistake_of_usage() {
        assert_eq!(month("2026-11").as_deref(), Ok("2026-11"));
        for wrong in ["2026-13", "2026-00", "2026-1", "26-11", "2026", "2026-11-01", "+026-11"] {
            assert!(month(wrong).unwrap_err().contains("from 01 to 12"), "{wrong}");
        }
        let refused = crate::cli::tests::weir(&["agree", "report", "a-17", "--month", "2026-13"]);
        assert_eq!(refused.code, std::process::ExitCode::from(2));
    }
}
