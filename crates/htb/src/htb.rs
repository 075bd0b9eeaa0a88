use std::time::Duration;

use weir_units::{Bytes, Instant};

use crate::{
    ClassId, EnqueueError, Limits, Packet, Params, Stats, Tokens,
    bits::Bits,
    bucket::TICKS_PER_NS,
    class::{Class, ClassConfig, LeafQueue, NONE},
    packets::Packets,
    schedule::{Feed, Row},
    wheel::Wheel,
};

/// The first tick: no bucket is deeper, so that no moment falls below zero.
const START: u64 = 1 << 61;
/// At this number of nanoseconds since `origin` all moments are moved back: 104 days.
const ERA: u64 = START / TICKS_PER_NS;
/// The level of a class that does not exist.
pub(crate) const VACANT: u8 = u8::MAX;

/// A tree of token buckets with its packets. See the [crate's documentation](crate).
#[derive(Debug, Clone)]
pub struct Htb {
    pub(crate) limits: Limits,
    /// The nanosecond of the first tick.
    origin: u64,
    /// The moment of the last question: nothing has to be acted upon before the next one.
    asked: Instant,
    pub(crate) class: Box<[Class]>,
    pub(crate) leaf_queue: Box<[LeafQueue]>,
    pub(crate) config: Box<[ClassConfig]>,
    /// The rest of a leaf's turn as a borrower, `[class][level]`, in bytes.
    pub(crate) deficit: Box<[i32]>,
    /// The children that may borrow from a parent, `[class][prio]`.
    pub(crate) feeds: Box<[Feed]>,
    /// Members of all feeds of a priority: bits are places.
    pub(crate) feeding: Box<[Bits]>,
    /// The classes that can send, `[level][prio]`.
    pub(crate) rows: Box<[Row]>,
    /// For each level the priorities whose row is not empty.
    pub(crate) row_prios: [u8; Limits::MAX_DEPTH as usize],
    /// The levels that have such rows.
    pub(crate) row_levels: u64,
    pub(crate) wheel: Wheel,
    pub(crate) packets: Packets,
    /// The class at a place; [`NONE`] where one was removed.
    pub(crate) order: Box<[u32]>,
    /// Classes were added that have no place yet.
    pub(crate) unplaced: bool,
}

/// Packets of one leaf that come one after the other: what each changes, to be written back after the last.
struct Run {
    leaf: u32,
    head: u32,
    /// The leaf's last packet, [`NONE`] if it has none.
    last: u32,
    /// For how many more there is room.
    room: u32,
    came: u32,
    giant: u32,
    giants: u32,
}

impl Run {
    const NONE: Run = Run { leaf: NONE, head: NONE, last: NONE, room: 0, came: 0, giant: 0, giants: 0 };
}

/// A packet that leaves now. The default stands for no packet, to be overwritten by
/// [`Htb::dequeue_batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Departure {
    /// Where it waited.
    pub leaf: ClassId,
    /// The packet.
    pub packet: Packet,
}

/// The answer to [`Htb::dequeue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This packet leaves now; ask again.
    Packet(Departure),
    /// Packets wait, and none may leave before this moment, which is later than now. One may leave then,
    /// unless a class whose moment it is has lost its packets or has been changed meanwhile.
    At(Instant),
    /// No packet waits.
    Empty,
}

impl Htb {
    /// An empty tree. `now` is the earliest moment that will be spoken of.
    #[must_use]
    pub fn new(limits: Limits, now: Instant) -> Htb {
        let limits = limits.within_bounds();
        let (classes, depth) = (limits.classes as usize, usize::from(limits.depth));
        let prios = usize::from(Params::PRIOS);
        let nothing = Params::new(Params::MIN_RATE);
        let class = Class { level: VACANT, ..Class::new(&nothing, NONE) };
        let config = ClassConfig { params: nothing, children: 0, assured: 0, above: 0, giants: 0 };
        Htb {
            limits,
            origin: nanos(now),
            asked: now,
            class: vec![class; classes].into(),
            leaf_queue: vec![LeafQueue { tail: NONE, limit: 0, giant: 0, drops: 0 }; classes].into(),
            config: vec![config; classes].into(),
            deficit: vec![0; classes * depth].into(),
            feeds: vec![Feed::default(); classes * prios].into(),
            feeding: vec![Bits::new(classes); prios].into(),
            rows: vec![Row::new(classes); depth * prios].into(),
            row_prios: [0; Limits::MAX_DEPTH as usize],
            row_levels: 0,
            wheel: Wheel::new(classes, START),
            packets: Packets::new(limits.packets, limits.classes),
            order: vec![NONE; classes].into(),
            unplaced: false,
        }
    }

