//! A node, its containers and what lies behind its uplink, made of network namespaces.
//!
//! ```text
//!  C1 eth0 ── v1 ┐                            wire
//!  C2 eth0 ── v2 ├ br0   node   up0 ──── wn ┌─────┐ ws ──── eth0 srv
//!  C3 eth0 ── v3 ┘                          │ brw │
//!                                           └─────┘
//! ```
//!
//! `up0` is the uplink that is shared: a port of `br0` when bridged, a routed interface
//! otherwise. Both ports of `brw` carry a TBF of the line rate with a short FIFO, so that a
//! frame takes its time on the wire (a veth alone has none) in both directions. The engine
//! is given a little less than the line rate, so that it is the bottleneck, not the wire.

mod addresses;
mod late;
mod link;
mod netns;
mod ppp;
mod proc;
mod tun;
mod wireguard;

use std::{
    fmt::{self, Write as _},
    fs,
    net::IpAddr,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use addresses::{container_address, container_net, gateway, nodad, prefix_length, uplink_address};
use link::Line;
pub use link::Uplink;
pub use netns::Netns;
pub use proc::{Output, Proc};
pub use proc::{command, last_words};
pub use tun::tunnel;

/// The node's uplink in every topology.
pub const UPLINK: &str = "up0";
/// The bridge that the containers are attached to.
pub const BRIDGE: &str = "br0";
/// The largest IP packet on every link here.
pub const MTU: u32 = 1500;
/// The most containers that a topology holds: the address plan's limit.
const MAX_CONTAINERS: usize = 1000;

const PREFIX: &str = "weirlab-";
/// Tells a container's namespace from those of the node, the wire and the server.
const CONTAINER: &str = "c-";

/// How the containers reach the uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The uplink is a port of the containers' bridge.
    #[default]
    Bridged,
    /// The node routes between the bridge and the uplink.
    Routed,
    /// Routed, and the node's address stands for the containers' (as Docker does).
    Nat,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Bridged => "bridged",
            Mode::Routed => "routed",
            Mode::Nat => "nat",
        })
    }
}

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// The line behind the uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// Its rate, counted at layer 2 as tc does.
    pub rate: BitRate,
    /// The most that waits in front of it.
    pub queue: Bytes,
    /// Its burst after it has been idle, or after its timer was late.
    pub burst: Bytes,
}

impl Wire {
    /// A wire whose bursts, which are free of wire time, are as short as they can be: 0.25 ms, two
    /// frames at 100 Mbit/s. Real ones are longer where this machine's timers are later than that.
    #[must_use]
    pub fn of(rate: BitRate, queue: Bytes) -> Wire {
        Wire { rate, queue, burst: Bytes((rate.bits_per_sec() / 8 / 4000).max(2 * 1514)) }
    }
}

impl Default for Wire {
    /// Fast Ethernet, with 20 ms of queue.
    fn default() -> Wire {
        Wire::of(BitRate::mbit(100), Bytes(250_000))
    }
}

/// The network to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// One container each, by the name that people see.
    pub containers: Vec<String>,
    /// How they reach the uplink.
    pub mode: Mode,
    /// The uplink's kind of device; one without an Ethernet header is routed.
    pub uplink: Uplink,
    /// Segmentation offload in the containers: with it the node sees packets of up to 64 KB.
    pub tso: bool,
    /// Whether bridged packets pass through iptables (`net.bridge.bridge-nf-call-iptables`);
    /// none leaves the kernel's default.
    pub br_netfilter: Option<bool>,
    /// The line; none for as fast as memory.
    pub wire: Option<Wire>,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            containers: Vec::new(),
            mode: Mode::Bridged,
            uplink: Uplink::Ethernet,
            tso: true,
            br_netfilter: None,
            wire: Some(Wire::default()),
        }
    }
}

/// A container of a topology.
#[derive(Debug)]
pub struct Container {
    label: String,
    index: usize,
    netns: Netns,
}

impl Container {
    /// The name that people see, from [`Spec::containers`].
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its namespace; the namespace's name is the name that the agent knows.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Its address.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        container_address(self.index, family)
    }

    /// Its interface's other end, in the node.
    #[must_use]
    pub fn host_interface(&self) -> String {
        host_interface(self.index)
    }
}

/// Namespaces, links, addresses and the wire; all gone when dropped.
#[derive(Debug)]
pub struct Topology {
    prefix: String,
    spec: Spec,
    next_index: usize,
    /// Before the namespaces: its devices go with it.
    line: Option<Line>,
    containers: Vec<Container>,
    node: Netns,
    wire: Netns,
    srv: Netns,
}

