//! The classifier decides the class of each packet.

mod handover;
mod local;
mod restore;
mod rules;
mod sparse;
mod weights;

use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

pub use self::handover::Handover;
pub use self::local::{LocalMaps, Locality};
pub use self::restore::{Restored, Wanted};
pub(crate) use self::restore::{restore, restore_row};
pub use self::rules::{ENTRIES, MASKS, RuleSet, RulesError, SelectorRule, port_blocks};
use self::skeleton::{ClassifySkel, ClassifySkelBuilder};
pub use self::sparse::SparseFlows;
pub use self::weights::Weights;
use crate::{
    Credits, Error,
    common::entries::{ignore, u64_at},
    pacing::EarlierPacing,
};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/classify.skel.rs"));
}

/// `struct weir_config` of intf.h, one a link. Handles are tc's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ClassifierConfig {
    /// The device that carries the scheduler; 0 lets everything pass.
    pub ifb_index: u32,
    /// Class of ARP, neighbour discovery, DHCP.
    pub control_handle: u32,
    /// Class of the host's own traffic.
    pub host_handle: u32,
    /// Class of traffic that belongs to no other.
    pub default_handle: u32,
    /// 1: node-local traffic is charged to the link too.
    pub charge_local: u32,
    /// Bit n: classes exist at depth n of the cgroup tree (1 to 8).
    pub cgroup_levels: u32,
    /// 16 bits that mark, in `skb->tc_index`, what has passed the link's scheduler ([`cookie_of`](ClassifierConfig::cookie_of)).
    pub cookie: u32,
    /// Of [`PACED`](ClassifierConfig::PACED), [`IN_PLACE`](ClassifierConfig::IN_PLACE),
    /// [`USER`](ClassifierConfig::USER), [`BARE`](ClassifierConfig::BARE),
    /// [`WEIGHED`](ClassifierConfig::WEIGHED), [`NAMED`](ClassifierConfig::NAMED),
    /// [`SEVERAL`](ClassifierConfig::SEVERAL), [`TUNNELS`](ClassifierConfig::TUNNELS) and
    /// [`SPARSE`](ClassifierConfig::SPARSE).
    pub flags: u32,
    /// 1 or 2: the set of rules in force ([`Classifier::load_rules`]); 0: none.
    pub rules: u32,
    /// The number of the link of packets that no route sends by another one.
    pub main_link: u32,
    /// A random number. Hashes of packets in tunnels carry a mark by it ([`Tunnel`]).
    pub tunnel_key: u32,
}
const _: () = assert!(size_of::<ClassifierConfig>() == 44, "intf.h states this size");

impl ClassifierConfig {
    /// Sockets are told apart by class, for [`Pacer`](crate::Pacer).
    pub const PACED: u32 = 1;
    /// There is no scheduler: packets pass by their class's credit, for [`Credits`].
    pub const IN_PLACE: u32 = 2;
    /// The scheduler is a process: [`Handover::to`] names the program that takes packets there.
    pub const USER: u32 = 4;
    /// The uplink's packets have no Ethernet header.
    pub const BARE: u32 = 8;
    /// The scheduler charges bytes that such an uplink does not carry, or lacks bytes that a tunnel adds. They
    /// are counted, for [`Weights`].
    pub const WEIGHED: u32 = 16;
    /// Marks of packets that have passed the scheduler name their class, for [`Download`](crate::Download).
    pub const NAMED: u32 = 32;
    /// Several links are shared: a port's packets go by the link that their route takes ([`Way`]). Marks name
    /// their class then.
    pub const SEVERAL: u32 = 64;
    /// A tunnel leads over a link ([`Tunnel`]).
    pub const TUNNELS: u32 = 128;
    /// Classes have a queue that goes first ([`SparseFlows`]).
    pub const SPARSE: u32 = 256;
    /// The most links that are shared.
    pub const LINKS: u32 = 4;
    /// Beside a port's handle: its packets have no Ethernet header.
    pub const BARE_PORT: u32 = 1 << 31;

    /// The mark of a link's packets, by the link's number and the agent's own cookie.
    #[must_use]
    pub fn cookie_of(cookie: u32, link: u32) -> u32 {
        cookie ^ link << 12
    }

