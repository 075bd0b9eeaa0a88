//! Who is in which list, whose turn it is, and who pays.

use crate::{
    ClassId, Departure, Htb,
    bits::Bits,
    bucket::MAX_DEBT,
    class::{Mode, NONE},
};

/// The children of one parent that may borrow, of one priority.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Feed {
    /// Who is next: the first member not below this number.
    pub(crate) cursor: u32,
    /// The same as a place, counted from the parent's first.
    pub(crate) place: u32,
    pub(crate) members: u32,
}

/// The classes of one level and priority that can send.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    members: Bits,
    /// Who is next: the first member not below this number.
    cursor: u32,
}

impl Row {
    pub(crate) fn new(classes: usize) -> Row {
        Row { members: Bits::new(classes), cursor: 0 }
    }

    /// Whose turn it is. The row is not empty.
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

impl Htb {
    /// The leaf whose turn it is in a row that is not empty: down the feeds; where one has come to its
    /// end it begins anew, and the next of those above has its turn.
    #[inline]
    pub(crate) fn next_leaf(&mut self, level: usize, prio: usize) -> u32 {
        let row = level << 3 | prio;
        let mut i = self.rows[row].turn();
        if level == 0 {
            return i;
        }
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

    /// Sends from a leaf whose turn it is, at most `most` packets, which is at least one: as long as
    /// nobody else could be next. Nothing but this leaf, who pays for it and those between changes
    /// that, so what is above the payer is charged once for packets of equal length.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        leaf: u32,
        level: usize,
        prio: usize,
        most: u32,
        mut each: impl FnMut(Departure),
    ) {
        let now = self.wheel.now();
        let turn = leaf as usize * usize::from(self.limits.depth) + level;
        let above = self.above_payer(leaf, level as u8);
        let class = &mut self.class[leaf as usize];
        let (parent, quantum) = (class.parent, class.quantum);
        let (price, cprice) = (class.price, class.cprice);
        // The leaf's part is written back at the end. It has tokens of its ceiling, and those of its
        // rate do not count if another pays; so nothing overflows before one of them ends it.
        let most = most.min(class.backlog);
        let (mut head, mut deficit, mut bytes) = (class.head, self.deficit[turn], 0u64);
        let mut empty_until = class.empty_until.max(now - class.depth);
        let mut cempty_until = class.cempty_until.max(now - class.cdepth);
        let (mut sent, mut equal, mut len, mut cost, mut ccost) = (0, 0, 0, 0, 0);
        loop {
            let (packet, next) = self.packets.take(head);
            each(Departure { leaf: ClassId(leaf), packet });
            head = next;
            sent += 1;
            if packet.len != len {
                self.charge_above(above, len, equal);
                (equal, len) = (0, packet.len);
                (cost, ccost) = (price.of(len), cprice.of(len));
            }
            equal += 1;
            bytes += u64::from(len);
            deficit = deficit.saturating_sub(len as i32);
            cempty_until += ccost;
            let goes_on = if level == 0 {
                empty_until += cost;
                empty_until <= now
            } else {
                !self.charge_lenders(parent, level as u8, len)
            };
            if !goes_on || cempty_until > now || deficit < 0 || sent == most {
                break;
            }
        }
        if deficit < 0 {
            deficit = deficit.saturating_add(quantum);
            self.end_turn(leaf, level, prio);
        }
        self.deficit[turn] = deficit;
        let class = &mut self.class[leaf as usize];
        class.head = head;
        class.backlog -= sent;
        class.packets += u64::from(sent);
        class.bytes += bytes;
        class.cempty_until = cempty_until.min(now + (MAX_DEBT - 1));
        if level == 0 {
            class.lended += u64::from(sent);
            class.empty_until = empty_until.min(now + (MAX_DEBT - 1));
        } else {
            class.borrowed += u64::from(sent);
        }
        let mode = class.mode_at(now);
        class.overlimits += u64::from(mode == Mode::CannotSend);
        if class.backlog == 0 {
            self.stop(leaf);
        } else if mode != class.mode {
            self.switch(leaf, mode);
        }
        self.charge_above(above, len, equal);
    }