impl Topology {
    /// Builds it.
    ///
    /// # Errors
    /// If rights, a program or a kernel feature is missing (named in the error). The parts built
    /// until then are removed.
    pub fn build(spec: &Spec) -> Result<Topology> {
        check_rights()?;
        if spec.containers.len() > MAX_CONTAINERS {
            bail!(
                "cannot build {} containers: a topology holds at most {MAX_CONTAINERS}",
                spec.containers.len()
            );
        }
        let prefix = unique_prefix();
        let make = |label: &str| Netns::create(&format!("{prefix}{label}"));
        let mut topology = Topology {
            node: make("node")?,
            wire: make("wire")?,
            srv: make("srv")?,
            containers: Vec::with_capacity(spec.containers.len()),
            next_index: 0,
            line: None,
            spec: spec.clone(),
            prefix,
        };
        if spec.uplink.has_ethernet() {
            topology.build_wire()?;
        } else if spec.mode == Mode::Bridged {
            bail!("cannot build a bridged {}: it is routed", spec.uplink);
        } else {
            topology.line = Line::build(spec.uplink, &topology.node, &topology.wire, &topology.srv)?;
        }
        topology.build_node()?;
        for label in &spec.containers {
            topology.add_container(label)?;
        }
        Ok(topology)
    }

    /// The prefix of all its namespaces' names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a container's namespace, which is also the name that the agent knows.
    #[must_use]
    pub fn container_name(&self, label: &str) -> String {
        format!("{}{CONTAINER}{label}", self.prefix)
    }

    /// A glob pattern that matches the containers' namespaces and no other.
    #[must_use]
    pub fn container_pattern(&self) -> String {
        self.container_name("*")
    }

    /// The specification.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The node: where the uplink, the bridge and the agent are.
    #[must_use]
    pub fn node(&self) -> &Netns {
        &self.node
    }

    /// The line between uplink and server.
    #[must_use]
    pub fn wire(&self) -> &Netns {
        &self.wire
    }

    /// The server behind the line.
    #[must_use]
    pub fn srv(&self) -> &Netns {
        &self.srv
    }

    /// The containers, in the order of their making.
    #[must_use]
    pub fn containers(&self) -> &[Container] {
        &self.containers
    }

    /// The container of that label.
    ///
    /// # Errors
    /// Without one.
    pub fn container(&self, label: &str) -> Result<&Container> {
        self.containers.iter().find(|c| c.label == label).with_context(|| {
            let known: Vec<&str> = self.containers.iter().map(|c| c.label.as_str()).collect();
            format!("no container {label} in this topology, only {}", known.join(", "))
        })
    }

    /// The server's address, as the containers reach it.
    #[must_use]
    pub fn server_address(&self, family: Family) -> IpAddr {
        addresses::server(self.spec.mode, family)
    }

    /// Adds a container to the running topology.
    ///
    /// # Errors
    /// If the label is taken, or the kernel refuses.
    pub fn add_container(&mut self, label: &str) -> Result<&Container> {
        if self.containers.iter().any(|c| c.label == label) {
            bail!("cannot add container {label}: there is one of that name");
        }
        let index = self.next_index;
        if index >= MAX_CONTAINERS {
            bail!("cannot add container {label}: {MAX_CONTAINERS} have been made, which is the limit");
        }
        let name = self.container_name(label);
        let netns = Netns::create(&name)?;
        let veth = host_interface(index);
        self.node.ip(&format!(
            "link add {veth} type veth peer name eth0 netns {name}\n\
             link set dev {veth} master {BRIDGE} up\n"
        ))?;
        let mut batch = String::from("link set dev eth0 up\n");
        for family in [Family::V4, Family::V6] {
            let (address, length) = (container_address(index, family), prefix_length(family));
            let nodad = nodad(family);
            let _ = writeln!(batch, "addr add {address}/{length} dev eth0{nodad}");
            if self.spec.mode != Mode::Bridged {
                let _ = writeln!(batch, "route add default via {}", gateway(family));
            }
        }
        netns.ip(&batch)?;
        if !self.spec.tso {
            netns.exec(&["ethtool", "-K", "eth0", "tso", "off", "gso", "off"])?;
        }
        self.next_index += 1;
        self.containers.push(Container { label: label.to_owned(), index, netns });
        Ok(self.containers.last().expect("just pushed"))
    }

    /// Removes a container with its processes and its interface.
    ///
    /// # Errors
    /// Without one of that label.
    pub fn remove_container(&mut self, label: &str) -> Result<()> {
        // The kernel takes a namespace's interfaces away some time after the namespace: the
        // host's end goes by itself, so that it is gone when this returns.
        let veth = host_interface(self.container(label)?.index);
        self.node.ip(&format!("link del {veth}\n"))?;
        self.containers.retain(|c| c.label != label);
        Ok(())
    }

