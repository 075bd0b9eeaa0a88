//! The scheduler's device: an ifb through which all traffic of a direction of the link passes.

use std::collections::{BTreeMap, BTreeSet};

use super::EngineError;
use weir_bpf::ClassifierConfig;
use weir_netlink::{Link, Netlink, NetlinkError, tc::Qdisc};
use weir_units::{LinkHeader, TcHandle};

const ALIAS: &str = "weir scheduler of ";
/// The hardware address of weir's devices: a local one with the letters `weir`. They use it for nothing else.
pub const SCHEDULER_MAC: [u8; 6] = *b"\x02weir0";

/// A link that is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uplink<'a> {
    /// A number that belongs to the device, below [`MAX_LINKS`].
    pub number: u32,
    /// Its interface's name.
    pub device: &'a str,
}

impl Uplink<'_> {
    /// The name of the device through which what leaves by the link passes.
    #[must_use]
    pub fn upload_device(self) -> String {
        format!("weir{}", self.number)
    }

    /// The name of the device through which what arrives by the link passes.
    #[must_use]
    pub fn download_device(self) -> String {
        format!("weir{}d", self.number)
    }

    fn alias(self) -> String {
        format!("{ALIAS}{}", self.device)
    }
}

/// The most links that are shared at a time.
pub const MAX_LINKS: u32 = ClassifierConfig::LINKS;

/// The device, and the way to the kernel.
pub(crate) struct Ifb {
    pub(crate) netlink: Netlink,
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Its transmit queues.
    pub(crate) queues: u32,
    /// How many it has if it must be made.
    wanted: u32,
    alias: String,
    /// It was not there before [`Ifb::open`].
    pub(crate) is_new: bool,
}

impl Ifb {
    /// Makes the device for this link's upload, with this number of transmit queues. A device of an
    /// earlier agent is taken over with the queues that it has.
    pub(crate) fn open(uplink: Uplink<'_>, wanted: u32) -> Result<Ifb, EngineError> {
        Ifb::named(uplink.upload_device(), uplink.alias(), wanted)
    }

    /// The same for this link's download.
    pub(crate) fn open_download(uplink: Uplink<'_>) -> Result<Ifb, EngineError> {
        Ifb::named(uplink.download_device(), uplink.alias(), 1)
    }

    fn named(name: String, alias: String, wanted: u32) -> Result<Ifb, EngineError> {
        let mut netlink = Netlink::open()?;
        let (index, queues, is_new) = find_or_make(&mut netlink, &name, &alias, wanted)?;
        Ok(Ifb { netlink, name, index, queues, wanted, alias, is_new })
    }

    /// Whether packets of the link have no Ethernet header. A link that is gone may have one.
    pub(crate) fn lacks_ethernet(&mut self, link: &str) -> bool {
        self.netlink.link(link).is_ok_and(|link| !link.has_ethernet())
    }

    /// The header that tc counts of the link's packets.
    pub(crate) fn header(&mut self, link: &str) -> LinkHeader {
        if self.lacks_ethernet(link) { LinkHeader::None } else { LinkHeader::Ethernet }
    }

    /// Puts the device back if someone removed it. True if it is a new one.
    pub(crate) fn rebuild(&mut self) -> Result<bool, EngineError> {
        let (index, queues, _) = find_or_make(&mut self.netlink, &self.name, &self.alias, self.wanted)?;
        let is_new = index != self.index;
        (self.index, self.queues) = (index, queues);
        Ok(is_new)
    }

    /// The qdisc at its root, with these handles' meaning as tc shows it; none for the
    /// kernel's own.
    pub(crate) fn root(&mut self) -> Result<Option<Qdisc>, EngineError> {
        let qdiscs = self.netlink.qdiscs(self.index)?;
        Ok(qdiscs.into_iter().find(|q| q.parent == TcHandle::ROOT && q.handle.0 != 0))
    }

    /// Sets the device up if someone set it down, which drops all that is sent to it. True
    /// if so. A device that is gone is for the next measurement to find.
    pub(crate) fn wake(&mut self) -> Result<bool, EngineError> {
        match self.netlink.link(&self.name) {
            Ok(found) if found.index == self.index && !found.up => {
                self.netlink.set_up(found.index, &self.name)?;
                Ok(true)
            }
            Err(e) if !e.is_gone() => Err(e.into()),
            _ => Ok(false),
        }
    }

    /// Removes the device and all that is on it.
    pub(crate) fn remove(&mut self) -> Result<(), EngineError> {
        Ok(self.netlink.delete_link(self.index, &self.name)?)
    }
}

/// Whether a device of weir's name is weir's.
fn is_weirs(found: &Link) -> bool {
    let is_marked = found.alias.as_deref().is_some_and(|alias| alias.starts_with(ALIAS));
    // An agent may be killed before it writes the alias.
    let is_half_made = found.alias.is_none() && found.mac == SCHEDULER_MAC;
    found.kind.as_deref() == Some("ifb") && (is_marked || is_half_made)
}

