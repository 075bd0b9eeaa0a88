//! The scheduler: a program that stamps departure times, and fq on the ifb that keeps them.
//!
//! On links where a super-packet takes milliseconds fq is below a TBF, which splits them, and has
//! those of several classes that are due at the same time wait in fq instead of on the wire: there a
//! small flow's packet passes them.
//!
//! Policy goes into the program's maps, and only there: the program itself finds out who wants what
//! and divides the link, every 10 ms, with or without an agent (`edt.bpf.c`). Qdisc and program
//! stay when it is dropped: the device holds both, and the program holds its maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use nix::{errno::Errno, time::ClockId};
use weir_bpf::{Edt as Program, EdtClass, EdtLink, EdtRule, attach};
use weir_netlink::{
    Netlink,
    tc::{self, Counters, Hook, Qdisc, Verdict},
};
use weir_share::Policy;
use weir_units::{BitRate, Bytes, Framing, LinkHeader, RateFraming, TcHandle};

use super::{
    Attach, Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process, ROOT, Uplink,
    ifb::Ifb, plan::Shape,
};

const HANDLE: TcHandle = TcHandle::new(MAJOR, 0);
/// Priority of the program where it is a filter.
const PREF: u16 = 0x7e00;
/// Between two looks at whether qdisc and program are in place.
const PATROL: Duration = Duration::from_millis(250);

const _: () = assert!(Program::DEFAULT == super::DEFAULT as u32 && Program::CONTROL == super::CONTROL as u32);

/// Majors of each fq that is not at the root come after this one; the root's is [`MAJOR`].
const FIRST_FQ: u16 = 0x10;
/// TBF carries more than the classes together, so that due packets leave soon: one part in this
/// number. When a class wakes, packets that others have sent before still leave at their old times. The excess
/// over the capacity then waits in fq, where the class that wakes passes it, and not in the line behind weir.
const SPARE: u64 = 128;
/// The same on an uplink without an Ethernet header. TBF counts the header of containers' frames, which
/// the uplink does not carry: a fifth of what it counts, if packets have 56 bytes.
const BARE_SPARE: u64 = 4;
/// The burst of TBF: a timer that is late by this much costs nothing.
const BURST: Duration = Duration::from_millis(2);
/// More transmit queues than anyone has.
const MAX_QUEUES: u16 = 256;

/// The qdisc at the device's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    /// fq.
    Fq,
    /// mq, and fq for each queue.
    Mq,
    /// TBF, and fq.
    Tbf { rate: BitRate, framing: RateFraming, burst: Bytes },
}

impl Root {
    fn of(shape: &Shape, queues: u32, is_bare: bool) -> Root {
        match shape.split {
            _ if queues > 1 => Root::Mq,
            false => Root::Fq,
            true => {
                let spare = if is_bare { BARE_SPARE } else { SPARE };
                let capacity = shape.capacity.bits_per_sec();
                // TBF charges no less than tc counts. A line that takes less is faster in these bytes.
                let faster = shape.framing.map_or(capacity, |framing| in_tc_bytes(framing, capacity));
                let rate = BitRate(faster.max(capacity + capacity / spare));
                // A larger packet is split, or dropped if it cannot be.
                let packet = u64::from(shape.mtu) + 32;
                let framing = shape.framing.map_or(RateFraming::default(), Framing::at_most);
                Root::Tbf { rate, framing, burst: Bytes(rate.bytes_in(BURST).0.max(packet)) }
            }
        }
    }

    /// Whether these qdiscs are the ones that it is made of, with its options.
    fn is(self, there: &[Qdisc], queues: u32) -> bool {
        let root = |q: &Qdisc| q.handle == HANDLE && q.parent == TcHandle::ROOT;
        let below = |q: &Qdisc, queue: u16| {
            q.is_fq()
                && q.handle == TcHandle::new(FIRST_FQ + queue, 0)
                && q.parent == TcHandle::new(MAJOR, queue)
        };
        match (self, there) {
            (Root::Fq, [fq]) => root(fq) && fq.is_fq(),
            (Root::Tbf { rate, framing, burst }, [tbf, fq]) => {
                root(tbf) && tbf.is_tbf(rate, framing, burst) && below(fq, 1)
            }
            (Root::Mq, [mq, fqs @ ..]) => {
                let all = u32::try_from(fqs.len()) == Ok(queues);
                root(mq) && mq.kind == "mq" && all && (1..).zip(fqs).all(|(queue, fq)| below(fq, queue))
            }
            _ => false,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Root::Fq => "fq",
            Root::Mq => "mq",
            Root::Tbf { .. } => "tbf",
        }
    }
}

