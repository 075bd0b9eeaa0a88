use std::{cell::RefCell, path::Path};

use anyhow::Result;
use weir_netlab::topology::{Mode, Proc, Spec, Topology};
use weir_testkit::Dockerd;
use weir_units::BitRate;

use crate::{control::AgentSetup, scenario::Scenario};

/// The containers of the demo's senders.
pub(super) trait Containers {
    /// The kind of the containers, in words.
    fn what(&self) -> String;

    /// The network that they are attached to.
    fn topology(&self) -> &Topology;

    /// The settings of an agent that finds them.
    fn agent_setup<'a>(&'a self, weir: &'a Path, capacity: BitRate) -> AgentSetup<'a>;

    /// The agent's name for a container.
    fn agent_name(&self, label: &str) -> String;

    /// Starts a command in a container and leaves it running.
    fn send(&self, label: &str, command: &[&str]) -> Result<()>;
}

/// Network namespaces on a bridge.
pub(super) struct NetnsContainers {
    senders: RefCell<Vec<Proc>>,
    topology: Topology,
}

impl NetnsContainers {
    pub(super) fn start(scenario: &Scenario) -> Result<NetnsContainers> {
        Ok(NetnsContainers { senders: RefCell::default(), topology: Topology::build(&scenario.spec())? })
    }
}

impl Containers for NetnsContainers {
    fn what(&self) -> String {
        "network namespaces on a bridge".into()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn agent_setup<'a>(&'a self, weir: &'a Path, capacity: BitRate) -> AgentSetup<'a> {
        AgentSetup::new(weir, &self.topology, capacity)
    }

    fn agent_name(&self, label: &str) -> String {
        self.topology.container_name(label)
    }

    fn send(&self, label: &str, command: &[&str]) -> Result<()> {
        let sender = self.topology.container(label)?.netns().spawn(command)?;
        self.senders.borrow_mut().push(sender);
        Ok(())
    }
}

/// Docker containers on Docker's own bridge, under a dockerd in the node's namespace. Docker routes and
/// masquerades them.
pub(super) struct DockerContainers {
    // Dropped before the topology, so that containers end before their network.
    docker: Dockerd,
    labels: Vec<String>,
    topology: Topology,
}

impl DockerContainers {
    /// Starts the daemon and the containers, with their weights as labels.
    pub(super) fn start(scenario: &Scenario) -> Result<DockerContainers> {
        let spec = Spec { containers: Vec::new(), mode: Mode::Routed, ..scenario.spec() };
        let topology = Topology::build(&spec)?;
        let docker = Dockerd::start(topology.node().name())?;
        let first = &scenario.cases[0].containers;
        for (label, setting) in first {
            let weight = setting.weight.to_string();
            // iperf3 chooses CUBIC by name, which the kernel may reserve for administrators.
            docker.run(
                label,
                &[("weir.weight", weight.as_str())],
                &["--cap-add", "NET_ADMIN"],
                &["sleep", "3600"],
            )?;
        }
        Ok(DockerContainers { docker, labels: first.keys().cloned().collect(), topology })
    }
}

impl Containers for DockerContainers {
    fn what(&self) -> String {
        "Docker containers on docker0".into()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn agent_setup<'a>(&'a self, weir: &'a Path, capacity: BitRate) -> AgentSetup<'a> {
        AgentSetup::new(weir, &self.topology, capacity).docker(&self.docker.socket(), &self.labels)
    }

    fn agent_name(&self, label: &str) -> String {
        label.to_owned()
    }

    fn send(&self, label: &str, command: &[&str]) -> Result<()> {
        self.docker.docker(&[&["exec", "--detach", label], command].concat())?;
        Ok(())
    }
}
