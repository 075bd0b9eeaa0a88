//! A `weir agent` in the node's namespace, started the same way by the lab and the tests.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use weir_api::{Class, Client, ClientError, PolicyChange, SetPolicies};
use weir_netlab::{
    interrupt,
    topology::{Netns, Proc, Topology, UPLINK},
};
use weir_share::Policy;
use weir_units::BitRate;

/// Time limit for the agent's first answer and for the enforcement of a class.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the agent to restore the link.
const GRACE: Duration = Duration::from_secs(5);
/// Prefix of the agents' directories; the process id of their maker follows it.
pub(crate) const TEMP_PREFIX: &str = "weir-lab-";
const POLL: Duration = Duration::from_millis(20);

/// The settings of a new agent.
#[derive(Debug)]
pub(crate) struct AgentSetup<'a> {
    weir: &'a Path,
    node: &'a Netns,
    capacity: BitRate,
    netns: Option<String>,
    docker: Option<PathBuf>,
    await_classes: Vec<String>,
    link: String,
    beside: Option<(&'static str, BitRate)>,
    sections: String,
}

impl<'a> AgentSetup<'a> {
    /// The uplink of `topology` with this capacity, its containers as classes; `weir` is the program.
    #[must_use]
    pub(crate) fn new(weir: &'a Path, topology: &'a Topology, capacity: BitRate) -> AgentSetup<'a> {
        AgentSetup {
            weir,
            node: topology.node(),
            capacity,
            netns: Some(topology.container_pattern()),
            docker: None,
            await_classes: topology.containers().iter().map(|c| c.netns().name().to_owned()).collect(),
            link: String::new(),
            beside: None,
            sections: String::new(),
        }
    }

    /// Uses the containers of the Docker daemon behind this socket instead of network namespaces.
    #[must_use]
    pub(crate) fn docker(self, socket: &Path, containers: &[String]) -> AgentSetup<'a> {
        AgentSetup {
            netns: None,
            docker: Some(socket.to_owned()),
            await_classes: containers.to_vec(),
            ..self
        }
    }

    /// Adds lines to the `[link]` section, e.g. `engine = "htb"`.
    #[must_use]
    pub(crate) fn link(self, lines: &str) -> AgentSetup<'a> {
        AgentSetup { link: lines.to_owned(), ..self }
    }

    /// Adds a link: the device and its capacity. The lines of [`AgentSetup::link`] are those of both.
    #[must_use]
    pub(crate) fn beside(self, device: &'static str, capacity: BitRate) -> AgentSetup<'a> {
        AgentSetup { beside: Some((device, capacity)), ..self }
    }

    /// Adds sections to the configuration, e.g. `[agreements]`.
    #[must_use]
    pub(crate) fn sections(self, text: &str) -> AgentSetup<'a> {
        AgentSetup { sections: text.to_owned(), ..self }
    }

    fn config(&self, dir: &Path) -> String {
        let quote = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let file = |name: &str| quote(&dir.join(name).to_string_lossy());
        let header = if self.beside.is_some() { "[[link]]" } else { "[link]" };
        let mut text = String::new();
        for (device, capacity) in [(UPLINK, self.capacity)].into_iter().chain(self.beside) {
            let capacity = quote(&format!("{}bit", capacity.bits_per_sec()));
            let (device, link) = (quote(device), self.link.trim_end());
            let _ = write!(text, "{header}\ndevice = {device}\ncapacity = {capacity}\n{link}\n\n");
        }
        let _ = write!(
            text,
            "[agent]\nsocket = {}\nstate = {}\n\n[discover]\n",
            file("weir.sock"),
            file("state"),
        );
        let docker = self.docker.as_ref().map_or("false".into(), |path| quote(&path.to_string_lossy()));
        let netns = self.netns.as_ref().map_or("false".into(), |pattern| format!("[{}]", quote(pattern)));
        let _ = write!(text, "docker = {docker}\nnetns = {netns}\n\n{}", self.sections);
        text
    }
}

