//! The thread that moves packets: reads each tap queue's first, asks the schedule which may leave, and
//! writes it back. No other thread touches tree or queues; commands come by a channel.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, SyncSender, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::{TimeSpec, TimeValLike},
};
use rustix::event::{
    EventfdFlags,
    epoll::{self, EventData, EventFlags},
    eventfd,
};
use weir_htb::Stats;
use weir_netlink::tc::HtbClass;
use weir_units::{Framing, Instant};

use super::{
    busy_poll::BusyPoll,
    gso::{Departure, GsoBatcher},
    packet::Packet,
    realtime::{self, RealtimeBudget},
    schedule::{Lateness, Schedule, Turn},
    tap::Queues,
};

/// Packets that leave before others are looked for.
const BATCH: u32 = 64;
/// No sleep for a moment to come is shorter: who wakes for each packet does little else. Packets
/// that became due meanwhile leave together.
const SHORTEST_SLEEP: Duration = Duration::from_micros(100);
/// How long a command may take to be answered.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// Stands for the wakeup_fd among the tap queues.
const WAKEUP: u64 = u64::MAX;

/// A command to the thread.
pub(super) enum Command {
    /// Make, or change, a class.
    Set(HtbClass),
    /// Remove one.
    Remove(u16),
    /// A tap queue has this class's packets, or belongs to no class: its packets are then dropped.
    TapQueue(usize, Option<u16>),
    /// Super-packets are cut into pieces of this number of segments.
    Segments(usize),
    /// Packets are charged as this line frames them.
    Frame(Option<Framing>),
    /// Go before other threads, or be one of many.
    Ahead(bool),
    /// Say what has become of packets.
    Tell(SyncSender<Report>),
}

/// A report of the thread.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) classes: Vec<(u16, Stats)>,
    pub(super) queues: Vec<QueueReport>,
    pub(super) late: Lateness,
}

/// The fate of a tap queue's packets, since its queue was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueReport {
    /// Frames read, and their bytes as whole packets.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Packets on the wire.
    pub(super) segments: u64,
    /// Bytes on the wire that are read and have not left.
    pub(super) held: u32,
    /// Packets that could not be written.
    pub(super) failed: u64,
}

/// The thread, from outside. When this is dropped it ends, in its own time: the kernel takes some for
/// each tap queue.
pub(super) struct Forwarder {
    commands: Option<Sender<Command>>,
    wakeup_fd: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to move the packets of these tap queues.
    pub(super) fn start(queues: Queues) -> io::Result<Forwarder> {
        let wakeup_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, receiver) = mpsc::channel();
        let mut worker = Worker::new(queues, Arc::clone(&wakeup_fd), receiver)?;
        let thread = thread::Builder::new().name("weir-user".into()).spawn(move || {
            // To the nanosecond, instead of 50 microseconds later.
            let _ = nix::sys::prctl::set_timerslack(1);
            if let Err(error) = worker.run() {
                tracing::error!("the scheduler in user space has stopped: {error}");
            }
        })?;
        Ok(Forwarder { commands: Some(commands), wakeup_fd, thread })
    }

    /// Gives a command; false if the thread has gone.
    pub(super) fn order(&self, order: Command) -> bool {
        self.commands.as_ref().is_some_and(|commands| commands.send(order).is_ok())
    }

    /// Whether the thread is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Has the thread look at its commands.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.wakeup_fd, &1u64.to_ne_bytes());
    }

    /// The fate of packets; none if the thread is gone, or stuck.
    pub(super) fn ask(&self) -> Option<Report> {
        let (answer, answered) = mpsc::sync_channel(1);
        if !self.order(Command::Tell(answer)) {
            return None;
        }
        self.ring();
        answered.recv_timeout(COMMAND_TIMEOUT).ok()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.commands = None;
        self.ring();
    }
}

struct TapQueue {
    file: File,
    class: Option<u16>,
    head: Option<Packet>,
    /// Its head is in the schedule.
    offered: bool,
    seen: QueueReport,
}

impl TapQueue {
    /// Writes a frame, in two parts or one, that counts as this number of packets on the wire.
    fn write(&mut self, headers: &[u8], payload: &[u8], segments: u32) {
        let written = if payload.is_empty() {
            (&self.file).write(headers)
        } else {
            (&self.file).write_vectored(&[IoSlice::new(headers), IoSlice::new(payload)])
        };
        let count = match written {
            Ok(_) => &mut self.seen.segments,
            // No memory, a frame that the kernel finds fault with: lost, as on any link.
            Err(_) => &mut self.seen.failed,
        };
        *count += u64::from(segments);
    }
}

