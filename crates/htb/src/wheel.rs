use crate::class::NONE;

const LEVELS: usize = 8;
/// A slot of the lowest level is 2^16 ticks: 256 ns. Eight levels of 64 slots cover 64 bits.
const SLOT: u32 = 16;

/// The events to come: for each entry at most one moment.
///
/// A hierarchical timing wheel. An entry lies at the level of the highest digit (base 64) in which
/// its moment differs from the wheel's, and comes down when that digit is reached; so filing and
/// cancelling cost the same with 16 entries and with 65,536. Moments are exact: a slot's width
/// only says how many entries are looked at, not when they are due.
#[derive(Debug, Clone)]
pub(crate) struct Wheel {
    links: Box<[Link]>,
    heads: [u32; LEVELS * 64],
    filled: [u64; LEVELS],
    /// Entries that are due, linked by `next`.
    due: u32,
    /// All before and at this moment is due or done.
    now: u64,
    /// No entry is due before this moment.
    soonest: u64,
    /// One is due then, unless it was cancelled. Otherwise it is the beginning of a slot whose
    /// entries have not been looked at, as they may be many.
    exact: bool,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    /// When; [`Wheel::NEVER`] if not filed.
    at: u64,
    next: u32,
    prev: u32,
}

impl Wheel {
    pub(crate) const NEVER: u64 = u64::MAX;

