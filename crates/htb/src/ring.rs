//! A ring of words from one thread to another, without locks and without a way back.
//!
//! As in FastForward (PPoPP'08) a slot tells by itself whether it is new, so that no index is
//! shared: its highest bit is the other way round in each lap. Only the filling end writes, and it
//! never looks: a line of the cache goes one way only, and no thread waits for it.
//!
//! So the ring must not be overrun, and its users see to that: an item is put in only once it is known
//! (by what has come through the other ring of the pair) that as many have been taken out that there is
//! room. [`Intake`](crate::Intake) and [`Outlet`](crate::Outlet) count packets, and the rings have room for all
//! that may be on their way. Knowing it by the other ring also orders memory: the slot was read before it is
//! filled again.

use std::sync::Arc;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The bit that tells; it is not carried.
const LAP: u64 = 1 << 63;

/// The end that fills.
#[derive(Debug)]
pub struct Filler {
    slots: Arc<[AtomicU64]>,
    at: usize,
}

/// The end that empties.
#[derive(Debug)]
pub struct Emptier {
    slots: Arc<[AtomicU64]>,
    at: usize,
}

/// A ring for at least `words`, of 63 bits each.
pub fn ring(words: usize) -> (Filler, Emptier) {
    let slots = (0..words.max(1).next_power_of_two()).map(|_| AtomicU64::new(0)).collect::<Arc<[_]>>();
    (Filler { slots: Arc::clone(&slots), at: 0 }, Emptier { slots, at: 0 })
}

/// How [`LAP`] is in the lap of slot number `at` of all laps: in the first one set.
#[inline]
fn lap(at: usize, slots: usize) -> u64 {
    if at & slots == 0 { LAP } else { 0 }
}

impl Filler {
    /// Fills the next slot, which is known to be empty.
    #[inline]
    pub fn push(&mut self, word: u64) {
        self.fill(self.at, word);
        self.at = self.at.wrapping_add(1);
    }

    /// Fills the next slots, which are known to be empty, the first one last: who sees that one sees
    /// all of them, and who waits for it does not take lines of the cache away that are being written.
    #[inline]
    pub fn push_all(&mut self, words: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        let (slots, end) = (self.slots.len(), self.at.wrapping_add(words.len()));
        let from = self.at & (slots - 1);
        let (before_the_end, behind) = match words.len() {
            words if words > slots - from => (slots, from + words - slots),
            words => (from + words, 0),
        };
        let mut words = words.rev();
        let mut fill = |places: &[AtomicU64], lap| {
            for (slot, word) in places.iter().rev().zip(words.by_ref()) {
                slot.store(word & !LAP | lap, Ordering::Release);
            }
        };
        fill(&self.slots[..behind], lap(end, slots));
        fill(&self.slots[from..before_the_end], lap(self.at, slots));
        self.at = end;
    }

    #[inline]
    fn fill(&self, at: usize, word: u64) {
        let slots = self.slots.len();
        self.slots[at & (slots - 1)].store(word & !LAP | lap(at, slots), Ordering::Release);
    }
}

