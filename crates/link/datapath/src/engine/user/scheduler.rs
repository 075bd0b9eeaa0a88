//! The parts of the forwarder's process: the programs that lead packets to it, the macvtap, and the thread.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use weir_bpf::UserPath;
use weir_netlink::{
    Netlink, NetlinkError,
    tc::{self, Hook, HtbClass, Verdict},
};
use weir_units::TcHandle;

use super::{
    counters::QueueCounters,
    forwarder::{Command, Forwarder},
    message::{Change, Line, Measured, PROTOCOL, Report, State},
    packet::LARGEST,
    tap,
};
use crate::engine::{DEFAULT, EngineError, MAJOR, ROOT};

/// Priority of the program at the device's egress.
const PREF: u16 = 0x7e00;
/// Agents whose classifiers' arrays are kept open: the present one's, and those of earlier ones. An
/// interface has the program of an earlier one until the present one has replaced it.
const MAX_ARRAYS: usize = 8;

/// The forwarder, with all that it holds.
pub(super) struct Scheduler {
    // Before the tap queues: see `UserPath`.
    path: UserPath,
    arrays: VecDeque<OwnedFd>,
    netlink: Netlink,
    ifb: u32,
    tap: u32,
    forwarder: Forwarder,
    split: Option<bool>,
    line: Option<Line>,
    /// By minor.
    classes: BTreeMap<u16, HtbClass>,
    /// The tap queues of classes.
    queues: BTreeMap<u16, usize>,
    counters: Vec<QueueCounters>,
}

impl Scheduler {
    /// Puts a macvtap on the ifb, with the program that lets packets go on, and starts the thread.
    pub(super) fn begin(ifb: u32, queues: usize) -> Result<Scheduler, String> {
        let path = UserPath::load().map_err(|e| weir_units::chain(&e))?;
        let mut netlink = Netlink::open().map_err(|e| e.to_string())?;
        let alias = "weir's way to user space and back";
        let tap = netlink.add_macvtap(tap::NAME, alias, ifb, tap::QUEUE_LEN).map_err(|e| e.to_string())?;
        match set_up(&mut netlink, &path, tap, queues) {
            Ok(forwarder) => Ok(Scheduler {
                counters: (0..queues).map(|queue| QueueCounters::new(path.entered(queue))).collect(),
                path,
                arrays: VecDeque::new(),
                netlink,
                ifb,
                tap,
                forwarder,
                split: None,
                line: None,
                classes: BTreeMap::new(),
                queues: BTreeMap::new(),
            }),
            Err(why) => {
                let _ = netlink.delete_link(tap, tap::NAME);
                Err(why)
            }
        }
    }

    /// An agent's classifier leads packets here. `array`: its array of programs, which stays open;
    /// `cookie`: its mark of packets that come back.
    pub(super) fn join(&mut self, array: OwnedFd, cookie: u32) -> Result<State, String> {
        let queues = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        self.path.configure(self.tap, queues, cookie).map_err(|e| weir_units::chain(&e))?;
        self.arrays.push_back(array);
        if self.arrays.len() > MAX_ARRAYS {
            self.arrays.pop_front();
        }
        Ok(State {
            protocol: PROTOCOL,
            ifb: self.ifb,
            tap: self.tap,
            queues: self.counters.len(),
            split: self.split,
            line: self.line,
            classes: self.classes.values().map(|class| (*class).into()).collect(),
            leaves: self.queues.keys().copied().collect(),
        })
    }

