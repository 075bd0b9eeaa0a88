//! The scheduler as a BPF qdisc at the root of the ifb (`weir_bpf::fair`): it divides the link by
//! policy itself, packet by packet, so that allocations mean nothing to it and a change of who sends
//! needs no agent.
//!
//! Parameters and counters are a map in this process's memory. The qdisc keeps that map alive, so
//! an agent that starts again finds it, and goes on with queues, clocks and counters as they are.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use weir_bpf::{
    attach,
    fair::{Fair, Faults, LinkParams, Mode, Params},
};
use weir_netlink::tc::{self, Counters};
use weir_share::Policy;
use weir_units::{BitRate, Bytes, LinkHeader, TcHandle};

use super::{
    Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process, ROOT, Uplink, ifb::Ifb,
    plan::Shape,
};

/// A wake-up may be so late without loss of rate.
const BURST_NS: u64 = 1_000_000;
/// RFC 8289's target and interval.
const CODEL_TARGET_US: u32 = 5_000;
const CODEL_INTERVAL_US: u32 = 100_000;
/// A target that no packet waits for: 1,000 s.
const NO_CODEL_US: u32 = 1_000_000_000;
/// The largest super-packet: small packets may go ahead by the time that one takes.
const SUPER_PACKET: Bytes = Bytes(65_536 + 44 * 66 + 8 * 1_514);
/// No class with a share worth mentioning waits as long.
const STALL_TIMEOUT: Duration = Duration::from_millis(400);
/// Ethernet's header, with a VLAN tag.
const TAGGED_HEADER: u32 = 18;

/// The BPF engine's half of the kernel.
pub struct BpfQdisc {
    ifb: Ifb,
    netns: u64,
    mode: Mode,
    /// The header that tc counts of the uplink's packets.
    header: LinkHeader,
    /// None only while it is remade.
    fair: Option<Fair>,
    link: Option<LinkParams>,
    told: BTreeMap<u16, Params>,
    /// Since when which bytes of a class have waited without any being sent, and what its share is.
    waiting: BTreeMap<u16, Waiting>,
    faults: Faults,
    writes: u64,
}

/// A class that has not sent since a moment.
struct Waiting {
    since: Instant,
    bytes: u64,
    share: BitRate,
}

impl Waiting {
    /// It should have sent some super-packets by now, and has sent nothing: a damaged clock, or
    /// a queue that is in no list any more.
    fn too_long(&self) -> bool {
        self.share.bytes_in(self.since.elapsed()) > Bytes(4 * SUPER_PACKET.0)
            && self.since.elapsed() > STALL_TIMEOUT
    }
}

impl BpfQdisc {
    /// Creates the ifb with the qdisc, or takes over the one an earlier agent left.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or BPF qdiscs in this kernel, missing rights, the name taken.
    pub fn open(uplink: Uplink<'_>, mode: Mode) -> Result<BpfQdisc, EngineError> {
        if let Some(why) = Fair::lacking() {
            return Err(EngineError::Lacking { engine: EngineKind::of(mode), why });
        }
        let netns = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
        let mut ifb = Ifb::open(uplink, 1)?;
        let header = ifb.header(uplink.device);
        let mut engine = BpfQdisc {
            ifb,
            netns,
            mode,
            header,
            fair: None,
            link: None,
            told: BTreeMap::new(),
            waiting: BTreeMap::new(),
            faults: Faults::default(),
            writes: 0,
        };
        match engine.root() {
            Ok(()) => Ok(engine),
            Err(error) => {
                engine.undo();
                Err(error)
            }
        }
    }

    /// Takes over the qdisc at the root if it is weir's and at work; else puts one there.
    fn root(&mut self) -> Result<(), EngineError> {
        let (ours, index) = (TcHandle::new(MAJOR, 0), self.ifb.index);
        self.fair = None;
        self.link = None;
        self.told.clear();
        if let Some(root) = self.ifb.root()? {
            if root.kind == Fair::kind_of(self.netns, index)
                && root.handle == ours
                && let Some(fair) = Fair::find(self.netns, index, self.mode)?
            {
                self.faults = fair.faults();
                self.fair = Some(fair);
                return Ok(());
            }
            // The qdisc is of another engine, another layout or another program: the device is
            // weir's.
            let delete = tc::delete_qdisc(index, &self.ifb.name, root.handle, TcHandle::ROOT);
            self.ifb.netlink.call(delete)?;
        }
        let fair = Fair::load(self.netns, index, self.mode)?;
        self.ifb.netlink.call(tc::add_root(index, &self.ifb.name, ours, fair.kind()))?;
        self.mark(&fair)?;
        self.faults = fair.faults();
        self.fair = Some(fair);
        Ok(())
    }

