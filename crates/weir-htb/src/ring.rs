//! A ring of words from one thread to another, without locks.
//!
//! As in FastForward (PPoPP'08) a slot tells by itself whether it is full, so that no index is shared
//! between the two and an item costs no line of the cache but its own. A slot has two words: what
//! fills it, which is never zero, and what comes with it.

use std::sync::Arc;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// What a slot holds; the first word is not zero.
pub(crate) type Item = [u64; 2];

#[derive(Debug)]
struct Slot {
    /// Zero while the slot is empty. Written last when it is filled and when it is emptied.
    full: AtomicU64,
    with: AtomicU64,
}

/// The end that fills.
#[derive(Debug)]
pub(crate) struct Filler {
    slots: Arc<[Slot]>,
    at: usize,
}

/// The end that empties.
#[derive(Debug)]
pub(crate) struct Emptier {
    slots: Arc<[Slot]>,
    at: usize,
}

/// A ring for at least `items`.
pub(crate) fn ring(items: usize) -> (Filler, Emptier) {
    let slot = |_| Slot { full: AtomicU64::new(0), with: AtomicU64::new(0) };
    let slots = (0..items.max(1).next_power_of_two()).map(slot).collect::<Arc<[_]>>();
    (Filler { slots: Arc::clone(&slots), at: 0 }, Emptier { slots, at: 0 })
}

impl Filler {
    /// Fills the next slot; whether it was empty. A zero in front would be no item, and is refused.
    #[inline]
    pub(crate) fn push(&mut self, [full, with]: Item) -> bool {
        let slot = &self.slots[self.at & (self.slots.len() - 1)];
        // What the other end read there, it had read before it emptied the slot.
        if full == 0 || slot.full.load(Ordering::Acquire) != 0 {
            return false;
        }
        slot.with.store(with, Ordering::Relaxed);
        slot.full.store(full, Ordering::Release);
        self.at = self.at.wrapping_add(1);
        true
    }
}

impl Emptier {
    /// Empties the next slot, if it is full.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Item> {
        let slot = &self.slots[self.at & (self.slots.len() - 1)];
        let full = slot.full.load(Ordering::Acquire);
        if full == 0 {
            return None;
        }
        let with = slot.with.load(Ordering::Relaxed);
        slot.full.store(0, Ordering::Release);
        self.at = self.at.wrapping_add(1);
        Some([full, with])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_full_with_as_many_items_as_it_holds() {
        let (mut filler, mut emptier) = ring(3);
        for round in 0..5 {
            for i in 1..=4 {
                assert!(filler.push([i, round]), "four slots for three");
            }
            assert!(!filler.push([9, 9]));
            for i in 1..=4 {
                assert_eq!(emptier.pop(), Some([i, round]));
            }
            assert_eq!(emptier.pop(), None);
        }
        assert!(!filler.push([0, 1]));
    }

    #[test]
    fn items_reach_another_thread_whole_and_in_order() {
        let (mut filler, mut emptier) = ring(8);
        let items = if cfg!(miri) { 200 } else { 100_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 1..=items {
                    while !filler.push([i, !i]) {
                        std::thread::yield_now();
                    }
                }
            });
            for i in 1..=items {
                let item = loop {
                    match emptier.pop() {
                        Some(item) => break item,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(item, [i, !i]);
            }
        });
    }
}

/// Every order in which two threads' reads and writes may be seen:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p weir-htb --lib every_order`
///
/// Loom lets no read move behind a later write of its thread. That a slot is emptied by a release,
/// after what came with it was read, is for processors that do.
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
            // One slot fewer than tries, so that slots are used again; nobody waits, as that would be
            // endless. The end that fills is here: loom remembers one access to a value, so that with
            // this end's look before each write it would miss what the other has read.
            let (mut filler, mut emptier) = ring(2);
            let other = loom::thread::spawn(move || {
                let popped = (0..3).filter_map(|_| emptier.pop()).collect::<Vec<_>>();
                (popped, emptier)
            });
            let mut pushed = 0;
            for _ in 0..3 {
                pushed += u64::from(filler.push([pushed + 1, 10 * (pushed + 1)]));
            }
            let (mut popped, mut emptier) = other.join().unwrap();
            popped.extend(std::iter::from_fn(|| emptier.pop()));
            assert!(popped.into_iter().eq((1..=pushed).map(|i| [i, 10 * i])));
        });
        assert!(orders.load(Ordering::Relaxed) > 100, "loom has tried the orders");
    }
}
