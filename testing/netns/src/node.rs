//! A node with an agent on it.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use weir_api::{Class, Client};
use weir_netlab::topology::{Container, Netns, Spec, Topology, UPLINK, Wire, check_rights};
use weir_units::{BitRate, Bytes};

use crate::{Agent, Config, Ran};

/// The capacity in the agent's configuration: less than the wire carries, so that queues form in
/// the scheduler.
pub const CAPACITY: BitRate = BitRate::mbit(95);

/// The wire of a node that is asked for one. It is not what is tested, and must not become the
/// bottleneck on a machine that stands still for a moment: 10 ms of late timers cost it nothing, it
/// loses nothing before 100 ms wait, and those, of which TCP recovers for seconds, are gone in half
/// a second.
pub const WIRE: Wire = Wire { rate: BitRate::mbit(120), queue: Bytes(1_500_000), burst: Bytes(150_000) };

/// Names of `n` containers: C1, C2, ...
#[must_use]
pub fn containers(n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("C{i}")).collect()
}

/// A topology of the lab and the agent on its node; all gone when dropped.
#[derive(Debug)]
pub struct Node {
    // Before the topology: a process is killed before its namespace goes.
    agent: Option<Agent>,
    /// Containers, node, wire and server.
    pub topology: Topology,
}

