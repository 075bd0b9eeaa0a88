//! The schedulers that an earlier agent left in this network namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlink::{Netlink, tc::Qdisc};
use weir_units::TcHandle;

use super::{EngineError, User, ifb, retire_devices};

/// The time that queued packets have to leave before their queues are removed.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// The devices of an earlier agent's schedulers, each with its index and its root qdisc.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing(BTreeMap<String, (u32, Option<(TcHandle, String)>)>);

impl Standing {
    /// Looks which schedulers are there.
    ///
    /// # Errors
    /// [`EngineError`]: the kernel does not list interfaces or qdiscs.
    pub fn look(netlink: &mut Netlink) -> Result<Standing, EngineError> {
        let mut standing = Standing::default();
        for link in netlink.links()?.iter().filter(|link| ifb::is_left(link)) {
            let root = root_of(netlink, link.index)?.map(|root| (root.handle, root.kind));
            standing.0.insert(link.name.clone(), (link.index, root));
        }
        Ok(standing)
    }

    /// Whether no scheduler is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the devices.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether all of them are still there with the same qdiscs.
    ///
    /// # Errors
    /// As [`look`](Standing::look).
    pub fn stands(&self, netlink: &mut Netlink) -> Result<bool, EngineError> {
        let now = Standing::look(netlink)?;
        Ok(self.0.iter().all(|(name, found)| now.0.get(name) == Some(found)))
    }

    /// Packets that wait, bytes.
    fn backlog(&self, netlink: &mut Netlink) -> u64 {
        let of = |index: u32| root_of(netlink, index).ok().flatten().map_or(0, |root| root.counters.backlog);
        self.0.values().map(|(index, _)| *index).map(of).sum()
    }
}

fn root_of(netlink: &mut Netlink, index: u32) -> Result<Option<Qdisc>, EngineError> {
    match netlink.qdiscs(index) {
        Ok(qdiscs) => Ok(qdiscs.into_iter().find(|q| q.parent == TcHandle::ROOT && q.handle.0 != 0)),
        Err(e) if e.is_gone() => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Removes all schedulers of this network namespace after their packets have left. No filter sends to them any more.
/// Returns the names of their devices.
///
/// # Errors
/// [`EngineError`].
pub fn remove_schedulers(netlink: &mut Netlink) -> Result<Vec<String>, EngineError> {
    let standing = Standing::look(netlink)?;
    let begin = Instant::now();
    while begin.elapsed() < DRAIN_TIMEOUT && standing.backlog(netlink) > 0 {
        sleep(Duration::from_millis(10));
    }
    User::retire()?;
    retire_devices(&BTreeSet::new())?;
    Ok(standing.devices().map(str::to_owned).collect())
}
