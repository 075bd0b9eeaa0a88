//! Finds senders: containers that CNI or a runtime reports, virtual machines, named network namespaces, and those that
//! the configuration names.
//!
//! Each of them becomes a [`Found`] with a [`Location`], the place where its packets can be
//! caught. [`docker`] and [`netns`] find them, [`ports`] turns a namespace into host-side
//! interfaces, [`mod@cgroup`] turns processes into what the kernel matches sockets by.
//!
//! **Invariant**: nothing is ever run or changed in a container, nor is its namespace entered.

pub mod cgroup;
pub mod containerd;
pub mod dir_events;
pub mod docker;
#[cfg(feature = "fuzzing")]
pub mod fuzz {
    //! The answers of runtimes, for the fuzz targets.
    pub use crate::{
        containerd::fuzz::container,
        docker::fuzz::{event, inspected, labels},
    };
}
mod http;
pub mod incus;
pub mod labels;
pub mod libvirt;
pub mod lineage;
pub mod lxc;
pub mod netns;
mod node;
pub mod ports;
pub mod runtime;
pub mod units;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use labels::{BadLabel, DownLabels, FromImage, LabelPolicy};
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
    /// The place of each wish that is no label, by key (`weight`, `min`, `max`, `group`).
    pub asked_by: BTreeMap<&'static str, String>,
    /// Wishes that are ignored, with reasons.
    pub remarks: Vec<String>,
    /// The wish that weir cannot enforce, if any, with the reason.
    pub unmet: Option<String>,
    /// Where its packets can be caught.
    pub location: Location,
    /// Addresses the runtime gave it, IPv4 and IPv6, in order.
    pub addresses: Vec<IpAddr>,
}

impl Found {
    /// A sharer that asks for nothing.
    #[must_use]
    pub fn new(id: String, name: String, source: Source, location: Location) -> Found {
        Found {
            id,
            name,
            source,
            labels: BTreeMap::new(),
            from_image: FromImage::default(),
            policy: LabelPolicy::default(),
            group: None,
            asked_by: BTreeMap::new(),
            remarks: Vec::new(),
            unmet: None,
            location,
            addresses: Vec::new(),
        }
    }
}

