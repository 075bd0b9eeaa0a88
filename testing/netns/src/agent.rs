//! A `weir agent` in a node's namespace: started, watched, ended.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use weir_api::{Class, Client, ClientError};
use weir_netlab::topology::{Netns, Proc, UPLINK};
use weir_units::BitRate;

use crate::{Division, Node};

/// How long an agent may take to answer, and a class to be enforced, on a busy machine.
const READY: Duration = Duration::from_secs(15);
/// How long it may take to put everything back.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// The program under test: `WEIR_BIN`, or the newest `weir` that cargo has built beside this
/// test.
///
/// # Panics
/// Without one.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WEIR_BIN") {
        let path = PathBuf::from(path);
        assert!(path.exists(), "WEIR_BIN is {}, which is not there", path.display());
        return path;
    }
    // target/debug/deps/shares-0123456789abcdef
    let test = std::env::current_exe().expect("a process has an executable");
    let target = test.ancestors().nth(3).expect("cargo builds tests in target/PROFILE/deps");
    let built = ["release", "debug"].map(|profile| target.join(profile).join("weir"));
    let age =
        |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let newest = built.iter().filter(|path| path.exists()).max_by_key(|path| age(path));
    newest.cloned().unwrap_or_else(|| {
        panic!(
            "there is no weir to test in {}: `cargo build --release -p weir`, or set WEIR_BIN",
            target.display()
        )
    })
}

/// Whether the program under test is a release. Speed and whole memory are those of optimised code.
#[must_use]
pub fn is_optimised() -> bool {
    binary().components().any(|part| part.as_os_str() == "release")
}

/// The agent's configuration, as TOML; socket and state are put into a directory of its own.
#[derive(Debug, Clone)]
pub struct Config {
    device: String,
    capacity: String,
    link: String,
    /// More tables `[[link]]`.
    others: String,
    netns: Option<Vec<String>>,
    docker: Option<PathBuf>,
    /// More lines of `[discover]`.
    discover: String,
    sections: String,
    awaited: Vec<String>,
    /// The words before the program's name.
    before: Vec<String>,
}

/// The place of the lines that all links have.
const OF_ALL: &str = "# the engine";

