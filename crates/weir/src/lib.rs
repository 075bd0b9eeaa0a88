//! The command line of weir. `main.rs` is the program.

mod cli;

use std::{io, process::ExitCode};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = cli::arguments(std::env::args_os());
    cli::run(args, cli::Look::of_stdout(), &mut io::stdout(), &mut io::stderr())
}