/// The source of a [`Found`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A container runtime, by the CNI plugin `weir cni`.
    Cni,
    /// dockerd.
    Docker,
    /// Podman, by its socket of Docker's API.
    Podman,
    /// containerd, by its own socket.
    Containerd,
    /// libvirt's QEMU driver, by the state file of the virtual machine.
    Libvirt,
    /// Incus or LXD, by its socket: virtual machines, and the labels of containers of [`Source::Lxc`].
    Incus,
    /// LXC, LXD or Incus, by the monitor of the container.
    Lxc,
    /// The directory of named network namespaces.
    Netns,
    /// The configuration file.
    Config,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Cni => "cni",
            Source::Docker => "docker",
            Source::Podman => "podman",
            Source::Containerd => "containerd",
            Source::Libvirt => "libvirt",
            Source::Incus => "incus",
            Source::Lxc => "lxc",
            Source::Netns => "netns",
            Source::Config => "config",
        })
    }
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
    /// On these interfaces of the host, which lead to a virtual machine.
    Interfaces(Vec<String>),
    /// Where [`lxc`] finds it: by the monitor of its name, whose containers are in this directory.
    Monitor(PathBuf),
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
    /// The state of a virtual machine cannot be read, so its traffic falls to the default class or to the host.
    #[error("virtual machine {domain} has no class: {why}")]
    NoDomain {
        /// The name of its state file.
        domain: String,
        /// The fault.
        why: String,
    },
    /// The runtime does not tell about this one. If it was known before, it stays as it was.
    #[error("container {id} may be out of date: {why}")]
    NoAnswer {
        /// Its id.
        id: String,
        /// Its answer.
        why: runtime::Unavailable,
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

/// Puts the containers of all sources and named namespaces together. Each network namespace is in the
/// result once.
///
/// A container that CNI and Docker's API both report is CNI's, which reported it before its first packet.
/// Its labels count where CNI says nothing. A named namespace that is a container's (people link Docker's
/// into /run/netns to look at them) is the container's alone. A container in the cgroup of a pod that is known is a
/// part of that pod.
#[must_use]
pub fn combine(attached: &[Found], containers: &[Found], namespaces: &[Found]) -> Vec<Found> {
    let labelled: BTreeMap<NsId, &Found> =
        containers.iter().filter_map(|found| Some((namespace(found)?, found))).collect();
    let merged = attached.iter().map(|found| match namespace(found).and_then(|id| labelled.get(&id)) {
        Some(container) => with_labels(found.clone(), container),
        None => found.clone(),
    });
    let mut all: Vec<Found> = merged.collect();
    for source in [containers, namespaces] {
        let taken: BTreeSet<NsId> = all.iter().filter_map(namespace).collect();
        let pods: Vec<PathBuf> = all.iter().filter_map(cgroup).map(Path::to_owned).collect();
        let is_free = |found: &&Found| {
            namespace(found).is_none_or(|id| !taken.contains(&id))
                && cgroup(found).is_none_or(|path| !pods.iter().any(|pod| path.starts_with(pod)))
        };
        all.extend(source.iter().filter(is_free).cloned());
    }
    all
}

/// Puts the containers of several runtimes together, each of them once. The first runtime that tells of a container
/// has it, and the labels of a later one count where the first says nothing. Of two containers of one name from
/// several sockets of one runtime, the later one has its id behind the name.
#[must_use]
pub fn merge(containers: Vec<Found>) -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    let mut places: BTreeMap<Place, usize> = BTreeMap::new();
    let mut names: BTreeSet<(Source, String)> = BTreeSet::new();
    for mut found in containers {
        let place = place(&found);
        let first = place.as_ref().and_then(|place| places.get(place)).copied();
        if let Some(first) = first.filter(|first| all[*first].source != found.source) {
            all[first] = with_labels(all[first].clone(), &found);
            continue;
        }
        if !names.insert((found.source, found.name.clone())) {
            let id: String = found.id.chars().take(12).collect();
            found.name = format!("{}@{id}", found.name);
            names.insert((found.source, found.name.clone()));
        }
        if let (Some(place), None) = (place, first) {
            places.insert(place, all.len());
        }
        all.push(found);
    }
    all
}

/// The part of a container that two runtimes report alike.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Netns(NsId),
    Cgroup(PathBuf),
}

fn place(found: &Found) -> Option<Place> {
    match &found.location {
        Location::Netns(netns) => Some(Place::Netns(netns.id)),
        Location::HostNetwork { cgroup, .. } => Some(Place::Cgroup(cgroup.clone())),
        _ => None,
    }
}

/// The cgroup of a sender without a network namespace of its own.
fn cgroup(found: &Found) -> Option<&Path> {
    match &found.location {
        Location::HostNetwork { cgroup, .. } => Some(cgroup),
        _ => None,
    }
}

/// The network namespace of a sender that has its own.
#[must_use]
pub fn namespace(found: &Found) -> Option<NsId> {
    match &found.location {
        Location::Netns(netns) => Some(netns.id),
        _ => None,
    }
}