/// The engine of earliest departure times: its half of the kernel.
pub struct Edt {
    ifb: Ifb,
    program: Program,
    how: Attach,
    /// The uplink's packets have no Ethernet header.
    is_bare: bool,
    /// The last written values.
    link: EdtLink,
    rules: BTreeMap<u16, EdtRule>,
    /// By number.
    groups: BTreeMap<u32, EdtRule>,
    /// None before the first plan, which tells.
    root: Option<Root>,
    /// The device's qdiscs as they read when they were set up.
    placed: Vec<Qdisc>,
    patrolled: Instant,
    writes: u64,
    found_rules: Vec<EdtRule>,
    found_classes: Vec<EdtClass>,
}

impl Edt {
    /// Creates the ifb with fq and the program, or takes over what an earlier agent left:
    /// classes go on with their clocks and counters.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or fq in this kernel, one before 5.18, missing rights, the
    /// name taken.
    pub fn open(uplink: Uplink<'_>, queues: u32) -> Result<Edt, EngineError> {
        let mut ifb = Ifb::open(uplink, queues)?;
        let is_bare = ifb.lacks_ethernet(uplink.device);
        let how = Attach::best();
        match attached(&mut ifb.netlink, ifb.index, &ifb.name, how)
            .and_then(|there| Ok(Program::load(there)?))
        {
            Ok(program) => {
                let mut edt = Edt {
                    ifb,
                    program,
                    how,
                    is_bare,
                    link: EdtLink::default(),
                    rules: BTreeMap::new(),
                    groups: BTreeMap::new(),
                    root: None,
                    placed: Vec::new(),
                    patrolled: Instant::now(),
                    writes: 0,
                    found_rules: Vec::new(),
                    found_classes: Vec::new(),
                };
                match edt.adopt().and_then(|()| edt.set_up_qdiscs()) {
                    Ok(_) => Ok(edt),
                    Err(error) => {
                        edt.undo();
                        Err(error)
                    }
                }
            }
            Err(error) => {
                if ifb.is_new {
                    let _ = ifb.remove();
                }
                Err(error)
            }
        }
    }