    /// Takes away the program that marks packets, and with it the maps it holds, from a device
    /// that another engine uses now.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn retire(index: u32, device: &str) -> Result<(), EngineError> {
        let refused = |errno| refused(device, errno);
        // A kernel without TCX has no BPF qdiscs either.
        let ids = attach::tcx_egress(index).unwrap_or_default();
        for id in attach::named(ids, &[Fair::MARK_PROGRAM]).map_err(refused)? {
            attach::detach_tcx_egress(id, index).map_err(refused)?;
        }
        Ok(())
    }

    /// Attaches the program that marks packets, in the place of an earlier one.
    fn mark(&self, fair: &Fair) -> Result<(), EngineError> {
        let index = self.ifb.index;
        let result = attach::tcx_egress(index).and_then(|ids| {
            let old = attach::named(ids, &[Fair::MARK_PROGRAM])?.first().copied();
            fair.mark_program().map_or(Ok(()), |program| attach::attach_tcx_egress(&program, index, old))
        });
        result.map_err(|errno| refused(&self.ifb.name, errno))
    }

    /// The whole link: all classes, without the groups that count their members.
    fn whole(&self, measured: &[Measured]) -> Counters {
        let classes = measured.iter().filter(|m| !self.told.get(&m.minor).is_some_and(|p| p.is_group));
        classes.fold(Counters::default(), |sum, Measured { counters: c, .. }| Counters {
            bytes: sum.bytes.saturating_add(c.bytes),
            packets: sum.packets.saturating_add(c.packets),
            drops: sum.drops.saturating_add(c.drops),
            backlog: sum.backlog.saturating_add(c.backlog),
            queued: sum.queued.saturating_add(c.queued),
            overlimits: sum.overlimits.saturating_add(c.overlimits),
        })
    }

    fn fair(&self) -> Result<&Fair, EngineError> {
        let gone = || EngineError::Lacking {
            engine: EngineKind::of(self.mode),
            why: "its qdisc could not be put back".into(),
        };
        self.fair.as_ref().ok_or_else(gone)
    }
}

fn refused(device: &str, errno: Errno) -> EngineError {
    EngineError::Attach { device: device.to_owned(), how: "tcx", errno, hint: "" }
}

/// The qdisc's parameters of the link.
fn link_params(shape: &Shape, header: LinkHeader, mode: Mode) -> LinkParams {
    let framing = shape.with_header(header).framing;
    let small = shape.mtu.min(1_500) + TAGGED_HEADER;
    let sparse = shape.capacity.time_to_send(SUPER_PACKET).as_nanos();
    let params = LinkParams {
        mode,
        bytes_per_sec: shape.capacity.bytes_per_sec(),
        burst_ns: BURST_NS,
        sparse_ns: u64::try_from(sparse).unwrap_or(u64::MAX),
        small_bytes: framing
            .map_or(small, |framing| u32::try_from(framing.line_bytes(small.into())).unwrap_or(u32::MAX)),
        codel_target_us: CODEL_TARGET_US,
        codel_interval_us: CODEL_INTERVAL_US,
        framing: framing.into(),
    };
    match mode {
        Mode::Fair | Mode::Credit => params,
        // The paper's queues are plain: no packet goes ahead, and no queue is kept short.
        Mode::Paper => LinkParams { sparse_ns: 0, small_bytes: 0, codel_target_us: NO_CODEL_US, ..params },
    }
}

/// The qdisc's parameters of a class or group. Rates that the whole link could not exceed are left
/// out.
fn params(shape: &Shape, policy: &Policy, group: Option<u16>) -> Params {
    let ceil = policy.ceiling().min(shape.capacity);
    Params {
        weight: policy.weight().get(),
        floor_bytes_per_sec: policy.floor().min(ceil).bytes_per_sec(),
        ceil_bytes_per_sec: if ceil < shape.capacity { ceil.bytes_per_sec() } else { 0 },
        group: group.unwrap_or(0),
        limit_bytes: u32::try_from(shape.queue_limit(ceil).0).unwrap_or(u32::MAX),
        is_group: false,
        is_urgent: false,
        is_present: true,
    }
}

