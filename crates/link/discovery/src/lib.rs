//! Finds senders: Docker's containers, named network namespaces, and those that the configuration
//! names.
//!
//! Each of them becomes a [`Found`] with a [`Location`], the place where its packets can be
//! caught. [`docker`] and [`netns`] find them, [`ports`] turns a namespace into host-side
//! interfaces, [`cgroup`] turns processes into what the kernel matches sockets by.
//!
//! **Invariant**: nothing is ever run or changed in a container, nor is its namespace entered.

pub mod cgroup;
pub mod containerd;
pub mod docker;
#[cfg(feature = "fuzzing")]
pub use docker::fuzz;
pub mod labels;
pub mod netns;
pub mod ports;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

pub use labels::{BadLabel, FromImage, LabelPolicy};
pub use netns::{NetnsRef, NsId};

/// A sharer of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name people use: the container's without its slash, or that of the namespace.
    pub name: String,
    /// The source that told of it.
    pub source: Source,
    /// A key that stays when the sender is renamed: the container's id, or the name of the
    /// namespace.
    pub id: String,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// The labels that come from its image.
    pub from_image: FromImage,
    /// The wishes of its labels.
    pub policy: LabelPolicy,
    /// The group its label `weir.group` names. A compose project alone makes no group.
    pub group: Option<String>,
    /// Where its packets can be caught.
    pub location: Location,
    /// Addresses the runtime gave it, IPv4 and IPv6, in order.
    pub addresses: Vec<IpAddr>,
}

/// The source of a [`Found`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// dockerd.
    Docker,
    /// The directory of named network namespaces.
    Netns,
    /// The configuration file.
    Config,
}

/// Where a [`Found`]'s packets can be caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// It has its own network namespace: on the host side of the veths that lead there.
    Netns(NetnsRef),
    /// It uses the node's own namespace: by the cgroup of its processes.
    HostNetwork {
        /// Path in the cgroup v2 hierarchy, such as `/docker/ID`.
        cgroup: PathBuf,
        /// Its first process.
        pid: u32,
    },
    /// On this interface.
    Interface(String),
    /// By this cgroup: path in the cgroup v2 hierarchy, such as `/system.slice/backup.service`.
    Cgroup(PathBuf),
}

/// A notice for the operator about a sender that is found or left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The value counts as not given.
    #[error("container {container}: {bad}")]
    Label {
        /// Its name.
        container: String,
        /// The label, and its fault.
        bad: BadLabel,
    },
    /// It sends through another one's interfaces, so it is not a class of its own.
    #[error(
        "container {container} uses the network of {owner} and shares its class; its own labels have no effect"
    )]
    SharesNetwork {
        /// The one without a namespace of its own.
        container: String,
        /// Name of the one whose class it is, or its id if that one does not run.
        owner: String,
    },
    /// It uses the node's namespace, and its processes cannot be told from the host's: its
    /// traffic counts as the host's.
    #[error("container {container} uses the host's network and counts as the host: {why}")]
    NoCgroup {
        /// Its name.
        container: String,
        /// The missing part.
        why: String,
    },
    /// Its namespace cannot be found, so its traffic falls to the default class.
    #[error("container {container} has no class: {why}")]
    NoNetns {
        /// Its name.
        container: String,
        /// The attempt.
        why: String,
    },
    /// Docker does not tell about this one. If it was known before, it stays as it was.
    #[error("container {id} may be out of date: {why}")]
    NoAnswer {
        /// Its id.
        id: String,
        /// Docker's answer.
        why: docker::Unavailable,
    },
    /// Two names for one namespace: one class, under the first name.
    #[error("network namespace {name} is the same as {first}, whose class it shares")]
    SameNetns {
        /// The name that is left out.
        name: String,
        /// The name that stays.
        first: String,
    },
}

/// Puts containers and named namespaces together. A namespace that is a container's (people
/// link Docker's into /run/netns to look at them) is the container's alone.
#[must_use]
pub fn combine(containers: &[Found], namespaces: &[Found]) -> Vec<Found> {
    let id = |found: &Found| match &found.location {
        Location::Netns(netns) => Some(netns.id),
        _ => None,
    };
    let taken: BTreeSet<NsId> = containers.iter().filter_map(id).collect();
    let free = namespaces.iter().filter(|found| id(found).is_none_or(|id| !taken.contains(&id)));
    containers.iter().chain(free).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, source: Source, ino: u64) -> Found {
        Found {
            name: name.into(),
            source,
            id: name.into(),
            labels: BTreeMap::new(),
            from_image: FromImage::default(),
            policy: LabelPolicy::default(),
            group: None,
            location: Location::Netns(NetnsRef { path: name.into(), id: NsId { dev: 4, ino } }),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn a_named_namespace_that_is_a_containers_is_the_containers_alone() {
        let web = found("web", Source::Docker, 1);
        let mut hosted = found("hosted", Source::Docker, 0);
        hosted.location = Location::HostNetwork { cgroup: "/docker/1".into(), pid: 1 };
        let (linked, other) = (found("link", Source::Netns, 1), found("blue", Source::Netns, 2));
        let all = combine(&[web.clone(), hosted.clone()], &[linked, other.clone()]);
        assert_eq!(all, [web, hosted, other]);
    }
}
