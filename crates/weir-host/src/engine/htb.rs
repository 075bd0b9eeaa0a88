//! The scheduler: HTB on one ifb through which all traffic of the link passes.
//!
//! The same code sets up a fresh node, adopts the tree of an agent that died, and repairs
//! what someone altered: it compares what should be with what the kernel says is there.

use std::collections::BTreeMap;

use weir_units::TcHandle;

use super::{DEFAULT, EngineError, MAJOR, tree};
use crate::netlink::{
    Netlink, NetlinkError, Request,
    tc::{self, Counters, FoundClass, HtbClass, Leaf},
};

/// The scheduler's device. A number behind it makes room for a second link one day.
const DEVICE: &str = "weir0";
const ALIAS: &str = "weir scheduler of ";

/// What the kernel said of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The class.
    pub minor: u16,
    /// Counters since the class was made.
    pub counters: Counters,
}

/// The HTB engine's half of the kernel.
pub struct Htb {
    netlink: Netlink,
    device: String,
    index: u32,
    link: String,
    /// What was last written, by minor.
    applied: BTreeMap<u16, tree::Node>,
    /// Last dump; kept for its memory.
    found: Vec<FoundClass>,
    writes: u64,
    /// The device was not there before [`Htb::open`].
    is_new: bool,
}

impl Htb {
    /// Creates the ifb with an empty HTB, or adopts the one an earlier agent left.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or HTB in this kernel, missing rights, the name taken.
    pub fn open(link: &str) -> Result<Htb, EngineError> {
        let mut netlink = Netlink::open()?;
        let (index, is_new) = device(&mut netlink, link)?;
        let mut htb = Htb {
            netlink,
            device: DEVICE.to_owned(),
            index,
            link: link.to_owned(),
            applied: BTreeMap::new(),
            found: Vec::new(),
            writes: 0,
            is_new,
        };
        match htb.root().and_then(|()| htb.adopt()) {
            Ok(()) => Ok(htb),
            Err(error) => {
                htb.undo();
                Err(error)
            }
        }
    }

    /// Takes back what [`open`](Htb::open) did, for a start that fails later: the device is
    /// removed if it was not there before. A tree that was adopted stays.
    pub fn undo(mut self) {
        if self.is_new
            && let Err(error) = self.remove()
        {
            tracing::warn!("cannot take back the scheduler: {error}");
        }
    }