/// All that the qdisc is told of classes and groups, by minor.
fn all_params(plan: &Plan<'_>) -> BTreeMap<u16, Params> {
    let Plan { shape, groups, members } = *plan;
    let mut all = BTreeMap::new();
    for group in groups {
        all.insert(group.minor, Params { is_group: true, ..params(shape, &group.policy, None) });
    }
    for member in members {
        let group = member.group.map(|g| groups[g].minor);
        let is_urgent = member.prio == 0;
        let mut params = Params { is_urgent, ..params(shape, &member.policy, group) };
        if is_urgent {
            let limit = shape.urgent_limit(member.policy.ceiling().min(shape.capacity));
            params.limit_bytes = u32::try_from(limit.0).unwrap_or(u32::MAX);
        }
        all.insert(member.minor, params);
    }
    all
}

impl Engine for BpfQdisc {
    fn kind(&self) -> EngineKind {
        EngineKind::of(self.mode)
    }

    fn place(&self) -> Place {
        Place::Queue(self.ifb.index)
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    /// Compares with what is in the map, not with what was written: so that the same call sets
    /// up, takes over and repairs.
    fn apply(&mut self, plan: &Plan<'_>, _hold: bool) -> Result<usize, EngineError> {
        let wanted = all_params(plan);
        if let Some((&minor, _)) = wanted.range(Fair::ENTITIES..).next() {
            return Err(EngineError::NoRoom { minor, room: Fair::ENTITIES });
        }
        let link = link_params(plan.shape, self.header, self.mode);
        let fair = self.fair()?;
        let mut written = usize::from(fair.set_link(&link));
        // Groups first: a class must not be sent to one that is not there yet.
        for is_group in [true, false] {
            for (&minor, params) in wanted.iter().filter(|(_, p)| p.is_group == is_group) {
                if !fair.is(minor, params) {
                    fair.set(minor, params);
                    written += 1;
                }
            }
        }
        for minor in (0..Fair::ENTITIES).filter(|m| !wanted.contains_key(m)) {
            if fair.is_present(minor) {
                fair.set(minor, &Params::default());
                written += 1;
            }
        }
        self.link = Some(link);
        self.told = wanted;
        for member in plan.members {
            let waiting = Waiting { since: Instant::now(), bytes: 0, share: BitRate::ZERO };
            self.waiting.entry(member.minor).or_insert(waiting).share = member.allocation;
        }
        self.waiting.retain(|minor, _| self.told.contains_key(minor));
        self.writes += written as u64;
        Ok(written)
    }

    /// No system call: all of it is in this process's memory.
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        let fair = self.fair()?;
        if !fair.is_live() {
            return Ok(0);
        }
        out.extend(self.told.keys().map(|&minor| Measured { minor, counters: counters(fair, minor) }));
        out.push(Measured { minor: ROOT, counters: self.whole(out) });
        let altered = self.told.iter().filter(|(minor, params)| !fair.is(**minor, params)).count();
        let link_altered = self.link.as_ref().is_some_and(|link| !fair.link_is(link));
        let strangers = (0..Fair::ENTITIES)
            .filter(|minor| fair.is_present(*minor) && !self.told.contains_key(minor))
            .count();
        let faults = fair.faults();
        let flushes = faults.flushes.wrapping_sub(self.faults.flushes);
        if flushes > 0 {
            tracing::warn!("the scheduler's state was damaged: {flushes} times all queues were emptied");
        }
        self.faults = faults;
        let fair = self.fair.as_ref();
        for Measured { minor, counters } in out.iter() {
            let Some(waiting) = self.waiting.get_mut(minor) else { continue };
            if counters.queued == 0 || counters.bytes != waiting.bytes {
                (waiting.since, waiting.bytes) = (Instant::now(), counters.bytes);
            } else if waiting.too_long() {
                tracing::warn!("class 1:{minor:x} waits in the scheduler for ever: all queues are emptied");
                waiting.since = Instant::now();
                fair.iter().for_each(|fair| fair.flush());
            }
        }
        // An agent that has just taken over knows no sender yet.
        let strangers = if self.link.is_some() { strangers } else { 0 };
        Ok(altered + usize::from(link_altered) + strangers + usize::from(flushes > 0))
    }

    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        Ok(BTreeMap::new())
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

impl Device for BpfQdisc {
    fn name(&self) -> &str {
        &self.ifb.name
    }

