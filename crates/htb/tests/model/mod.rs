//! The hierarchical token bucket as the kernel describes it, without optimisations: tokens and the
//! times of their counts, modes and lists worked out again for each packet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_htb::{ClassId, Packet, Params};
use weir_units::{BitRate, Bytes};

/// Moments and tokens are in 1/256 ns.
type Ticks = i128;
const SECOND: Ticks = 256_000_000_000;
const MAX_DEBT: Ticks = 60 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    CannotSend,
    MayBorrow,
    CanSend,
}

#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) parent: Option<u32>,
    pub(crate) params: Params,
    pub(crate) queue: VecDeque<Packet>,
    tokens: Ticks,
    ctokens: Ticks,
    counted: Ticks,
    deficit: BTreeMap<u8, i64>,
    cursor: BTreeMap<u8, u32>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) lended: u64,
    pub(crate) borrowed: u64,
    pub(crate) overlimits: u64,
    pub(crate) drops: u32,
    pub(crate) giants: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    depth: u8,
    classes: u32,
    packets: usize,
    now: Ticks,
    pub(crate) class: BTreeMap<u32, Class>,
    row_cursor: BTreeMap<(u8, u8), u32>,
}

/// The cost of a byte, in 2^-24 ticks, rounded up.
fn price(rate: BitRate) -> Ticks {
    ((8 * SECOND) << 24).unsigned_abs().div_ceil(u128::from(rate.0)) as Ticks
}

fn cost(rate: BitRate, len: u32) -> Ticks {
    (price(rate) * Ticks::from(len)).unsigned_abs().div_ceil(1 << 24) as Ticks
}

fn depth(rate: BitRate, burst: Bytes) -> Ticks {
    ((price(rate) * Ticks::from(burst.0)) >> 24).min(1 << 61)
}

/// `diff` more tokens, at most `depth`, and `cost` less; debt above 60 s is forgiven.
fn account(tokens: Ticks, diff: Ticks, depth: Ticks, cost: Ticks) -> Ticks {
    let tokens = (tokens + diff).min(depth) - cost;
    if tokens <= -MAX_DEBT { 1 - MAX_DEBT } else { tokens }
}

impl Class {
    fn fill(&mut self, now: Ticks) {
        self.tokens = depth(self.params.rate, self.params.effective_burst());
        self.ctokens = depth(self.params.ceil, self.params.effective_cburst());
        self.counted = now;
    }

    fn mode(&self, now: Ticks) -> Mode {
        let diff = now - self.counted;
        if self.ctokens + diff < 0 {
            Mode::CannotSend
        } else if self.tokens + diff < 0 {
            Mode::MayBorrow
        } else {
            Mode::CanSend
        }
    }

    /// When the mode ends, as long as no packet is sent.
    fn mode_ends(&self, now: Ticks) -> Option<Ticks> {
        match self.mode(now) {
            Mode::CannotSend => Some(self.counted - self.ctokens),
            Mode::MayBorrow => Some(self.counted - self.tokens),
            Mode::CanSend => None,
        }
    }
}

impl Model {
    pub(crate) fn new(classes: u32, packets: usize, depth: u8) -> Model {
        Model { depth, classes, packets, now: 0, class: BTreeMap::new(), row_cursor: BTreeMap::new() }
    }

