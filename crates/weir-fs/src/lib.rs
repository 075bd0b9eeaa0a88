//! The classes of a node as files: the program behind `weir fs`.
//!
//! qCon has a file for each container in `/proc` (Sensors 2018, 18, 3444; section 3.2.3). The file
//! appears with the container. It shows weight, minimum, maximum and use, and a write changes the
//! policy. This file system does the same over FUSE, through the agent's socket: `content` is the
//! text of a file, `names` its name, `files` the file system, and `errno` the errors.
//!
//! The program is apart from `weir`, because `fuser` brings crates that a gateway without the file
//! system does not need.

mod content;
mod errno;
mod files;
mod mount;
mod names;

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Parser;
use weir_api::Client;

/// The classes of a node as files, until Ctrl-C; `weir fs --help` has examples.
#[derive(Debug, Parser)]
#[command(name = "weir-fs", version)]
struct Cli {
    /// Where the agent listens
    #[arg(long, env = "WEIR_SOCKET", default_value = weir_api::DEFAULT_SOCKET, value_name = "PATH")]
    socket: PathBuf,
    /// Say where the files are in JSON
    #[arg(long)]
    json: bool,
    /// Where the files are to be: a directory that exists
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the program until a signal or an unmount ends it.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { socket, json, directory } = Cli::parse();
    match mount::run(&Client::new(socket), &directory, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error.
fn say(what: &dyn std::fmt::Display) {
    // Standard error may be gone, and then there is no place to report it.
    let _ = writeln!(std::io::stderr(), "weir: {}", weir_api::plain_lines(&what.to_string()));
}
