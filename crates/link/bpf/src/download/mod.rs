//! The class of a packet that arrives: the programs at the uplink's ingress and egress.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use libbpf_rs::{Map, MapCore, MapHandle, Object, ObjectBuilder};

use crate::{
    Error, LocalMaps, SparseFlows, attach,
    classify::{Restored, restore, restore_row, widened_address},
    common::map_named,
};

/// The programs that ask conntrack, and those that do not.
const OBJECTS: [(&[u8], bool); 2] = [
    (include_bytes!(concat!(env!("OUT_DIR"), "/download_conntrack.bpf.o")), true),
    (include_bytes!(concat!(env!("OUT_DIR"), "/download.bpf.o")), false),
];
const FLOWS: &str = "weir_down_flows";

/// `struct weir_down_config` of download.h. Handles are tc's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownloadConfig {
    /// Class of ARP, neighbour discovery, DHCP.
    pub control_handle: u32,
    /// Class of packets for the node itself.
    pub host_handle: u32,
    /// Class of packets that belong to no other.
    pub default_handle: u32,
    /// That of [`ClassifierConfig`](crate::ClassifierConfig).
    pub cookie: u32,
    /// The link's number.
    pub link: u32,
}

impl DownloadConfig {
    fn bytes(&self) -> Vec<u8> {
        let words = [1, self.control_handle, self.host_handle, self.default_handle, self.cookie, self.link];
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

/// All that decides about the class of a packet that arrives, as the agent wants it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DownloadMaps {
    /// The classes of weir's own.
    pub config: DownloadConfig,
    /// Addresses that runtimes gave containers, and those of the node, and the handles of their classes.
    pub owners: BTreeMap<IpAddr, u32>,
    /// Addresses that containers' interfaces show, and the handles of their classes. A flow that has left comes first.
    pub shown: BTreeMap<IpAddr, u32>,
    /// The handles of classes that share the download.
    pub classes: BTreeSet<u32>,
    /// The handles of classes whose interfaces show their addresses.
    pub showing: BTreeSet<u32>,
}

/// The flows that an earlier agent's programs have seen leave.
pub struct EarlierDownload(MapHandle);

impl EarlierDownload {
    /// The flows of a loaded program, by its id. None if it has gone or is another one.
    #[must_use]
    pub fn of_program(id: u32) -> Option<EarlierDownload> {
        map_named(&attach::program_maps(id).ok()?, FLOWS).map(EarlierDownload)
    }
}

/// The loaded programs and their maps.
///
/// Dropping it leaves attached programs, and the maps they use, in the kernel.
pub struct Download {
    object: Object,
    asks_conntrack: bool,
}

impl Download {
    /// The name of the program at the uplink's ingress.
    pub const INGRESS_PROGRAM: &'static str = "weir_down";
    /// The name of the program at the uplink's egress.
    pub const EGRESS_PROGRAM: &'static str = "weir_learn";

    /// Loads the programs with the flows that an earlier agent's programs know, and with the networks that the
    /// classifier knows. Nothing is attached yet, and nothing matches until the maps are written.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: no `CONFIG_BPF_SYSCALL`, no `CAP_BPF`, the verifier.
    pub fn load(earlier: Option<&EarlierDownload>, networks: Option<&LocalMaps>) -> Result<Download, Error> {
        libbpf_rs::set_print(None);
        let mut last = None;
        for (content, asks_conntrack) in OBJECTS {
            // Flows of another layout are left.
            for earlier in [earlier, None] {
                match Download::open(content, earlier, networks) {
                    Ok(object) => return Ok(Download { object, asks_conntrack }),
                    Err(error) => last = Some(error),
                }
            }
        }
        let source = last.expect("there are objects to try");
        Err(Error { what: "load the programs of the download", source })
    }

    fn open(
        content: &[u8],
        earlier: Option<&EarlierDownload>,
        networks: Option<&LocalMaps>,
    ) -> Result<Object, libbpf_rs::Error> {
        let mut open = ObjectBuilder::default().open_memory(content)?;
        if let Some(EarlierDownload(flows)) = earlier
            && let Some(mut map) = open.maps_mut().find(|map| map.name() == FLOWS)
        {
            map.reuse_fd(flows.as_fd())?;
        }
        if let Some(networks) = networks {
            networks.share(&mut open)?;
        }
        open.load()
    }

    /// Whether the programs ask conntrack for the addresses behind NAT.
    #[must_use]
    pub fn asks_conntrack(&self) -> bool {
        self.asks_conntrack
    }

    /// The program for the uplink's ingress, as a number for netlink.
    #[must_use]
    pub fn ingress_program(&self) -> RawFd {
        self.program(Download::INGRESS_PROGRAM)
    }

    /// The program for the uplink's egress, as a number for netlink.
    #[must_use]
    pub fn egress_program(&self) -> RawFd {
        self.program(Download::EGRESS_PROGRAM)
    }

    /// The classes with a queue that goes first.
    ///
    /// # Errors
    /// [`Error`].
    pub fn sparse_flows(&self) -> Result<SparseFlows, Error> {
        let classes = MapHandle::try_from(&self.map(SparseFlows::MAP));
        Ok(SparseFlows {
            classes: classes.map_err(|source| Error { what: "share the map of sparse flows", source })?,
            class_filter: self.program(SparseFlows::CLASS_FILTER),
            first_filter: self.program(SparseFlows::FIRST_FILTER),
        })
    }

    fn program(&self, name: &str) -> RawFd {
        let found = self.object.progs().find(|program| program.name() == name);
        found.expect("the object has this program").as_fd().as_raw_fd()
    }

    fn map(&self, name: &str) -> Map<'_> {
        self.object.maps().find(|map| map.name() == name).expect("the object has this map")
    }

    /// Compares the maps with the wanted entries, and writes the difference.
    #[must_use]
    pub fn restore(&self, wanted: &DownloadMaps) -> Restored {
        let mut restored = Restored::default();
        let shows = |handle: &u32| u32::from(wanted.showing.contains(handle)).to_ne_bytes();
        let keyed = wanted.classes.iter().map(|handle| (handle.to_ne_bytes(), shows(handle)));
        let classes = restore(&self.map("weir_down_class"), keyed, |_| true);
        restored.note("weir_down_class", "restore which classes share the download", classes);
        for (name, what, addresses) in [
            ("weir_down_owner", "restore which class each address belongs to", &wanted.owners),
            ("weir_down_shown", "restore which class shows each address", &wanted.shown),
        ] {
            let keyed = addresses.iter().map(|(to, handle)| (widened_address(*to), handle.to_ne_bytes()));
            restored.note(name, what, restore(&self.map(name), keyed, |_| true));
        }
        // Last: it turns the programs on.
        let config = restore_row(&self.map("weir_down_config"), 0, &wanted.config.bytes());
        restored.note("weir_down_config", "restore the configuration of the download", config);
        restored
    }
}

#[cfg(test)]
mod tests;