    /// Takes the program away from a device that another engine has taken over.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn retire(index: u32, device: &str) -> Result<(), EngineError> {
        let mut netlink = Netlink::open()?;
        for how in [Attach::Tcx, Attach::Clsact] {
            // No TCX, no program there.
            let Some(id) = attached(&mut netlink, index, device, how).ok().flatten() else { continue };
            match how {
                Attach::Tcx => {
                    attach::detach_tcx_egress(id, index).map_err(|errno| refused(device, errno))?
                }
                Attach::Clsact => {
                    netlink.call(tc::delete_filter(index, device, Hook::Egress, PREF))?;
                }
            }
        }
        Ok(())
    }

    /// Takes the maps' contents for what was last written.
    fn adopt(&mut self) -> Result<(), EngineError> {
        let Some(link) = self.program.link()? else { return Ok(()) };
        self.link = link;
        self.program.rules(link.last_minor, &mut self.found_rules)?;
        let there = (0u16..).zip(&self.found_rules).filter(|(_, r)| r.weight > 0);
        self.rules = there.map(|(minor, r)| (minor, *r)).collect();
        self.program.groups(link.groups, &mut self.found_rules)?;
        let there = (0u32..).zip(&self.found_rules).filter(|(_, r)| r.weight > 0);
        self.groups = there.map(|(number, r)| (number, *r)).collect();
        Ok(())
    }

    /// Puts qdisc and program where they belong. The program comes first: until there is a
    /// qdisc that keeps its times, nothing waits. Returns whether a qdisc was written.
    fn set_up_qdiscs(&mut self) -> Result<bool, EngineError> {
        self.attach()?;
        let there = self.qdiscs()?;
        let found = there.iter().find(|q| q.parent == TcHandle::ROOT);
        let ours = |q: &&Qdisc| q.handle == HANDLE && ["fq", "mq", "tbf"].contains(&q.kind.as_str());
        let root = match (self.root, found.filter(ours)) {
            (Some(root), _) => root,
            // An earlier agent's: whether it is the right one the first plan tells.
            (None, Some(_)) => {
                self.placed = there;
                return Ok(false);
            }
            (None, None) if self.ifb.queues > 1 => Root::Mq,
            (None, None) => Root::Fq,
        };
        // An earlier agent's stay as they are: writing the same options again disturbs packets that wait.
        if there == self.placed && root.is(&there, self.ifb.queues) {
            return Ok(false);
        }
        // The qdisc is of another engine or program: the device is weir's. An fq with altered
        // options keeps those that are not written, so that it goes too.
        if let Some(found) = found
            && (found.kind != root.kind()
                || found.handle != HANDLE
                || !(self.placed.is_empty() || there == self.placed))
        {
            let delete = tc::delete_qdisc(self.ifb.index, &self.ifb.name, found.handle, TcHandle::ROOT);
            self.ifb.netlink.call(delete)?;
        }
        match root {
            Root::Fq => self.set_fq(HANDLE, TcHandle::ROOT)?,
            Root::Mq => {
                self.ifb.netlink.call(tc::add_root(self.ifb.index, &self.ifb.name, HANDLE, root.kind()))?;
                for queue in 1..=u16::try_from(self.ifb.queues).unwrap_or(MAX_QUEUES) {
                    self.set_fq(TcHandle::new(FIRST_FQ + queue, 0), TcHandle::new(MAJOR, queue))?;
                }
            }
            Root::Tbf { rate, framing, burst } => {
                let rate = (rate, framing);
                self.ifb.netlink.call(tc::set_tbf(self.ifb.index, &self.ifb.name, HANDLE, rate, burst))?;
                self.set_fq(TcHandle::new(FIRST_FQ + 1, 0), TcHandle::new(MAJOR, 1))?;
            }
        }
        self.placed = self.qdiscs()?;
        Ok(true)
    }

    fn set_fq(&mut self, handle: TcHandle, parent: TcHandle) -> Result<(), EngineError> {
        Ok(self.ifb.netlink.call(tc::set_fq(self.ifb.index, &self.ifb.name, handle, parent))?)
    }

    /// The device's qdiscs now, without those of the kernel's own making and clsact.
    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, EngineError> {
        let found = self.ifb.netlink.qdiscs(self.ifb.index)?;
        let ours = found.into_iter().filter(|q| q.handle.0 != 0 && q.parent != TcHandle::CLSACT);
        Ok(ours.map(|q| Qdisc { counters: Counters::default(), ..q }).collect())
    }

    fn attach(&mut self) -> Result<(), EngineError> {
        match self.how {
            Attach::Tcx => {
                let old = attached(&mut self.ifb.netlink, self.ifb.index, &self.ifb.name, self.how)?;
                // In its own place a program is refused.
                if old.is_some() && old == attach::program_id(&self.program.program()).ok() {
                    return Ok(());
                }
                attach::attach_tcx_egress(&self.program.program(), self.ifb.index, old)
                    .map_err(|errno| refused(&self.ifb.name, errno))
            }
            Attach::Clsact => {
                match self.ifb.netlink.call(tc::add_clsact(self.ifb.index, &self.ifb.name)) {
                    Err(e) if e.errno() != Some(Errno::EEXIST) => return Err(e.into()),
                    _ => {}
                }
                let program = (self.program.program_number(), Program::PROGRAM);
                Ok(self.ifb.netlink.call(tc::set_bpf_filter(
                    self.ifb.index,
                    &self.ifb.name,
                    Hook::Egress,
                    PREF,
                    program,
                    Verdict::Program,
                ))?)
            }
        }
    }

    /// Whether qdisc and program are as they were set up.
    fn in_place(&mut self) -> Result<bool, EngineError> {
        let qdiscs = self.qdiscs()? == self.placed;
        Ok(qdiscs && attached(&mut self.ifb.netlink, self.ifb.index, &self.ifb.name, self.how)?.is_some())
    }

    /// Every group has a number, which it keeps.
    fn number_groups(&self, plan: &Plan<'_>) -> Vec<u32> {
        let known: BTreeMap<u32, u32> = self.groups.iter().map(|(number, r)| (r.group, *number)).collect();
        let mut taken: BTreeSet<u32> =
            plan.groups.iter().filter_map(|g| known.get(&g.minor.into()).copied()).collect();
        let number = |minor: u16| {
            known.get(&minor.into()).copied().unwrap_or_else(|| {
                let free = (1..).find(|n| !taken.contains(n)).unwrap_or(u32::MAX);
                taken.insert(free);
                free
            })
        };
        plan.groups.iter().map(|g| g.minor).map(number).collect()
    }
}

