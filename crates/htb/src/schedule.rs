//! The lists of classes, their turns, and the payers.

use crate::{
    ClassId, Departure, Htb,
    bits::Bits,
    bucket::MAX_DEBT,
    class::{Mode, NONE},
};

/// The children of one parent that may borrow, of one priority.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Feed {
    /// The next class: the first member not below this number.
    pub(crate) cursor: u32,
    /// The same as a place, counted from the parent's first.
    pub(crate) place: u32,
    pub(crate) members: u32,
}

/// The debt of a class and all above it for packets of one length, which have left.
#[derive(Debug, Default)]
struct Owed {
    above: u32,
    len: u32,
    packets: u32,
}

/// The classes of one level and priority that can send.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    members: Bits,
    /// The next class: the first member not below this number.
    cursor: u32,
}

impl Row {
    pub(crate) fn new(classes: usize) -> Row {
        Row { members: Bits::new(classes), cursor: 0 }
    }

    /// The class that is next. The row is not empty.
    #[inline]
    fn turn(&mut self) -> u32 {
        let next = self.members.next(self.cursor).or_else(|| self.members.next(0));
        self.cursor = next.unwrap_or(NONE);
        self.cursor
    }
}

/// Calls `f` for each bit of `mask`.
#[inline]
fn each(mut mask: u8, mut f: impl FnMut(usize)) {
    while mask != 0 {
        f(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

/// The rest for the next turn of a class that has sent more than it had; 32 bits hold it.
#[inline]
fn after_turn(deficit: i64, quantum: i32) -> i64 {
    deficit.max(i32::MIN.into()) + i64::from(quantum)
}

impl Htb {
    /// The next leaf in a row of parents that is not empty: down the feeds. A feed at its end
    /// begins again, and the next of those above has its turn.
    #[inline]
    fn next_borrower(&mut self, level: usize, prio: usize) -> u32 {
        let row = level << 3 | prio;
        let mut i = self.rows[row].turn();
        while self.class[i as usize].level != 0 {
            let class = &self.class[i as usize];
            let feed = &mut self.feeds[(i as usize) << 3 | prio];
            match self.feeding[prio].next(class.first + feed.place) {
                Some(place) if place - class.first < class.span => {
                    i = self.order[place as usize];
                    (feed.cursor, feed.place) = (i, place - class.first);
                }
                _ => {
                    (feed.cursor, feed.place) = (0, 0);
                    if usize::from(class.level) == level {
                        self.rows[row].cursor = i + 1;
                        i = self.rows[row].turn();
                    } else {
                        let parent = class.parent;
                        self.turn_after(parent, i, prio);
                        i = parent;
                    }
                }
            }
        }
        i
    }

    /// Packets leave as long as there are any that may and `left` has room. Returns how many.
    #[inline]
    pub(crate) fn depart(&mut self, left: &mut [Departure]) -> usize {
        let mut owed = Owed::default();
        let mut sent = 0;
        while let Some(room) = left.get_mut(sent..).filter(|room| !room.is_empty()) {
            if self.row_levels & 1 != 0 {
                sent += self.serve_own(room, &mut owed) as usize;
            } else if owed.packets > 0 {
                self.settle(&mut owed);
            } else if self.row_levels != 0 {
                sent += self.serve_lent(room) as usize;
            } else {
                break;
            }
        }
        self.settle(&mut owed);
        sent
    }

    /// Sends from the next leaf among those with tokens of their own, into `left`, which has room
    /// for at least one, until another leaf could be next. Nothing but this leaf changes that, so
    /// what is above has time to pay until others may be next: `owed`. Returns how many were sent.
    #[inline]
    fn serve_own(&mut self, left: &mut [Departure], owed: &mut Owed) -> u32 {
        let now = self.wheel.now();
        let prio = self.row_prios[0].trailing_zeros() as usize;
        let leaf = self.rows[prio].turn();
        let class = &self.class[leaf as usize];
        let (above, price, cprice) = (class.parent, class.price, class.cprice);
        // The leaf's part is written back at the end. It has tokens, so nothing overflows before one
        // of its buckets ends it.
        let most = left.len().min(class.backlog as usize);
        let (mut head, mut deficit, mut bytes) = (class.head, i64::from(class.deficit), 0u64);
        let mut empty_until = class.empty_until.max(now - class.depth);
        let mut cempty_until = class.cempty_until.max(now - class.cdepth);
        let (mut sent, mut equal, mut len, mut cost, mut ccost) = (0, 0, 0, 0, 0);
        for place in &mut left[..most] {
            let (packet, next) = self.packets.take(head);
            *place = Departure { leaf: ClassId(leaf), packet };
            head = next;
            sent += 1;
            if packet.len != len {
                owed.packets += equal;
                (equal, len) = (0, packet.len);
                (cost, ccost) = (price.of(len), cprice.of(len));
                if owed.above != above || owed.len != len {
                    self.settle(owed);
                    (owed.above, owed.len) = (above, len);
                }
            }
            equal += 1;
            bytes += u64::from(len);
            deficit -= i64::from(len);
            empty_until += cost;
            cempty_until += ccost;
            if empty_until > now || cempty_until > now || deficit < 0 {
                break;
            }
        }
        owed.packets += equal;
        let class = &mut self.class[leaf as usize];
        if deficit < 0 {
            deficit = after_turn(deficit, class.quantum);
            self.rows[prio].cursor = leaf + 1;
        }
        class.deficit = deficit as i32;
        class.head = head;
        class.backlog -= sent;
        self.packets.taken(sent, (class.backlog == 0).then_some(head));
        class.packets += u64::from(sent);
        class.bytes += bytes;
        class.lended += u64::from(sent);
        class.empty_until = empty_until.min(now + (MAX_DEBT - 1));
        class.cempty_until = cempty_until.min(now + (MAX_DEBT - 1));
        let mode = class.mode_at(now);
        class.overlimits += u64::from(mode == Mode::CannotSend);
        if class.backlog == 0 {
            class.activity = 0;
            self.leave_row(0, prio, leaf);
        } else if mode != Mode::CanSend {
            self.switch(leaf, mode);
        }
        sent
    }

    /// The same among those that borrow, at the lowest level where a class can lend.
    #[inline]
    fn serve_lent(&mut self, left: &mut [Departure]) -> u32 {
        let now = self.wheel.now();
        let level = self.row_levels.trailing_zeros() as usize;
        let prio = self.row_prios[level].trailing_zeros() as usize;
        let leaf = self.next_borrower(level, prio);
        let above = self.above_payer(leaf, level as u8);
        let turn = leaf as usize * usize::from(self.limits.depth) + level;
        let class = &self.class[leaf as usize];
        let (parent, quantum, cprice) = (class.parent, class.quantum, class.cprice);
        // The leaf's part is written back at the end. It has tokens of its ceiling, so nothing
        // overflows before that ends it.
        let most = left.len().min(class.backlog as usize);
        let (mut head, mut deficit, mut bytes) = (class.head, i64::from(self.deficit[turn]), 0u64);
        let mut cempty_until = class.cempty_until.max(now - class.cdepth);
        let (mut sent, mut equal, mut len, mut ccost) = (0, 0, 0, 0);
        for place in &mut left[..most] {
            let (packet, next) = self.packets.take(head);
            *place = Departure { leaf: ClassId(leaf), packet };
            head = next;
            sent += 1;
            if packet.len != len {
                self.charge_above(above, len, equal);
                (equal, len, ccost) = (0, packet.len, cprice.of(packet.len));
            }
            equal += 1;
            bytes += u64::from(len);
            deficit -= i64::from(len);
            cempty_until += ccost;
            let changed = self.charge_lenders(parent, level as u8, len);
            if changed || cempty_until > now || deficit < 0 {
                break;
            }
        }
        if deficit < 0 {
            deficit = after_turn(deficit, quantum);
            self.turn_after(parent, leaf, prio);
        }
        self.deficit[turn] = deficit as i32;
        let class = &mut self.class[leaf as usize];
        class.head = head;
        class.backlog -= sent;
        self.packets.taken(sent, (class.backlog == 0).then_some(head));
        class.packets += u64::from(sent);
        class.bytes += bytes;
        class.borrowed += u64::from(sent);
        class.cempty_until = cempty_until.min(now + (MAX_DEBT - 1));
        let mode = class.mode_at(now);
        class.overlimits += u64::from(mode == Mode::CannotSend);
        if class.backlog == 0 {
            self.stop(leaf);
        } else if mode != class.mode {
            self.switch(leaf, mode);
        }
        self.charge_above(above, len, equal);
        sent
    }

    /// Those above pay what they owe.
    #[inline]
    fn settle(&mut self, owed: &mut Owed) {
        let packets = std::mem::take(&mut owed.packets);
        self.charge_above(owed.above, owed.len, packets);
    }

    /// Child `i` of `parent` has had its turn.
    #[inline]
    fn turn_after(&mut self, parent: u32, i: u32, prio: usize) {
        let place = self.class[i as usize].place - self.class[parent as usize].first;
        let feed = &mut self.feeds[(parent as usize) << 3 | prio];
        (feed.cursor, feed.place) = (i + 1, place + 1);
    }

    /// The class above the one that pays for a leaf: the first at `level`.
    #[inline]
    fn above_payer(&self, leaf: u32, level: u8) -> u32 {
        let mut class = &self.class[leaf as usize];
        while class.level < level {
            class = &self.class[class.parent as usize];
        }
        class.parent
    }

    /// Charges a packet to class `i` and all up to the one at `level`, which pays: that one's rate, and
    /// the ceilings of all. Whether the mode of one has changed.
    ///
    /// All of them have tokens of their ceilings, or the packet would not leave.
    #[inline]
    fn charge_lenders(&mut self, mut i: u32, level: u8, len: u32) -> bool {
        let now = self.wheel.now();
        let mut changed = false;
        loop {
            let class = &mut self.class[i as usize];
            let pays = class.level == level;
            if pays {
                class.lended += 1;
                class.take_rate(now, len, 1);
            } else {
                class.borrowed += 1;
            }
            class.take_ceil(now, len, 1);
            class.packets += 1;
            class.bytes += u64::from(len);
            let mode = class.mode_at(now);
            let parent = class.parent;
            if mode != class.mode {
                class.overlimits += u64::from(mode == Mode::CannotSend);
                changed = true;
                self.switch(i, mode);
            }
            if pays {
                return changed;
            }
            i = parent;
        }
    }

    /// Charges packets of equal length to class `i` and all above it, which have not paid for them:
    /// rates and ceilings.
    #[inline]
    fn charge_above(&mut self, mut i: u32, len: u32, packets: u32) {
        let now = self.wheel.now();
        while i != NONE && packets > 0 {
            let class = &mut self.class[i as usize];
            let had_ceil = now >= class.cempty_until;
            class.take_rate(now, len, packets);
            class.take_ceil(now, len, packets);
            class.packets += u64::from(packets);
            class.bytes += u64::from(len) * u64::from(packets);
            let mode = class.mode_at(now);
            let parent = class.parent;
            if mode == Mode::CannotSend {
                class.overlimits += u64::from(had_ceil);
            }
            if mode != class.mode && class.activity != 0 {
                self.switch(i, mode);
            }
            i = parent;
        }
    }

    /// A leaf has its first packet. Not inlined, as most packets are not: what is has more registers.
    #[inline(never)]
    pub(crate) fn start(&mut self, leaf: u32) {
        if self.unplaced {
            self.lay_out();
        }
        let prio = self.class[leaf as usize].prio;
        self.class[leaf as usize].activity = 1 << prio;
        self.look_at(leaf);
        self.join(leaf, prio.into());
    }

    /// A leaf has no packets any more.
    #[inline]
    pub(crate) fn stop(&mut self, leaf: u32) {
        self.class[leaf as usize].activity = 0;
        self.leave(leaf, self.class[leaf as usize].prio.into());
    }

    /// A moment that a class was waiting for has come.
    #[inline]
    pub(crate) fn wake(&mut self, i: u32) {
        let class = &self.class[i as usize];
        if class.activity == 0 {
            return;
        }
        let mode = class.mode_at(self.wheel.now());
        if mode != class.mode {
            self.switch(i, mode);
        } else if mode != Mode::CanSend {
            self.wheel.file(i, class.mode_ends());
        }
    }

    /// An active class changes its mode.
    #[inline]
    fn switch(&mut self, i: u32, mode: Mode) {
        let class = &mut self.class[i as usize];
        let was = std::mem::replace(&mut class.mode, mode);
        let (active, level, parent, place) = (class.activity, class.level.into(), class.parent, class.place);
        let ends = class.mode_ends();
        each(active, |prio| match was {
            Mode::CanSend => self.leave_row(level, prio, i),
            Mode::MayBorrow => self.leave_feed(parent, prio, place),
            Mode::CannotSend => {}
        });
        match mode {
            Mode::CanSend => return each(active, |prio| self.join_row(level, prio, i)),
            Mode::MayBorrow => each(active, |prio| self.join_feed(parent, prio, place)),
            Mode::CannotSend => {}
        }
        self.wheel.file(i, ends);
    }

    /// Works out the mode of a class that was idle, whose moments were not followed.
    #[inline]
    fn look_at(&mut self, i: u32) {
        let class = &mut self.class[i as usize];
        class.mode = class.mode_at(self.wheel.now());
        if class.mode != Mode::CanSend {
            self.wheel.file(i, class.mode_ends());
        }
    }

    /// Puts a class, for a priority that it has packets of, where its mode says: into a row, or into
    /// its parent's feed, and the parent likewise if it had no packets of that priority.
    #[inline]
    pub(crate) fn join(&mut self, i: u32, prio: usize) {
        let class = &self.class[i as usize];
        match class.mode {
            Mode::CanSend => self.join_row(class.level.into(), prio, i),
            Mode::MayBorrow => self.join_feed(class.parent, prio, class.place),
            Mode::CannotSend => {}
        }
    }

    /// The contrary of [`Htb::join`]: takes a class out of the row or feed where its mode has put it.
    #[inline]
    pub(crate) fn leave(&mut self, i: u32, prio: usize) {
        let class = &self.class[i as usize];
        match class.mode {
            Mode::CanSend => self.leave_row(class.level.into(), prio, i),
            Mode::MayBorrow => self.leave_feed(class.parent, prio, class.place),
            Mode::CannotSend => {}
        }
    }

    /// A child at `place` may borrow; the root has no parent to borrow from.
    #[inline]
    fn join_feed(&mut self, parent: u32, prio: usize, place: u32) {
        if parent != NONE {
            self.feeding[prio].set(place);
            let feed = &mut self.feeds[(parent as usize) << 3 | prio];
            feed.members += 1;
            if feed.members == 1 {
                self.begins(parent, prio);
            }
        }
    }

    #[inline]
    fn leave_feed(&mut self, parent: u32, prio: usize, place: u32) {
        if parent != NONE {
            self.feeding[prio].clear(place);
            let feed = &mut self.feeds[(parent as usize) << 3 | prio];
            feed.members -= 1;
            if feed.members == 0 {
                self.ends(parent, prio);
            }
        }
    }

    /// A parent has packets of a priority that may borrow from it. Not inlined, as it may go on upwards.
    #[inline(never)]
    fn begins(&mut self, i: u32, prio: usize) {
        let was = self.class[i as usize].activity;
        self.class[i as usize].activity |= 1 << prio;
        if was == 0 {
            self.look_at(i);
        }
        self.join(i, prio);
    }

    /// It has no more of them.
    #[inline(never)]
    fn ends(&mut self, i: u32, prio: usize) {
        self.class[i as usize].activity &= !(1 << prio);
        self.leave(i, prio);
    }

    #[inline]
    fn join_row(&mut self, level: usize, prio: usize, i: u32) {
        self.rows[level << 3 | prio].members.set(i);
        self.row_prios[level] |= 1 << prio;
        self.row_levels |= 1 << level;
    }

    #[inline]
    fn leave_row(&mut self, level: usize, prio: usize, i: u32) {
        let members = &mut self.rows[level << 3 | prio].members;
        members.clear(i);
        if members.is_empty() {
            self.row_prios[level] &= !(1 << prio);
            self.row_levels &= !(u64::from(self.row_prios[level] == 0) << level);
        }
    }
}
