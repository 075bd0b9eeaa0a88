//! `weir fs`: runs the program `weir-fs`.

use std::{ffi::OsStr, path::PathBuf, process::ExitCode};

use clap::Args;

use super::{Session, beside};

const EXAMPLES: &str = "Examples:
  mkdir /run/classes                 where the files are to be
  weir fs /run/classes               a file for each class, until Ctrl-C or
                                     SIGTERM
  ls /run/classes                    the classes that are here now
  cat /run/classes/web               its policy and its use
  echo weight=3 > /run/classes/web   as weir set web weight=3
  echo min=5mbit max=none > /run/classes/web
  grep -H ^rate= /run/classes/*      who sends how much

A file appears with its container and goes with it. Its lines:
  weight min max   the policy in force; these three can be written, several in
                   one write
  allocation       what the class may send now
  rate             what it sent over the last second
  bytes packets drops backlog
  state            active or idle
  enforced         yes or no, and then `because`

One write is one change: all of it or nothing. A write fails with
  EINVAL         what is written is wrong; nothing is changed
  ENOENT         there is no such class, or no longer, or several have this
                 name
  EACCES         the user has no right to change policies
  EBUSY          the minimum does not fit beside those that are promised
  ECONNREFUSED   the agent does not answer
and standard error of `weir fs` says why, but for ENOENT.

The files belong to the user who mounted them, with that user's rights at the
agent's socket. No other user sees them. A user other than root needs the
program fusermount3 (package fuse3). A slash or percent sign in a class's name
is written %2F or %25. The program weir-fs stands beside weir, or on PATH: the
packages have it, and `make install-fs` puts it there.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct FsArgs {
    /// Where the files are to be: a directory that exists
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Replaces this process by `weir-fs`.
///
/// # Errors
/// The program is not here, or the kernel cannot run it.
pub(super) fn run(args: &FsArgs, session: &Session<'_>) -> anyhow::Result<ExitCode> {
    let json = session.json.then_some(OsStr::new("--json"));
    let words = [OsStr::new("--socket"), session.local("fs")?.as_os_str()]
        .into_iter()
        .chain(json)
        .chain([OsStr::new("--"), args.directory.as_os_str()]);
    let how = "`make install-fs` builds and installs it";
    beside::run("weir-fs", words, "show the classes as files", how)
}