fn refused(device: &str, errno: Errno) -> EngineError {
    EngineError::Attach { device: device.to_owned(), how: "tcx", errno, hint: "" }
}

/// The shortest IP packet in an Ethernet frame, as tc counts it.
const SHORTEST: u64 = 34;

/// The most that a line of this rate can carry in the bytes that tc counts, at most eight times the rate.
fn in_tc_bytes(framing: Framing, bits_per_sec: u64) -> u64 {
    let line = framing.line_bytes(SHORTEST).max(SHORTEST / 8);
    bits_per_sec.saturating_mul(SHORTEST) / line
}

/// The program that an earlier agent, or this one, has attached.
fn attached(
    netlink: &mut Netlink,
    index: u32,
    device: &str,
    how: Attach,
) -> Result<Option<u32>, EngineError> {
    let refused = |errno| refused(device, errno);
    match how {
        Attach::Tcx => {
            let ids = attach::tcx_egress(index).map_err(refused)?;
            Ok(attach::named(ids, &[Program::PROGRAM]).map_err(refused)?.first().copied())
        }
        Attach::Clsact => {
            let filters = netlink.filters(index, Hook::Egress)?;
            let ours =
                |name: &Option<String>| name.as_deref().is_some_and(|n| n.starts_with(Program::PROGRAM));
            Ok(filters.into_iter().find(|f| f.pref == PREF && ours(&f.bpf_name)).and_then(|f| f.bpf_id))
        }
    }
}

fn rule(policy: &Policy, capacity: BitRate, queue_bytes: u64, group: u32) -> EdtRule {
    let bytes = |rate: BitRate| rate.min(capacity).bytes_per_sec();
    EdtRule {
        min: bytes(policy.floor()),
        max: bytes(policy.ceiling()),
        queue_bytes,
        weight: policy.weight().get(),
        group,
    }
}

/// The clock that the program's clocks are compared with.
fn now() -> u64 {
    ClockId::CLOCK_MONOTONIC.now().map_or(0, |t| Duration::from(t).as_nanos().try_into().unwrap_or(0))
}

