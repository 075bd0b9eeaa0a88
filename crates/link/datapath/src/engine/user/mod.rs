//! The scheduler in user space: weir-htb in a process of its own.
//!
//! Packets come to a macvtap (`user.bpf.c`, [`tap`]) on weir's ifb, wait there unread in a queue for
//! each class, and a thread ([`forwarder`]) writes back what the tree ([`schedule`]) lets leave. Super-packets
//! stay whole or are cut ([`packet`]). The tree is engine `htb`'s, so what divides the link is the same;
//! this one needs no qdisc, and holds back the host's own sockets too.
//!
//! The thread, its tree and its device belong to a process ([`server`]) that the agent starts and speaks
//! with ([`remote`], [`message`]). It outlives an agent that is killed, and the next agent adopts it as it
//! stands. When that process ends, the kernel takes the packets' way to it away, and all flows on unshaped.

mod busy_poll;
mod counters;
mod forwarder;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod gso;
mod message;
mod packet;
mod realtime;
mod remote;
mod schedule;
mod scheduler;
mod server;
mod tap;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use weir_bpf::{Handover, MAX_QUEUES};
use weir_netlink::{
    Netlink,
    tc::{self, Counters, HtbClass},
};
use weir_units::TcHandle;

pub use self::schedule::Lateness;
use self::{
    message::{Answer, Change, Line, PROTOCOL, Report, Request, State},
    remote::Remote,
    scheduler::delete,
};
use super::{
    Attachments, Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process, ROOT,
    Uplink,
    ifb::Ifb,
    plan::{KeptPlan, Shape},
    tree,
};

/// Tap queues at first; twice as many whenever they do not do.
const INITIAL_QUEUES: usize = 16;
/// Between two looks at whether the device is there, where no link event told of a change.
const PATROL: Duration = Duration::from_millis(250);

/// Where the forwarder of packets runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In a process of its own, which outlives this one: `/proc/self/exe forward`, which must call
    /// [`forward`].
    Process,
    /// In a thread, which ends with the engine: for trials.
    Thread,
}