    pub(crate) fn bytes(&self) -> [u8; 44] {
        let words = [
            self.ifb_index,
            self.control_handle,
            self.host_handle,
            self.default_handle,
            self.charge_local,
            self.cgroup_levels,
            self.cookie,
            self.flags,
            self.rules,
            self.main_link,
            self.tunnel_key,
        ];
        let mut bytes = [0; 44];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// `struct weir_tunnel` of intf.h: a tunnel of WireGuard whose packets leave by a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// Below [`Tunnel::MOST`], and no other tunnel's.
    pub number: u32,
    /// The device's, bytes. Padding ends there.
    pub mtu: u32,
}

impl Tunnel {
    /// The most tunnels that are known at a time.
    pub const MOST: u32 = 16;

    pub(crate) fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.number.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.mtu.to_ne_bytes());
        bytes
    }
}

/// `struct weir_way` of intf.h: how packets that enter at a port go on, where several links are shared or a
/// tunnel leads over one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The kernel's routes decide. The interface of this index routes them: the port, or its bridge.
    Routed(u32),
    /// They leave by the link of this number, which is a port of the same bridge.
    Bridged(u32),
}

impl Way {
    pub(crate) fn bytes(self) -> [u8; 8] {
        let (from, link) = match self {
            Way::Routed(from) => (from, 0),
            Way::Bridged(link) => (0, link + 1),
        };
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&from.to_ne_bytes());
        bytes[4..].copy_from_slice(&link.to_ne_bytes());
        bytes
    }
}

/// A network of destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalPrefix {
    /// The network.
    pub network: IpAddr,
    /// Its length, bits.
    pub len: u8,
}

impl LocalPrefix {
    /// `struct weir_prefix` of intf.h: IPv4 as ::ffff:a.b.c.d, and zeros behind the network, so that each
    /// network has one key, as it has one entry.
    pub(crate) fn key(self) -> [u8; 20] {
        let (address, len) = rules::widened(self);
        let bits = u128::MAX.checked_shl(128 - len).unwrap_or(0);
        let mut key = [0; 20];
        key[..4].copy_from_slice(&len.to_ne_bytes());
        key[4..].copy_from_slice(&(u128::from(address) & bits).to_be_bytes());
        key
    }
}

/// An address in the programs' form: IPv4 as ::ffff:a.b.c.d.
pub(crate) fn widened_address(address: IpAddr) -> [u8; 16] {
    let len = if address.is_ipv4() { 32 } else { 128 };
    rules::widened(LocalPrefix { network: address, len }).0.octets()
}

/// The loaded programs and their maps.
///
/// Dropping it leaves attached programs, and the maps they use, in the kernel.
pub struct Classifier {
    pub(crate) skeleton: ClassifySkel<'static>,
    handover: Arc<Handover>,
}

impl Classifier {
    /// The name under which the kernel knows the program at container ports.
    pub const PORT_PROGRAM: &'static str = "weir_port";
    /// The name under which the kernel knows the program at the uplink.
    pub const UPLINK_PROGRAM: &'static str = "weir_uplink";
    /// The name under which the kernel knows the program at the egress of tunnels.
    pub const TUNNEL_PROGRAM: &'static str = "weir_tunnel";

    /// Loads the programs; nothing is attached yet.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: no `CONFIG_BPF_SYSCALL`, no `CAP_BPF`, the verifier.
    pub fn load() -> Result<Classifier, Error> {
        Classifier::load_after(None)
    }

    /// Loads the programs as [`load`](Classifier::load) does, with what an earlier agent knew of
    /// sockets.
    ///
    /// # Errors
    /// As [`load`](Classifier::load).
    pub fn load_after(earlier: Option<&EarlierPacing>) -> Result<Classifier, Error> {
        let error = |source| Error { what: "load the classifier programs", source };
        // libbpf's own lines would go to stderr in its format; the error carries the reason.
        libbpf_rs::set_print(None);
        // One object a process lifetime: leaked, so that the skeleton needs no self-reference.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ClassifySkelBuilder::default().open(storage).map_err(error)?;
        if let Some(earlier) = earlier {
            open.maps.weir_flows.reuse_fd(earlier.flows.as_fd()).map_err(error)?;
        }
        let skeleton = open.load().map_err(error)?;
        let handover = Handover::new(MapHandle::try_from(&skeleton.maps.weir_user).map_err(error)?);
        Ok(Classifier { skeleton, handover: Arc::new(handover) })
    }

