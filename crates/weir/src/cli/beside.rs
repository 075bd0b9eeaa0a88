//! Programs that stand beside `weir` and do a verb, as git runs `git-foo` for `git foo`.

use std::{
    env,
    ffi::OsStr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Replaces this process by `program` with `args`. `what` is what the program does, and `how` says how to get
/// it.
///
/// # Errors
/// The program is neither beside this one nor on PATH, or the kernel cannot run it.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    what: &str,
    how: &str,
) -> anyhow::Result<ExitCode> {
    let own = env::current_exe().unwrap_or_else(|_| "weir".into());
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(found) = find(program, &own, env::split_paths(&path)) else {
        anyhow::bail!(
            "cannot {what}: there is no program {program} beside {} or on PATH ({how})",
            own.display()
        );
    };
    let error = Command::new(&found).args(args).exec();
    Err(anyhow::Error::new(error).context(format!("cannot run {}", found.display())))
}

/// The program beside `own`, or else the first in these directories.
fn find(program: &str, own: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let beside = own.parent().map(Path::to_owned);
    beside.into_iter().chain(path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PROGRAM: &str = "weir-lab";

    #[test]
    fn program_beside_weir_comes_before_those_on_path() {
        let dir = tempfile::tempdir().unwrap();
        let [bin, other] = ["bin", "other"].map(|name| dir.path().join(name));
        for directory in [&bin, &other] {
            fs::create_dir(directory).unwrap();
        }
        let own = bin.join("weir");
        let on_path = || [dir.path().join("missing"), other.clone()].into_iter();
        assert_eq!(find(PROGRAM, &own, on_path()), None);
        fs::write(other.join(PROGRAM), "").unwrap();
        assert_eq!(find(PROGRAM, &own, on_path()), Some(other.join(PROGRAM)));
        fs::write(bin.join(PROGRAM), "").unwrap();
        assert_eq!(find(PROGRAM, &own, on_path()), Some(bin.join(PROGRAM)));
    }
}
