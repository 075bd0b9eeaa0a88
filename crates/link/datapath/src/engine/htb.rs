//! The scheduler: HTB on one ifb through which all traffic of the link passes.
//!
//! The same code sets up a fresh node, adopts the tree of an agent that died, and repairs
//! what someone altered: it compares what should be with what the kernel says is there.

use std::{collections::BTreeMap, time::Instant};

use weir_bpf::SparseFlows;
use weir_netlink::{
    Request,
    tc::{self, FoundClass, HtbClass, Leaf},
};
use weir_units::{LinkHeader, TcHandle};

use super::{
    Attachments, DEFAULT, Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process,
    Uplink, framed::LineCounts, ifb::Ifb, plan::KeptPlan, sparse::SparseQueues, tree, weight::Scales,
};

/// The HTB engine's half of the kernel.
pub struct Htb {
    ifb: Ifb,
    /// The last written values, by minor.
    applied: BTreeMap<u16, tree::Node>,
    /// Last dump; kept for its memory.
    found: Vec<FoundClass>,
    /// The last plan.
    plan: Option<KeptPlan>,
    packets: tree::Packets,
    /// The wanted tree, its rates in bytes of the uplink.
    nodes: Vec<tree::Node>,
    corrections: tree::Corrections,
    opened: Instant,
    /// The ratio of HTB's bytes to the uplink's. A download has none.
    scales: Option<Scales>,
    /// Queues in which sparse flows go first.
    sparse: SparseQueues,
    /// The uplink's packets have no Ethernet header.
    lacks_ethernet: bool,
    /// The header that tc counts of each packet.
    header: LinkHeader,
    /// The bytes of each class on the line, where its framing is known.
    framed: Option<LineCounts>,
    /// Classes keep the rates of an earlier agent.
    holds: bool,
    writes: u64,
}

impl Htb {
    /// Creates the ifb with an empty HTB, or adopts the one an earlier agent left.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or HTB in this kernel, missing rights, the name taken.
    pub fn open(uplink: Uplink<'_>, attachments: &Attachments) -> Result<Htb, EngineError> {
        let mut ifb = Ifb::open(uplink, 1)?;
        let lacks_ethernet = ifb.lacks_ethernet(uplink.device);
        let scales = Scales::new(attachments.classifier().weights()?);
        let sparse = SparseQueues::of_upload(attachments.classifier().sparse_flows()?);
        let htb = Htb::on(ifb, Some(scales), sparse, LinkHeader::Ethernet)?;
        Ok(Htb { lacks_ethernet, ..htb })
    }

    /// The same for what arrives by a link. Its packets are as the uplink carries them.
    ///
    /// # Errors
    /// As [`open`](Htb::open).
    pub fn open_download(uplink: Uplink<'_>, flows: SparseFlows) -> Result<Htb, EngineError> {
        let mut ifb = Ifb::open_download(uplink)?;
        let header = ifb.header(uplink.device);
        Htb::on(ifb, None, SparseQueues::of_download(flows), header)
    }

    fn on(
        ifb: Ifb,
        scales: Option<Scales>,
        sparse: SparseQueues,
        header: LinkHeader,
    ) -> Result<Htb, EngineError> {
        let mut htb = Htb {
            ifb,
            applied: BTreeMap::new(),
            found: Vec::new(),
            plan: None,
            packets: tree::Packets::default(),
            nodes: Vec::new(),
            corrections: tree::Corrections::default(),
            opened: Instant::now(),
            scales,
            sparse,
            lacks_ethernet: false,
            header,
            framed: None,
            holds: false,
            writes: 0,
        };
        match htb.root().and_then(|()| htb.adopt()) {
            Ok(()) => Ok(htb),
            Err(error) => {
                htb.undo();
                Err(error)
            }
        }
    }

    fn root(&mut self) -> Result<(), EngineError> {
        let ours = TcHandle::new(MAJOR, 0);
        match self.ifb.root()? {
            Some(root) if root.kind == "htb" && root.handle == ours => return Ok(()),
            // The qdisc is of another engine or program: the device is weir's.
            Some(root) => {
                let delete = tc::delete_qdisc(self.ifb.index, &self.ifb.name, root.handle, TcHandle::ROOT);
                self.ifb.netlink.call(delete)?;
            }
            None => {}
        }
        Ok(self.ifb.netlink.call(tc::add_htb(
            self.ifb.index,
            &self.ifb.name,
            ours,
            TcHandle::ROOT,
            DEFAULT,
        ))?)
    }

    /// Takes over classes that are there, so that they are changed in place, not remade.
    fn adopt(&mut self) -> Result<(), EngineError> {
        self.dump()?;
        self.applied = self
            .found
            .iter()
            .map(|f| (f.class.handle.minor(), tree::Node { class: f.class, leaf: None }))
            .collect();
        let leaves = self.found.iter().filter(|f| f.leaf.0 != 0).map(|f| f.class.handle.minor());
        self.sparse.adopt(&mut self.ifb, leaves)
    }