    /// The turn of a leaf is used up; it is the next one's.
    #[inline]
    fn end_turn(&mut self, leaf: u32, level: usize, prio: usize) {
        if level == 0 {
            self.rows[prio].cursor = leaf + 1;
        } else {
            self.turn_after(self.class[leaf as usize].parent, leaf, prio);
        }
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

    /// A leaf has its first packet.
    #[inline(never)]
    pub(crate) fn start(&mut self, leaf: u32) {
        if self.unplaced {
            self.lay_out();
        }
        self.class[leaf as usize].activity = 1 << self.class[leaf as usize].prio;
        self.look_at(leaf);
        self.join(leaf);
    }

    /// A leaf has no packets any more.
    #[inline]
    pub(crate) fn stop(&mut self, leaf: u32) {
        self.leave(leaf);
        self.class[leaf as usize].activity = 0;
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
        if self.class[i as usize].mode != Mode::CannotSend {
            self.leave(i);
        }
        self.class[i as usize].mode = mode;
        if mode != Mode::CanSend {
            self.wheel.file(i, self.class[i as usize].mode_ends());
        }
        if mode != Mode::CannotSend {
            self.join(i);
        }
    }

    /// Works out the mode of a class that was idle, whose moments nobody watched.
    fn look_at(&mut self, i: u32) {
        let class = &mut self.class[i as usize];
        class.mode = class.mode_at(self.wheel.now());
        if class.mode != Mode::CanSend {
            self.wheel.file(i, class.mode_ends());
        }
    }

    /// Puts a class, for the priorities it has packets of, where its mode says: into a row, or into
    /// its parent's feed, and the parent likewise if it had no packets of those priorities.
    #[inline]
    pub(crate) fn join(&mut self, mut i: u32) {
        let mut mask = self.class[i as usize].activity;
        loop {
            let class = &self.class[i as usize];
            match class.mode {
                Mode::CanSend => {
                    let level = usize::from(class.level);
                    each(mask, |prio| self.rows[level << 3 | prio].members.set(i));
                    self.row_prios[level] |= mask;
                    self.row_levels |= u64::from(mask != 0) << level;
                    return;
                }
                Mode::CannotSend => return,
                Mode::MayBorrow => {}
            }
            let (parent, place) = (class.parent, class.place);
            if parent == NONE || mask == 0 {
                return;
            }
            each(mask, |prio| {
                let feed = &mut self.feeds[(parent as usize) << 3 | prio];
                mask &= !(u8::from(feed.members > 0) << prio);
                feed.members += 1;
                self.feeding[prio].set(place);
            });
            let was = self.class[parent as usize].activity;
            self.class[parent as usize].activity |= mask;
            if was == 0 {
                self.look_at(parent);
            }
            i = parent;
        }
    }

    /// The contrary of [`Htb::join`]: takes a class out of the row or feed where its mode has put it.
    #[inline]
    pub(crate) fn leave(&mut self, mut i: u32) {
        let mut mask = self.class[i as usize].activity;
        loop {
            let class = &self.class[i as usize];
            match class.mode {
                Mode::CanSend => {
                    let level = usize::from(class.level);
                    each(mask, |prio| {
                        let members = &mut self.rows[level << 3 | prio].members;
                        members.clear(i);
                        self.row_prios[level] &= !(u8::from(members.is_empty()) << prio);
                    });
                    if self.row_prios[level] == 0 {
                        self.row_levels &= !(1 << level);
                    }
                    return;
                }
                Mode::CannotSend => return,
                Mode::MayBorrow => {}
            }
            let (parent, place) = (class.parent, class.place);
            if parent == NONE || mask == 0 {
                return;
            }
            let mut emptied = 0;
            each(mask, |prio| {
                let feed = &mut self.feeds[(parent as usize) << 3 | prio];
                feed.members -= 1;
                emptied |= u8::from(feed.members == 0) << prio;
                self.feeding[prio].clear(place);
            });
            if emptied == 0 {
                return;
            }
            mask = emptied;
            // It leaves its own lists for these priorities before it forgets them.
            i = parent;
            self.class[i as usize].activity &= !emptied;
        }
    }
}
