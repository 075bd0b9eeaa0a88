//! The queues of HTB's classes in which sparse flows go first.
//!
//! The queue of a class is first in, first out. Below the TBF of class `1:n` is another HTB, `8000|n:`, with one class
//! that never holds back. Its direct queue goes first, and has the packets that the classifier chooses (`sparse.h`).
//! Nothing changes for other classes. Of what arrives, filters tell both HTBs what the classifier has said.
//!
//! A queue that an earlier agent made without it stays as it is until the class is made again: packets that
//! wait would be lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use weir_bpf::SparseFlows;
use weir_netlink::{
    NetlinkError, Request,
    tc::{self, HtbClass, Leaf, Qdisc},
};
use weir_units::{BitRate, Bytes, RateFraming, TcHandle};

use super::{EngineError, MAJOR, ifb::Ifb, tree};

/// Priority of the filters. The agent before them has one at 1, which it puts back after a downgrade.
const PREF: u16 = 2;
/// The class of all other packets inside a queue.
const REST: u16 = 1;
/// Major of a queue's own queue, beside the minor of the class.
const FIFO: u16 = 0x4000;
/// The time between two looks at the filter and the queues. Together with a tick it is less than the second within
/// which damage is repaired.
const PATROL: Duration = Duration::from_millis(650);
/// A rate that moves by less than one part in this number is not written.
const GRAIN: u64 = 8;

/// The queues of the classes of one HTB.
pub(super) struct SparseQueues {
    flows: SparseFlows,
    /// Classes whose queue has one inside that goes first.
    there: BTreeSet<u16>,
    /// Classes whose queue an earlier agent made without it.
    plain: BTreeSet<u16>,
    /// The rates that the classifier knows.
    rates: BTreeMap<u16, BitRate>,
    /// The classifier's programs lead to one scheduler alone.
    is_download: bool,
    /// The name of the scheduler for the classifier.
    device: u32,
    patrolled: Instant,
}

impl SparseQueues {
    pub(super) fn of_upload(flows: SparseFlows) -> SparseQueues {
        SparseQueues::new(flows, false)
    }

    pub(super) fn of_download(flows: SparseFlows) -> SparseQueues {
        SparseQueues::new(flows, true)
    }

    fn new(flows: SparseFlows, is_download: bool) -> SparseQueues {
        SparseQueues {
            flows,
            is_download,
            there: BTreeSet::new(),
            plain: BTreeSet::new(),
            rates: BTreeMap::new(),
            device: 0,
            patrolled: Instant::now(),
        }
    }