    fn dump(&mut self) -> Result<(), EngineError> {
        let ours = TcHandle::new(MAJOR, 0);
        Ok(self.ifb.netlink.htb_classes(self.ifb.index, ours, &mut self.found)?)
    }

    fn hold(&self, wanted: &mut [tree::Node]) {
        if !self.ifb.is_new {
            tree::hold(wanted, |minor| self.applied.get(&minor).map(|n| n.class));
        }
    }

    /// Builds the wanted tree from the last plan and from what is known of packets.
    fn build(&mut self) {
        let Some(plan) = self.plan.as_ref().map(KeptPlan::plan) else { return };
        tree::build(&plan, &self.packets, &mut self.nodes);
        self.corrections.follow(&plan, &self.nodes, self.holds);
    }

    /// Takes the counts of the last dump. Returns whether a class sends packets of another length.
    fn look_at_packets(&mut self, now: weir_units::Instant) -> bool {
        let mut is_other = false;
        for found in self.found.iter().filter(|found| found.leaf.0 != 0) {
            is_other |=
                self.packets.look(found.class.handle.minor(), found.counters.bytes, found.served, now);
        }
        let applied = &self.applied;
        self.packets.retain(|minor| applied.contains_key(&minor));
        is_other
    }

    /// Makes the kernel's tree the wanted one, in HTB's own bytes.
    fn enforce(&mut self) -> Result<usize, EngineError> {
        let mut wanted = self.nodes.clone();
        self.corrections.correct(&mut wanted);
        if let Some(scales) = &self.scales {
            wanted.iter_mut().for_each(|node| scales.scale_to_htb(node));
        }
        if self.holds {
            self.hold(&mut wanted);
        }
        let written = self.write(&wanted)?;
        self.sparse.follow(&wanted)?;
        Ok(written)
    }

