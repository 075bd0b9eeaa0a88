//! Running programs, and what to say when they cannot run.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

/// How long a daemon may take to be ready: a second on a quiet machine.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there can be no daemon or namespace here: the text of a skip.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// A program is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// Not the superuser.
    #[error("network namespaces and dockerd need root, and this is user {uid}")]
    NotRoot {
        /// The effective user.
        uid: u32,
    },
    /// The namespace asked for cannot be opened.
    #[error("cannot open the network namespace at {}", path.display())]
    NoNetns {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The namespace asked for is the machine's own.
    #[error(
        "`{name}` is the machine's own network namespace, whose firewall dockerd would rewrite: make another"
    )]
    HostNetns {
        /// Its name.
        name: String,
    },
    /// A daemon ended, or was not ready in time.
    #[error("`{program}` was not ready after {} ms; its last words: {said}", after.as_millis())]
    NotReady {
        /// Which one.
        program: &'static str,
        /// How long it was given or lived.
        after: Duration,
        /// The end of its log.
        said: String,
    },
    /// A helper program refused.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file or a process could not be made.
    #[error("cannot {what}")]
    Io {
        /// The attempt, and its object.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// A program ran and failed, or could not be run.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {said}")]
pub struct CommandError {
    /// The command line.
    pub command: String,
    /// Its standard error, or the reason why it could not run.
    pub said: String,
}

/// Refuses anyone but the superuser.
pub(crate) fn require_root() -> Result<(), Unavailable> {
    match nix::unistd::geteuid() {
        uid if uid.is_root() => Ok(()),
        uid => Err(Unavailable::NotRoot { uid: uid.as_raw() }),
    }
}

/// Where `program` is: `PATH`, then the directories of system programs, which a plain `su`
/// leaves out of it.
pub(crate) fn find(program: &'static str, package: &'static str) -> Result<PathBuf, Unavailable> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
        .ok_or(Unavailable::NoProgram { program, package })
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Runs to the end; standard output without the last line feed.
pub(crate) fn output(command: &mut Command) -> Result<String, CommandError> {
    let error = |command: &Command, said: String| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        CommandError { command: words.join(" "), said }
    };
    let done = command.output().map_err(|why| error(command, why.to_string()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(error(command, if said.is_empty() { done.status.to_string() } else { said }));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

/// Waits until a daemon is ready; one that ended, or is not ready in time, is killed, and its last
/// words are told.
pub(crate) fn await_ready(
    program: &'static str,
    child: &mut Child,
    log: &Path,
    ready: impl Fn() -> bool,
) -> Result<(), Unavailable> {
    let started = Instant::now();
    while !ready() {
        let ended = child
            .try_wait()
            .map_err(|source| Unavailable::Io { what: format!("start {program}"), source })?
            .is_some();
        if ended || started.elapsed() > READY_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Unavailable::NotReady { program, after: started.elapsed(), said: tail(log) });
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}
