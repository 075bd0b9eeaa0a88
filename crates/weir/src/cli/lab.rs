//! `weir lab`: runs the program `weir-lab`.

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use clap::Args;

use super::beside;

pub(super) const EXAMPLES: &str = "Examples:
  weir lab list                 which experiments there are
  weir lab help                 what weir-lab can do, with examples
  sudo weir lab run weights-3   one experiment: weir, plain tc and no control
  sudo weir lab demo            half a minute of weir at work

The program weir-lab stands beside weir, or on PATH: `make install-lab` puts it
there. The command ends with 2 without a verdict too.";

/// Words that another program reads.
#[derive(Debug, Args)]
pub(super) struct Forwarded {
    /// Arguments of `weir-lab`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    args: Vec<OsString>,
}

/// Replaces this process by `weir-lab` with `verb` and the words that follow it.
///
/// # Errors
/// The program is not here, or the kernel cannot run it.
pub(super) fn run(verb: &[&str], forwarded: &Forwarded) -> anyhow::Result<ExitCode> {
    let words = verb.iter().map(OsStr::new).chain(forwarded.args.iter().map(OsString::as_os_str));
    let how = "`make lab` builds it, `make install-lab` installs it";
    beside::run("weir-lab", words, "run the experiments", how)
}