    /// Lets a packet wait in a leaf.
    ///
    /// # Errors
    /// The class is not a leaf, has no room, or the length is out of bounds. All but the first are
    /// counted in [`Stats::drops`].
    #[inline]
    pub fn enqueue(&mut self, leaf: ClassId, packet: Packet) -> Result<(), EnqueueError> {
        let mut run = self.begin(leaf.0, true);
        if run.room == 0 || packet.len.wrapping_sub(1) >= Packet::MAX_LEN || !self.put(&mut run, packet) {
            return Err(self.refuse(leaf, packet));
        }
        self.end(&run);
        Ok(())
    }

    /// Lets packets wait that have come together: the same as that many calls of [`Htb::enqueue`], at less
    /// cost where several in a row are of one leaf. `refused` hears of those that are not let in.
    ///
    /// ```
    /// use weir_htb::{ClassId, Htb, Limits, Packet, Params};
    /// use weir_units::{BitRate, Instant};
    ///
    /// let mut htb = Htb::new(Limits::default(), Instant::default());
    /// htb.add(ClassId(1), None, Params::new(BitRate::gbit(1)).limit(2))?;
    /// let packets = (0..3).map(|handle| (ClassId(1), Packet { handle, len: 64 }));
    /// let mut refused = Vec::new();
    /// htb.enqueue_batch(packets, |_, packet, _| refused.push(packet.handle));
    /// assert_eq!((htb.waiting(), refused), (2, vec![2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn enqueue_batch(
        &mut self,
        packets: impl IntoIterator<Item = (ClassId, Packet)>,
        mut refused: impl FnMut(ClassId, Packet, EnqueueError),
    ) {
        self.admit(true, packets, |htb, leaf, packet| {
            let error = htb.refuse(leaf, packet);
            refused(leaf, packet, error);
        });
    }

    /// The same, without the leaves' limits unless `limited`.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        limited: bool,
        packets: impl IntoIterator<Item = (ClassId, Packet)>,
        mut refused: impl FnMut(&mut Htb, ClassId, Packet),
    ) {
        let mut run = Run::NONE;
        for (leaf, packet) in packets {
            if leaf.0 != run.leaf {
                self.end(&run);
                run = self.begin(leaf.0, limited);
            }
            if run.room == 0 || packet.len.wrapping_sub(1) >= Packet::MAX_LEN || !self.put(&mut run, packet) {
                self.end(&run);
                run = Run::NONE;
                refused(self, leaf, packet);
            }
        }
        self.end(&run);
    }

    /// Packets begin to come to a leaf; a class that is no leaf has no room.
    #[inline]
    fn begin(&self, leaf: u32, limited: bool) -> Run {
        let i = leaf as usize;
        let Some(class) = self.class.get(i).filter(|class| class.level == 0) else { return Run::NONE };
        let leaf_queue = &self.leaf_queue[i];
        let limit = if limited { leaf_queue.limit } else { u32::MAX };
        let room = limit.saturating_sub(class.backlog).min(self.packets.room());
        let last = if class.backlog > 0 { leaf_queue.tail } else { NONE };
        Run { leaf, head: class.head, last, room, came: 0, giant: leaf_queue.giant, giants: 0 }
    }

    /// One of them, for which there is room.
    #[inline]
    fn put(&mut self, run: &mut Run, packet: Packet) -> bool {
        let Some(place) = self.packets.put(packet, run.last) else { return false };
        if run.last == NONE {
            run.head = place;
        }
        run.last = place;
        run.room -= 1;
        run.came += 1;
        run.giants += u32::from(packet.len > run.giant);
        true
    }

    /// That was the last one.
    #[inline]
    fn end(&mut self, run: &Run) {
        if run.came == 0 {
            return;
        }
        let i = run.leaf as usize;
        self.packets.came(run.came);
        self.leaf_queue[i].tail = run.last;
        if run.giants > 0 {
            self.config[i].giants += u64::from(run.giants);
        }
        let class = &mut self.class[i];
        (class.head, class.backlog) = (run.head, class.backlog + run.came);
        if class.backlog == run.came {
            self.start(run.leaf);
        }
    }

    #[cold]
    fn refuse(&mut self, leaf: ClassId, packet: Packet) -> EnqueueError {
        if self.class.get(leaf.0 as usize).is_none_or(|class| class.level != 0) {
            return EnqueueError::NotALeaf { class: leaf };
        }
        let leaf_queue = &mut self.leaf_queue[leaf.0 as usize];
        leaf_queue.drops = leaf_queue.drops.saturating_add(1);
        if packet.len == 0 || packet.len > Packet::MAX_LEN {
            EnqueueError::Length { class: leaf, len: packet.len }
        } else if self.class[leaf.0 as usize].backlog >= leaf_queue.limit {
            EnqueueError::LeafFull { class: leaf, limit: leaf_queue.limit }
        } else {
            EnqueueError::AllFull { class: leaf, packets: self.packets.len() }
        }
    }

    /// The packet that leaves at `now`, or when to ask again. A `now` before an earlier one counts as
    /// that.
    #[inline]
    pub fn dequeue(&mut self, now: Instant) -> Next {
        if now != self.asked || self.unplaced {
            self.prepare(now);
        }
        if self.row_levels == 0 {
            return self.wait();
        }
        let mut left = [Departure::default()];
        self.depart(&mut left);
        let [departure] = left;
        Next::Packet(departure)
    }

    /// The packets that leave at `now`, as many as `left` has room for: the same, in the same order,
    /// as that many calls of [`Htb::dequeue`], at less than half of the cost where leaves send
    /// several packets a turn. Returns how many; if `left` is not full, no other may leave at `now`.
    ///
    /// ```
    /// use weir_htb::{ClassId, Departure, Htb, Limits, Packet, Params};
    /// use weir_units::{BitRate, Instant};
    ///
    /// let mut htb = Htb::new(Limits::default(), Instant::default());
    /// htb.add(ClassId(1), None, Params::new(BitRate::gbit(1)))?;
    /// (0..100).for_each(|handle| htb.enqueue(ClassId(1), Packet { handle, len: 64 }).unwrap());
    /// let mut left = [Departure::default(); 32];
    /// assert_eq!(htb.dequeue_batch(Instant::default(), &mut left), 32);
    /// assert!((0..32).eq(left.iter().map(|departure| departure.packet.handle)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize {
        if now != self.asked || self.unplaced {
            self.prepare(now);
        }
        self.depart(left)
    }

    fn prepare(&mut self, now: Instant) {
        if self.unplaced {
            self.lay_out();
        }
        self.go_to(now);
        self.asked = now;
    }

    fn wait(&mut self) -> Next {
        if self.packets.waiting() == 0 {
            return Next::Empty;
        }
        let since = (self.wheel.soonest() - START).div_ceil(TICKS_PER_NS);
        Next::At(Instant(Duration::from_nanos(self.origin.saturating_add(since))))
    }

    /// Acts upon all moments up to `now`.
    fn go_to(&mut self, now: Instant) {
        let mut since = nanos(now).saturating_sub(self.origin);
        while since >= ERA {
            self.advance(START + ERA * TICKS_PER_NS);
            self.rebase();
            since -= ERA;
        }
        self.advance((START + since * TICKS_PER_NS).max(self.wheel.now()));
    }

    #[inline]
    fn advance(&mut self, now: u64) {
        self.wheel.advance(now);
        while let Some(i) = self.wheel.pop_due() {
            self.wake(i);
        }
    }

    /// Moves all moments back by an era, so that they never overflow.
    #[cold]
    fn rebase(&mut self) {
        self.wheel.rebase(ERA * TICKS_PER_NS);
        for class in &mut self.class {
            class.empty_until = class.empty_until.saturating_sub(ERA * TICKS_PER_NS);
            class.cempty_until = class.cempty_until.saturating_sub(ERA * TICKS_PER_NS);
        }
        self.origin += ERA;
    }

    /// Packets that wait, in all leaves.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.packets.waiting()
    }

    /// The fate of a class's packets, as of the last [`Htb::dequeue`]; `None` without such a class.
    /// Walks through the packets that wait in it.
    #[must_use]
    pub fn stats(&self, class: ClassId) -> Option<Stats> {
        let i = class.0 as usize;
        let class = self.class.get(i).filter(|class| class.level != VACANT)?;
        let now = self.wheel.now();
        Some(Stats {
            packets: class.packets,
            bytes: Bytes(class.bytes),
            backlog: class.backlog,
            backlog_bytes: Bytes(self.packets.bytes_from(class.head, class.backlog)),
            lended: class.lended,
            borrowed: class.borrowed,
            overlimits: class.overlimits,
            drops: self.leaf_queue[i].drops,
            giants: self.config[i].giants,
            tokens: Tokens::of(class.empty_until, class.depth, now),
            ctokens: Tokens::of(class.cempty_until, class.cdepth, now),
        })
    }
}

/// Nanoseconds of a moment; after 584 years always the same.
#[inline]
fn nanos(now: Instant) -> u64 {
    now.0.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(now.0.subsec_nanos()))
}