    /// The program for container ports.
    #[must_use]
    pub fn port_program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_port.as_fd()
    }

    /// The program for container ports where a filter's action redirects, as a number for
    /// netlink.
    #[must_use]
    pub fn port_filter(&self) -> RawFd {
        self.skeleton.progs.weir_port_match.as_fd().as_raw_fd()
    }

    /// The program for the uplink, as a number for netlink.
    #[must_use]
    pub fn uplink_program(&self) -> RawFd {
        self.skeleton.progs.weir_uplink.as_fd().as_raw_fd()
    }

    /// The program for the egress of tunnels.
    #[must_use]
    pub fn tunnel_program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_tunnel.as_fd()
    }

    /// Tells the programs where everything of a link is, by the link's number.
    ///
    /// # Errors
    /// [`Error`].
    pub fn configure(&self, link: u32, config: &ClassifierConfig) -> Result<(), Error> {
        self.skeleton
            .maps
            .weir_config
            .update(&link.to_ne_bytes(), &config.bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "configure the classifier", source })
    }

    /// Makes the devices that lead out by a link the given ones, by their indices, with the link's number.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_links(&self, links: &BTreeMap<u32, u32>) -> Result<(), Error> {
        let keyed = links.iter().map(|(index, number)| (index.to_ne_bytes(), number.to_ne_bytes()));
        restore(&self.skeleton.maps.weir_links, keyed, |_| true)
            .map(drop)
            .map_err(|source| Error { what: "map the links' devices", source })
    }

    /// Makes the tunnels the given ones, by the indices of their devices.
    ///
    /// # Errors
    /// [`Error`]: the map holds [`Tunnel::MOST`].
    pub fn set_tunnels(&self, tunnels: &BTreeMap<u32, Tunnel>) -> Result<(), Error> {
        let keyed = tunnels.iter().map(|(index, tunnel)| (index.to_ne_bytes(), tunnel.bytes()));
        restore(&self.skeleton.maps.weir_tunnels, keyed, |_| true)
            .map(drop)
            .map_err(|source| Error { what: "map the tunnels' devices", source })
    }

    /// Says how packets of a port go on, or forgets it.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 interfaces.
    pub fn set_way(&self, port: u32, way: Option<Way>) -> Result<(), Error> {
        let (map, key) = (&self.skeleton.maps.weir_ways, port.to_ne_bytes());
        let result = match way {
            Some(way) => map.update(&key, &way.bytes(), MapFlags::ANY),
            None => ignore(map.delete(&key), &[libbpf_rs::ErrorKind::NotFound]),
        };
        result.map_err(|source| Error { what: "map an interface to its way out", source })
    }

    /// Gives an interface's packets to a class, or to none. The handle may have
    /// [`BARE_PORT`](ClassifierConfig::BARE_PORT) beside it.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 interfaces.
    pub fn set_port(&self, ifindex: u32, handle: Option<u32>) -> Result<(), Error> {
        set(&self.skeleton.maps.weir_ports, &ifindex.to_ne_bytes(), handle, "map an interface to its class")
    }

    /// Gives the packets of a cgroup (v2, by its id) to a class, or to none.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 cgroups.
    pub fn set_cgroup(&self, id: u64, handle: Option<u32>) -> Result<(), Error> {
        set(&self.skeleton.maps.weir_cgroups, &id.to_ne_bytes(), handle, "map a cgroup to its class")
    }

    /// Makes the networks that packets reach without the line the given ones.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 networks.
    pub fn set_local(&self, networks: &BTreeMap<LocalPrefix, Locality>) -> Result<(), Error> {
        let maps = &self.skeleton.maps;
        restore::write_local(maps, networks)
            .map(drop)
            .map_err(|source| Error { what: "map the networks that packets reach without the line", source })
    }

    /// The same networks, for programs of other objects.
    ///
    /// # Errors
    /// [`Error`].
    pub fn local_maps(&self) -> Result<LocalMaps, Error> {
        LocalMaps::of(&self.skeleton.maps)
    }

    /// Fills a set of rules, 1 or 2, that is not in force: what was in it is forgotten.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load_rules(&self, set: u32, rules: &RuleSet) -> Result<(), Error> {
        let error = |source| Error { what: "write the rules of selectors", source };
        let maps = &self.skeleton.maps;
        let index = set.saturating_sub(1) & 1;
        let wanted: BTreeMap<Vec<u8>, [u8; 8]> =
            rules.entries(index as usize).map(|(key, choice)| (key.to_vec(), choice)).collect();
        let stale: Vec<Vec<u8>> = maps
            .weir_rules
            .keys()
            .filter(|key| rules::set_of(key) == Some(index) && !wanted.contains_key(key))
            .collect();
        for key in stale {
            maps.weir_rules.delete(&key).map_err(error)?;
        }
        for (key, choice) in &wanted {
            maps.weir_rules.update(key, choice, MapFlags::ANY).map_err(error)?;
        }
        maps.weir_masks.update(&index.to_ne_bytes(), &rules.masks_value(), MapFlags::ANY).map_err(error)
    }

    /// The way to a scheduler in user space.
    #[must_use]
    pub fn handover(&self) -> &Arc<Handover> {
        &self.handover
    }

    /// The credits of classes, for an engine in place.
    ///
    /// # Errors
    /// [`Error`].
    pub fn credits(&self) -> Result<Credits, Error> {
        let error = |source| Error { what: "share the maps of credits", source };
        let handle = |map: &libbpf_rs::MapMut<'_>| MapHandle::try_from(map).map_err(error);
        let maps = &self.skeleton.maps;
        Ok(Credits { refills: handle(&maps.weir_refills)?, credits: handle(&maps.weir_credits)? })
    }

    /// The bytes that a scheduler charges and the uplink does not carry.
    ///
    /// # Errors
    /// [`Error`].
    pub fn weights(&self) -> Result<Weights, Error> {
        let counters = MapHandle::try_from(&self.skeleton.maps.weir_counters);
        Ok(Weights {
            counters: counters.map_err(|source| Error { what: "share the map of counters", source })?,
        })
    }

    /// The classes with a queue that goes first.
    ///
    /// # Errors
    /// [`Error`].
    pub fn sparse_flows(&self) -> Result<SparseFlows, Error> {
        let classes = MapHandle::try_from(&self.skeleton.maps.weir_sparse);
        Ok(SparseFlows {
            classes: classes.map_err(|source| Error { what: "share the map of sparse flows", source })?,
            class_filter: self.skeleton.progs.weir_htb_class.as_fd().as_raw_fd(),
            first_filter: self.skeleton.progs.weir_htb_first.as_fd().as_raw_fd(),
        })
    }

    /// Begins to count a class's node-local traffic, or forgets it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn track(&self, handle: u32, on: bool) -> Result<(), Error> {
        let map = &self.skeleton.maps.weir_counters;
        let result = if on {
            let zero = vec![vec![0u8; weights::COUNTERS]; libbpf_rs::num_possible_cpus().unwrap_or(1)];
            map.update_percpu(&handle.to_ne_bytes(), &zero, MapFlags::NO_EXIST)
        } else {
            map.delete(&handle.to_ne_bytes())
        };
        ignore(result, &[libbpf_rs::ErrorKind::AlreadyExists, libbpf_rs::ErrorKind::NotFound])
            .map_err(|source| Error { what: "count a class's local traffic", source })
    }

    /// Bytes of a class that stayed on this node, over all processors.
    ///
    /// # Errors
    /// [`Error`].
    pub fn local_bytes(&self, handle: u32) -> Result<u64, Error> {
        self.counted(handle, 0)
    }

    /// Packets of a class that left by another link than their route said, over all processors.
    ///
    /// # Errors
    /// [`Error`].
    pub fn moved_packets(&self, handle: u32) -> Result<u64, Error> {
        self.counted(handle, weights::MOVED)
    }

    fn counted(&self, handle: u32, at: usize) -> Result<u64, Error> {
        let values = self
            .skeleton
            .maps
            .weir_counters
            .lookup_percpu(&handle.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "read a class's counters", source })?;
        Ok(values.iter().flatten().map(|value| u64_at(value, at)).sum())
    }
}

pub(crate) fn set(
    map: &impl MapCore,
    key: &[u8],
    value: Option<u32>,
    what: &'static str,
) -> Result<(), Error> {
    let result = match value {
        Some(value) => map.update(key, &value.to_ne_bytes(), MapFlags::ANY),
        None => ignore(map.delete(key), &[libbpf_rs::ErrorKind::NotFound]),
    };
    result.map_err(|source| Error { what, source })
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