impl Config {
    /// The uplink with that capacity; discovery is off.
    #[must_use]
    pub fn new(capacity: BitRate) -> Config {
        Config {
            device: UPLINK.to_owned(),
            capacity: format!("\"{}bit\"", capacity.bits_per_sec()),
            link: String::new(),
            others: String::new(),
            netns: None,
            docker: None,
            discover: String::new(),
            sections: String::new(),
            awaited: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Another device as the link.
    #[must_use]
    pub fn on(self, device: &str) -> Config {
        Config { device: device.to_owned(), ..self }
    }

    /// Another capacity.
    #[must_use]
    pub fn capacity(self, capacity: BitRate) -> Config {
        Config { capacity: format!("\"{}bit\"", capacity.bits_per_sec()), ..self }
    }

    /// The bounds of a capacity that follows its link.
    #[must_use]
    pub fn following(self, min: BitRate, max: BitRate, more: &str) -> Config {
        Config { capacity: format!("{{ min = \"{min}\", max = \"{max}\"{more} }}"), ..self }
    }

    /// More lines of the section `[link]`. The engine is `htb` if none of them names one.
    #[must_use]
    pub fn link(mut self, lines: &str) -> Config {
        let _ = writeln!(self.link, "{lines}");
        self
    }

    /// Another link, of that device and capacity.
    #[must_use]
    pub fn beside(self, device: &str, capacity: BitRate) -> Config {
        self.beside_with(device, capacity, "")
    }

    /// The same with more lines of its table.
    #[must_use]
    pub fn beside_with(mut self, device: &str, capacity: BitRate, lines: &str) -> Config {
        let capacity = capacity.bits_per_sec();
        let _ = writeln!(
            self.others,
            "[[link]]\ndevice = \"{device}\"\ncapacity = \"{capacity}bit\"\n{OF_ALL}\n{lines}"
        );
        self
    }

    /// Named namespaces to discover, instead of those before.
    #[must_use]
    pub fn netns(self, patterns: &[String]) -> Config {
        Config { netns: (!patterns.is_empty()).then(|| patterns.to_vec()), ..self }
    }

    /// Docker's socket.
    #[must_use]
    pub fn docker(self, socket: &Path) -> Config {
        Config { docker: Some(socket.to_owned()), ..self }
    }

    /// More lines of the section `[discover]`.
    #[must_use]
    pub fn discover(mut self, lines: &str) -> Config {
        let _ = writeln!(self.discover, "{lines}");
        self
    }

    /// A command that runs the program, such as `env NAME=VALUE`.
    #[must_use]
    pub fn behind(self, command: &[String]) -> Config {
        Config { before: command.to_vec(), ..self }
    }

    /// More sections, at the end.
    #[must_use]
    pub fn sections(mut self, toml: &str) -> Config {
        let _ = writeln!(self.sections, "{toml}");
        self
    }

    /// The policies of a division, as `[[group]]`, `[[class]]` and `[host]`.
    #[must_use]
    pub fn division(self, node: &Node, division: &Division) -> Config {
        self.sections(&division.to_toml(node))
    }

    /// Names of classes that must be enforced before [`Agent::start`] returns, instead of
    /// those before.
    #[must_use]
    pub fn awaiting(self, names: &[String]) -> Config {
        Config { awaited: names.to_vec(), ..self }
    }

    /// The file's text for an agent with that directory.
    #[must_use]
    pub fn to_toml(&self, dir: &Path) -> String {
        let list = |names: &[String]| format!("{names:?}");
        let (dir, link) = (dir.display(), &self.link);
        // The reference, whatever else this kernel runs.
        let engine = if link.contains("engine = ") { "" } else { "engine = \"htb\"\n" };
        let header = if self.others.is_empty() { "[link]" } else { "[[link]]" };
        // The engine is one for all links.
        let named = link.lines().find(|line| line.starts_with("engine = ")).unwrap_or("engine = \"htb\"");
        let others = self.others.replace(OF_ALL, named);
        format!(
            "{header}\ndevice = \"{}\"\ncapacity = {}\n{engine}{link}\n{others}\
             [agent]\nsocket = \"{dir}/weir.sock\"\nstate = \"{dir}/state\"\n\n\
             [discover]\ndocker = {}\nnetns = {}\n{}\n{}",
            self.device,
            self.capacity,
            self.docker.as_ref().map_or("false".to_owned(), |socket| format!("{socket:?}")),
            self.netns.as_deref().map_or("false".to_owned(), list),
            self.discover,
            self.sections,
        )
    }
}

/// The output of a short run of the program, and its end.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// An agent's process with its directory (configuration, socket, state); killed when dropped.
#[derive(Debug)]
pub struct Agent {
    proc: Proc,
    client: Client,
    awaited: Vec<String>,
    before: Vec<String>,
    // Last: the process uses it.
    dir: TempDir,
}

impl Agent {
    /// Starts it without waiting for anything.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn launch(netns: &Netns, config: &Config) -> Result<Agent> {
        let dir = tempfile::Builder::new().prefix("weir-test-").tempdir()?;
        fs::create_dir(dir.path().join("state"))?;
        fs::write(dir.path().join("weir.toml"), config.to_toml(dir.path()))?;
        let client = Client::new(dir.path().join("weir.sock"));
        let (awaited, before) = (config.awaited.clone(), config.before.clone());
        Ok(Agent { proc: spawn(&binary(), netns, &before, dir.path())?, client, awaited, before, dir })
    }

    /// Starts it and waits until it answers and the kernel holds all awaited classes.
    ///
    /// # Errors
    /// If it ends or is not ready in time: with what is missing, and its log.
    pub fn start(netns: &Netns, config: &Config) -> Result<Agent> {
        let mut agent = Agent::launch(netns, config)?;
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Starts the program again with the same files, after [`Agent::stop`] or [`Agent::kill`].
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn restart(&mut self, netns: &Netns) -> Result<()> {
        self.restart_as(&binary(), netns)
    }

    /// The same with another version of the program.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn restart_as(&mut self, program: &Path, netns: &Netns) -> Result<()> {
        self.proc = spawn(program, netns, &self.before, self.dir.path())?;
        self.wait_until_ready()
    }

    /// Waits until it answers and the kernel holds all awaited classes.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let awaited = self.awaited.clone();
        self.wait_until("be ready", |client| match client.classes() {
            Ok(classes) => lacking(&awaited, &classes),
            Err(ClientError::Unreachable { .. }) => Some("its socket does not answer".to_owned()),
            Err(error) => Some(error.to_string()),
        })
    }

