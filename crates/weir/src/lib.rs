//! The command line of weir. `main.rs` is the program.

mod cli;
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod static_names;

use std::{io, process::ExitCode};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    static_names::use_own_modules();
    let args = cli::arguments(std::env::args_os());
    cli::run(args, cli::Look::of_stdout(), &mut io::stdout(), &mut io::stderr())
}

/// The definition of the command line, for tests of the documents.
#[must_use]
pub fn command() -> clap::Command {
    cli::command()
}