    /// The program that takes packets here.
    pub(super) fn program(&self) -> BorrowedFd<'_> {
        self.path.enter_program()
    }

    /// Changes the tree. The first class for which there is no tap queue.
    pub(super) fn write(&mut self, changes: &[Change]) -> Result<Option<u16>, String> {
        let mut full = None;
        for change in changes {
            match *change {
                Change::Split(split) => {
                    self.split = Some(split);
                    self.forwarder.order(Command::Segments(if split { 1 } else { LARGEST }));
                }
                Change::Frame(line) => {
                    self.line = line;
                    self.forwarder.order(Command::Frame(line.map(Into::into)));
                }
                Change::Remove(minor) => {
                    self.classes.remove(&minor);
                    self.forwarder.order(Command::Remove(minor));
                }
                Change::Release(minor) => {
                    if let Some(queue) = self.queues.remove(&minor) {
                        self.lead(minor, None)?;
                        self.forwarder.order(Command::TapQueue(queue, None));
                    }
                }
                Change::Set(class) => {
                    let class = HtbClass::from(class);
                    self.classes.insert(class.handle.minor(), class);
                    self.forwarder.order(Command::Set(class));
                }
                Change::Lead(minor) if self.queues.contains_key(&minor) => {}
                Change::Lead(minor) => {
                    let Some(queue) = self.queue_for(minor) else {
                        full = full.or(Some(minor));
                        continue;
                    };
                    self.lead(minor, Some(queue))?;
                    self.counters[queue].begin();
                    self.queues.insert(minor, queue);
                    self.forwarder.order(Command::TapQueue(queue, Some(minor)));
                }
            }
        }
        self.forwarder.ring();
        Ok(full)
    }

    fn lead(&self, minor: u16, queue: Option<usize>) -> Result<(), String> {
        let queue = queue.and_then(|queue| u32::try_from(queue).ok());
        self.path.set_queue(TcHandle::new(MAJOR, minor).0, queue).map_err(|e| weir_units::chain(&e))
    }

    /// The tap queue of a class: tap queue 0 has the traffic of no class.
    fn queue_for(&self, minor: u16) -> Option<usize> {
        if minor == DEFAULT {
            return Some(0);
        }
        let taken: BTreeSet<usize> = self.queues.values().copied().collect();
        (1..self.counters.len()).find(|queue| !taken.contains(queue))
    }

    /// The fate of packets; none if the thread is gone, or stuck.
    pub(super) fn measure(&mut self) -> Option<Report> {
        let report = self.forwarder.ask()?;
        let mut classes = Vec::with_capacity(report.classes.len());
        let mut all = (0, 0);
        for (minor, stats) in &report.classes {
            let mut measured = Measured(*minor, stats.bytes.0, stats.packets, 0, 0, stats.overlimits);
            if let Some(&queue) = self.queues.get(minor) {
                let counted = self.counters[queue].look(report.queues[queue], self.path.entered(queue));
                (measured.2, measured.3, measured.4) = (counted.packets, counted.drops, counted.backlog);
                all = (all.0 + counted.drops, all.1 + counted.backlog);
            }
            classes.push(measured);
        }
        if let Some(root) = classes.iter_mut().find(|measured| measured.0 == ROOT) {
            (root.3, root.4) = all;
        }
        Some(Report { classes, late: (report.late.times, report.late.lost) })
    }

    /// Has the thread go before others, or not.
    pub(super) fn set_ahead(&self, is_wanted: bool) {
        self.forwarder.order(Command::Ahead(is_wanted));
        self.forwarder.ring();
    }

    /// Whether device and thread are there.
    pub(super) fn lives(&mut self) -> bool {
        let is_there = match self.netlink.link(tap::NAME) {
            Ok(found) => found.index == self.tap,
            Err(e) => !e.is_gone(),
        };
        is_there && !self.forwarder.has_ended()
    }

    /// Removes the device. All else ends with the process.
    pub(super) fn end(mut self) {
        if let Err(error) = delete(&mut self.netlink) {
            tracing::warn!("cannot remove the way to user space: {error}");
        }
    }
}

fn set_up(netlink: &mut Netlink, path: &UserPath, tap: u32, queues: usize) -> Result<Forwarder, String> {
    let refused = |e: NetlinkError| e.to_string();
    let lacking = |what: &str, e: io::Error| format!("cannot {what}: {e}");
    netlink.call(tc::add_clsact(tap, tap::NAME)).map_err(refused)?;
    let program = (path.leave_program(), UserPath::LEAVE_PROGRAM);
    let filter = tc::set_bpf_filter(tap, tap::NAME, Hook::Egress, PREF, program, Verdict::Program);
    netlink.call(filter).map_err(refused)?;
    let queues = tap::open(tap, queues)
        .map_err(|e| lacking("open the queues of weir0u (/dev/tapN; needs root; under systemd the unit needs the drop-in weir-engine-user.conf)", e))?;
    let forwarder = Forwarder::start(queues).map_err(|e| lacking("start a thread", e))?;
    netlink.set_up(tap, tap::NAME).map_err(refused)?;
    Ok(forwarder)
}

/// Deletes the macvtap, if there is one.
pub(super) fn delete(netlink: &mut Netlink) -> Result<(), EngineError> {
    match netlink.link(tap::NAME) {
        Ok(found) if found.kind.as_deref() == Some("macvtap") => {
            Ok(netlink.delete_link(found.index, tap::NAME)?)
        }
        Ok(_) => Ok(()),
        Err(e) if e.is_gone() => Ok(()),
        Err(e) => Err(e.into()),
    }
}
