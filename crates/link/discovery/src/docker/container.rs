//! From what Docker says of a container to where its packets can be caught.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use super::api::{Inspected, Labels, NetworkSettings};
use crate::{BadLabel, Found, FromImage, Location, NetnsRef, NsId, Source, Warning, cgroup, labels};

/// A container that Docker lists as running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has no process: it waits to be restarted, or ended meanwhile.
    NotRunning,
    /// A class of its own.
    Sharer { found: Box<Found>, bad: Vec<BadLabel> },
    /// It uses the namespace of the container with the id `owner`.
    Joined { name: String, owner: String },
    /// Its packets cannot be told from others'.
    Unplaced(Warning),
}

/// The node's answers to what Docker does not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The namespace behind a file.
    pub(super) netns: fn(&Path) -> Result<NetnsRef, String>,
    /// The v2 cgroup of a process.
    pub(super) cgroup: fn(u32) -> Result<PathBuf, String>,
    /// The agent's namespace.
    pub(super) own: Option<NsId>,
}

impl Node {
    /// This one.
    pub(super) fn here() -> Node {
        Node {
            netns: |path| NetnsRef::at(path).map_err(|why| explain(&why)),
            cgroup: |pid| cgroup::of_process(pid).map_err(|why| explain(&why)),
            own: NsId::own().ok(),
        }
    }
}

/// An error and its causes in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

impl Entry {
    /// Its name, if it is a class.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Entry::Sharer { found, .. } => Some(&found.name),
            _ => None,
        }
    }

    /// Reads what Docker says.
    pub(super) fn read(inspected: Inspected, image: Result<Labels, String>, node: &Node) -> Entry {
        let name = inspected.name.trim_start_matches('/').to_owned();
        let pid = inspected.state.pid;
        if !inspected.state.running || pid == 0 {
            return Entry::NotRunning;
        }
        let on_host = || on_host(&name, &inspected.id, pid, node);
        let located = match inspected.host_config.network_mode.split_once(':') {
            // A container that joins one on the host's network has its own cgroup.
            Some(("container", _)) if is_own(&process_netns(pid), node) => on_host(),
            Some(("container", owner)) => return Entry::Joined { name, owner: owner.to_owned() },
            None if inspected.host_config.network_mode == "host" => on_host(),
            _ => in_netns(&name, &inspected, node),
        };
        let location = match located {
            Ok(location) => location,
            Err(why) => return Entry::Unplaced(why),
        };
        let labels = inspected.config.labels.unwrap_or_default();
        let from_image = match image {
            Ok(image) => FromImage::compare(&labels, &image),
            Err(why) => FromImage::Unknown(why),
        };
        let (policy, group, bad) = labels::parse(&labels);
        let addresses = addresses(&inspected.network_settings);
        let found = Box::new(Found {
            name,
            source: Source::Docker,
            id: inspected.id,
            labels,
            from_image,
            policy,
            group,
            asked_by: BTreeMap::new(),
            remarks: Vec::new(),
            unmet: None,
            location,
            addresses,
        });
        Entry::Sharer { found, bad }
    }
}

/// By the sandbox's file, whose name is never used again; where that is not to be seen (Podman's
/// socket, dockerd in another mount namespace), by the first process.
fn in_netns(name: &str, inspected: &Inspected, node: &Node) -> Result<Location, Warning> {
    let pid = inspected.state.pid;
    let sandbox = Path::new(&inspected.network_settings.sandbox_key);
    let found = (node.netns)(sandbox).or_else(|first| {
        // The process may have ended and its number be another's.
        match is_process_of(&inspected.id, pid, node) {
            true => (node.netns)(&process_netns(pid)),
            false => Err(first),
        }
    });
    match found {
        Ok(netns) if Some(netns.id) == node.own => on_host(name, &inspected.id, pid, node),
        Ok(netns) => Ok(Location::Netns(netns)),
        Err(why) => Err(Warning::NoNetns { container: name.to_owned(), why }),
    }
}

fn process_netns(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

fn is_own(netns: &Path, node: &Node) -> bool {
    (node.netns)(netns).is_ok_and(|netns| Some(netns.id) == node.own)
}

fn on_host(name: &str, id: &str, pid: u32, node: &Node) -> Result<Location, Warning> {
    let warning = |why| Warning::NoCgroup { container: name.to_owned(), why };
    let cgroup = (node.cgroup)(pid).map_err(warning)?;
    if !names(&cgroup, id) {
        let why =
            format!("its first process, {pid}, is in cgroup {}, which is not its own", cgroup.display());
        return Err(warning(why));
    }
    Ok(Location::HostNetwork { cgroup, pid })
}

/// Whether process `pid` is in a cgroup that is named after the container.
fn is_process_of(id: &str, pid: u32, node: &Node) -> bool {
    (node.cgroup)(pid).is_ok_and(|cgroup| names(&cgroup, id))
}

/// Container runtimes call a container's cgroup by its id, with or without a word around it.
fn names(cgroup: &Path, id: &str) -> bool {
    !id.is_empty() && cgroup.to_string_lossy().contains(id)
}

/// All addresses, in order.
fn addresses(settings: &NetworkSettings) -> Vec<IpAddr> {
    let endpoints = settings.networks.iter().flat_map(|networks| networks.values());
    let texts = endpoints.flat_map(|endpoint| [&endpoint.v4, &endpoint.v6]);
    let mut addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
    addresses.sort_unstable();
    addresses
}