    pub(crate) fn new(entries: usize, now: u64) -> Wheel {
        let none = Link { at: Wheel::NEVER, next: NONE, prev: NONE };
        Wheel {
            links: vec![none; entries].into(),
            heads: [NONE; LEVELS * 64],
            filled: [0; LEVELS],
            due: NONE,
            now,
            soonest: Wheel::NEVER,
            exact: true,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// When the first entry is due.
    pub(crate) fn soonest(&mut self) -> u64 {
        if !self.exact {
            self.soonest = self.soonest.max(self.first());
            self.exact = true;
        }
        self.soonest
    }

    /// Files entry `i` for `at`, which is later than now; an earlier moment that it is filed for
    /// stays.
    #[inline]
    pub(crate) fn file(&mut self, i: u32, at: u64) {
        debug_assert!(at > self.now);
        let filed = self.links[i as usize].at;
        if filed <= at {
            return;
        }
        if filed != Wheel::NEVER {
            self.unlink(i);
        }
        self.link(i, at);
        if at < self.soonest {
            (self.soonest, self.exact) = (at, true);
        }
    }

    /// Forgets entry `i`. Not while due entries are being taken.
    pub(crate) fn cancel(&mut self, i: u32) {
        debug_assert_eq!(self.due, NONE);
        if self.links[i as usize].at != Wheel::NEVER {
            self.unlink(i);
            self.links[i as usize].at = Wheel::NEVER;
        }
    }

    #[inline]
    fn slot(&self, at: u64) -> (usize, u32) {
        let differs = ((at ^ self.now) >> SLOT) | 1;
        let level = (63 - differs.leading_zeros()) / 6;
        (level as usize, (at >> (SLOT + 6 * level)) as u32 & 63)
    }

    #[inline]
    fn link(&mut self, i: u32, at: u64) {
        let (level, slot) = self.slot(at);
        let head = &mut self.heads[level << 6 | slot as usize];
        let next = std::mem::replace(head, i);
        self.filled[level] |= 1 << slot;
        if next != NONE {
            self.links[next as usize].prev = i;
        }
        // The first of a slot has the slot in `prev`, above all entries.
        self.links[i as usize] = Link { at, next, prev: FIRST | (level as u32) << 6 | slot };
    }

    fn unlink(&mut self, i: u32) {
        let Link { next, prev, .. } = self.links[i as usize];
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        if prev & FIRST == 0 {
            self.links[prev as usize].next = next;
        } else {
            let place = (prev & !FIRST) as usize;
            self.heads[place] = next;
            if next == NONE {
                self.filled[place >> 6] &= !(1 << (place & 63));
            }
        }
    }

    /// Goes on to `now`; what is due by then comes out of [`Wheel::pop_due`], which must be emptied
    /// before the next call.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64) {
        // Nothing is due, and no entry has to come down, as long as only the lowest digit changes.
        if now < self.soonest && (now ^ self.now) >> (SLOT + 6) == 0 {
            self.now = now;
            return;
        }
        self.turn(now);
    }

    fn turn(&mut self, now: u64) {
        let then = std::mem::replace(&mut self.now, now);
        for level in 0..LEVELS {
            let shift = SLOT + 6 * level as u32;
            let (from, to) = (then >> shift, now >> shift);
            if level > 0 && from == to {
                break;
            }
            let mut passed = self.filled[level];
            if from >> 6 == to >> 6 {
                passed &= !0 << (from & 63) & !0 >> (63 - (to & 63));
            }
            self.filled[level] &= !passed;
            while passed != 0 {
                let slot = passed.trailing_zeros() as usize;
                passed &= passed - 1;
                let mut i = std::mem::replace(&mut self.heads[level << 6 | slot], NONE);
                while i != NONE {
                    let link = self.links[i as usize];
                    if link.at <= now {
                        self.links[i as usize].next = std::mem::replace(&mut self.due, i);
                    } else {
                        self.link(i, link.at);
                    }
                    i = link.next;
                }
            }
        }
        if self.soonest <= now {
            self.look_ahead();
        }
    }

    /// Works out the soonest moment, where that is not much work.
    fn look_ahead(&mut self) {
        self.exact = self.filled[0] != 0 || self.filled == [0; LEVELS];
        self.soonest = if self.exact { self.first() } else { self.first_slot() };
    }

    /// The lowest level with entries, and there the first slot: no entry is sooner than those in it.
    fn place_of_first(&self) -> Option<(usize, usize)> {
        let level = self.filled.iter().position(|slots| *slots != 0)?;
        Some((level, self.filled[level].trailing_zeros() as usize))
    }

    /// When the first slot begins.
    fn first_slot(&self) -> u64 {
        self.place_of_first().map_or(Wheel::NEVER, |(level, slot)| {
            let shift = SLOT + 6 * level as u32;
            ((self.now >> shift) & !63 | slot as u64) << shift
        })
    }

    /// The soonest moment of all entries.
    fn first(&self) -> u64 {
        let Some((level, slot)) = self.place_of_first() else {
            return Wheel::NEVER;
        };
        let (mut i, mut soonest) = (self.heads[level << 6 | slot], Wheel::NEVER);
        while i != NONE {
            let link = self.links[i as usize];
            soonest = soonest.min(link.at);
            i = link.next;
        }
        soonest
    }

    /// One of the entries that are due, in no order, no longer filed.
    #[inline]
    pub(crate) fn pop_due(&mut self) -> Option<u32> {
        let i = self.due;
        if i == NONE {
            return None;
        }
        let link = &mut self.links[i as usize];
        self.due = link.next;
        link.at = Wheel::NEVER;
        Some(i)
    }

    /// Moves the wheel and all in it `by` ticks towards zero. Nothing is due.
    pub(crate) fn rebase(&mut self, by: u64) {
        debug_assert_eq!(self.due, NONE);
        self.now -= by;
        self.heads.fill(NONE);
        self.filled.fill(0);
        for i in 0..self.links.len() {
            let at = self.links[i].at;
            if at != Wheel::NEVER {
                self.link(i as u32, at - by);
            }
        }
        self.look_ahead();
    }
}

/// Marks `prev` of the first entry of a slot.
const FIRST: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_entry_is_due_at_its_moment_and_the_soonest_is_known(
            ops in prop::collection::vec((0..40u32, 0..4u8, 0..45u32, any::<u64>()), 1..400),
        ) {
            let start = 1 << 61;
            let (mut wheel, mut filed) = (Wheel::new(40, start), BTreeMap::new());
            for (i, op, scale, raw) in ops {
                let away = 1 + (raw & ((1 << scale) - 1));
                match op {
                    0 | 1 => {
                        let at = wheel.now() + away;
                        wheel.file(i, at);
                        let moment = filed.entry(i).or_insert(at);
                        *moment = at.min(*moment);
                    }
                    2 => {
                        wheel.cancel(i);
                        filed.remove(&i);
                    }
                    _ => {
                        let first = filed.values().min().copied();
                        prop_assert!(wheel.soonest() <= first.unwrap_or(Wheel::NEVER));
                        // Half of the time exactly to the first, or to one tick before it.
                        let now = match first {
                            Some(at) if raw & 3 == 0 => at,
                            Some(at) if raw & 3 == 1 => (at - 1).max(wheel.now()),
                            _ => wheel.now() + away,
                        };
                        wheel.advance(now);
                        let mut due = Vec::new();
                        while let Some(i) = wheel.pop_due() {
                            due.push(i);
                        }
                        due.sort_unstable();
                        let want = filed.iter().filter(|(_, at)| **at <= now);
                        prop_assert_eq!(due, want.map(|(i, _)| *i).collect::<Vec<_>>());
                        filed.retain(|_, at| *at > now);
                        if raw & 64 == 0 && wheel.now() > start {
                            let by = wheel.now() - start;
                            wheel.rebase(by);
                            filed.values_mut().for_each(|at| *at -= by);
                        }
                    }
                }
            }
        }
    }
}