impl Emptier {
    /// Takes the next word, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<u64> {
        let slots = self.slots.len();
        let word = self.slots[self.at & (slots - 1)].load(Ordering::Acquire);
        if word & LAP != lap(self.at, slots) {
            return None;
        }
        self.at = self.at.wrapping_add(1);
        Some(word & !LAP)
    }

    /// Takes the next words, as many as there are and `words` has room for; how many. Nothing else is
    /// done between two of them, so that a processor fetches several lines of the cache at once from the
    /// other, instead of waiting for each when it comes to it.
    #[inline]
    pub fn pop_all(&mut self, words: &mut [u64]) -> usize {
        let taken = self.pop_run(words);
        // The ring's end is not that of what has come.
        if taken > 0 && self.at & (self.slots.len() - 1) == 0 {
            return taken + self.pop_run(&mut words[taken..]);
        }
        taken
    }

    #[inline]
    fn pop_run(&mut self, words: &mut [u64]) -> usize {
        let slots = self.slots.len();
        let (lap, mut taken) = (lap(self.at, slots), 0);
        for (place, slot) in words.iter_mut().zip(&self.slots[self.at & (slots - 1)..]) {
            let word = slot.load(Ordering::Acquire);
            if word & LAP != lap {
                break;
            }
            *place = word & !LAP;
            taken += 1;
        }
        self.at = self.at.wrapping_add(taken);
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_holds_as_many_items_as_it_was_made_for_in_every_lap() {
        let (mut filler, mut emptier) = ring(3);
        for round in 0..5 {
            filler.push(10 * round);
            filler.push_all((1..4).map(|i| 10 * round + i).collect::<Vec<_>>().into_iter());
            for i in 0..4 {
                assert_eq!(emptier.pop(), Some(10 * round + i), "four slots for three");
            }
            assert_eq!(emptier.pop(), None);
        }
    }

    #[test]
    fn words_pass_the_ring_unchanged_wherever_it_ends() {
        let (mut filler, mut emptier) = ring(8);
        let (mut put, mut got) = (0, 0);
        for step in 0..200 {
            let most = 1 + step % 8;
            filler.push_all((put..put + most).collect::<Vec<_>>().into_iter());
            put += most;
            // Some of them, then what is left; there is room for more than have come.
            for room in [1 + step as usize % 5, 9] {
                let mut words = [0; 9];
                let taken = emptier.pop_all(&mut words[..room]);
                assert_eq!(taken as u64, (put - got).min(room as u64));
                assert!(words[..taken].iter().copied().eq(got..got + taken as u64), "{words:?}, {got}");
                got += taken as u64;
            }
        }
    }

    #[test]
    fn items_reach_another_thread_whole_and_in_order_and_come_back() {
        let ((mut there, mut arrives), (mut back, mut returns)) = (ring(8), ring(8));
        let items = if cfg!(miri) { 200 } else { 100_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut returned = 0;
                for i in 0..items {
                    while i - returned == 8 {
                        match returns.pop() {
                            Some(item) => assert_eq!(item, returned),
                            None => {
                                std::thread::yield_now();
                                continue;
                            }
                        }
                        returned += 1;
                    }
                    there.push(i);
                }
            });
            let (mut arrived, mut words) = (0, [0; 4]);
            while arrived < items {
                let taken = arrives.pop_all(&mut words);
                assert!(words[..taken].iter().copied().eq(arrived..arrived + taken as u64), "{words:?}");
                arrived += taken as u64;
                match taken {
                    0 => std::thread::yield_now(),
                    _ => back.push_all(words[..taken].iter().copied()),
                }
            }
        });
    }
}

/// Every order in which two threads' reads and writes may be seen:
/// `make loom`
#[cfg(all(test, loom))]
mod every_order {
    use std::sync::atomic::AtomicU64 as Count;

    use super::*;

    #[test]
    fn items_are_whole_and_in_order_and_none_is_lost_or_twice() {
        let orders = Arc::new(Count::new(0));
        let counted = Arc::clone(&orders);
        loom::model(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            // More pairs than there is room for, so that slots are used again as soon as a pair has
            // come back; no thread waits, as that would be endless.
            let ((mut there, mut arrives), (mut back, mut returns)) = (ring(2), ring(2));
            let other = loom::thread::spawn(move || {
                let mut arrived = 0;
                for _ in 0..3 {
                    let mut pair = [0; 2];
                    match arrives.pop_all(&mut pair) {
                        0 => {}
                        taken => {
                            assert_eq!((taken, pair), (2, [arrived, 10 + arrived]), "all or none is seen");
                            back.push(arrived);
                            arrived += 1;
                        }
                    }
                }
                (arrived, arrives)
            });
            let (mut pushed, mut returned) = (0, 0);
            for _ in 0..4 {
                if pushed == returned {
                    there.push_all([pushed, 10 + pushed].into_iter());
                    pushed += 1;
                }
                if let Some(word) = returns.pop() {
                    assert_eq!(word, returned);
                    returned += 1;
                }
            }
            let (arrived, mut arrives) = other.join().unwrap();
            assert!(returned <= arrived && arrived <= pushed);
            let rest = std::iter::from_fn(|| arrives.pop());
            assert!(rest.eq((arrived..pushed).flat_map(|i| [i, 10 + i])));
        });
        assert!(orders.load(Ordering::Relaxed) > 20, "loom has tried the orders");
    }
}