/// Runs the forwarder in this process. Its standard input is the connection to the agent that started it.
///
/// # Errors
/// Standard input is no such connection, or fails.
pub fn forward() -> io::Result<()> {
    let first = io::stdin().as_fd().try_clone_to_owned()?;
    let is_socket = rustix::net::sockopt::socket_type(&first) == Ok(rustix::net::SocketType::SEQPACKET);
    if !is_socket {
        let why = "standard input is no connection to an agent: `weir agent` starts this process";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    // A terminal's signals are for the agent.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/")?;
    server::serve(first, Home::Process)
}

/// The engine in user space: its half of the kernel, and the way to its forwarder.
pub struct User {
    ifb: Ifb,
    handover: Arc<Handover>,
    home: Home,
    /// None: the last one ended, and the next could not be started.
    remote: Option<Remote>,
    cookie: u32,
    /// Index of the macvtap.
    tap: u32,
    /// Tap queues.
    queues: usize,
    /// The forwarder's tree, and the classes that have a tap queue.
    applied: BTreeMap<u16, HtbClass>,
    leaves: BTreeSet<u16>,
    split: Option<bool>,
    /// The framing that the forwarder charges.
    line: Option<Line>,
    /// The forwarder is an earlier agent's.
    is_adopted: bool,
    late: Lateness,
    /// Its thread goes before others.
    ahead: bool,
    /// The last plan.
    plan: Option<KeptPlan>,
    packets: tree::Packets,
    nodes: Vec<tree::Node>,
    corrections: tree::Corrections,
    opened: Instant,
    /// Classes keep the rates of an earlier agent.
    holds: bool,
    /// When it was last looked whether the device is there.
    patrolled: Option<Instant>,
    writes: u64,
}

impl User {
    /// Adopts the forwarder that an earlier agent has left, with all that it has and holds, or starts one.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or macvtap in this kernel, one before 5.12, missing rights, the name
    /// taken.
    pub fn open(uplink: Uplink<'_>, attachments: &Attachments, home: Home) -> Result<User, EngineError> {
        let mut ifb = Ifb::open(uplink, 1)?;
        let handover = Arc::clone(attachments.classifier().handover());
        let cookie = attachments.cookie(uplink.number);
        let (joined, is_adopted) = match adopt(&mut ifb, &handover, cookie) {
            Some(joined) => (Ok(joined), true),
            None => (begin(&mut ifb, &handover, cookie, home, INITIAL_QUEUES), false),
        };
        match joined {
            Ok((remote, state)) => {
                let mut user = User {
                    ifb,
                    handover,
                    home,
                    remote: Some(remote),
                    cookie,
                    tap: 0,
                    queues: 0,
                    applied: BTreeMap::new(),
                    leaves: BTreeSet::new(),
                    split: None,
                    line: None,
                    is_adopted,
                    late: Lateness::default(),
                    ahead: false,
                    nodes: Vec::new(),
                    plan: None,
                    packets: tree::Packets::default(),
                    corrections: tree::Corrections::default(),
                    opened: Instant::now(),
                    holds: false,
                    patrolled: None,
                    writes: 0,
                };
                user.know(state);
                Ok(user)
            }
            Err(error) => {
                if ifb.is_new {
                    let _ = ifb.remove();
                }
                Err(error)
            }
        }
    }

    /// Ends the forwarder that an earlier agent with this engine has left, and takes its device away.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) fn retire() -> Result<(), EngineError> {
        if let Some(remote) = Remote::find() {
            remote.end(true);
        }
        delete(&mut Netlink::open()?)
    }

    fn know(&mut self, state: State) {
        (self.tap, self.queues, self.split) = (state.tap, state.queues, state.split);
        self.line = state.line;
        let classes = state.classes.into_iter().map(HtbClass::from);
        self.applied = classes.map(|class| (class.handle.minor(), class)).collect();
        self.leaves = state.leaves.into_iter().collect();
    }

    /// Begins again with a device of this number of tap queues. Packets that wait are lost.
    fn begin_again(&mut self, queues: usize) -> Result<(), EngineError> {
        self.ifb.rebuild()?;
        self.patrolled = None;
        if let Some(remote) = self.remote.take() {
            remote.end(true);
        }
        let (remote, state) = begin(&mut self.ifb, &self.handover, self.cookie, self.home, queues)?;
        self.remote = Some(remote);
        self.is_adopted = false;
        self.know(state);
        self.set_realtime(self.ahead);
        Ok(())
    }

    fn ask(&self, request: &Request) -> io::Result<Answer> {
        let remote = self.remote.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        remote.ask(request, None).map(|(answer, _)| answer)
    }

    /// Leaves classes that an earlier agent's forwarder has at the rates and turns they have; ceilings and
    /// the whole link's class are as wanted. See [`Htb`](super::Htb).
    fn hold(&self, wanted: &mut [tree::Node]) {
        if self.is_adopted {
            tree::hold(wanted, |minor| self.applied.get(&minor).copied());
        }
    }
}

fn lacking(why: String) -> EngineError {
    EngineError::Lacking { engine: EngineKind::User, why }
}

/// The forwarder of an earlier agent, if there is one that this agent understands and its device is there.
/// Another one is ended.
fn adopt(ifb: &mut Ifb, handover: &Handover, cookie: u32) -> Option<(Remote, State)> {
    let remote = Remote::find()?;
    let request = Request::Join { protocol: PROTOCOL, cookie };
    match remote.ask(&request, Some(handover.array())) {
        Ok((Answer::State(state), Some(program))) if state.protocol == PROTOCOL => {
            let is_there = ifb.netlink.link(tap::NAME).is_ok_and(|found| found.index == state.tap);
            if is_there && state.ifb == ifb.index && handover.to(program).is_ok() {
                return Some((remote, state));
            }
            remote.end(true);
        }
        other => {
            let why = match other {
                Ok((Answer::Refused(why), _)) => why,
                Ok(_) => "it speaks another protocol".to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                "the forwarder of an earlier agent cannot be adopted, so that a new one begins: {why}"
            );
            remote.end(false);
        }
    }
    None
}

