//! Running programs, with what they said when they fail.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs to the end; its output passes through.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {}", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs to the end; its standard output as text.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(command)?).into_owned())
}

/// Runs to the end; its standard output.
pub(crate) fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    let done =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", line(command)))?;
    if !done.status.success() {
        bail!(
            "`{}` failed: {}: {}",
            line(command),
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    Ok(done.stdout)
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