struct Worker {
    schedule: Schedule,
    queues: Vec<TapQueue>,
    epoll: OwnedFd,
    wakeup_fd: Arc<OwnedFd>,
    commands: Receiver<Command>,
    /// Memory for packets.
    spare: Vec<Packet>,
    /// Datagrams that leave together; none where the kernel (before 6.2) does not take them so.
    batcher: Option<GsoBatcher>,
    segments: usize,
    busy_poll: BusyPoll,
    /// How long it may go before others; none: it is one of many.
    realtime: Option<RealtimeBudget>,
    is_ahead: bool,
    begun: std::time::Instant,
}

impl Worker {
    fn new(queues: Queues, wakeup_fd: Arc<OwnedFd>, commands: Receiver<Command>) -> io::Result<Worker> {
        let Queues { files, datagrams } = queues;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wakeup_fd, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        for (queue, file) in (0u64..).zip(&files) {
            epoll::add(&epoll, file, EventData::new_u64(queue), EventFlags::IN | EventFlags::ONESHOT)?;
        }
        let queue =
            |file| TapQueue { file, class: None, head: None, offered: false, seen: QueueReport::default() };
        Ok(Worker {
            schedule: Schedule::new(Instant::default()),
            queues: files.into_iter().map(queue).collect(),
            epoll,
            wakeup_fd,
            commands,
            spare: Vec::new(),
            batcher: datagrams.then(GsoBatcher::new),
            segments: 1,
            busy_poll: BusyPoll::default(),
            realtime: None,
            is_ahead: false,
            begun: std::time::Instant::now(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&NO_TIME))?;
            for event in events.drain(..) {
                match event.data.u64() {
                    WAKEUP => {
                        let _ = rustix::io::read(&*self.wakeup_fd, &mut [0; 8]);
                        // The counters and their classes may change.
                        self.depart();
                        if !self.obey() {
                            return Ok(());
                        }
                    }
                    queue => self.fill(usize::try_from(queue).unwrap_or(usize::MAX))?,
                }
            }
            let turn = self.let_out()?;
            self.realtime(false);
            match turn {
                // Others first.
                Turn::TapQueue(_) => {}
                Turn::At(then) => {
                    let sleep = then.since(self.now()).max(SHORTEST_SLEEP);
                    self.sleep(Some(sleep))?;
                }
                Turn::Nothing => self.busy_poll()?,
            }
        }
    }

