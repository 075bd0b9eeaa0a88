//! The test's agent, cgroups and directory on the node. All of it is gone at the end, also after SIGKILL.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use weir_api::{Class, Client};
use weir_discovery::cgroup::Cgroup2;

use super::{config::derived, interrupt, judge::CLASSES, sender::child};

/// The time that an agent takes to start at most: engine `auto` tests each engine with traffic.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that an agent takes to put everything back at most.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that the kernel takes to free a cgroup of ended processes at most.
const CGROUP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// The word to the sweeper that the agent has put everything back.
const RESTORED: &[u8] = b"restored";

/// The agent of the test and its classes.
pub(super) struct Stage {
    pub(super) client: Client,
    agent: Child,
    has_ended: bool,
    places: Places,
    // After the agent: it removes the agent's files.
    sweeper: Sweeper,
}

/// The directories that the test of a process makes.
#[derive(Debug)]
struct Places {
    /// Their name.
    name: String,
    /// The configuration, the socket and the state.
    directory: PathBuf,
    /// The cgroup above those of the classes.
    cgroups: PathBuf,
}

impl Places {
    /// Those of the test of process `pid`.
    fn of(pid: u32) -> anyhow::Result<Places> {
        let hierarchy = Cgroup2::find().context("cannot make the cgroups of the test's classes")?;
        let name = format!("weir-test-{pid}");
        let cgroups = hierarchy.directory(&Path::new("/").join(&name));
        Ok(Places { directory: Path::new("/run").join(&name), cgroups, name })
    }

    fn make(&self) -> anyhow::Result<()> {
        let make = |path: &Path, mode| {
            let made = DirBuilder::new().mode(mode).create(path);
            made.with_context(|| format!("cannot make the directory {}", path.display()))
        };
        make(&self.directory, 0o700)?;
        make(&self.directory.join("state"), 0o700)?;
        make(&self.cgroups, 0o755)?;
        CLASSES.iter().try_for_each(|class| make(&self.cgroups.join(class), 0o755))
    }

    fn config(&self) -> PathBuf {
        self.directory.join("weir.toml")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("agent.log")
    }
}

impl Stage {
    /// Starts an agent with the configuration at `config` and three classes more. Returns when the kernel enforces
    /// these.
    ///
    /// # Errors
    /// The agent ends or does not get ready, with its last words; or a signal came.
    pub(super) fn build(config: &Path) -> anyhow::Result<Stage> {
        let places = Places::of(std::process::id())?;
        let cgroups = Path::new("/").join(&places.name);
        let text = fs::read_to_string(config).with_context(|| format!("cannot read {}", config.display()))?;
        let text = derived(&text, &places.directory, &cgroups)
            .with_context(|| format!("cannot use configuration {}", config.display()))?;
        let sweeper = Sweeper::start()?;
        places.make()?;
        fs::write(places.config(), text).context("cannot write the configuration of the test's agent")?;
        let agent = start_agent(&places)?;
        let client = Client::new(places.directory.join("weir.sock"));
        let mut stage = Stage { client, agent, has_ended: false, places, sweeper };
        stage.wait_until_ready()?;
        Ok(stage)
    }

    /// The directory of a class's cgroup.
    pub(super) fn cgroup(&self, class: usize) -> PathBuf {
        self.places.cgroups.join(CLASSES[class])
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            interrupt::check()?;
            if let Some(status) = self.agent.try_wait()? {
                self.has_ended = true;
                anyhow::bail!("the test's agent ended ({status}): {}", last_words(&self.places.log()));
            }
            let lacks = match self.client.classes() {
                Ok(classes) => lacking(&classes),
                Err(error) => Some(error.to_string()),
            };
            let Some(lacks) = lacks else { return Ok(()) };
            if begin.elapsed() > START_TIMEOUT {
                let words = last_words(&self.places.log());
                anyhow::bail!(
                    "the test's agent is not ready after {START_TIMEOUT:?}: {lacks}; it said: {words}"
                );
            }
            sleep(POLL);
        }
    }

    /// Ends the agent, which restores the network, and removes the rest.
    ///
    /// # Errors
    /// A part cannot be removed.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.clear()
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return self.sweeper.sweep(false);
        }
        if let Ok(pid) = i32::try_from(self.agent.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let ended = wait(&mut self.agent, END_TIMEOUT)?;
        if ended.is_none() {
            self.agent.kill()?;
            self.agent.wait()?;
        }
        self.sweeper.sweep(ended.is_some_and(|status| status.success()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.clear();
        }
    }
}

