//! The scheduler: weir-htb in this process.
//!
//! Packets come to a macvtap (`user.bpf.c`, [`tap`]) on weir's ifb, wait there unread in a queue for
//! each class, and a thread ([`forwarder`]) writes back what the tree ([`schedule`]) lets leave. Super-packets
//! stay whole or are cut ([`packet`]). The tree is engine `htb`'s, so what divides the link is the same;
//! this one needs no qdisc, holds back the host's own sockets too, and ends with the agent: then the
//! kernel takes the packets' way here away, and all flows on unshaped.

mod busy_poll;
mod counters;
mod forwarder;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod gso;
mod packet;
mod realtime;
mod schedule;
mod tap;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use weir_bpf::{MAX_QUEUES, UserPath};
use weir_netlink::{
    Netlink, NetlinkError,
    tc::{self, Counters, Hook, HtbClass, Verdict},
};
use weir_units::TcHandle;

pub use self::schedule::Lateness;
use self::{
    counters::QueueCounters,
    forwarder::{Command, Forwarder, Report},
    packet::LARGEST,
};
use super::{
    Attachments, DEFAULT, Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process,
    ROOT, ifb::Ifb, tree,
};

/// Priority of the program at the device's egress.
const PREF: u16 = 0x7e00;
/// Lanes at first; twice as many whenever they do not do. The kernel takes 10 ms to close each, and one
/// after the other when the agent is killed.
const INITIAL_QUEUES: usize = 16;
/// Between two looks at whether the device is there, where no link event told of a change.
const PATROL: Duration = Duration::from_millis(250);

/// The engine in user space: its half of the kernel, and its thread.
pub struct User {
    ifb: Ifb,
    path: UserPath,
    /// Index of the macvtap.
    tap: u32,
    cookie: u32,
    forwarder: Forwarder,
    /// By minor.
    queues: BTreeMap<u16, usize>,
    applied: BTreeMap<u16, HtbClass>,
    counters: Vec<QueueCounters>,
    late: Lateness,
    split: Option<bool>,
    /// Its thread goes before others.
    ahead: bool,
    nodes: Vec<tree::Node>,
    /// When it was last looked whether the device is there.
    patrolled: Option<Instant>,
    writes: u64,
}