    /// Takes over the queues that are there. `classes`: those that have one.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn adopt(
        &mut self,
        ifb: &mut Ifb,
        classes: impl Iterator<Item = u16>,
    ) -> Result<(), EngineError> {
        self.forget_all();
        self.device = if self.is_download { SparseFlows::DOWNLOAD } else { ifb.index };
        self.set_filter(ifb)?;
        let qdiscs = ifb.netlink.qdiscs(ifb.index)?;
        for minor in classes {
            if is_whole(&qdiscs, minor) {
                self.there.insert(minor);
            } else if !qdiscs.iter().any(|q| q.handle == inner(minor)) {
                self.plain.insert(minor);
            }
        }
        let filters: Vec<Request> =
            self.there.iter().filter_map(|minor| self.first_filter(ifb, *minor)).collect();
        if let Err(error) = ifb.netlink.batch(&filters).into_iter().collect::<Result<(), _>>() {
            tracing::warn!("small flows wait behind large ones of their class: {error}");
        }
        Ok(())
    }

    fn set_filter(&self, ifb: &mut Ifb) -> Result<(), EngineError> {
        let program = (self.flows.class_filter(), SparseFlows::CLASS_FILTER);
        let root = TcHandle::new(MAJOR, 0);
        Ok(ifb.netlink.call(tc::set_class_filter(ifb.index, &ifb.name, root, PREF, program))?)
    }

    /// The filter at the HTB in a class's queue of the download. The upload's packets need none: their priority is
    /// the handle of that HTB, or not.
    fn first_filter(&self, ifb: &Ifb, minor: u16) -> Option<Request> {
        let program = (self.flows.first_filter(), SparseFlows::FIRST_FILTER);
        self.is_download.then(|| tc::set_class_filter(ifb.index, &ifb.name, inner(minor), PREF, program))
    }

    /// The queue of a class is gone, and with it what was inside.
    pub(super) fn lose(&mut self, minor: u16) {
        self.there.remove(&minor);
        self.plain.remove(&minor);
    }

    /// Furnishes queues that were made, and gives those that are furnished their limits.
    pub(super) fn furnish(&mut self, ifb: &mut Ifb, leaves: &[(u16, Leaf)]) {
        for (minor, leaf) in leaves {
            let Leaf::Split { limit, .. } = *leaf else {
                self.lose(*minor);
                continue;
            };
            if *minor >= FIFO || self.plain.contains(minor) {
                continue;
            }
            let result = match self.there.contains(minor) {
                true => ifb.netlink.call(fifo(ifb, *minor, limit)),
                false => self.furnish_one(ifb, *minor, limit),
            };
            match result {
                Ok(()) => {
                    self.there.insert(*minor);
                }
                Err(error) => {
                    tracing::warn!("small flows of class 1:{minor:x} wait behind large ones: {error}")
                }
            }
        }
    }

    /// Puts into a class's queue what belongs inside, or what of that is missing.
    fn furnish_one(&self, ifb: &mut Ifb, minor: u16, limit: Bytes) -> Result<(), NetlinkError> {
        let mut requests = inside(ifb, minor, limit).to_vec();
        requests.extend(self.first_filter(ifb, minor));
        // The kernel refuses the first one where it is there, and the others where it is not.
        ifb.netlink.batch(&requests).into_iter().skip(1).collect()
    }

    /// Tells the classifier the rates of classes.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn follow(&mut self, nodes: &[tree::Node]) -> Result<(), EngineError> {
        let wanted: BTreeMap<u16, (BitRate, Bytes)> = nodes
            .iter()
            .filter_map(|node| match node.leaf {
                Some(Leaf::Split { limit, .. }) if node.class.prio > 0 => {
                    Some((node.class.handle.minor(), (node.class.rate, limit)))
                }
                _ => None,
            })
            .filter(|(minor, _)| self.there.contains(minor))
            .collect();
        for (minor, (rate, limit)) in &wanted {
            let is_near = |old: &BitRate| old.0.abs_diff(rate.0) <= old.0 / GRAIN;
            if !self.rates.get(minor).is_some_and(is_near) {
                self.flows.set(self.device, TcHandle::new(MAJOR, *minor).0, rate.bytes_per_sec(), limit.0)?;
                self.rates.insert(*minor, *rate);
            }
        }
        let gone: Vec<u16> = self.rates.keys().copied().filter(|minor| !wanted.contains_key(minor)).collect();
        for minor in gone {
            self.flows.forget(self.device, TcHandle::new(MAJOR, minor).0)?;
            self.rates.remove(&minor);
        }
        Ok(())
    }

    /// Puts back a filter that someone removed. Returns whether it did, and the classes whose queues lack what was
    /// inside.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn patrol(&mut self, ifb: &mut Ifb) -> Result<(bool, Vec<u16>), EngineError> {
        if self.patrolled.elapsed() < PATROL {
            return Ok((false, Vec::new()));
        }
        self.patrolled = Instant::now();
        let filters = ifb.netlink.filters_of(ifb.index, TcHandle::new(MAJOR, 0))?;
        let is_there = filters.iter().any(|f| f.bpf_name.as_deref() == Some(SparseFlows::CLASS_FILTER));
        // Without the root, which is made again next, there is no place for it.
        if !is_there && let Err(error) = self.set_filter(ifb) {
            tracing::debug!("{error}");
        }
        let qdiscs = ifb.netlink.qdiscs(ifb.index)?;
        let lost = self.there.iter().copied().filter(|minor| !is_whole(&qdiscs, *minor));
        Ok((!is_there, lost.collect()))
    }

    fn forget_all(&mut self) {
        for minor in std::mem::take(&mut self.rates).into_keys() {
            if let Err(error) = self.flows.forget(self.device, TcHandle::new(MAJOR, minor).0) {
                tracing::warn!("{error}");
            }
        }
        self.there.clear();
        self.plain.clear();
    }
}

/// The handle of the HTB in a class's queue.
fn inner(minor: u16) -> TcHandle {
    TcHandle::new(SparseFlows::MAJOR | minor, 0)
}

/// Whether a class's queue has all that belongs inside.
fn is_whole(qdiscs: &[Qdisc], minor: u16) -> bool {
    let inner = inner(minor);
    let is_there = |handle: TcHandle, parent: TcHandle, kind: &str| {
        qdiscs.iter().any(|q| q.handle == handle && q.parent == parent && q.kind == kind)
    };
    is_there(inner, TcHandle::new(minor, 1), "htb")
        && is_there(TcHandle::new(FIFO | minor, 0), TcHandle::new(inner.major(), REST), "bfifo")
}

/// The HTB inside the queue of a class, its class and its queue.
fn inside(ifb: &Ifb, minor: u16, limit: Bytes) -> [Request; 3] {
    // It never holds back: a full packet takes 12 ns, and a burst of many is free.
    const NEVER_BINDS: BitRate = BitRate::gbit(1000);
    const BURST: Bytes = Bytes(16 << 20);
    let inner = inner(minor);
    let rest = HtbClass {
        handle: TcHandle::new(inner.major(), REST),
        parent: inner,
        rate: NEVER_BINDS,
        ceil: NEVER_BINDS,
        burst: BURST,
        cburst: BURST,
        quantum: Bytes(65_536),
        prio: 0,
        framing: RateFraming::default(),
    };
    [
        tc::add_htb(ifb.index, &ifb.name, inner, TcHandle::new(minor, 1), REST),
        tc::set_class(ifb.index, &ifb.name, &rest),
        fifo(ifb, minor, limit),
    ]
}

/// The queue of all other packets.
fn fifo(ifb: &Ifb, minor: u16, limit: Bytes) -> Request {
    let rest = TcHandle::new(inner(minor).major(), REST);
    tc::set_leaf(ifb.index, &ifb.name, rest, TcHandle::new(FIFO | minor, 0), Leaf::Fifo { limit })
}