    /// Index of the device that carries the scheduler.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Name of that device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Writes to the scheduler so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes
    }

    fn root(&mut self) -> Result<(), EngineError> {
        let ours = TcHandle::new(MAJOR, 0);
        let qdiscs = self.netlink.qdiscs(self.index)?;
        if !qdiscs.iter().any(|q| q.kind == "htb" && q.handle == ours && q.parent == TcHandle::ROOT) {
            self.netlink.call(tc::add_htb(self.index, &self.device, ours, DEFAULT))?;
        }
        Ok(())
    }

    /// Takes over classes that are there, so that they are changed in place, not remade.
    fn adopt(&mut self) -> Result<(), EngineError> {
        self.netlink.htb_classes(self.index, &mut self.found)?;
        self.applied = self
            .found
            .iter()
            .map(|f| (f.class.handle.minor(), tree::Node { class: f.class, leaf: None }))
            .collect();
        Ok(())
    }

    /// Leaves classes that are there at the rates and turns they have; ceilings and the whole
    /// link's class are as wanted. For an agent that has taken over and does not yet know who
    /// sends: what its predecessor wrote is the better guess.
    pub fn hold(&self, wanted: &mut [tree::Node]) {
        if self.is_new {
            return;
        }
        for class in wanted.iter_mut().map(|n| &mut n.class).filter(|c| c.handle.minor() != super::ROOT) {
            if let Some(there) = self.applied.get(&class.handle.minor()).map(|n| n.class) {
                class.rate = there.rate.min(class.ceil);
                (class.burst, class.quantum) = (there.burst, there.quantum);
            }
        }
    }

    /// Makes the kernel's tree the given one; writes only what differs. Returns how many
    /// classes were written or removed.
    ///
    /// # Errors
    /// The first refusal; what could be written is, and the next call tries the rest again.
    pub fn apply(&mut self, wanted: &[tree::Node]) -> Result<usize, EngineError> {
        let mut requests: Vec<Request> = Vec::new();
        let mut touched: Vec<(u16, Option<tree::Node>)> = Vec::new();
        let minors: BTreeMap<u16, &tree::Node> = wanted.iter().map(|n| (n.class.handle.minor(), n)).collect();
        // A class cannot move in the tree: it is removed and made anew. Members go before groups.
        let root = TcHandle::new(MAJOR, super::ROOT);
        let stale = |class: &HtbClass| {
            minors.get(&class.handle.minor()).is_none_or(|n| n.class.parent != class.parent)
        };
        let mut gone: Vec<HtbClass> = self.applied.values().map(|n| n.class).filter(|c| stale(c)).collect();
        gone.sort_by_key(|c| (c.parent == root, c.handle.minor() == super::ROOT));
        for class in &gone {
            requests.push(tc::delete_class(self.index, &self.device, class.handle));
            touched.push((class.handle.minor(), None));
        }
        let removals = requests.len();
        for node in wanted {
            let minor = node.class.handle.minor();
            let old =
                self.applied.get(&minor).filter(|_| !gone.iter().any(|c| c.handle == node.class.handle));
            if old.is_none_or(|o| tree::differs(&o.class, &node.class)) {
                requests.push(tc::set_class(self.index, &self.device, &node.class));
                touched.push((minor, Some(tree::Node { leaf: old.and_then(|o| o.leaf), ..*node })));
            }
            if let Some(leaf) = node.leaf
                && old.and_then(|o| o.leaf) != Some(leaf)
            {
                requests.push(self.leaf(node.class.handle, leaf));
                touched.push((minor, Some(*node)));
            }
        }
        if requests.is_empty() {
            return Ok(0);
        }
        let results = self.netlink.batch(&requests);
        let mut first_error = None;
        let mut written = 0;
        for (i, (result, (minor, node))) in results.into_iter().zip(touched).enumerate() {
            match (result, node) {
                (Ok(()), Some(node)) => {
                    written += 1;
                    self.applied.insert(minor, node);
                }
                (Ok(()), None) => {
                    written += 1;
                    self.applied.remove(&minor);
                }
                (Err(e), None) if i < removals && e.is_gone() => {
                    self.applied.remove(&minor);
                }
                (Err(e), _) => {
                    // Whatever is there now, the next call writes it again.
                    if let Some(applied) = self.applied.get_mut(&minor) {
                        applied.leaf = None;
                        applied.class.ceil = weir_units::BitRate::ZERO;
                    }
                    first_error.get_or_insert(e);
                }
            }
        }
        self.writes += written as u64;
        match first_error {
            Some(error) => Err(error.into()),
            None => Ok(written),
        }
    }

    /// The leaf qdisc of class `1:n` is `n:`.
    fn leaf(&self, class: TcHandle, leaf: Leaf) -> Request {
        tc::set_leaf(self.index, &self.device, class, TcHandle::new(class.minor(), 0), leaf)
    }

    /// Reads all classes' counters and, from the same answer, sees whether someone else
    /// changed the tree: what was altered is forgotten, so that the next
    /// [`apply`](Htb::apply) writes it. Returns the number of such alterations.
    ///
    /// # Errors
    /// [`EngineError`]; `ENODEV` if the device is gone, which [`rebuild`](Htb::rebuild) mends.
    pub fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        self.netlink.htb_classes(self.index, &mut self.found)?;
        let mut drift = 0;
        let mut seen = 0;
        for found in &self.found {
            let minor = found.class.handle.minor();
            out.push(Measured { minor, counters: found.counters });
            let Some(node) = self.applied.get_mut(&minor) else {
                // Nobody of ours: remove it at the next occasion.
                self.applied.insert(minor, tree::Node { class: found.class, leaf: None });
                drift += 1;
                continue;
            };
            seen += 1;
            // The kernel keeps whole bytes per second.
            let same =
                |a: weir_units::BitRate, b: weir_units::BitRate| a.bytes_per_sec() == b.bytes_per_sec();
            let (is, set) = (&found.class, &node.class);
            if !same(is.rate, set.rate)
                || !same(is.ceil, set.ceil)
                || is.quantum != set.quantum
                || is.prio != set.prio
            {
                node.class = HtbClass { cburst: weir_units::Bytes(0), ..found.class };
                drift += 1;
            }
            if node.leaf.is_some() && found.leaf != TcHandle::new(minor, 0) {
                node.leaf = None;
                drift += 1;
            }
        }
        if seen < self.applied.len() {
            let found: std::collections::BTreeSet<u16> =
                self.found.iter().map(|f| f.class.handle.minor()).collect();
            let before = self.applied.len();
            self.applied.retain(|minor, _| found.contains(minor));
            drift += before - self.applied.len();
        }
        Ok(drift)
    }

    /// Packets that each class's queue has dropped, by minor. HTB's own count lacks those of a
    /// queue that splits a super-packet and takes only the first of its segments (`tbf_segment`
    /// in net/sched/sch_tbf.c tells of a packet well taken).
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        let qdiscs = self.netlink.qdiscs(self.index)?;
        let leaves = qdiscs.iter().filter(|q| q.parent.major() == MAJOR);
        Ok(leaves.map(|q| (q.parent.minor(), q.counters.drops)).collect())
    }

    /// Puts device and root back if someone removed them. True if the device is a new one,
    /// to which the programs must be told to send.
    ///
    /// # Errors
    /// [`EngineError`] as in [`open`](Htb::open).
    pub fn rebuild(&mut self) -> Result<bool, EngineError> {
        let (index, _) = device(&mut self.netlink, &self.link)?;
        let is_new = index != self.index;
        self.index = index;
        self.root()?;
        self.adopt()?;
        Ok(is_new)
    }

    /// Sets the device up if someone set it down, which drops all that is sent to it. True
    /// if so. A device that is gone is for [`measure`](Htb::measure) to find.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn wake(&mut self) -> Result<bool, EngineError> {
        match self.netlink.link(DEVICE) {
            Ok(found) if found.index == self.index && !found.up => {
                self.netlink.set_up(found.index, DEVICE)?;
                Ok(true)
            }
            Err(e) if !e.is_gone() => Err(e.into()),
            _ => Ok(false),
        }
    }

    /// Bytes that wait in all queues.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn backlog(&mut self) -> Result<u64, EngineError> {
        self.netlink.htb_classes(self.index, &mut self.found)?;
        // Inner classes count their members' packets too; leaves are those with a queue.
        Ok(self.found.iter().filter(|f| f.leaf.0 != 0).map(|f| f.counters.backlog).sum())
    }

    /// Removes device and tree.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn remove(&mut self) -> Result<(), EngineError> {
        Ok(self.netlink.delete_link(self.index, &self.device)?)
    }
}

/// The index of the scheduler's device, found if it is weir's, or made: then true.
fn device(netlink: &mut Netlink, link: &str) -> Result<(u32, bool), EngineError> {
    match netlink.link(DEVICE) {
        Ok(found)
            if found.kind.as_deref() == Some("ifb")
                && found.alias.as_deref().is_some_and(|a| a.starts_with(ALIAS)) =>
        {
            if !found.up {
                netlink.set_up(found.index, DEVICE)?;
            }
            Ok((found.index, false))
        }
        Ok(_) => Err(EngineError::NameTaken { name: DEVICE.to_owned() }),
        Err(NetlinkError::Refused { errno: nix::errno::Errno::ENODEV, .. }) => {
            Ok((netlink.add_ifb(DEVICE, &format!("{ALIAS}{link}"))?, true))
        }
        Err(e) => Err(e.into()),
    }
}
