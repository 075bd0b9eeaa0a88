//! The program `weir-fs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_fs::main()
}
