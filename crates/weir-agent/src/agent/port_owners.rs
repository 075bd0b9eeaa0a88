//! The classes of host-side interfaces whose other end has left its container's network namespace.
//!
//! A container may move its own interface into a namespace of its making. The interface keeps its class while it lives,
//! while the class is here, and until a known namespace claims it. After a restart of the agent the processes of such a
//! namespace tell whose it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_discovery::{
    NetnsRef, NsId, lineage,
    ports::{Port, Ports, port},
};
use weir_netlink::{Link, Netlink};
use weir_units::Instant;

use super::class_key::ClassKey;

/// The least time between two searches of the node's processes.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// An interface and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    /// Another name or hardware address means another interface under the same index.
    name: String,
    mac: Vec<u8>,
    class: ClassKey,
}

impl Owned {
    fn is(&self, link: &Link) -> bool {
        self.name == link.name && self.mac == link.mac
    }
}

/// The interfaces and namespaces of the last search.
#[derive(Debug, Clone, Default)]
struct Searched {
    strays: BTreeSet<(u32, i32)>,
    owners: BTreeSet<NsId>,
    at: Option<Instant>,
    /// When the next search is due.
    due: Option<Instant>,
}

/// The classes of interfaces at the last discovery.
#[derive(Debug, Clone, Default)]
pub(super) struct PortOwners {
    owned: BTreeMap<u32, Owned>,
    searched: Searched,
}

/// A namespace that a source reported, and its class.
#[derive(Debug, Clone)]
pub(super) struct Owner<'a> {
    /// Its place in [`Ports`].
    pub(super) place: usize,
    pub(super) class: ClassKey,
    pub(super) netns: &'a NetnsRef,
}

impl PortOwners {
    /// Adds the interfaces that have left their containers' namespaces to `ports`. `free` are the links that a
    /// container may have. Returns a warning for each of them.
    pub(super) fn follow(
        &mut self,
        netlink: &mut Netlink,
        free: &[&Link],
        owners: &[Owner<'_>],
        ports: &mut Ports<usize>,
        now: Instant,
    ) -> Vec<String> {
        self.keep(free, owners, ports, now, |owners| search(netlink, owners))
    }

    /// Whether a search that had to wait is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.searched.due.is_some_and(|due| due <= now)
    }

    fn keep(
        &mut self,
        free: &[&Link],
        owners: &[Owner<'_>],
        ports: &mut Ports<usize>,
        now: Instant,
        search: impl FnOnce(&[Owner<'_>]) -> BTreeMap<i32, usize>,
    ) -> Vec<String> {
        let owners: Vec<Owner<'_>> =
            owners.iter().filter(|owner| ports.of.contains_key(&owner.place)).cloned().collect();
        let claimed: BTreeSet<u32> = ports.of.values().flatten().map(|port| port.index).collect();
        let strays = free.iter().filter(|link| !claimed.contains(&link.index));
        let strays: Vec<(&Link, i32, Port)> =
            strays.filter_map(|link| port(link).map(|(nsid, port)| (*link, nsid, port))).collect();
        let remembered = |link: &Link| {
            let owned = self.owned.get(&link.index).filter(|owned| owned.is(link))?;
            owners.iter().find(|owner| owner.class == owned.class)
        };
        let (kept, strange): (Vec<_>, Vec<_>) =
            strays.iter().map(|stray| (stray, remembered(stray.0))).partition(|(_, owner)| owner.is_some());
        let numbers = strange.iter().map(|((link, nsid, _), _)| (link.index, *nsid)).collect();
        let is_due = self.searched.follow(numbers, &owners, now);
        let nested = if is_due { search(&owners) } else { BTreeMap::new() };
        let made = strange.iter().filter_map(|(stray, _)| {
            let place = nested.get(&stray.1)?;
            Some((*stray, owners.iter().find(|owner| owner.place == *place)))
        });
        let mut warnings = Vec::new();
        for ((_, _, port), owner) in kept.into_iter().chain(made) {
            let Some(owner) = owner else { continue };
            warnings.push(format!(
                "class {}: interface {} leads to a network namespace that is not the container's, and stays in the class",
                owner.class.name(),
                port.name
            ));
            let own = ports.of.entry(owner.place).or_default();
            own.push(port.clone());
            own.sort_by_key(|port| port.index);
        }
        self.remember(free, &owners, ports);
        warnings
    }

    /// Keeps the classes of all interfaces. One whose class is away keeps it until another claims it.
    fn remember(&mut self, free: &[&Link], owners: &[Owner<'_>], ports: &Ports<usize>) {
        let links: BTreeMap<u32, &Link> = free.iter().map(|link| (link.index, *link)).collect();
        self.owned.retain(|index, owned| {
            links.get(index).is_some_and(|link| owned.is(link) && link.peer_netnsid.is_some())
        });
        for owner in owners {
            for port in &ports.of[&owner.place] {
                let Some(link) = links.get(&port.index) else { continue };
                let (name, mac, class) = (link.name.clone(), link.mac.clone(), owner.class.clone());
                self.owned.insert(port.index, Owned { name, mac, class });
            }
        }
    }
}

impl Searched {
    /// Whether the processes are to be searched now, for strange interfaces and containers that the last search lacked.
    fn follow(&mut self, strays: BTreeSet<(u32, i32)>, owners: &[Owner<'_>], now: Instant) -> bool {
        let owners: BTreeSet<NsId> = owners.iter().map(|owner| owner.netns.id).collect();
        let is_new = !strays.is_subset(&self.strays) || !owners.is_subset(&self.owners);
        let is_wanted = is_new && !strays.is_empty() && !owners.is_empty();
        let next = self.at.map(|at| at + SEARCH_INTERVAL);
        let is_due = is_wanted && next.is_none_or(|next| next <= now);
        if is_due {
            (self.strays, self.owners, self.at) = (strays, owners, Some(now));
        } else {
            self.strays.retain(|stray| strays.contains(stray));
        }
        self.due = next.filter(|_| is_wanted && !is_due);
        is_due
    }
}

/// The numbers of the namespaces that processes of containers have made, and the places of these containers.
fn search(netlink: &mut Netlink, owners: &[Owner<'_>]) -> BTreeMap<i32, usize> {
    let Ok(own) = NsId::own() else { return BTreeMap::new() };
    let of: BTreeMap<NsId, usize> = owners.iter().map(|owner| (owner.netns.id, owner.place)).collect();
    let nested = lineage::nested(&of.keys().copied().collect(), own);
    let number = |nested: &lineage::Nested| {
        let file = nested.netns.open().ok()?;
        Some((netlink.nsid_of(&file).ok()??, *of.get(&nested.owner)?))
    };
    nested.iter().filter_map(number).collect()
}

#[cfg(test)]
mod tests;
