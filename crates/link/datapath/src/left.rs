//! Removes what an earlier agent left in the kernel. The kernel itself tells most of it, so no configuration is
//! needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use weir_bpf::ClassifierConfig;
use weir_discovery::{NetnsRef, NsId, netns::DIRS};
use weir_netlink::Netlink;
use weir_units::chain;

use crate::{
    congestion::Congestion,
    engine::{self, Attach, Attachments, Created},
    pacing::{Pacing, Root},
    super_packets::SuperPackets,
};

/// The outcome of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The devices of schedulers that are gone.
    pub devices: Vec<String>,
    /// The qdiscs that weir added and that are still there.
    pub created: Created,
    /// The parts that could not be removed, with reasons.
    pub faults: Vec<String>,
}

/// Removes the programs, filters, schedulers and values that an agent of this network namespace has left. `created` are
/// the qdiscs that it added.
#[must_use]
pub fn remove(created: Created) -> Removed {
    let mut removed = Removed { created, ..Removed::default() };
    if let Err(why) = remove_all(&mut removed) {
        removed.faults.push(why);
    }
    removed
}

fn remove_all(removed: &mut Removed) -> Result<(), String> {
    let mut netlink = Netlink::open().map_err(|e| chain(&e))?;
    let own = NsId::own().map_err(|e| format!("cannot look at this network namespace: {e}"))?;
    let namespaces = namespaces_beside(&mut netlink, own).map_err(|e| chain(&e))?;
    let root = Root::find(own).ok();
    let earlier = root.as_ref().and_then(Root::earlier);
    // An earlier agent without cgroup v2 has paced no sockets and chosen no congestion control.
    let paced = root.zip(earlier.as_ref());
    let links = netlink.links().map_err(|e| chain(&e))?;
    // An index alone may be another device's, of an earlier boot or of another namespace.
    let is_here =
        |made: &(u32, String)| links.iter().any(|link| (link.index, &link.name) == (made.0, &made.1));
    let mut attachments = Attachments::open(
        Attach::best(),
        ClassifierConfig::default(),
        removed.created.iter().filter(|made| is_here(made)).cloned().collect(),
        earlier.as_ref(),
    )
    .map_err(|e| chain(&e))?;
    if let Some((root, earlier)) = paced {
        let unpaced = Pacing::open(root, &attachments, Some(earlier))
            .and_then(|mut pacing| pacing.remove_also_in(&namespaces));
        removed.faults.extend(unpaced.err().map(|e| chain(&e)));
    }
    if Congestion::is_left() {
        let left = Congestion::open().and_then(|programs| programs.remove_also_in(&namespaces));
        removed.faults.extend(left.err().map(|e| chain(&e)));
    }
    removed.faults.extend(SuperPackets::new(own).remove_left(&namespaces).err());
    let attached = attachments.remove();
    removed.created = attachments.created().clone();
    if attached.is_empty() {
        removed.devices = engine::remove_schedulers(&mut netlink).map_err(|e| chain(&e))?;
    } else {
        // A filter that stays sends packets to its scheduler.
        removed.faults.extend(attached.iter().map(|e| chain(e)));
    }
    Ok(())
}

/// The devices that have a clsact qdisc, of weir or of another program. An unreadable device has none.
#[must_use]
pub fn clsact() -> Vec<String> {
    let Ok(mut netlink) = Netlink::open() else { return Vec::new() };
    let links = netlink.links().unwrap_or_default();
    let mut has_clsact =
        |index| netlink.qdiscs(index).is_ok_and(|all| all.iter().any(|q| q.kind == "clsact"));
    links.into_iter().filter(|link| has_clsact(link.index)).map(|link| link.name).collect()
}

/// The network namespaces with an interface whose other end is in this one.
fn namespaces_beside(netlink: &mut Netlink, own: NsId) -> Result<Vec<NetnsRef>, weir_netlink::NetlinkError> {
    let peers: BTreeSet<i32> = netlink.links()?.iter().filter_map(|link| link.peer_netnsid).collect();
    let entries = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = DIRS.iter().flat_map(|dir| entries(dir));
    let processes = entries("/proc").map(|path| path.join("ns/net"));
    let found = named.chain(processes).filter(|path| path.exists());
    let found = found.filter_map(|path: std::path::PathBuf| NetnsRef::at(Path::new(&path)).ok());
    let mut all: BTreeMap<NsId, NetnsRef> = BTreeMap::new();
    for netns in found {
        // A name outlives a process.
        all.entry(netns.id).or_insert(netns);
    }
    let mut is_beside = |netns: &NetnsRef| {
        let number = netns.open().ok().and_then(|file| netlink.nsid_of(&file).ok().flatten());
        netns.id != own && number.is_some_and(|number| peers.contains(&number))
    };
    Ok(all.into_values().filter(|netns| is_beside(netns)).collect())
}
