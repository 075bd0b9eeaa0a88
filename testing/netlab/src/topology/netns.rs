use std::{
    fs::{self, File},
    io::Write,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::proc::{Output, Proc, command, last_words};

/// Where iproute2 keeps named namespaces.
const NETNS_DIR: &str = "/run/netns";
/// Limit of every short command (`ip`, `tc`, `ethtool`, ...).
const SHORT: Duration = Duration::from_secs(20);

/// A named network namespace as `ip netns` makes it; removed when dropped, with the
/// processes that are in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes it, with its loopback up and without duplicate address detection.
    ///
    /// # Errors
    /// If `ip netns add` fails, e.g. because the name is taken or rights are missing.
    pub fn create(name: &str) -> Result<Netns> {
        ip_batch(&format!("netns add {name}\n"))?;
        let ns = Netns::adopt(name);
        ns.ip("link set dev lo up\n")?;
        // Detection keeps a link-local address unusable for 1 to 2 s. A router without one asks for
        // no neighbour and loses what it forwards meanwhile. A read-only /proc leaves it on.
        for devices in ["all", "default"] {
            let _ = ns.sysctl(&format!("net.ipv6.conf.{devices}.accept_dad"), "0");
        }
        Ok(ns)
    }

    /// Takes charge of a namespace that exists, or is about to.
    pub(super) fn adopt(name: &str) -> Netns {
        Netns { name: name.to_owned() }
    }

    /// Its name, as in `ip netns list`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that `nsenter --net=` takes.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// A command that runs in this namespace and dies with this process. Only the network
    /// changes: `/sys`, cgroups and mounts stay as they are (`ip netns exec` would hide
    /// `/sys/fs/cgroup`).
    ///
    /// # Errors
    /// If the namespace is gone.
    pub fn command(&self, program: &str) -> Result<Command> {
        let file = self.open()?;
        let mut command = command(program);
        // SAFETY: setns is a plain system call on a descriptor that the closure owns.
        unsafe {
            command.pre_exec(move || Ok(setns(&file, CloneFlags::CLONE_NEWNET)?));
        }
        Ok(command)
    }

    /// Runs a short command in this namespace.
    ///
    /// # Errors
    /// If it cannot be run, fails, or takes more than 20 s.
    pub fn exec(&self, argv: &[&str]) -> Result<Output> {
        self.spawn(argv)?.finish(Instant::now() + SHORT)
    }

    /// Starts a command in this namespace; it is killed when the guard is dropped.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn spawn(&self, argv: &[&str]) -> Result<Proc> {
        let [program, arguments @ ..] = argv else { bail!("cannot run an empty command") };
        let mut command = self.command(program)?;
        command.args(arguments);
        Proc::start(command).with_context(|| format!("in namespace {}", self.name))
    }

    /// Runs `ip -batch` in this namespace.
    ///
    /// # Errors
    /// The first line that `ip` refuses.
    pub fn ip(&self, batch: &str) -> Result<()> {
        run_batch(self.command("ip")?, batch).with_context(|| format!("in namespace {}", self.name))
    }

    /// Runs `tc -batch` in this namespace.
    ///
    /// # Errors
    /// The first line that `tc` refuses.
    pub fn tc(&self, batch: &str) -> Result<()> {
        run_batch(self.command("tc")?, batch).with_context(|| format!("in namespace {}", self.name))
    }

    /// Runs `f` on a thread that is in this namespace. Do not spawn processes there: they
    /// would be killed with the thread.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn within<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        let file = self.open()?;
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    setns(&file, CloneFlags::CLONE_NEWNET)
                        .with_context(|| format!("cannot enter namespace {}", self.name))?;
                    Ok(f())
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sets a sysctl of this namespace, by its name with dots.
    ///
    /// # Errors
    /// If the kernel has no such sysctl, or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.within(|| fs::write(&path, value))?
            .with_context(|| format!("cannot set {key} to {value} in namespace {}", self.name))
    }

    /// Processes that are in this namespace now.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let Ok(own) = fs::metadata(self.path()) else { return Vec::new() };
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &i32| {
                fs::metadata(format!("/proc/{pid}/ns/net"))
                    .is_ok_and(|ns| (ns.dev(), ns.ino()) == (own.dev(), own.ino()))
            })
            .collect()
    }

    fn open(&self) -> Result<File> {
        File::open(self.path()).with_context(|| format!("cannot open namespace {}", self.name))
    }

    fn remove(&self) {
        if !self.path().exists() {
            return;
        }
        for pid in self.pids() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Err(error) = ip_batch(&format!("netns del {}\n", self.name)) {
            eprintln!("weir lab: {error:#} (`weir lab clean` tries again)");
        }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Names of all named namespaces.
pub(super) fn list() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Runs `ip -batch` in the namespace that this process is in.
pub(super) fn ip_batch(batch: &str) -> Result<()> {
    run_batch(command("ip"), batch)
}

fn run_batch(mut command: Command, batch: &str) -> Result<()> {
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run `{name} -batch` (Debian: apt-get install iproute2)"))?;
    // A refused line ends the command, and so the pipe: the error is in its output.
    let _ = child.stdin.take().expect("stdin was piped").write_all(batch.as_bytes());
    let output = child.wait_with_output().with_context(|| format!("cannot wait for `{name} -batch`"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let words = last_words(&Output { stdout: text(&output.stdout), stderr: text(&output.stderr) });
    let line = failed_line(&words).and_then(|n| batch.lines().nth(n - 1));
    match line {
        Some(line) => bail!("`{name} {}`: {words}", line.trim()),
        None => bail!("`{name} -batch`: {words}"),
    }
}

/// From iproute2's "Command failed -:12": 12.
fn failed_line(words: &str) -> Option<usize> {
    let (_, after) = words.split_once("Command failed -:")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_line_of_a_batch_is_found() {
        assert_eq!(failed_line("Error: x; Command failed -:12"), Some(12));
        assert_eq!(failed_line("nothing of the kind"), None);
    }
}