/// Bytes whose time has not come.
fn waiting(class: &EdtClass, now: u64) -> u64 {
    let ahead = u128::from(class.clock.saturating_sub(now));
    u64::try_from(ahead * u128::from(class.rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The entries that were written, also those that failed.
#[derive(Default)]
struct Writes {
    written: usize,
    first_error: Option<weir_bpf::Error>,
}

impl Writes {
    /// Counts a write. Returns whether it succeeded.
    fn note(&mut self, result: Result<(), weir_bpf::Error>) -> bool {
        self.written += 1;
        match result {
            Ok(()) => true,
            Err(e) => {
                self.first_error.get_or_insert(e);
                false
            }
        }
    }
}

impl Edt {
    fn set_groups(&mut self, wanted: &BTreeMap<u32, EdtRule>, writes: &mut Writes) {
        for (&number, rule) in wanted {
            if self.groups.get(&number) != Some(rule) && writes.note(self.program.set_group(number, rule)) {
                self.groups.insert(number, *rule);
            }
        }
    }

    fn set_classes(&mut self, wanted: &BTreeMap<u16, EdtRule>, writes: &mut Writes) {
        for (&minor, rule) in wanted {
            let old = self.rules.get(&minor);
            if old == Some(rule) {
                continue;
            }
            let fresh = if old.is_none() { self.program.forget(minor) } else { Ok(()) };
            if writes.note(fresh.and_then(|()| self.program.set_class(minor, rule))) {
                self.rules.insert(minor, *rule);
            }
        }
    }

    fn remove_classes(&mut self, wanted: &BTreeMap<u16, EdtRule>, writes: &mut Writes) {
        let gone: Vec<u16> = self.rules.keys().copied().filter(|m| !wanted.contains_key(m)).collect();
        for minor in gone {
            if writes.note(self.program.set_class(minor, &EdtRule::default())) {
                self.rules.remove(&minor);
            }
        }
    }

    fn remove_groups(&mut self, wanted: &BTreeMap<u32, EdtRule>, writes: &mut Writes) {
        let gone: Vec<u32> = self.groups.keys().copied().filter(|n| !wanted.contains_key(n)).collect();
        for number in gone {
            if writes.note(self.program.set_group(number, &EdtRule::default())) {
                self.groups.remove(&number);
            }
        }
    }
}

impl Engine for Edt {
    fn kind(&self) -> EngineKind {
        EngineKind::Edt
    }

    fn place(&self) -> Place {
        Place::Queue(self.ifb.index)
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    /// Writes policies that differ; the allocations are the program's own affair.
    fn apply(&mut self, plan: &Plan<'_>, _hold: bool) -> Result<usize, EngineError> {
        let Plan { shape, groups, members } = *plan;
        let numbers = self.number_groups(plan);
        let queue_bytes = shape.least_queue.0;
        let mut writes = Writes::default();

        let root = Root::of(shape, self.ifb.queues, self.is_bare);
        if self.root != Some(root) {
            self.root = Some(root);
            writes.written += usize::from(self.set_up_qdiscs()?);
        }
        let wanted: BTreeMap<u32, EdtRule> = groups
            .iter()
            .zip(&numbers)
            .map(|(g, &number)| (number, rule(&g.policy, shape.capacity, 0, g.minor.into())))
            .collect();
        let wanted_rules: BTreeMap<u16, EdtRule> = members
            .iter()
            .map(|m| {
                let group = m.group.map_or(0, |g| numbers[g]);
                (m.minor, rule(&m.policy, shape.capacity, queue_bytes, group))
            })
            .collect();
        let header = if self.is_bare { LinkHeader::None } else { LinkHeader::Ethernet };
        let framing = shape.with_header(header).framing;
        let mtu = u64::from(shape.mtu);
        let packet_bytes = framing.map_or(mtu + LinkHeader::Ethernet.bytes(), |framing| {
            framing.line_bytes(mtu + framing.header.bytes())
        });
        let link = EdtLink {
            capacity: shape.capacity.bytes_per_sec(),
            // Also those that are about to be removed are looked at once more.
            last_minor: wanted_rules.keys().chain(self.rules.keys()).max().copied().unwrap_or(0).into(),
            groups: wanted.keys().chain(self.groups.keys()).max().copied().unwrap_or(0),
            packet_bytes: u32::try_from(packet_bytes).unwrap_or(u32::MAX),
            horizon_ns: u64::from(shape.delay_ms) * 1_000_000,
            queues: self.ifb.queues,
            framing: framing.into(),
        };
        if link != self.link {
            match self.program.set_link(&link) {
                Ok(()) => (self.link, writes.written) = (link, writes.written + 1),
                Err(e) => writes.first_error = Some(e),
            }
        }
        // Groups before those who join them, and none removed before those who leave.
        self.set_groups(&wanted, &mut writes);
        self.set_classes(&wanted_rules, &mut writes);
        self.remove_classes(&wanted_rules, &mut writes);
        self.remove_groups(&wanted, &mut writes);
        if writes.written > 0 {
            self.program.divide_anew();
        }
        self.writes += writes.written as u64;
        match writes.first_error {
            Some(error) => Err(error.into()),
            None => Ok(writes.written),
        }
    }

    /// Altered entries of the maps are forgotten, so that the next [`apply`](Engine::apply) writes
    /// them. Counters of groups and of the link are their classes' sums.
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        if self.patrolled.elapsed() >= PATROL {
            if !self.in_place()? {
                return Ok(1);
            }
            self.patrolled = Instant::now();
        }
        let mut drift = 0;
        if self.program.link()? != Some(self.link) {
            self.link = EdtLink::default();
            drift += 1;
        }
        let last = self.rules.keys().max().copied().unwrap_or(0);
        self.program.rules(last.into(), &mut self.found_rules)?;
        for (minor, found) in (0u16..).zip(&self.found_rules) {
            match self.rules.get_mut(&minor) {
                Some(rule) if rule == found => {}
                // Weight 0 stands for a rule without use: the class itself is known.
                Some(rule) => (*rule, drift) = (EdtRule::default(), drift + 1),
                None if found.weight > 0 => {
                    self.rules.insert(minor, *found);
                    drift += 1;
                }
                None => {}
            }
        }
        let highest = self.groups.keys().max().copied().unwrap_or(0);
        self.program.groups(highest, &mut self.found_rules)?;
        for (number, rule) in &mut self.groups {
            if self.found_rules.get(*number as usize).is_some_and(|found| found != rule) {
                // Another number would move its members: keep whose it is.
                (*rule, drift) = (EdtRule { group: rule.group, ..EdtRule::default() }, drift + 1);
            }
        }
        self.program.classes(last.into(), &mut self.found_classes)?;
        let now = now();
        let mut sums: BTreeMap<u32, Counters> = BTreeMap::new();
        for (&minor, rule) in &self.rules {
            let Some(class) = self.found_classes.get(usize::from(minor)) else { continue };
            let counters = Counters {
                bytes: class.bytes,
                packets: class.packets,
                drops: class.drops,
                backlog: waiting(class, now).min(class.bytes),
                overlimits: class.marks,
                ..Counters::default()
            };
            out.push(Measured { minor, counters });
            let group = self.groups.get(&rule.group).map(|g| g.group);
            for above in [Some(ROOT.into()), group].into_iter().flatten() {
                let sum = sums.entry(above).or_default();
                sum.bytes += counters.bytes;
                sum.packets += counters.packets;
                sum.drops += counters.drops;
                sum.backlog += counters.backlog;
                sum.overlimits += counters.overlimits;
            }
        }
        let sums = sums
            .into_iter()
            .filter_map(|(minor, counters)| Some(Measured { minor: u16::try_from(minor).ok()?, counters }));
        out.extend(sums);
        Ok(drift)
    }

    /// The counters of [`measure`](Engine::measure) lack none.
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

impl Device for Edt {
    fn name(&self) -> &str {
        &self.ifb.name
    }

    fn index(&self) -> u32 {
        self.ifb.index
    }

    fn rebuild(&mut self) -> Result<bool, EngineError> {
        let is_new = self.ifb.rebuild()?;
        self.set_up_qdiscs()?;
        self.patrolled = Instant::now();
        Ok(is_new)
    }

    fn wake(&mut self) -> Result<bool, EngineError> {
        self.ifb.wake()
    }

    fn backlog(&mut self) -> Result<u64, EngineError> {
        let last = self.rules.keys().max().copied().unwrap_or(0);
        self.program.classes(last.into(), &mut self.found_classes)?;
        let now = now();
        Ok(self.found_classes.iter().map(|class| waiting(class, now)).sum())
    }
}

impl Edt {
    /// Takes back what opening did: removes the device unless it was there before.
    fn undo(mut self) {
        if self.ifb.is_new
            && let Err(error) = self.remove()
        {
            tracing::warn!("cannot take back the scheduler: {error}");
        }
    }
}
