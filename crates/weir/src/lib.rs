//! `weir`: the agent of a node and its command line. `main.rs` is the program.

mod agent;
mod cli;
mod config;
mod control;
mod doctor;
#[cfg(fuzzing)]
pub mod fuzz;
mod images;
mod reply;
mod server;

use std::{io, process::ExitCode};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    cli::run(std::env::args_os(), cli::Look::of_stdout(), &mut io::stdout(), &mut io::stderr())
}
