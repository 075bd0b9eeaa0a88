use std::{
    fs::File,
    io::{Read, Seek},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::{Pid, getpid, getppid},
};

use crate::interrupt;

/// How often a process that should end is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A command that dies with this process and does not see the terminal's Ctrl-C: the lab
/// takes it, and ends its children in order.
///
/// The kernel ties the death signal to the *thread* that spawns: spawn from one that lives.
pub fn command(program: &str) -> Command {
    let parent = getpid();
    let mut command = Command::new(program);
    command.process_group(0).stdin(Stdio::null());
    // SAFETY: prctl and getppid are async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the line above.
            if getppid() == parent { Ok(()) } else { Err(nix::errno::Errno::ESRCH.into()) }
        });
    }
    command
}

/// The output of a finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A child process: output kept in unnamed files (a pipe would fill up and block it), killed
/// and reaped when dropped.
#[derive(Debug)]
pub struct Proc {
    what: String,
    child: Child,
    stdout: File,
    stderr: File,
}

impl Proc {
    /// Starts it.
    ///
    /// # Errors
    /// If the program is not there (with the Debian package that has it) or cannot be run.
    pub fn start(mut command: Command) -> Result<Proc> {
        let program = command.get_program().to_string_lossy().into_owned();
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        let what = format!("{program} {}", arguments.join(" "));
        let file = || tempfile::tempfile().context("cannot create a temporary file for a command's output");
        let (stdout, stderr) = (file()?, file()?);
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let child = command.spawn().with_context(|| match package_of(&program) {
            Some(package) => format!("cannot run `{what}` (Debian: apt-get install {package})"),
            None => format!("cannot run `{what}`"),
        })?;
        Ok(Proc { what, child, stdout, stderr })
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The command line.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for `{}`", self.what))
    }

    /// Its output so far.
    ///
    /// # Errors
    /// If the temporary files cannot be read.
    pub fn output(&mut self) -> Result<Output> {
        // The child shares our file offset, so read through a handle of its own.
        let read = |file: &File| -> Result<String> {
            let mut own = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
                .context("cannot read back a command's output")?;
            own.rewind()?;
            let mut bytes = Vec::new();
            own.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Output { stdout: read(&self.stdout)?, stderr: read(&self.stderr)? })
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// If it is still there at `deadline`, if it failed (with what it wrote), or on Ctrl-C.
    pub fn finish(&mut self, deadline: Instant) -> Result<Output> {
        let status = loop {
            if let Some(status) = self.ended()? {
                break status;
            }
            interrupt::check()?;
            if Instant::now() >= deadline {
                bail!("`{}` did not end in time", self.what);
            }
            std::thread::sleep(POLL);
        };
        let output = self.output()?;
        if !status.success() {
            bail!("`{}` failed ({status}): {}", self.what, last_words(&output));
        }
        Ok(output)
    }

    /// Sends a signal; a process that has ended already is no error.
    pub fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// SIGTERM, then SIGKILL after `grace`. Returns how it ended.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + grace;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(POLL),
                _ => break,
            }
        }
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The end of what a failed command said: its error output, else its output.
pub fn last_words(output: &Output) -> String {
    let text = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => "it said nothing".to_owned(),
        n => lines[n.saturating_sub(4)..].join("; "),
    }
}

fn package_of(program: &str) -> Option<&'static str> {
    Some(match program.rsplit('/').next()? {
        "ip" | "tc" => "iproute2",
        "iperf3" => "iperf3",
        "ethtool" => "ethtool",
        "iptables" | "ip6tables" => "iptables",
        "ping" => "iputils-ping",
        "docker" | "dockerd" => "docker.io",
        "busybox" => "busybox-static",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_dies_when_its_guard_is_dropped() {
        let mut sleep = command("sleep");
        sleep.arg("1000");
        let child = Proc::start(sleep).unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert!(kill(pid, None).is_ok());
        drop(child);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn a_failed_command_says_what_it_wrote() {
        let mut sh = command("sh");
        sh.args(["-c", "echo some output; echo no such bridge >&2; exit 3"]);
        let error =
            Proc::start(sh).unwrap().finish(Instant::now() + Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("no such bridge") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_missing_program_names_the_package() {
        let mut missing = command("/nowhere/iperf3");
        missing.arg("-s");
        let error = Proc::start(missing).unwrap_err().to_string();
        assert!(error.contains("apt-get install iperf3"), "{error}");
    }
}