    /// Waits until `lacks` says that nothing is lacking; `what` is what the agent should do.
    ///
    /// # Errors
    /// After 15 s, or if the agent ends: with what is lacking, and its log.
    pub fn wait_until(&mut self, what: &str, lacks: impl Fn(&Client) -> Option<String>) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            if let Some(status) = self.proc.ended()? {
                bail!("the agent ended ({status}) before it could {what}:\n{}", self.log());
            }
            let Some(lacking) = lacks(&self.client) else { return Ok(()) };
            if Instant::now() >= deadline {
                bail!("the agent does not {what} within {READY:?}: {lacking}; its log:\n{}", self.log());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The way to its API.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.proc.id()
    }

    /// Its configuration file.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("weir.toml")
    }

    /// The directory of its state.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Writes another configuration for it, with the same socket and state. Nothing is sent:
    /// a running agent sees that the file has changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rewrite(&mut self, config: &Config) -> Result<()> {
        self.awaited.clone_from(&config.awaited);
        Ok(fs::write(self.config_path(), config.to_toml(self.dir.path()))?)
    }

    /// Its log.
    pub fn log(&mut self) -> String {
        self.proc.output().map_or_else(|error| error.to_string(), |o| o.stdout + &o.stderr)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.proc.ended().ok().flatten()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.proc.signal(signal);
    }

    /// SIGTERM: true if it put everything back and ended well, in time.
    pub fn stop(&mut self) -> bool {
        self.proc.stop(GRACE).is_some_and(|status| status.success())
    }

    /// SIGUSR2: how it ended, with the division in force for the next agent. None if it did not end in time.
    pub fn hand_over(&mut self) -> Option<ExitStatus> {
        self.proc.signal(Signal::SIGUSR2);
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(POLL);
        }
        None
    }

    /// A crash: SIGKILL.
    pub fn kill(&mut self) {
        self.proc.signal(Signal::SIGKILL);
        self.proc.stop(GRACE);
    }

    /// Runs another verb of the program against this agent: `agent.weir(netns, &["ps"])`.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn weir(&self, netns: &Netns, arguments: &[&str]) -> Result<Ran> {
        let program = text_of(&binary())?;
        let mut command = netns.command(&program)?;
        command.args(arguments).env("WEIR_SOCKET", self.client.address()).env("COLUMNS", "200");
        let out = command.output().with_context(|| format!("cannot run {program}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran { code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) })
    }
}

fn text_of(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).context("the path is not UTF-8")
}

fn spawn(program: &Path, netns: &Netns, before: &[String], dir: &Path) -> Result<Proc> {
    let (config, program) = (text_of(&dir.join("weir.toml"))?, text_of(program)?);
    let mut argv: Vec<&str> = before.iter().map(String::as_str).collect();
    argv.extend([program.as_str(), "agent", "--config", config.as_str()]);
    netns.spawn(&argv)
}

/// The missing part, in words.
fn lacking(names: &[String], classes: &[Class]) -> Option<String> {
    names.iter().find_map(|name| match classes.iter().find(|class| class.name == *name) {
        None => Some(format!("it has no class {name}")),
        Some(class) if !class.enforced => {
            Some(format!("{name} is not enforced: {}", class.not_enforced_because.as_deref().unwrap_or("?")))
        }
        Some(_) => None,
    })
}