    fn index(&self) -> u32 {
        self.ifb.index
    }

    fn rebuild(&mut self) -> Result<bool, EngineError> {
        let is_new = self.ifb.rebuild()?;
        self.root()?;
        Ok(is_new)
    }

    fn wake(&mut self) -> Result<bool, EngineError> {
        self.ifb.wake()
    }

    fn backlog(&mut self) -> Result<u64, EngineError> {
        let fair = self.fair()?;
        let leaves = self.told.iter().filter(|(_, p)| !p.is_group);
        Ok(leaves.map(|(minor, _)| u64::from(fair.stats(*minor).backlog_bytes)).sum())
    }
}

impl BpfQdisc {
    /// Takes back what opening did: removes the device unless it was there before.
    fn undo(mut self) {
        if self.ifb.is_new
            && let Err(error) = self.remove()
        {
            tracing::warn!("cannot take back the scheduler: {error}");
        }
    }
}

/// The counters of one class or group.
fn counters(fair: &Fair, minor: u16) -> Counters {
    let stats = fair.stats(minor);
    Counters {
        bytes: stats.bytes,
        packets: stats.packets,
        drops: stats.drops,
        backlog: stats.backlog_bytes.into(),
        queued: stats.backlog_packets.into(),
        overlimits: stats.overlimits,
    }
}

#[cfg(test)]
mod tests {
    use weir_share::Weight;

    use super::*;
    use crate::engine::plan::{Group, Member};

    fn policy(weight: u32, min: Option<u64>, max: Option<u64>) -> Policy {
        let rate = |mbit: Option<u64>| mbit.map(BitRate::mbit);
        Policy::new(Weight::new(weight).unwrap(), rate(min), rate(max)).unwrap()
    }

    fn shape() -> Shape {
        Shape {
            capacity: BitRate::mbit(100),
            split: true,
            mtu: 1_500,
            delay_ms: 50,
            least_queue: Bytes(212_992),
            framing: None,
            has_tunnels: false,
        }
    }

    #[test]
    fn the_qdisc_is_told_policies_and_not_allocations() {
        let allocation = BitRate::mbit(7);
        let groups = [Group {
            minor: 0x10,
            policy: policy(2, None, Some(60)),
            allocation,
            share: allocation,
            target: allocation,
        }];
        let member = Member {
            minor: 0x11,
            group: Some(0),
            policy: policy(3, Some(8), Some(200)),
            allocation: BitRate::mbit(5),
            share: BitRate::mbit(5),
            target: BitRate::mbit(5),
            backlogged: true,
            takes_all: true,
            is_steady: false,
            prio: 1,
        };
        let control = Member { minor: 3, group: None, policy: policy(1, Some(1), None), prio: 0, ..member };
        let all = all_params(&Plan { shape: &shape(), groups: &groups, members: &[member, control] });
        let rates = |minor: u16| (all[&minor].floor_bytes_per_sec, all[&minor].ceil_bytes_per_sec);
        assert_eq!(rates(0x10), (0, 7_500_000));
        assert_eq!(rates(0x11), (1_000_000, 0), "a ceiling above the link is none");
        assert_eq!((all[&0x11].group, all[&0x11].weight, all[&0x11].limit_bytes), (0x10, 3, 625_000));
        assert!(all[&0x10].is_group && !all[&0x11].is_group);
        assert!(all[&3].is_urgent && !all[&0x11].is_urgent);
        assert_eq!(all[&0x10].limit_bytes, 375_000);
    }

    #[test]
    fn form_of_the_paper_has_plain_queues() {
        let params = link_params(&shape(), LinkHeader::Ethernet, Mode::Paper);
        assert_eq!((params.sparse_ns, params.small_bytes, params.codel_target_us), (0, 0, NO_CODEL_US));
        assert_eq!(
            params.bytes_per_sec,
            link_params(&shape(), LinkHeader::Ethernet, Mode::Fair).bytes_per_sec
        );
    }

    #[test]
    fn small_packets_may_overtake_one_super_packet_and_no_more() {
        let params = link_params(&shape(), LinkHeader::Ethernet, Mode::Fair);
        assert_eq!((params.bytes_per_sec, params.small_bytes), (12_500_000, 1_518));
        let ahead = params.sparse_ns as f64 / 1e6;
        assert!((5.5..7.0).contains(&ahead), "{ahead} ms at 100 Mbit/s");
    }
}