    /// Makes the kernel's tree the given one; writes only what differs.
    fn write(&mut self, wanted: &[tree::Node]) -> Result<usize, EngineError> {
        let mut requests: Vec<Request> = Vec::new();
        let mut touched: Vec<(u16, Option<tree::Node>)> = Vec::new();
        let minors: BTreeMap<u16, &tree::Node> = wanted.iter().map(|n| (n.class.handle.minor(), n)).collect();
        // A class cannot move in the tree: it is removed and made again. Members go before groups.
        let root = TcHandle::new(MAJOR, super::ROOT);
        let stale = |class: &HtbClass| {
            minors.get(&class.handle.minor()).is_none_or(|n| n.class.parent != class.parent)
        };
        let mut gone: Vec<HtbClass> = self.applied.values().map(|n| n.class).filter(|c| stale(c)).collect();
        gone.sort_by_key(|c| (c.parent == root, c.handle.minor() == super::ROOT));
        for class in &gone {
            requests.push(tc::delete_class(self.ifb.index, &self.ifb.name, class.handle));
            touched.push((class.handle.minor(), None));
        }
        let removals = requests.len();
        for node in wanted {
            let minor = node.class.handle.minor();
            let old =
                self.applied.get(&minor).filter(|_| !gone.iter().any(|c| c.handle == node.class.handle));
            if old.is_none_or(|o| tree::differs(&o.class, &node.class)) {
                requests.push(tc::set_class(self.ifb.index, &self.ifb.name, &node.class));
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
        let results = self.ifb.netlink.batch(&requests);
        let mut first_error = None;
        let mut written = 0;
        let mut made = Vec::new();
        for (i, (result, (minor, node))) in results.into_iter().zip(touched).enumerate() {
            match (result, node) {
                (Ok(()), Some(node)) => {
                    written += 1;
                    let old = self.applied.insert(minor, node).and_then(|old| old.leaf);
                    let leaf = node.leaf.filter(|leaf| old != Some(*leaf) && node.class.prio > 0);
                    made.extend(leaf.map(|leaf| (minor, leaf)));
                }
                (Ok(()), None) => {
                    written += 1;
                    self.forget(minor);
                }
                (Err(e), None) if i < removals && e.is_gone() => self.forget(minor),
                (Err(e), _) => {
                    // The next call writes the class again, in any case.
                    if let Some(applied) = self.applied.get_mut(&minor) {
                        applied.leaf = None;
                        applied.class.ceil = weir_units::BitRate::ZERO;
                    }
                    first_error.get_or_insert(e);
                }
            }
        }
        self.sparse.furnish(&mut self.ifb, &made);
        self.writes += written as u64;
        match first_error {
            Some(error) => Err(error.into()),
            None => Ok(written),
        }
    }

    /// A class is gone.
    fn forget(&mut self, minor: u16) {
        self.applied.remove(&minor);
        self.sparse.lose(minor);
    }

    /// The queue of a class is not what it was, and is to be made again.
    fn lose_leaf(&mut self, minor: u16) {
        if let Some(node) = self.applied.get_mut(&minor) {
            node.leaf = None;
        }
        self.sparse.lose(minor);
    }

    /// The leaf qdisc of class `1:n` is `n:`.
    fn leaf(&self, class: TcHandle, leaf: Leaf) -> Request {
        tc::set_leaf(self.ifb.index, &self.ifb.name, class, TcHandle::new(class.minor(), 0), leaf)
    }
}

impl Engine for Htb {
    fn kind(&self) -> EngineKind {
        EngineKind::Htb
    }

    fn place(&self) -> Place {
        Place::Queue(self.ifb.index)
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    /// Writes only what differs. An agent that has taken over and does not yet know who sends
    /// leaves classes at the rates and turns they have; ceilings and the whole link's class
    /// are as wanted.
    fn apply(&mut self, plan: &Plan<'_>, hold: bool) -> Result<usize, EngineError> {
        let shape = plan.shape.with_header(self.header);
        LineCounts::follow(&mut self.framed, shape.framing);
        if let Some(scales) = &mut self.scales {
            scales.follow(self.lacks_ethernet || shape.has_tunnels);
        }
        self.plan = Some(KeptPlan::of(&Plan { shape: &shape, ..*plan }));
        self.holds = hold;
        self.build();
        self.enforce()
    }

    /// One dump tells the counters and whether someone else changed the tree: what was
    /// altered is forgotten, so that the next [`apply`](Engine::apply) writes it.
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        self.dump()?;
        let mut drift = 0;
        let mut seen = 0;
        let (is_filter_new, mut lost) = self.sparse.patrol(&mut self.ifb)?;
        for found in &self.found {
            let minor = found.class.handle.minor();
            let mut counters = found.counters;
            if let Some(scales) = &mut self.scales {
                counters = scales.count_on_link(minor, counters);
            }
            if let Some(framed) = &mut self.framed {
                counters.bytes = framed.count(minor, &counters);
            }
            out.push(Measured { minor, counters });
            let Some(node) = self.applied.get_mut(&minor) else {
                // The class is not weir's: the next occasion removes it.
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
                // Some kernels (6.1) keep the first quantum of an inner class, which uses none.
                || (node.leaf.is_some() && is.quantum != set.quantum)
                || is.prio != set.prio
                || is.framing != set.framing
            {
                node.class = HtbClass { cburst: weir_units::Bytes(0), ..found.class };
                drift += 1;
            }
            if node.leaf.is_some() && found.leaf != TcHandle::new(minor, 0) {
                lost.push(minor);
            }
        }
        drift += lost.len() + usize::from(is_filter_new);
        lost.into_iter().for_each(|minor| self.lose_leaf(minor));
        if seen < self.applied.len() {
            let found: std::collections::BTreeSet<u16> =
                self.found.iter().map(|f| f.class.handle.minor()).collect();
            let gone: Vec<u16> =
                self.applied.keys().copied().filter(|minor| !found.contains(minor)).collect();
            drift += gone.len();
            gone.into_iter().for_each(|minor| self.forget(minor));
        }
        let now = weir_units::Instant(self.opened.elapsed());
        let is_rebuilt = self.look_at_packets(now);
        if is_rebuilt {
            self.build();
        }
        let is_corrected = self.corrections.look(out, now);
        let is_rescaled = match &mut self.scales {
            Some(scales) => scales.look(&self.nodes)?,
            None => false,
        };
        if (is_corrected || is_rescaled || is_rebuilt) && drift == 0 && !self.holds {
            self.enforce()?;
        }
        Ok(drift)
    }

    /// HTB's own count lacks the drops of a queue that splits a super-packet and takes only the
    /// first of its segments (`tbf_segment` in net/sched/sch_tbf.c tells of a packet well taken).
    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        let qdiscs = self.ifb.netlink.qdiscs(self.ifb.index)?;
        let leaves = qdiscs.iter().filter(|q| q.parent.major() == MAJOR);
        Ok(leaves.map(|q| (q.parent.minor(), q.counters.drops)).collect())
    }

    fn remove(&mut self) -> Result<(), EngineError> {
        self.ifb.remove()
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }

    fn process(&mut self) -> Option<&mut dyn Process> {
        None
    }
}

impl Device for Htb {
    fn name(&self) -> &str {
        &self.ifb.name
    }

    fn index(&self) -> u32 {
        self.ifb.index
    }

    fn rebuild(&mut self) -> Result<bool, EngineError> {
        let is_new = self.ifb.rebuild()?;
        self.root()?;
        self.adopt()?;
        Ok(is_new)
    }

    fn wake(&mut self) -> Result<bool, EngineError> {
        self.ifb.wake()
    }

    fn backlog(&mut self) -> Result<u64, EngineError> {
        self.dump()?;
        // Inner classes count their members' packets too; leaves are those with a queue.
        Ok(self.found.iter().filter(|f| f.leaf.0 != 0).map(|f| f.counters.backlog).sum())
    }
}

impl Htb {
    /// Takes back what opening did: removes the device unless it was there before.
    fn undo(mut self) {
        if self.ifb.is_new
            && let Err(error) = self.remove()
        {
            tracing::warn!("cannot take back the scheduler: {error}");
        }
    }
}
