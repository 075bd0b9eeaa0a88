//! The scheduler's device: an ifb through which all traffic of a direction of the link passes.

use super::EngineError;
use weir_netlink::{Link, Netlink, NetlinkError, tc::Qdisc};
use weir_units::{LinkHeader, TcHandle};

/// Its name. A number behind it makes room for a second link one day.
pub const DEVICE: &str = "weir0";
/// The name of the device through which the download passes.
pub const DOWNLOAD_DEVICE: &str = "weir0d";
const ALIAS: &str = "weir scheduler of ";

/// The device, and the way to the kernel.
pub(crate) struct Ifb {
    pub(crate) netlink: Netlink,
    pub(crate) name: &'static str,
    pub(crate) index: u32,
    /// Its transmit queues.
    pub(crate) queues: u32,
    /// How many it has if it must be made.
    wanted: u32,
    link: String,
    /// It was not there before [`Ifb::open`].
    pub(crate) is_new: bool,
}

impl Ifb {
    /// The name of the device through which the upload passes.
    pub(crate) const NAME: &'static str = DEVICE;

    /// Makes the device for this link's upload, with this number of transmit queues. A device of an
    /// earlier agent is taken over with the queues that it has.
    pub(crate) fn open(link: &str, wanted: u32) -> Result<Ifb, EngineError> {
        Ifb::named(DEVICE, link, wanted)
    }

    /// The same for this link's download.
    pub(crate) fn open_download(link: &str) -> Result<Ifb, EngineError> {
        Ifb::named(DOWNLOAD_DEVICE, link, 1)
    }

    fn named(name: &'static str, link: &str, wanted: u32) -> Result<Ifb, EngineError> {
        let mut netlink = Netlink::open()?;
        let (index, queues, is_new) = find_or_make(&mut netlink, name, link, wanted)?;
        Ok(Ifb { netlink, name, index, queues, wanted, link: link.to_owned(), is_new })
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
        let (index, queues, _) = find_or_make(&mut self.netlink, self.name, &self.link, self.wanted)?;
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
        match self.netlink.link(self.name) {
            Ok(found) if found.index == self.index && !found.up => {
                self.netlink.set_up(found.index, self.name)?;
                Ok(true)
            }
            Err(e) if !e.is_gone() => Err(e.into()),
            _ => Ok(false),
        }
    }

    /// Removes the device and all that is on it.
    pub(crate) fn remove(&mut self) -> Result<(), EngineError> {
        Ok(self.netlink.delete_link(self.index, self.name)?)
    }
}

/// Whether a device of weir's name is weir's.
fn is_weirs(found: &Link) -> bool {
    found.kind.as_deref() == Some("ifb") && found.alias.as_deref().is_some_and(|a| a.starts_with(ALIAS))
}

/// Removes the device of an earlier agent's download, if there is one. Nothing sends to it any more.
pub(crate) fn retire_download(netlink: &mut Netlink) -> Result<(), EngineError> {
    match netlink.link(DOWNLOAD_DEVICE) {
        Ok(found) if is_weirs(&found) => Ok(netlink.delete_link(found.index, DOWNLOAD_DEVICE)?),
        Err(e) if !e.is_gone() => Err(e.into()),
        _ => Ok(()),
    }
}

/// Index and queues of the device, found if it is weir's, or made: then true.
fn find_or_make(
    netlink: &mut Netlink,
    name: &str,
    link: &str,
    wanted: u32,
) -> Result<(u32, u32, bool), EngineError> {
    match netlink.link(name) {
        Ok(found) if is_weirs(&found) => {
            if !found.up {
                netlink.set_up(found.index, name)?;
            }
            Ok((found.index, found.queues.max(1), false))
        }
        Ok(_) => Err(EngineError::NameTaken { name: name.to_owned() }),
        Err(NetlinkError::Refused { errno: nix::errno::Errno::ENODEV, .. }) => {
            Ok((netlink.add_ifb(name, &format!("{ALIAS}{link}"), wanted)?, wanted, true))
        }
        Err(e) => Err(e.into()),
    }
}
