//! `weir lab`: runs the program `weir-lab`, as git runs `git-foo` for `git foo`.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;

const PROGRAM: &str = "weir-lab";

pub(super) const EXAMPLES: &str = "Examples:
  weir lab list                            which experiments there are
  weir lab help                            what weir-lab can do, with examples
  sudo weir lab run weights-3              one experiment: weir, plain tc and no control
  sudo weir lab demo                       half a minute of weir at work

The program weir-lab stands beside weir, or on PATH: `make install-lab` puts it there.";

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
/// The program is neither beside this one nor on PATH, or the kernel cannot run it.
pub(super) fn run(verb: &[&str], forwarded: &Forwarded) -> anyhow::Result<ExitCode> {
    let own = env::current_exe().unwrap_or_else(|_| "weir".into());
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(program) = find(&own, env::split_paths(&path)) else {
        anyhow::bail!(
            "cannot run the experiments: there is no program {PROGRAM} beside {} or on PATH (`make lab` builds \
             it, `make install-lab` installs it)",
            own.display()
        );
    };
    let error = Command::new(&program).args(verb).args(&forwarded.args).exec();
    Err(anyhow::Error::new(error).context(format!("cannot run {}", program.display())))
}

/// The program beside `own`, or else the first in these directories.
fn find(own: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let beside = own.parent().map(Path::to_owned);
    beside.into_iter().chain(path).map(|directory| directory.join(PROGRAM)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn program_beside_weir_comes_before_those_on_path() {
        let dir = tempfile::tempdir().unwrap();
        let [bin, other] = ["bin", "other"].map(|name| dir.path().join(name));
        for directory in [&bin, &other] {
            fs::create_dir(directory).unwrap();
        }
        let own = bin.join("weir");
        let on_path = || [dir.path().join("missing"), other.clone()].into_iter();
        assert_eq!(find(&own, on_path()), None);
        fs::write(other.join(PROGRAM), "").unwrap();
        assert_eq!(find(&own, on_path()), Some(other.join(PROGRAM)));
        fs::write(bin.join(PROGRAM), "").unwrap();
        assert_eq!(find(&own, on_path()), Some(bin.join(PROGRAM)));
    }
}