/// Starts a forwarder, and leads packets to it.
fn begin(
    ifb: &mut Ifb,
    handover: &Handover,
    cookie: u32,
    home: Home,
    queues: usize,
) -> Result<(Remote, State), EngineError> {
    // Another engine's, with all its classes.
    if let Some(root) = ifb.root()? {
        ifb.netlink.call(tc::delete_qdisc(ifb.index, &ifb.name, root.handle, TcHandle::ROOT))?;
    }
    delete(&mut ifb.netlink)?;
    let remote = Remote::start(home).map_err(|e| lacking(format!("cannot start its forwarder: {e}")))?;
    let request = Request::Begin { protocol: PROTOCOL, ifb: ifb.index, queues, cookie };
    let error = match remote.ask(&request, Some(handover.array())) {
        Ok((Answer::State(state), Some(program))) => match handover.to(program) {
            Ok(()) => return Ok((remote, state)),
            Err(error) => error.into(),
        },
        Ok((Answer::Refused(why), _)) => lacking(why),
        Ok(_) => lacking("its forwarder answers something else".to_owned()),
        Err(error) => lacking(format!("its forwarder does not answer: {error}")),
    };
    remote.end(true);
    Err(error)
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

    fn apply(&mut self, plan: &Plan<'_>, hold: bool) -> Result<usize, EngineError> {
        // The forwarder knows each packet's length. The tree's rates need no form of their own.
        let shape = Shape { framing: None, ..*plan.shape };
        self.plan = Some(KeptPlan::of(&Plan { shape: &shape, ..*plan }));
        self.holds = hold;
        self.build();
        let queues = plan.members.len().next_power_of_two().min(MAX_QUEUES);
        if queues > self.queues {
            self.begin_again(queues)?;
        }
        self.enforce(plan.shape.split, plan.shape.framing.map(Line::from))
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
        let Ok(Answer::Report(Report { classes, late })) = self.ask(&Request::Measure) else { return Ok(1) };
        self.late = Lateness { times: late.0, lost: late.1 };
        out.extend(classes.into_iter().map(
            |message::Measured(minor, bytes, packets, drops, backlog, over)| {
                let counters =
                    Counters { bytes, packets, drops, backlog, overlimits: over, ..Counters::default() };
                Measured { minor, counters }
            },
        ));
        let now = weir_units::Instant(self.opened.elapsed());
        let is_rebuilt = self.look_at_packets(out, now);
        if is_rebuilt {
            self.build();
        }
        let is_corrected = self.corrections.look(out, now);
        if let Some(split) = self.split
            && (is_corrected || is_rebuilt)
            && !self.holds
        {
            self.enforce(split, self.line)?;
        }
        Ok(0)
    }

    /// The counters of [`measure`](Engine::measure) lack none.
    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        Ok(BTreeMap::new())
    }

    fn remove(&mut self) -> Result<(), EngineError> {
        if let Some(remote) = self.remote.take() {
            remote.end(true);
        }
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
        // The next measurement finds out whether the forwarder has gone.
        let _ = self.ask(&Request::Ahead(is_wanted));
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
        self.begin_again(self.queues)?;
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
    /// Builds the wanted tree from the last plan and from what is known of packets.
    fn build(&mut self) {
        let Some(plan) = self.plan.as_ref().map(KeptPlan::plan) else { return };
        tree::build(&plan, &self.packets, &mut self.nodes);
        self.corrections.follow(&plan, &self.nodes, self.holds);
    }

    /// Takes counts. Returns whether a class sends packets of another length. Where super-packets are not split,
    /// their segments tell nothing of them.
    fn look_at_packets(&mut self, measured: &[Measured], now: weir_units::Instant) -> bool {
        if self.split != Some(true) {
            return false;
        }
        let mut is_other = false;
        for Measured { minor, counters } in measured.iter().filter(|m| self.leaves.contains(&m.minor)) {
            #[expect(clippy::cast_possible_truncation, reason = "the count may wrap")]
            let packets = counters.packets as u32;
            is_other |= self.packets.look(*minor, counters.bytes, packets, now);
        }
        let leaves = &self.leaves;
        self.packets.retain(|minor| leaves.contains(&minor));
        is_other
    }

    /// Makes the forwarder's tree the wanted one, corrected.
    fn enforce(&mut self, split: bool, line: Option<Line>) -> Result<usize, EngineError> {
        let mut wanted = self.nodes.clone();
        self.corrections.correct(&mut wanted);
        if self.holds {
            self.hold(&mut wanted);
        }
        self.write(split, line, &wanted)
    }

    /// Makes the forwarder's tree the given one; sends only what differs.
    fn write(
        &mut self,
        split: bool,
        line: Option<Line>,
        wanted: &[tree::Node],
    ) -> Result<usize, EngineError> {
        let changes = self.changes(split, line, wanted);
        if changes.is_empty() {
            return Ok(0);
        }
        let written = changes.len();
        let request = Request::Write(changes);
        let answer = self.ask(&request);
        let Request::Write(changes) = request else { return Ok(0) };
        match answer {
            Ok(Answer::Written { full }) => {
                self.writes += written as u64;
                self.note(&changes);
                let Some(minor) = full else { return Ok(written) };
                // The next call asks again.
                self.leaves.remove(&minor);
                Err(lacking(format!(
                    "it has no queue for class 1:{minor:x}, all {MAX_QUEUES} are taken: use engine = \"htb\", or groups of fewer classes"
                )))
            }
            Ok(Answer::Refused(why)) => {
                // It is not known how far the forwarder came: a new one begins.
                if let Some(remote) = self.remote.take() {
                    remote.end(true);
                }
                Err(lacking(why))
            }
            // The next measurement finds that it is gone.
            Ok(_) | Err(_) => Ok(0),
        }
    }

    /// The forwarder has made these changes.
    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Split(split) => self.split = Some(split),
                Change::Frame(line) => self.line = line,
                Change::Remove(minor) => drop(self.applied.remove(&minor)),
                Change::Release(minor) => drop(self.leaves.remove(&minor)),
                Change::Set(class) => {
                    let class = HtbClass::from(class);
                    self.applied.insert(class.handle.minor(), class);
                }
                Change::Lead(minor) => drop(self.leaves.insert(minor)),
            }
        }
    }

    fn changes(&self, split: bool, line: Option<Line>, wanted: &[tree::Node]) -> Vec<Change> {
        let minors: BTreeMap<u16, &tree::Node> = wanted.iter().map(|n| (n.class.handle.minor(), n)).collect();
        // A class cannot move in the tree: it is removed and made again. Members go before groups.
        let root = TcHandle::new(MAJOR, ROOT);
        let moved = |class: &HtbClass| {
            minors.get(&class.handle.minor()).is_none_or(|n| n.class.parent != class.parent)
        };
        let mut gone: Vec<&HtbClass> = self.applied.values().filter(|class| moved(class)).collect();
        gone.sort_by_key(|c| (c.parent == root, c.handle.minor() == ROOT));
        let mut changes = Vec::new();
        if self.split != Some(split) {
            changes.push(Change::Split(split));
        }
        if self.line != line {
            changes.push(Change::Frame(line));
        }
        changes.extend(gone.iter().map(|class| Change::Remove(class.handle.minor())));
        let idle = self.leaves.iter().filter(|minor| minors.get(minor).is_none_or(|n| n.leaf.is_none()));
        changes.extend(idle.map(|minor| Change::Release(*minor)));
        for node in wanted {
            let minor = node.class.handle.minor();
            let old = self.applied.get(&minor).filter(|class| !moved(class));
            if old.is_none_or(|old| tree::differs(old, &node.class)) {
                changes.push(Change::Set(node.class.into()));
            }
            if node.leaf.is_some() && !self.leaves.contains(&minor) {
                changes.push(Change::Lead(minor));
            }
        }
        changes
    }
}