    fn build_wire(&self) -> Result<()> {
        let (node, srv) = (self.node.name(), self.srv.name());
        self.wire.ip(&format!(
            "link add brw type bridge mcast_snooping 0\n\
             link add wn type veth peer name {UPLINK} netns {node}\n\
             link add ws type veth peer name eth0 netns {srv}\n\
             link set dev wn master brw up\n\
             link set dev ws master brw up\n\
             link set dev brw up\n"
        ))?;
        // Packets that the wire only carries need no detour through its own netfilter.
        let _ = self.wire.sysctl("net.bridge.bridge-nf-call-iptables", "0");
        let _ = self.wire.sysctl("net.bridge.bridge-nf-call-ip6tables", "0");
        if let Some(Wire { rate, queue, burst }) = self.spec.wire {
            let of_late_timers = rate.bytes_per_sec() as f64 * late::lateness().as_secs_f64();
            let (rate, limit, burst) = (rate.bits_per_sec(), queue.0, burst.0.max(of_late_timers as u64));
            let mut batch = String::new();
            for device in ["wn", "ws"] {
                let _ = writeln!(
                    batch,
                    "qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {limit}"
                );
            }
            self.wire.tc(&batch)?;
        }
        Ok(())
    }

    fn build_node(&self) -> Result<()> {
        let bridged = self.spec.mode == Mode::Bridged;
        let mut node = format!("link add {BRIDGE} type bridge mcast_snooping 0\nlink set dev {BRIDGE} up\n");
        let mut srv = String::from("link set dev eth0 up\n");
        if bridged {
            let _ = writeln!(node, "link set dev {UPLINK} master {BRIDGE}");
        }
        let _ = writeln!(node, "link set dev {UPLINK} up");
        for family in [Family::V4, Family::V6] {
            let (length, nodad, server) = (prefix_length(family), nodad(family), self.server_address(family));
            let _ = writeln!(node, "addr add {}/{length} dev {BRIDGE}{nodad}", gateway(family));
            let _ = writeln!(srv, "addr add {server}/{length} dev eth0{nodad}");
            if !bridged {
                let _ = writeln!(node, "addr add {}/{length} dev {UPLINK}{nodad}", uplink_address(family));
            }
            if self.spec.mode == Mode::Routed {
                let (net, node) = (container_net(family), uplink_address(family));
                let _ = if self.spec.uplink.has_ethernet() {
                    writeln!(srv, "route add {net} via {node}")
                } else {
                    writeln!(srv, "route add {net} dev eth0")
                };
            }
        }
        self.node.ip(&node)?;
        self.srv.ip(&srv)?;
        if !bridged {
            self.node.sysctl("net.ipv4.ip_forward", "1")?;
            self.node.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        }
        if let Some(on) = self.spec.br_netfilter {
            let value = if on { "1" } else { "0" };
            for table in ["iptables", "ip6tables"] {
                let set = self.node.sysctl(&format!("net.bridge.bridge-nf-call-{table}"), value);
                // A kernel without br_netfilter passes no bridged packet through iptables.
                if on {
                    set.context("this kernel has no br_netfilter (modprobe br_netfilter)")?;
                }
            }
        }
        if self.spec.mode == Mode::Nat {
            for iptables in ["iptables", "ip6tables"] {
                let rule = ["-w", "-t", "nat", "-A", "POSTROUTING", "-o", UPLINK, "-j", "MASQUERADE"];
                self.node.exec(&[&[iptables], &rule[..]].concat())?;
            }
        }
        Ok(())
    }
}

/// The prefix of the names of all namespaces of a new topology.
pub fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{PREFIX}{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn host_interface(index: usize) -> String {
    format!("v{}", index + 1)
}

/// Removes the namespaces that runs which are dead by now left behind; returns their names.
///
/// # Errors
/// If rights are missing.
pub fn clean() -> Result<Vec<String>> {
    let dead: Vec<String> = netns::list().into_iter().filter(|name| is_leftover(name, PREFIX)).collect();
    if !dead.is_empty() {
        check_rights()?;
    }
    for name in &dead {
        drop(Netns::adopt(name));
    }
    Ok(dead)
}

/// Of this lab (`PREFIX`, process id, `-`, ...), and its process is gone.
pub fn is_leftover(name: &str, prefix: &str) -> bool {
    let Some((pid, _)) = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// # Errors
/// Unless this process may make network namespaces: names the missing capabilities.
pub fn check_rights() -> Result<()> {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<&str> = [(NET_ADMIN, "CAP_NET_ADMIN"), (SYS_ADMIN, "CAP_SYS_ADMIN")]
        .into_iter()
        .filter(|(bit, _)| held & (1 << bit) == 0)
        .map(|(_, name)| name)
        .collect();
    if !missing.is_empty() {
        bail!(
            "cannot build a lab of network namespaces: this process lacks {} (run it as root, e.g. `sudo weir lab ...`)",
            missing.join(" and ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_of_this_lab_and_of_a_dead_process() {
        let dead =
            (1u32..).map(|n| 4_000_000 + n).find(|n| !Path::new(&format!("/proc/{n}")).exists()).unwrap();
        assert!(is_leftover(&format!("weirlab-{dead}-1-node"), PREFIX));
        assert!(!is_leftover(&format!("weirlab-{}-1-node", std::process::id()), PREFIX));
        assert!(!is_leftover("weirlab-node", PREFIX));
        assert!(!is_leftover("somebody-else", PREFIX));
    }
}
