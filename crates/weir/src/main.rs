//! `weir`: the agent of a node, and the command line that talks to it.

mod agent;
mod cli;
mod config;
mod control;
mod images;
mod server;

use std::{io, process::ExitCode};

fn main() -> ExitCode {
    cli::run(std::env::args_os(), cli::Look::of_stdout(), &mut io::stdout(), &mut io::stderr())
}