impl Node {
    /// Builds the topology, with [`WIRE`] for a wire, and waits until its links have a carrier, which
    /// the kernel finds in its own time; there is no agent yet.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn build(spec: &Spec) -> Node {
        check_rights().expect("tests ask `can_run` first");
        let wire = spec.wire.map(|_| WIRE);
        let topology = Topology::build(&Spec { wire, ..spec.clone() }).unwrap_or_else(|e| panic!("{e:#}"));
        let node = Node { agent: None, topology };
        let begin = Instant::now();
        while node.sh(&["ip", "-o", "link", "show", "up", "type", "veth"]).contains("NO-CARRIER") {
            assert!(begin.elapsed() < Duration::from_secs(5), "a link has no carrier after 5 s");
            sleep(Duration::from_millis(20));
        }
        if wire.is_some() {
            node.keep_order();
        }
        node
    }

    /// Has one processor receive all that arrives at the links, which are slow. Else each receives what
    /// it sent, and when one stands still what the other sends overtakes it, which TCP takes for losses.
    fn keep_order(&self) {
        let topology = &self.topology;
        let containers = topology.containers().iter().map(Container::netns);
        for netns in containers.chain([topology.node(), topology.wire(), topology.srv()]) {
            // It shows the links of the namespace that mounts it.
            let script = "for cpus in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 > $cpus; done";
            let set =
                netns.exec(&["unshare", "-m", "sh", "-ec", &format!("mount -t sysfs none /sys; {script}")]);
            set.unwrap_or_else(|e| panic!("cannot have one processor receive in {}: {e:#}", netns.name()));
        }
    }

    /// A configuration for its agent: [`CAPACITY`], the containers as classes, no Docker.
    #[must_use]
    pub fn config(&self) -> Config {
        let names: Vec<String> =
            self.topology.containers().iter().map(|c| c.netns().name().to_owned()).collect();
        Config::new(CAPACITY).netns(&[self.topology.container_pattern()]).awaiting(&names)
    }

    /// Starts an agent and waits until it enforces what is awaited.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn start(&mut self, config: &Config) {
        self.agent = None;
        let agent = Agent::start(self.topology.node(), config);
        self.agent = Some(agent.unwrap_or_else(|e| panic!("{e:#}")));
    }

    /// Starts the agent again, with the same files.
    ///
    /// # Panics
    /// If there was none, or it does not get ready.
    #[track_caller]
    pub fn restart(&mut self) {
        let agent = self.agent.as_mut().expect("there was an agent");
        agent.restart(self.topology.node()).unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Starts another version of the agent, with the same files.
    ///
    /// # Panics
    /// As [`Node::restart`].
    #[track_caller]
    pub fn restart_as(&mut self, program: &Path) {
        let agent = self.agent.as_mut().expect("there was an agent");
        agent.restart_as(program, self.topology.node()).unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// The agent.
    ///
    /// # Panics
    /// If none was started.
    #[track_caller]
    pub fn agent(&mut self) -> &mut Agent {
        self.agent.as_mut().expect("an agent was started")
    }

    /// The way to the agent's API.
    ///
    /// # Panics
    /// If none was started.
    #[must_use]
    #[track_caller]
    pub fn client(&self) -> &Client {
        self.agent.as_ref().expect("an agent was started").client()
    }

    /// The socket of the agent.
    ///
    /// # Panics
    /// If none was started.
    #[must_use]
    #[track_caller]
    pub fn socket(&self) -> &Path {
        self.client().socket().expect("tests ask over a socket")
    }

    /// Runs `weir` with these arguments against the agent; its standard output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn weir(&self, arguments: &[&str]) -> String {
        let ran = self.ran(arguments);
        assert_eq!(ran.code, Some(0), "weir {arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs `weir` with these arguments against the agent, whether it fails or not.
    ///
    /// # Panics
    /// If none was started, or the program cannot be run.
    #[track_caller]
    pub fn ran(&self, arguments: &[&str]) -> Ran {
        let agent = self.agent.as_ref().expect("an agent was started");
        agent.weir(self.topology.node(), arguments).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// The process that moves the packets of engine `user`, if there is one.
    #[must_use]
    pub fn forwarder(&self) -> Option<u32> {
        let is_it = |pid: &i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"weir\0forward\0")
        };
        self.topology.node().pids().into_iter().find(is_it).and_then(|pid| u32::try_from(pid).ok())
    }

    /// The class's name for a label: containers by their namespaces; `host`, groups and others
    /// are called what they are.
    #[must_use]
    pub fn name(&self, label: &str) -> String {
        if self.topology.container(label).is_ok() {
            self.topology.container_name(label)
        } else {
            label.to_owned()
        }
    }

    /// A class as the API tells it, by label.
    ///
    /// # Panics
    /// If the agent does not answer.
    #[must_use]
    #[track_caller]
    pub fn class(&self, label: &str) -> Class {
        self.client().class(&self.name(label)).unwrap_or_else(|e| panic!("{label}: {e}"))
    }

    /// The namespace that a label sends from: a container's, or the node's for `host`.
    ///
    /// # Panics
    /// If there is no such container.
    #[must_use]
    #[track_caller]
    pub fn netns(&self, label: &str) -> &Netns {
        match label {
            "host" => self.topology.node(),
            _ => self.topology.container(label).unwrap_or_else(|e| panic!("{e:#}")).netns(),
        }
    }

    /// The output of a command on the node.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn sh(&self, argv: &[&str]) -> String {
        let out = self.topology.node().exec(argv).context("on the node");
        out.unwrap_or_else(|e| panic!("{e:#}")).stdout
    }

    /// The state that explains a wrong share: classes, scheduler, uplink, connections, the agent's
    /// log.
    pub fn dump(&mut self) {
        println!("---- load: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
        for command in [
            &["tc", "-s", "class", "show", "dev", "weir0"][..],
            &["tc", "-s", "qdisc", "show", "dev", "weir0"],
            &["tc", "-s", "qdisc", "show", "dev", UPLINK],
        ] {
            let text = self.topology.node().exec(command).map_or_else(|e| format!("{e:#}"), |o| o.stdout);
            println!("---- {}\n{text}", command.join(" "));
        }
        for container in self.topology.containers() {
            let text =
                container.netns().exec(&["ss", "-tinH"]).map_or_else(|e| format!("{e:#}"), |o| o.stdout);
            println!("---- connections of {}\n{text}", container.label());
        }
        let Some(agent) = self.agent.as_mut() else { return };
        let ps = agent.weir(self.topology.node(), &["ps", "-o", "wide"]);
        println!("---- weir ps -o wide\n{}", ps.map_or_else(|e| e.to_string(), |r| r.stdout + &r.stderr));
        println!("---- the agent's log\n{}", agent.log());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dump();
        }
    }
}