/// The same container with the labels that another source tells of it.
fn with_labels(mut attached: Found, container: &Found) -> Found {
    let labelled = container.policy;
    let own = attached.policy;
    attached.labels.clone_from(&container.labels);
    attached.from_image.clone_from(&container.from_image);
    attached.group = attached.group.or_else(|| container.group.clone());
    attached.policy = LabelPolicy {
        weight: own.weight.or(labelled.weight),
        min: own.min.or(labelled.min),
        max: own.max.or(labelled.max),
        down: DownLabels {
            weight: own.down.weight.or(labelled.down.weight),
            min: own.down.min.or(labelled.down.min),
            max: own.down.max.or(labelled.down.max),
        },
    };
    if let DownLabels { min: Some(min), max: Some(max), .. } = attached.policy.down
        && min > max
    {
        attached.policy.down.min = None;
        attached.remarks.push(format!("down.min {min} is ignored: it is above the down.max of {max}"));
    }
    if let LabelPolicy { min: Some(min), max: Some(max), .. } = attached.policy
        && min > max
    {
        attached.policy.min = None;
        attached.remarks.push(format!("min {min} is ignored: it is above the max of {max}"));
    }
    attached.addresses.extend(&container.addresses);
    attached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, source: Source, ino: u64) -> Found {
        let netns = NetnsRef { path: name.into(), id: NsId { dev: 4, ino } };
        Found::new(name.into(), name.into(), source, Location::Netns(netns))
    }

    #[test]
    fn a_named_namespace_that_is_a_containers_is_the_containers_alone() {
        let web = found("web", Source::Docker, 1);
        let mut hosted = found("hosted", Source::Docker, 0);
        hosted.location = Location::HostNetwork { cgroup: "/docker/1".into(), pid: 1 };
        let (linked, other) = (found("link", Source::Netns, 1), found("blue", Source::Netns, 2));
        let all = combine(&[], &[web.clone(), hosted.clone()], &[linked, other.clone()]);
        assert_eq!(all, [web, hosted, other]);
    }

    #[test]
    fn a_container_of_two_runtimes_is_one_class_and_names_stay_apart() {
        let mut first = found("web", Source::Docker, 1);
        first.policy.weight = weir_share::Weight::new(3).ok();
        let mut same = found("c1", Source::Containerd, 1);
        same.policy.weight = weir_share::Weight::new(9).ok();
        same.policy.max = Some(weir_units::BitRate::mbit(5));
        let mut other = found("web", Source::Podman, 2);
        other.id = "0123456789abcdef".to_owned();
        let second = Found { id: "fedcba9876543210".to_owned(), ..found("web", Source::Podman, 3) };
        let all = merge(vec![first.clone(), other, second, same]);
        let names: Vec<(Source, &str)> =
            all.iter().map(|found| (found.source, found.name.as_str())).collect();
        assert_eq!(
            names,
            [(Source::Docker, "web"), (Source::Podman, "web"), (Source::Podman, "web@fedcba987654")]
        );
        assert_eq!(
            (all[0].policy.weight, all[0].policy.max),
            (first.policy.weight, Some(weir_units::BitRate::mbit(5)))
        );
    }

    #[test]
    fn container_of_two_sources_is_cnis_with_its_labels_and_both_limits() {
        let weight = |n| weir_share::Weight::new(n).ok();
        let mbit = |n| Some(weir_units::BitRate::mbit(n));
        let mut pod = found("shop/web", Source::Cni, 1);
        pod.policy = LabelPolicy {
            weight: weight(3),
            max: mbit(5),
            down: DownLabels { max: mbit(2), ..DownLabels::default() },
            ..LabelPolicy::default()
        };
        let mut container = found("web", Source::Docker, 1);
        container.policy = LabelPolicy {
            weight: weight(9),
            min: mbit(8),
            max: mbit(20),
            down: DownLabels { weight: weight(4), min: mbit(3), max: mbit(9) },
        };
        container.group = Some("tenant-a".into());
        let all = combine(&[pod], &[container.clone()], &[found("cni-1", Source::Netns, 1)]);
        let [one] = &all[..] else { panic!("{all:?}") };
        assert_eq!((one.name.as_str(), one.source), ("shop/web", Source::Cni));
        assert_eq!(
            one.policy,
            LabelPolicy {
                weight: weight(3),
                min: None,
                max: mbit(5),
                // The minimum is above the pod's maximum.
                down: DownLabels { weight: weight(4), min: None, max: mbit(2) },
            }
        );
        assert_eq!(one.group.as_deref(), Some("tenant-a"));
        assert_eq!(
            one.remarks,
            [
                "down.min 3mbit is ignored: it is above the down.max of 2mbit",
                "min 8mbit is ignored: it is above the max of 5mbit"
            ]
        );
        let alone = combine(&[], &[container.clone()], &[]);
        assert_eq!(alone, [container]);
    }
}