    /// Until something comes.
    fn busy_poll(&mut self) -> io::Result<()> {
        let from = self.now();
        let until = from + self.busy_poll.look();
        loop {
            if self.sleep(Some(Duration::ZERO))? {
                break;
            }
            if self.now() >= until {
                self.sleep(None)?;
                break;
            }
            // The process that wants this processor may be the sender.
            thread::yield_now();
        }
        self.busy_poll.paused(self.now().since(from));
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed())
    }

    /// Goes before others for as long as it may.
    fn realtime(&mut self, asleep: bool) {
        let now = self.now();
        let wanted = self.realtime.as_mut().is_some_and(|realtime| realtime.spent(now, asleep));
        if wanted == self.is_ahead {
            return;
        }
        match realtime::ask(wanted) {
            Ok(()) => self.is_ahead = wanted,
            Err(error) => {
                tracing::warn!(
                    "cannot have the scheduler's thread go before others, so that it is late where they want its processor: {error} (SCHED_RR wants CAP_SYS_NICE, and for the agent's cgroup real-time time if the kernel has CONFIG_RT_GROUP_SCHED; `priority = false` in [link] asks for none)"
                );
                self.realtime = None;
            }
        }
    }

    /// Until something comes, or that time has passed. Whether something has come.
    fn sleep(&mut self, time: Option<Duration>) -> io::Result<bool> {
        use std::os::fd::AsFd;
        let is_sleep = time != Some(Duration::ZERO);
        if is_sleep {
            self.realtime(false);
        }
        let time = time.map(|t| TimeSpec::nanoseconds(i64::try_from(t.as_nanos()).unwrap_or(i64::MAX)));
        let woken = ppoll(&mut [PollFd::new(self.epoll.as_fd(), PollFlags::POLLIN)], time, None);
        if is_sleep {
            self.realtime(true);
        }
        match woken {
            Ok(ready) => Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Lets packets leave while any may, at most a batch.
    fn let_out(&mut self) -> io::Result<Turn> {
        let mut turn = Turn::TapQueue(0);
        for _ in 0..BATCH {
            turn = self.schedule.next(self.now());
            match turn {
                Turn::TapQueue(queue) => self.send(queue)?,
                _ => break,
            }
        }
        let is_full = self.batcher.as_ref().is_some_and(GsoBatcher::is_full);
        if is_full || !matches!(turn, Turn::TapQueue(_)) {
            self.depart();
        }
        Ok(turn)
    }

    /// Has what a tap queue has on offer leave, or the next piece of it, and offers the next.
    fn send(&mut self, queue: usize) -> io::Result<()> {
        let this = &mut self.queues[queue];
        this.offered = false;
        let Some(mut head) = this.head.take() else { return Ok(()) };
        if self.push(queue, &head) {
            self.spare.push(head);
            return self.fill(queue);
        }
        let this = &mut self.queues[queue];
        let piece = head.cut(self.segments);
        this.write(piece.headers, piece.payload, piece.segments);
        if piece.is_last {
            self.spare.push(head);
            self.fill(queue)
        } else {
            this.head = Some(head);
            self.offer(queue);
            Ok(())
        }
    }

    /// Has a packet leave with others. If not, all before it have left.
    fn push(&mut self, queue: usize, packet: &Packet) -> bool {
        let Worker { batcher: Some(batcher), queues, .. } = self else { return false };
        let write = |d: Departure<'_>| queues[d.queue].write(d.frame, &[], d.segments);
        match packet.single() {
            Some(frame) => batcher.push(queue, frame, write),
            None => {
                batcher.clear(write);
                false
            }
        }
    }

    /// Writes what leaves together.
    fn depart(&mut self) {
        let Worker { batcher: Some(batcher), queues, .. } = self else { return };
        batcher.clear(|d| queues[d.queue].write(d.frame, &[], d.segments));
    }

    /// Reads a tap queue's next packet and offers it. Without a packet the tap queue waits for one.
    fn fill(&mut self, queue: usize) -> io::Result<()> {
        let Some(this) = self.queues.get_mut(queue) else { return Ok(()) };
        while this.head.is_none() {
            let mut packet = self.spare.pop().unwrap_or_else(Packet::new);
            match packet.fill(|memory| (&this.file).read(memory)) {
                Ok(()) => {
                    this.seen.frames += 1;
                    this.seen.bytes += packet.len() as u64;
                    if this.class.is_some() {
                        this.head = Some(packet);
                    } else {
                        self.spare.push(packet);
                    }
                }
                Err(_) => {
                    self.spare.push(packet);
                    let data = EventData::new_u64(queue as u64);
                    return Ok(epoll::modify(
                        &self.epoll,
                        &this.file,
                        data,
                        EventFlags::IN | EventFlags::ONESHOT,
                    )?);
                }
            }
        }
        self.offer(queue);
        Ok(())
    }

    fn offer(&mut self, queue: usize) {
        let this = &mut self.queues[queue];
        if let (Some(head), Some(class), false) = (&this.head, this.class, this.offered) {
            this.offered = self.schedule.offer(class, queue, head.wire(self.segments));
        }
    }

    /// Carries out commands; false if no command can come any more.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        // Packets without a class may have one now.
        (0..self.queues.len()).for_each(|queue| self.offer(queue));
        true
    }

    fn carry_out(&mut self, order: Command) {
        match order {
            Command::Set(class) => {
                if let Err(error) = self.schedule.set(&class) {
                    tracing::error!("{error}");
                }
            }
            Command::Remove(minor) => match self.schedule.remove(minor) {
                Ok(Some(queue)) => self.queues[queue].offered = false,
                Ok(None) => {}
                Err(error) => tracing::error!("{error}"),
            },
            Command::TapQueue(queue, class) => {
                let this = &mut self.queues[queue];
                this.class = class;
                if class.is_none() && !this.offered {
                    self.spare.extend(this.head.take());
                    let _ = self.fill(queue);
                }
            }
            Command::Ahead(ahead) => self.realtime = ahead.then(RealtimeBudget::default),
            Command::Segments(segments) => self.segments = segments,
            Command::Frame(framing) => self.schedule.frame(framing),
            Command::Tell(answer) => {
                let queues = self.queues.iter().map(|queue| QueueReport {
                    held: queue.head.as_ref().map_or(0, Packet::left),
                    ..queue.seen
                });
                let report = Report {
                    classes: self.schedule.stats().collect(),
                    queues: queues.collect(),
                    late: self.schedule.late(),
                };
                let _ = answer.send(report);
            }
        }
    }
}

const NO_TIME: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