impl User {
    /// Creates the devices and begins. Of an earlier agent nothing is taken over: its packets went
    /// with it.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or macvtap in this kernel, one before 5.12, missing rights, the name
    /// taken.
    pub fn open(link: &str, attachments: &Attachments) -> Result<User, EngineError> {
        let path = UserPath::load()?;
        let mut ifb = Ifb::open(link, 1)?;
        match set_up(&mut ifb, &path, INITIAL_QUEUES) {
            Ok((tap, forwarder)) => {
                let user = User {
                    ifb,
                    path,
                    tap,
                    cookie: attachments.cookie(),
                    forwarder,
                    queues: BTreeMap::new(),
                    applied: BTreeMap::new(),
                    counters: vec![QueueCounters::default(); INITIAL_QUEUES],
                    late: Lateness::default(),
                    split: None,
                    ahead: false,
                    nodes: Vec::new(),
                    patrolled: None,
                    writes: 0,
                };
                match user.join(attachments) {
                    Ok(()) => Ok(user),
                    Err(error) => {
                        user.undo();
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

    /// Takes away the device that an earlier agent with this engine has left.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn retire() -> Result<(), EngineError> {
        Ok(delete(&mut Netlink::open()?)?)
    }

    /// Has the classifier hand packets over to the programs of this engine.
    fn join(&self, attachments: &Attachments) -> Result<(), EngineError> {
        self.configure()?;
        Ok(attachments.classifier().hand_over_to(&self.path)?)
    }

    fn configure(&self) -> Result<(), EngineError> {
        let queues = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        Ok(self.path.configure(self.tap, queues, self.cookie)?)
    }

    /// The tap queue of a class: tap queue 0 has the traffic of no class.
    fn queue_for(&self, minor: u16) -> Result<usize, EngineError> {
        if minor == DEFAULT {
            return Ok(0);
        }
        let taken: BTreeSet<usize> = self.queues.values().copied().collect();
        (1..self.counters.len()).find(|queue| !taken.contains(queue)).ok_or_else(|| EngineError::Lacking {
            engine: EngineKind::User,
            why: format!(
                "it has no queue for class 1:{minor:x}, all {MAX_QUEUES} are taken: use engine = \"htb\", or groups of fewer classes"
            ),
        })
    }

    fn forget(&mut self) {
        for minor in std::mem::take(&mut self.queues).into_keys() {
            // A class that is still there gets one again at once.
            let _ = self.path.set_queue(TcHandle::new(MAJOR, minor).0, None);
        }
        self.applied.clear();
        self.counters =
            (0..self.counters.len()).map(|queue| QueueCounters::new(self.path.entered(queue))).collect();
        self.split = None;
    }

    /// Begins again with a device of this number of tap queues. Packets that wait are lost.
    fn begin(&mut self, queues: usize) -> Result<(), EngineError> {
        self.ifb.rebuild()?;
        (self.tap, self.forwarder) = set_up(&mut self.ifb, &self.path, queues)?;
        self.counters.resize(queues, QueueCounters::default());
        self.forget();
        self.set_realtime(self.ahead);
        self.patrolled = None;
        self.configure()
    }

    fn counters(&mut self, report: &Report, minor: u16, stats: &weir_htb::Stats) -> Counters {
        let counters = Counters {
            bytes: stats.bytes.0,
            packets: stats.packets,
            overlimits: stats.overlimits,
            ..Counters::default()
        };
        let Some(&queue) = self.queues.get(&minor) else { return counters };
        let counted = self.counters[queue].look(report.queues[queue], self.path.entered(queue));
        Counters { packets: counted.packets, drops: counted.drops, backlog: counted.backlog, ..counters }
    }
}

/// Puts a macvtap on the ifb, with the program that lets packets go on, and starts the thread.
fn set_up(ifb: &mut Ifb, path: &UserPath, queues: usize) -> Result<(u32, Forwarder), EngineError> {
    // Another engine's, with all its classes.
    if let Some(root) = ifb.root()? {
        ifb.netlink.call(tc::delete_qdisc(ifb.index, Ifb::NAME, root.handle, TcHandle::ROOT))?;
    }
    delete(&mut ifb.netlink)?;
    let alias = "weir's way to user space and back";
    let tap = ifb.netlink.add_macvtap(tap::NAME, alias, ifb.index, tap::QUEUE_LEN)?;
    let mut ready = || {
        ifb.netlink.call(tc::add_clsact(tap, tap::NAME))?;
        let program = (path.leave_program(), UserPath::LEAVE_PROGRAM);
        let filter = tc::set_bpf_filter(tap, tap::NAME, Hook::Egress, PREF, program, Verdict::Program);
        ifb.netlink.call(filter)?;
        let lacking = |what: &str, e: std::io::Error| EngineError::Lacking {
            engine: EngineKind::User,
            why: format!("cannot {what}: {e}"),
        };
        let queues = tap::open(tap, queues)
            .map_err(|e| lacking("open the queues of weir0u (/dev/tapN; needs root; under systemd the unit needs the drop-in weir-engine-user.conf)", e))?;
        let forwarder = Forwarder::start(queues).map_err(|e| lacking("start a thread", e))?;
        ifb.netlink.set_up(tap, tap::NAME)?;
        Ok(forwarder)
    };
    match ready() {
        Ok(forwarder) => Ok((tap, forwarder)),
        Err(error) => {
            let _ = ifb.netlink.delete_link(tap, tap::NAME);
            Err(error)
        }
    }
}

/// Deletes the macvtap, if there is one.
fn delete(netlink: &mut Netlink) -> Result<(), NetlinkError> {
    match netlink.link(tap::NAME) {
        Ok(found) if found.kind.as_deref() == Some("macvtap") => netlink.delete_link(found.index, tap::NAME),
        Ok(_) => Ok(()),
        Err(e) if e.is_gone() => Ok(()),
        Err(e) => Err(e),
    }
}

impl Engine for User {
    fn kind(&self) -> EngineKind {
        EngineKind::User
    }

    fn place(&self) -> Place {
        Place::Process(self.tap)
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn apply(&mut self, plan: &Plan<'_>, _hold: bool) -> Result<usize, EngineError> {
        let mut nodes = std::mem::take(&mut self.nodes);
        tree::build(plan, &mut nodes);
        let queues = plan.members.len().next_power_of_two().min(MAX_QUEUES);
        if queues > self.counters.len() {
            self.begin(queues)?;
        }
        let result = self.write(plan.shape.split, &nodes);
        self.nodes = nodes;
        result
    }

    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        if self.patrolled.is_none_or(|then| then.elapsed() >= PATROL) {
            match self.ifb.netlink.link(tap::NAME) {
                Ok(found) if found.index == self.tap => {}
                Ok(_) => return Ok(1),
                Err(e) if e.is_gone() => return Ok(1),
                Err(e) => return Err(e.into()),
            }
            self.patrolled = Some(Instant::now());
        }
        let Some(report) = self.forwarder.ask() else { return Ok(1) };
        self.late = report.late;
        for (minor, stats) in &report.classes {
            let counters = self.counters(&report, *minor, stats);
            out.push(Measured { minor: *minor, counters });
        }
        let (backlog, drops) = out
            .iter()
            .filter(|m| self.queues.contains_key(&m.minor))
            .fold((0, 0), |(b, d), m| (b + m.counters.backlog, d + m.counters.drops));
        if let Some(root) = out.iter_mut().find(|m| m.minor == ROOT) {
            (root.counters.backlog, root.counters.drops) = (backlog, drops);
        }
        Ok(0)
    }

    /// The counters of [`measure`](Engine::measure) lack none.
    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        Ok(BTreeMap::new())
    }

    fn remove(&mut self) -> Result<(), EngineError> {
        delete(&mut self.ifb.netlink)?;
        self.ifb.remove()
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }

    fn process(&mut self) -> Option<&mut dyn Process> {
        Some(self)
    }
}

impl Process for User {
    fn set_realtime(&mut self, is_wanted: bool) {
        self.ahead = is_wanted;
        // The next measurement finds out whether the thread has gone.
        self.forwarder.order(Command::Ahead(is_wanted));
        self.forwarder.ring();
    }

    fn lateness(&self) -> Lateness {
        self.late
    }
}

impl Device for User {
    fn name(&self) -> &str {
        tap::NAME
    }

    fn index(&self) -> u32 {
        self.tap
    }

    fn rebuild(&mut self) -> Result<bool, EngineError> {
        self.begin(self.counters.len())?;
        Ok(true)
    }

    fn wake(&mut self) -> Result<bool, EngineError> {
        let below = self.ifb.wake()?;
        // Links have changed, or it would not be asked: the next measurement looks again.
        self.patrolled = None;
        match self.ifb.netlink.link(tap::NAME) {
            Ok(found) if found.index == self.tap && !found.up => {
                self.ifb.netlink.set_up(found.index, tap::NAME)?;
                Ok(true)
            }
            Err(e) if !e.is_gone() => Err(e.into()),
            _ => Ok(below),
        }
    }

    fn backlog(&mut self) -> Result<u64, EngineError> {
        let mut measured = Vec::new();
        self.measure(&mut measured)?;
        Ok(measured.iter().find(|m| m.minor == ROOT).map_or(0, |m| m.counters.backlog))
    }
}

impl User {
    /// Takes back what opening did: removes the device unless it was there before.
    fn undo(mut self) {
        let undone = if self.ifb.is_new { self.remove() } else { User::retire() };
        if let Err(error) = undone {
            tracing::warn!("cannot take back the scheduler: {error}");
        }
    }
}

impl User {
    /// Makes the thread's tree the given one; commands only what differs.
    fn write(&mut self, split: bool, wanted: &[tree::Node]) -> Result<usize, EngineError> {
        let minors: BTreeMap<u16, &tree::Node> = wanted.iter().map(|n| (n.class.handle.minor(), n)).collect();
        let root = TcHandle::new(MAJOR, ROOT);
        // A class cannot move in the tree: it is removed and made again. Members go before groups.
        let mut gone: Vec<HtbClass> = self
            .applied
            .values()
            .filter(|c| minors.get(&c.handle.minor()).is_none_or(|n| n.class.parent != c.parent))
            .copied()
            .collect();
        gone.sort_by_key(|c| (c.parent == root, c.handle.minor() == ROOT));
        let mut commands = Vec::new();
        let mut first_error = None;
        if self.split != Some(split) {
            commands.push(Command::Segments(if split { 1 } else { LARGEST }));
            self.split = Some(split);
        }
        for class in &gone {
            let minor = class.handle.minor();
            self.applied.remove(&minor);
            commands.push(Command::Remove(minor));
            if !minors.contains_key(&minor)
                && let Some(queue) = self.queues.remove(&minor)
            {
                self.path.set_queue(class.handle.0, None)?;
                commands.push(Command::TapQueue(queue, None));
            }
        }
        for node in wanted {
            let minor = node.class.handle.minor();
            if self.applied.get(&minor).is_none_or(|old| tree::differs(old, &node.class)) {
                commands.push(Command::Set(node.class));
                self.applied.insert(minor, node.class);
            }
            if node.leaf.is_some() && !self.queues.contains_key(&minor) {
                let queue = self.queue_for(minor);
                match queue.and_then(|queue| {
                    Ok((queue, self.path.set_queue(node.class.handle.0, u32::try_from(queue).ok())?))
                }) {
                    Ok((queue, ())) => {
                        self.counters[queue].begin();
                        self.queues.insert(minor, queue);
                        commands.push(Command::TapQueue(queue, Some(minor)));
                    }
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
        }
        let written = commands.len();
        for order in commands {
            if !self.forwarder.order(order) {
                // The next measurement finds that it is gone.
                self.forget();
                break;
            }
        }
        if written > 0 {
            self.forwarder.ring();
        }
        self.writes += written as u64;
        first_error.map_or(Ok(written), Err)
    }
}
