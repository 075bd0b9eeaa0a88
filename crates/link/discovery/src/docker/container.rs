//! From what Docker says of a container to where its packets can be caught.

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use super::api::{Inspected, Labels, NetworkSettings};
use crate::{
    BadLabel, Found, FromImage, Location, Source, Warning, labels,
    node::{Node, is_own, is_process_of, on_host, process_netns},
};

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

impl Entry {
    /// Its name, if it is a class.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Entry::Sharer { found, .. } => Some(&found.name),
            _ => None,
        }
    }

    /// Takes what an earlier reading knew of its image, if this one does not know it. A container's image never changes.
    pub(super) fn keep_from_image(&mut self, earlier: Option<&Entry>) {
        if let (Entry::Sharer { found, .. }, Some(Entry::Sharer { found: earlier, .. })) = (self, earlier)
            && matches!(found.from_image, FromImage::Unknown(_))
        {
            found.from_image.clone_from(&earlier.from_image);
        }
    }

    /// Reads what Docker says.
    pub(super) fn read(
        inspected: Inspected,
        image: Result<Labels, String>,
        (source, node): (Source, &Node),
    ) -> Entry {
        let name = inspected.name.trim_start_matches('/').to_owned();
        let pid = inspected.state.pid;
        if !inspected.state.running || pid == 0 {
            return Entry::NotRunning;
        }
        let own_cgroup = || on_host(&name, &inspected.id, pid, node);
        let located = match inspected.host_config.network_mode.split_once(':') {
            // A container that joins one on the host's network has its own cgroup.
            Some(("container", _)) if is_own(&process_netns(pid), node) => own_cgroup(),
            Some(("container", owner)) => return Entry::Joined { name, owner: owner.to_owned() },
            None if inspected.host_config.network_mode == "host" => own_cgroup(),
            _ => in_netns(&name, &inspected, node),
        };
        let location = match located {
            Ok(location) => location,
            Err(why) => return Entry::Unplaced(why),
        };
        let labels = inspected.config.labels;
        let from_image = match image {
            Ok(image) => FromImage::compare(&labels, &image),
            Err(why) => FromImage::Unknown(why),
        };
        let (policy, group, bad) = labels::parse(&labels);
        let addresses = addresses(&inspected.network_settings);
        let found = Box::new(Found {
            name,
            source,
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

/// All addresses, in order.
fn addresses(settings: &NetworkSettings) -> Vec<IpAddr> {
    let endpoints = settings.networks.iter().flat_map(|networks| networks.values());
    let texts = endpoints.flat_map(|endpoint| [&endpoint.v4, &endpoint.v6]);
    let mut addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
    addresses.sort_unstable();
    addresses
}