/// Whether an agent left this device: a scheduler of weir's by its name and its marks.
pub(super) fn is_left(found: &Link) -> bool {
    is_scheduler(&found.name) && is_weirs(found)
}

/// Whether a device of this name is one of weir's schedulers.
#[must_use]
pub fn is_scheduler(name: &str) -> bool {
    (0..MAX_LINKS)
        .map(|number| Uplink { number, device: "" })
        .any(|uplink| name == uplink.upload_device() || name == uplink.download_device())
}

/// The numbers of the links that an earlier agent shared, by their devices.
///
/// # Errors
/// [`EngineError`]: the kernel does not list its interfaces.
pub fn numbers_left(netlink: &mut Netlink) -> Result<BTreeMap<String, u32>, EngineError> {
    let number =
        |name: &str| (0..MAX_LINKS).find(|n| Uplink { number: *n, device: "" }.upload_device() == name);
    let left = |link: &Link| {
        let device = link.alias.as_deref()?.strip_prefix(ALIAS)?.to_owned();
        Some((device, number(&link.name).filter(|_| is_weirs(link))?))
    };
    Ok(netlink.links()?.iter().filter_map(left).collect())
}

/// The numbers of links that cannot be shared, because another program has a device of weir's name.
///
/// # Errors
/// [`EngineError`]: the kernel does not list its interfaces.
pub fn numbers_taken(netlink: &mut Netlink) -> Result<BTreeSet<u32>, EngineError> {
    Ok(taken(&netlink.links()?))
}

fn taken(links: &[Link]) -> BTreeSet<u32> {
    let is_foreign = |name: &str| links.iter().any(|link| link.name == name && !is_weirs(link));
    let is_taken = |number: &u32| {
        let uplink = Uplink { number: *number, device: "" };
        is_foreign(&uplink.upload_device()) || is_foreign(&uplink.download_device())
    };
    (0..MAX_LINKS).filter(is_taken).collect()
}

/// Removes the devices of an earlier agent but the wanted ones, by their names. Nothing sends to them any more:
/// their filters have gone ([`Attachments::sweep`](super::Attachments::sweep)).
///
/// # Errors
/// [`EngineError`].
pub fn retire_devices(wanted: &BTreeSet<String>) -> Result<(), EngineError> {
    let mut netlink = Netlink::open()?;
    let all = (0..MAX_LINKS).map(|number| Uplink { number, device: "" });
    for name in all.flat_map(|uplink| [uplink.upload_device(), uplink.download_device()]) {
        if wanted.contains(&name) {
            continue;
        }
        match netlink.link(&name) {
            Ok(found) if is_weirs(&found) => netlink.delete_link(found.index, &name)?,
            Err(e) if !e.is_gone() => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Index and queues of the device, found if it is weir's and of this link, or made: then true.
fn find_or_make(
    netlink: &mut Netlink,
    name: &str,
    alias: &str,
    wanted: u32,
) -> Result<(u32, u32, bool), EngineError> {
    match netlink.link(name) {
        Ok(found) if is_weirs(&found) && found.alias.as_deref() == Some(alias) => {
            if !found.up {
                netlink.set_up(found.index, name)?;
            }
            Ok((found.index, found.queues.max(1), false))
        }
        // Another link's packets may have other headers, and its classes other rates.
        Ok(found) if is_weirs(&found) => {
            netlink.delete_link(found.index, name)?;
            Ok((netlink.add_ifb(name, alias, SCHEDULER_MAC, wanted)?, wanted, true))
        }
        Ok(_) => Err(EngineError::NameTaken { name: name.to_owned() }),
        Err(NetlinkError::Refused { errno: nix::errno::Errno::ENODEV, .. }) => {
            Ok((netlink.add_ifb(name, alias, SCHEDULER_MAC, wanted)?, wanted, true))
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_foreign_device_is_taken_and_that_of_weirs_is_not() {
        let link = |name: &str, kind: &str, alias: Option<&str>, mac: [u8; 6]| Link {
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            alias: alias.map(str::to_owned),
            mac: mac.to_vec(),
            ..Link::default()
        };
        let links = [
            link("weir0", "ifb", None, *b"\x02other"),
            link("weir1", "ifb", Some("weir scheduler of eth1"), SCHEDULER_MAC),
            link("weir2d", "bridge", Some("weir scheduler of eth2"), SCHEDULER_MAC),
            // It has no alias yet.
            link("weir3", "ifb", None, SCHEDULER_MAC),
            link("eth0", "veth", None, [2; 6]),
        ];
        assert_eq!(taken(&links), BTreeSet::from([0, 2]));
    }
}