    fn children(&self, i: u32) -> impl Iterator<Item = u32> + '_ {
        self.class.iter().filter(move |(_, class)| class.parent == Some(i)).map(|(id, _)| *id)
    }

    pub(crate) fn is_leaf(&self, i: u32) -> bool {
        self.children(i).next().is_none()
    }

    /// How many classes are above it.
    fn above(&self, i: u32) -> u8 {
        self.class[&i].parent.map_or(0, |parent| self.above(parent) + 1)
    }

    /// Leaves have 0; a root with children has the highest.
    fn level(&self, i: u32) -> u8 {
        if self.is_leaf(i) { 0 } else { self.depth - 1 - self.above(i) }
    }

    pub(crate) fn add(&mut self, id: u32, parent: Option<u32>, params: Params) -> bool {
        let parent_ok = parent.is_none_or(|parent| {
            self.class.get(&parent).is_some_and(|class| class.queue.is_empty())
                && self.above(parent) + 1 < self.depth
        });
        if id >= self.classes || self.class.contains_key(&id) || !parent_ok || !valid(&params) {
            return false;
        }
        if let Some(parent) = parent
            && self.is_leaf(parent)
        {
            let now = self.now;
            let class = self.class.get_mut(&parent).unwrap();
            class.fill(now);
            class.cursor.clear();
        }
        let mut class = Class {
            parent,
            params,
            queue: VecDeque::new(),
            tokens: 0,
            ctokens: 0,
            counted: 0,
            deficit: BTreeMap::new(),
            cursor: BTreeMap::new(),
            packets: 0,
            bytes: 0,
            lended: 0,
            borrowed: 0,
            overlimits: 0,
            drops: 0,
            giants: 0,
        };
        class.fill(self.now);
        self.class.insert(id, class);
        true
    }

    pub(crate) fn change(&mut self, id: u32, params: Params) -> bool {
        match self.class.get_mut(&id) {
            Some(class) if valid(&params) => {
                class.params = params;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&mut self, id: u32) -> bool {
        match self.class.get(&id) {
            Some(class) if class.queue.is_empty() && self.is_leaf(id) => {}
            _ => return false,
        }
        let parent = self.class.remove(&id).unwrap().parent;
        if let Some(parent) = parent
            && self.is_leaf(parent)
        {
            let now = self.now;
            let class = self.class.get_mut(&parent).unwrap();
            class.fill(now);
            class.deficit.clear();
        }
        true
    }

    pub(crate) fn drain(&mut self, id: u32) -> Vec<Packet> {
        self.class.get_mut(&id).map(|class| class.queue.drain(..).collect()).unwrap_or_default()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.class.values().map(|class| class.queue.len()).sum()
    }

    pub(crate) fn enqueue(&mut self, id: u32, packet: Packet) -> bool {
        let full = self.waiting() >= self.packets;
        if !self.class.contains_key(&id) || !self.is_leaf(id) {
            return false;
        }
        let class = self.class.get_mut(&id).unwrap();
        let in_bounds = (1..=Packet::MAX_LEN).contains(&packet.len);
        if full || !in_bounds || class.queue.len() >= class.params.limit as usize {
            class.drops += 1;
            return false;
        }
        let burst = class.params.effective_burst().min(class.params.effective_cburst());
        class.giants += u64::from(u64::from(packet.len) > burst.0);
        class.queue.push_back(packet);
        true
    }

    /// Whether it has packets of this priority that it can send or pass on.
    fn active(&self, i: u32, prio: u8) -> bool {
        let class = &self.class[&i];
        if self.is_leaf(i) {
            !class.queue.is_empty() && class.params.prio == prio
        } else {
            !self.feed(i, prio).is_empty()
        }
    }

    fn feed(&self, parent: u32, prio: u8) -> BTreeSet<u32> {
        let borrows = |i: &u32| self.class[i].mode(self.now) == Mode::MayBorrow && self.active(*i, prio);
        self.children(parent).filter(borrows).collect()
    }

    fn row(&self, level: u8, prio: u8) -> BTreeSet<u32> {
        let can = |i: &u32| {
            self.level(*i) == level && self.class[i].mode(self.now) == Mode::CanSend && self.active(*i, prio)
        };
        self.class.keys().copied().filter(can).collect()
    }

    /// The priorities of packets that wait.
    fn prios(&self) -> BTreeSet<u8> {
        let waiting = self.class.values().filter(|class| !class.queue.is_empty());
        waiting.map(|class| class.params.prio).collect()
    }

    /// The lowest level, and there the lowest priority, that a class can send at.
    fn first_row(&self) -> Option<(u8, u8)> {
        let prios = self.prios();
        let can = self.class.iter().filter(|(_, class)| class.mode(self.now) == Mode::CanSend);
        let rows = can.flat_map(|(i, _)| prios.iter().map(|prio| (*i, *prio)));
        let rows = rows.filter(|(i, prio)| self.active(*i, *prio));
        rows.map(|(i, prio)| (self.level(i), prio)).min()
    }

    fn turn(&mut self, level: u8, prio: u8) -> u32 {
        let row = self.row(level, prio);
        let cursor = self.row_cursor.get(&(level, prio)).copied().unwrap_or(0);
        let i = *row.range(cursor..).next().or(row.first()).unwrap();
        self.row_cursor.insert((level, prio), i);
        i
    }

    fn next_leaf(&mut self, level: u8, prio: u8) -> u32 {
        let mut i = self.turn(level, prio);
        while !self.is_leaf(i) {
            let (feed, top) = (self.feed(i, prio), self.level(i) == level);
            let class = self.class.get_mut(&i).unwrap();
            let cursor = class.cursor.get(&prio).copied().unwrap_or(0);
            if let Some(next) = feed.range(cursor..).next() {
                class.cursor.insert(prio, *next);
                i = *next;
            } else {
                // All have had their turns: it begins again, after the next of those above.
                class.cursor.insert(prio, 0);
                match class.parent {
                    Some(parent) if !top => {
                        self.class.get_mut(&parent).unwrap().cursor.insert(prio, i + 1);
                        i = parent;
                    }
                    _ => {
                        self.row_cursor.insert((level, prio), i + 1);
                        i = self.turn(level, prio);
                    }
                }
            }
        }
        i
    }

    /// The packet that leaves `now`, in nanoseconds since the beginning.
    pub(crate) fn dequeue(&mut self, now: u64) -> Option<(ClassId, Packet)> {
        self.now = self.now.max(Ticks::from(now) * 256);
        let (level, prio) = self.first_row()?;
        let leaf = self.next_leaf(level, prio);
        let class = self.class.get_mut(&leaf).unwrap();
        let packet = class.queue.pop_front().unwrap();
        let deficit = class.deficit.entry(level).or_insert(0);
        *deficit = (*deficit - i64::from(packet.len)).max(i32::MIN.into());
        if *deficit < 0 {
            *deficit += i64::from(class.params.effective_quantum());
            match class.parent {
                Some(parent) if level > 0 => {
                    self.class.get_mut(&parent).unwrap().cursor.insert(prio, leaf + 1);
                }
                _ => {
                    self.row_cursor.insert((level, prio), leaf + 1);
                }
            }
        }
        self.charge(leaf, level, packet.len);
        Some((ClassId(leaf), packet))
    }

    fn charge(&mut self, leaf: u32, lender: u8, len: u32) {
        let mut next = Some(leaf);
        while let Some(i) = next {
            let (level, now) = (self.level(i), self.now);
            let class = self.class.get_mut(&i).unwrap();
            let params = class.params;
            let diff = now - class.counted;
            let mode = class.mode(now);
            if level >= lender {
                class.lended += u64::from(level == lender);
                let depth = depth(params.rate, params.effective_burst());
                class.tokens = account(class.tokens, diff, depth, cost(params.rate, len));
            } else {
                class.borrowed += 1;
                class.tokens += diff;
            }
            let cdepth = depth(params.ceil, params.effective_cburst());
            class.ctokens = account(class.ctokens, diff, cdepth, cost(params.ceil, len));
            class.counted = now;
            let over = mode != Mode::CannotSend && class.mode(now) == Mode::CannotSend;
            class.overlimits += u64::from(over);
            class.packets += 1;
            class.bytes += u64::from(len);
            next = class.parent;
        }
    }

    /// The first moment, in nanoseconds rounded up, at which a class with packets changes its mode.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let prios = self.prios();
        let busy = |i: &u32| prios.iter().any(|prio| self.active(*i, *prio));
        let busy = self.class.iter().filter(|(i, _)| busy(i));
        let ends = busy.filter_map(|(_, class)| class.mode_ends(self.now)).min()?;
        Some(u64::try_from(ends.unsigned_abs().div_ceil(256)).unwrap())
    }

    /// Tokens of a class in nanoseconds, rounded towards zero.
    pub(crate) fn tokens(&self, i: u32) -> [Ticks; 2] {
        let class = &self.class[&i];
        let diff = self.now - class.counted;
        let params = &class.params;
        [
            (class.tokens + diff).min(depth(params.rate, params.effective_burst())) / 256,
            (class.ctokens + diff).min(depth(params.ceil, params.effective_cburst())) / 256,
        ]
    }
}

fn valid(params: &Params) -> bool {
    let rates = Params::MIN_RATE..=BitRate::MAX;
    rates.contains(&params.rate)
        && rates.contains(&params.ceil)
        && params.ceil >= params.rate
        && params.prio < 8
        && params.quantum.is_none_or(|quantum| (1..=Params::MAX_QUANTUM).contains(&quantum))
}