/// A running agent. Dropping it sends SIGTERM, so that the agent restores the link.
#[derive(Debug)]
pub(crate) struct Agent {
    proc: Proc,
    client: Client,
    // Dropped last, because the directory holds the socket and the state.
    _dir: TempDir,
}

impl Agent {
    /// Starts the agent and waits until it answers and enforces a class for each container.
    ///
    /// # Errors
    /// If it ends or is not ready after 10 s, with its last words.
    pub(crate) fn start(setup: &AgentSetup<'_>) -> Result<Agent> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("{TEMP_PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("cannot create a temporary directory for the agent")?;
        let config = dir.path().join("weir.toml");
        fs::create_dir(dir.path().join("state")).context("cannot create the agent's state directory")?;
        fs::write(&config, setup.config(dir.path())).context("cannot write the agent's configuration")?;
        let proc = spawn(setup, &config)?;
        let client = Client::new(dir.path().join("weir.sock"));
        let mut agent = Agent { proc, client, _dir: dir };
        agent.wait_until_enforced(&setup.await_classes)?;
        Ok(agent)
    }

    /// The client of its API.
    #[must_use]
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until each of these names is a class that the kernel holds.
    ///
    /// # Errors
    /// After 10 s, with the missing class and the reason; if the agent ends; on Ctrl-C.
    pub(crate) fn wait_until_enforced(&mut self, names: &[String]) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            interrupt::check()?;
            if let Some(status) = self.proc.ended()? {
                let words = self.last_words();
                bail!("`{}` ended ({status}): {words}", self.proc.what());
            }
            let lacking = match self.client.classes() {
                Ok(classes) => lacking(names, &classes),
                Err(ClientError::Unreachable { .. }) => Some("its socket does not answer".to_owned()),
                // An agent that ends during the request is reported with its last words, which say more.
                Err(error @ ClientError::Protocol { .. }) => Some(error.to_string()),
                Err(error) => return Err(error.into()),
            };
            let Some(lacking) = lacking else { return Ok(()) };
            if Instant::now() >= deadline {
                bail!(
                    "the agent is not ready after {} s: {lacking}; its last words: {}",
                    READY_TIMEOUT.as_secs(),
                    self.last_words()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sets weight, floor and ceiling of classes in one change, like `weir set`.
    ///
    /// # Errors
    /// If the agent refuses.
    pub(crate) fn set(&self, policies: &[(String, Policy)]) -> Result<()> {
        let change = |(name, policy): &(String, Policy)| PolicyChange {
            name: name.clone(),
            weight: Some(Some(policy.weight())),
            min: Some(policy.min()),
            max: Some(policy.max()),
            ..PolicyChange::default()
        };
        let changes = SetPolicies { changes: policies.iter().map(change).collect(), allow_absent: false };
        self.client.set(&changes).context("cannot change policies")?;
        Ok(())
    }

    /// Ends the agent in order. Returns whether it ended with success and in time.
    pub(crate) fn stop(&mut self) -> bool {
        self.proc.stop(GRACE).is_some_and(|status| status.success())
    }

    fn last_words(&mut self) -> String {
        self.proc.output().map(|o| weir_netlab::topology::last_words(&o)).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(setup: &AgentSetup<'_>, config: &Path) -> Result<Proc> {
    let weir = setup.weir.to_str().context("the path of the weir program is not UTF-8")?;
    let config = config.to_str().context("the temporary directory's path is not UTF-8")?;
    setup.node.spawn(&[weir, "agent", "--config", config])
}

/// The first missing class, in words.
fn lacking(names: &[String], classes: &[Class]) -> Option<String> {
    names.iter().find_map(|name| match classes.iter().find(|class| class.name == *name) {
        None => Some(format!("it has no class {name}")),
        Some(class) if !class.enforced => {
            let why = class.not_enforced_because.as_deref().unwrap_or("it does not say why");
            Some(format!("{name} is not enforced: {why}"))
        }
        Some(_) => None,
    })
}
