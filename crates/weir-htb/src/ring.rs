//! A ring of words from one thread to another, without locks and without a way back.
//!
//! As in FastForward (PPoPP'08) a slot tells by itself whether it is new, so that no index is shared: its
//! highest bit is the other way round in each lap. Nobody but the filling end writes,
//! and it never looks: a line of the cache goes one way only, and nobody waits for it.
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
pub(crate) struct Filler {
    slots: Arc<[AtomicU64]>,
    at: usize,
}

/// The end that empties.
#[derive(Debug)]
pub(crate) struct Emptier {
    slots: Arc<[AtomicU64]>,
    at: usize,
}

/// A ring for at least `words`, of 63 bits each.
pub(crate) fn ring(words: usize) -> (Filler, Emptier) {
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
    pub(crate) fn push(&mut self, word: u64) {
        self.fill(self.at, word);
        self.at = self.at.wrapping_add(1);
    }

    /// Fills the next slots, which are known to be empty, the first one last: who sees that one sees
    /// all of them, and who waits for it does not take lines of the cache away that are being written.
    #[inline]
    pub(crate) fn push_all(&mut self, words: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        let end = self.at.wrapping_add(words.len());
        for (from_end, word) in (1..).zip(words.rev()) {
            self.fill(end.wrapping_sub(from_end), word);
        }
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
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let slots = self.slots.len();
        let word = self.slots[self.at & (slots - 1)].load(Ordering::Acquire);
        if word & LAP != lap(self.at, slots) {
            return None;
        }
        self.at = self.at.wrapping_add(1);
        Some(word & !LAP)
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
            for i in 0..items {
                let item = loop {
                    match arrives.pop() {
                        Some(item) => break item,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(item, i);
                // Four at once.
                if i % 4 == 3 {
                    back.push_all((i - 3..i + 1).collect::<Vec<_>>().into_iter());
                }
            }
        });
    }
}

/// Every order in which two threads' reads and writes may be seen:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p weir-htb --lib every_order`
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
            // More pairs than there is room for, so that slots are used again, as soon as a pair has come
            // back; nobody waits, as that would be endless.
            let ((mut there, mut arrives), (mut back, mut returns)) = (ring(2), ring(2));
            let other = loom::thread::spawn(move || {
                let mut arrived = 0;
                for _ in 0..3 {
                    if let Some(first) = arrives.pop() {
                        let second = arrives.pop();
                        assert_eq!((first, second), (arrived, Some(10 + arrived)), "all or none is seen");
                        back.push(arrived);
                        arrived += 1;
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
