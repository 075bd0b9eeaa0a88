//! The program `weir-lab`.

use std::{env, io, process::ExitCode};

fn main() -> ExitCode {
    weir_lab::cli::run(env::args_os(), &mut io::stdout(), &mut io::stderr())
}