fn start_agent(places: &Places) -> anyhow::Result<Child> {
    let log = File::create(places.log()).context("cannot make the log of the test's agent")?;
    let mut command = child(&["agent", "--config"], Signal::SIGTERM);
    command.arg(places.config()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env_remove("NOTIFY_SOCKET");
    command.spawn().context("cannot start the test's agent")
}

/// The reason why the kernel does not enforce the test's classes yet.
fn lacking(classes: &[Class]) -> Option<String> {
    CLASSES.iter().find_map(|name| match classes.iter().find(|class| class.name == *name) {
        None => Some(format!("it has no class {name}")),
        Some(class) if class.enforced && class.handle.is_some() => None,
        Some(class) => {
            let why = class.not_enforced_because.as_deref().unwrap_or("its cgroup is not found yet");
            Some(format!("{name} is not enforced: {why}"))
        }
    })
}

/// The last line of a log, without its time.
fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
    last.trim_start_matches("weir: ").to_owned()
}

fn wait(child: &mut Child, most: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        match child.try_wait()? {
            None if begin.elapsed() < most => sleep(POLL),
            ended => return Ok(ended),
        }
    }
}

/// A process that removes what is left when this one has ended in any way. Only its standard input tells it.
struct Sweeper(Child);

impl Sweeper {
    fn start() -> anyhow::Result<Sweeper> {
        let mut command = std::process::Command::new("/proc/self/exe");
        command.arg0("weir").args(["test", "sweep"]).arg(std::process::id().to_string());
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Sweeper(command.spawn().context("cannot start the process that clears up after the test")?))
    }

    /// Has it remove everything. `is_restored`: the agent has put the network back.
    fn sweep(&mut self, is_restored: bool) -> anyhow::Result<()> {
        if let Some(mut stdin) = self.0.stdin.take()
            && is_restored
        {
            stdin.write_all(RESTORED)?;
        }
        let mut words = String::new();
        if let Some(stderr) = &mut self.0.stderr {
            stderr.read_to_string(&mut words)?;
        }
        if !self.0.wait()?.success() {
            anyhow::bail!("{}", words.trim().trim_start_matches("weir: "));
        }
        Ok(())
    }
}

impl Drop for Sweeper {
    /// For a stage that was not completed.
    fn drop(&mut self) {
        let _ = self.sweep(false);
    }
}

/// The test to clear up after.
#[derive(Debug, Args)]
pub(in crate::cli) struct SweepArgs {
    /// Its process
    pid: u32,
}

/// The sweeper's process: waits until standard input ends, then removes what the test made.
///
/// # Errors
/// A part cannot be removed.
pub(in crate::cli) fn sweep(args: &SweepArgs) -> anyhow::Result<()> {
    let places = Places::of(args.pid)?;
    let mut words = Vec::new();
    io::stdin().read_to_end(&mut words)?;
    let restored = if words == RESTORED { Ok(()) } else { restore(&places) };
    let removed = remove(&places);
    restored.and(removed)
}

/// Waits for the end of the agent, which its parent's death ends, and puts back what it has left.
fn restore(places: &Places) -> anyhow::Result<()> {
    if !places.config().exists() {
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        match weir_agent::restore(&places.config(), Some(&places.directory.join("state"))) {
            Err(error) if begin.elapsed() > END_TIMEOUT => return Err(error),
            Err(_) => sleep(POLL * 10),
            Ok(_) => return Ok(()),
        }
    }
}

fn remove(places: &Places) -> anyhow::Result<()> {
    let cgroups = CLASSES.iter().map(|class| places.cgroups.join(class)).chain([places.cgroups.clone()]);
    let cgroups = cgroups.filter_map(|cgroup| remove_cgroup(&cgroup).err());
    let faults: Vec<_> = cgroups.chain(remove_directory(&places.directory).err()).collect();
    faults.into_iter().next().map_or(Ok(()), Err)
}

/// Removes a cgroup, whose last process may not be reaped yet.
fn remove_cgroup(path: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if begin.elapsed() < CGROUP_TIMEOUT => sleep(POLL),
            done => return done.with_context(|| format!("cannot remove the cgroup {}", path.display())),
        }
    }
}

fn remove_directory(path: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
